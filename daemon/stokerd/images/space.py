"""Disk budget: what an image will take on containerd's file system, and whether that fits. Pure.

While a layer is pulled, its compressed blob and its unpacked snapshot both stay on the disk (containerd keeps blobs
unless told otherwise), so the need of an image is the sum of both over the layers that are missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stokerd.errors import StokerError
from stokerd.images.manifests import Compression, Manifest, compression_of
from stokerd.runtime.types import Usage

_MIB = 1 << 20
SAMPLE_WEIGHT_LIMIT = 8 << 30
"""Compressed bytes after which older samples fade: the learned ratio follows what the node pulls these days."""


class DiskTooSmall(StokerError):
    """The image does not fit, or free space fell under the floor while it was pulled."""

    reason = "DiskTooSmall"


class FileSystem(msgspec.Struct, frozen=True):
    """State of the file system that holds containerd's root: what is free is what ``df`` calls available.

    ``total_inodes`` is 0 where the file system makes inodes as it needs them (btrfs, some xfs).
    """

    path: str
    total_bytes: int
    free_bytes: int
    total_inodes: int
    free_inodes: int


class Margins(msgspec.Struct, frozen=True):
    """What must stay free: ``reserve`` when a pull is planned, ``floor`` at every moment while one runs."""

    reserve_bytes: int
    reserve_inodes: int
    floor_bytes: int
    floor_inodes: int


class Ratio(msgspec.Struct, frozen=True):
    """How layers of one compression grow: sums over what was seen, so that a big layer counts for more."""

    compressed_bytes: int
    unpacked_bytes: int
    inodes: int

    def unpacked(self, compressed: int) -> Usage:
        """Estimate bytes and inodes of *compressed* bytes once unpacked."""
        base = max(self.compressed_bytes, 1)
        return Usage(-(-compressed * self.unpacked_bytes // base), -(-compressed * self.inodes // base))

    def learned(self, compressed: int, unpacked: Usage) -> Ratio:
        """Return the ratio with one more layer counted in."""
        kept = self
        if self.compressed_bytes > SAMPLE_WEIGHT_LIMIT:
            kept = Ratio(self.compressed_bytes // 2, self.unpacked_bytes // 2, self.inodes // 2)
        return Ratio(
            kept.compressed_bytes + compressed,
            kept.unpacked_bytes + unpacked.bytes,
            kept.inodes + unpacked.inodes,
        )


DEFAULT_RATIOS: Mapping[Compression, Ratio] = {
    "gzip": Ratio(64 * _MIB, 128 * _MIB, 3200),
    "zstd": Ratio(64 * _MIB, 144 * _MIB, 3600),
    "none": Ratio(64 * _MIB, 64 * _MIB, 1600),
    "unknown": Ratio(64 * _MIB, 144 * _MIB, 3600),
}
"""Before a node has seen images of its own: twice the compressed size, and 25 inodes a MiB unpacked. On the low side,
since an image that is refused wrongly is worse than one that the floor stops: the latter is cleaned up after.
"""


class Need(msgspec.Struct, frozen=True):
    """What is still to be written, in bytes and inodes."""

    download_bytes: int = 0
    unpack_bytes: int = 0
    unpack_inodes: int = 0

    @property
    def bytes(self) -> int:
        return self.download_bytes + self.unpack_bytes

    def __add__(self, other: Need) -> Need:
        return Need(
            self.download_bytes + other.download_bytes,
            self.unpack_bytes + other.unpack_bytes,
            self.unpack_inodes + other.unpack_inodes,
        )


class Presence(msgspec.Struct, frozen=True):
    """What of an image is on the node.

    ``blobs``: digests in the content store; ``partial``: bytes of unfinished ingests by digest; ``unpacked``: how many
    layers, lowest first, have their committed snapshot; ``growing``: bytes so far of the one after those.
    """

    blobs: frozenset[str] = frozenset()
    partial: Mapping[str, int] = msgspec.field(default_factory=dict)
    unpacked: int = 0
    growing: int = 0


def missing_need(
    manifest: Manifest,
    presence: Presence,
    ratios: Mapping[Compression, Ratio],
    known: Mapping[str, Usage] | None = None,
) -> Need:
    """Return what pulling and unpacking the missing part of *manifest* will write.

    A layer whose snapshot is there is neither fetched nor unpacked again. ``known`` has exact unpacked sizes by layer
    digest, from earlier pulls; other layers are estimated.
    """
    return union_need([(manifest, presence)], ratios, known)


def union_need(
    images: Sequence[tuple[Manifest, Presence]],
    ratios: Mapping[Compression, Ratio],
    known: Mapping[str, Usage] | None = None,
) -> Need:
    """Return the need of several images together: what they share is counted once.

    A blob is shared by all layers of its digest, a snapshot by those that lie on the same layers as well.
    """
    download = unpack_bytes = unpack_inodes = 0
    fetched: set[str] = set()
    stacks: dict[tuple[int, str], int] = {}  # a number for each layer on what lies beneath it
    unpacked: set[int] = set()
    for manifest, presence in images:
        stack = -1
        for position, layer in enumerate(manifest.layers):
            stack = stacks.setdefault((stack, layer.digest), len(stacks))
            if position < presence.unpacked:
                continue
            if layer.digest not in presence.blobs and layer.digest not in fetched:
                download += max(layer.size - presence.partial.get(layer.digest, 0), 0)
                fetched.add(layer.digest)
            if stack in unpacked:
                continue
            unpacked.add(stack)
            usage = (known or {}).get(layer.digest) or ratios[compression_of(layer.media_type)].unpacked(layer.size)
            written = presence.growing if position == presence.unpacked else 0
            unpack_bytes += max(usage.bytes - written, 0)
            unpack_inodes += usage.inodes
    return Need(download, unpack_bytes, unpack_inodes)


def fits(need: Need, filesystem: FileSystem, margins: Margins, promised: Need | None = None) -> bool:
    """Say whether *need* fits beside what running pulls will still write. What needs nothing always does."""
    free, free_inodes = _available(filesystem, margins, promised or Need())
    return _within(need.bytes, free) and _within(need.unpack_inodes, free_inodes)


def check_fits(name: str, need: Need, filesystem: FileSystem, margins: Margins, promised: Need | None = None) -> None:
    """Raise DiskTooSmall, with the numbers, when *need* does not fit."""
    others = promised or Need()
    free, free_inodes = _available(filesystem, margins, others)
    if not _within(need.bytes, free):
        raise DiskTooSmall(
            f"{name} needs {human(need.bytes)} ({human(need.download_bytes)} to download, about "
            f"{human(need.unpack_bytes)} unpacked), but {filesystem.path} has {human(filesystem.free_bytes)} free, of "
            f"which {_kept(human(others.bytes) if others.bytes else '', human(margins.reserve_bytes))}: "
            f"needed {need.bytes} bytes, available {int(max(free, 0))} bytes",
            hint="remove images (stoker image ls, stoker image rm), or make the file system larger",
        )
    if not _within(need.unpack_inodes, free_inodes):
        raise DiskTooSmall(
            f"{name} needs about {need.unpack_inodes} inodes, but {filesystem.path} has {filesystem.free_inodes} free, "
            f"of which {_kept(str(others.unpack_inodes or ''), str(margins.reserve_inodes))}: "
            f"needed {need.unpack_inodes} inodes, available {int(max(free_inodes, 0))} inodes",
            hint="the file system has too many small files for its size; make it anew with more inodes (mkfs -N)",
        )


def _available(filesystem: FileSystem, margins: Margins, others: Need) -> tuple[float, float]:
    """Return the bytes and inodes that a new pull may take; inodes are endless where they are made as needed."""
    inodes = filesystem.free_inodes - others.unpack_inodes - margins.reserve_inodes
    bytes_left = filesystem.free_bytes - others.bytes - margins.reserve_bytes
    return bytes_left, inodes if filesystem.total_inodes else math.inf


def _within(needed: int, available: float) -> bool:
    return needed == 0 or needed <= available


def _kept(promised: str, reserve: str) -> str:
    others = f"{promised} are promised to pulls that run and " if promised else ""
    return f"{others}{reserve} are kept in reserve"


def check_floor(name: str, filesystem: FileSystem, margins: Margins) -> None:
    """Raise DiskTooSmall when a running pull has to stop because the disk is nearly full."""
    if filesystem.free_bytes < margins.floor_bytes:
        raise DiskTooSmall(
            f"stopped pulling {name}: {filesystem.path} has only {human(filesystem.free_bytes)} "
            f"({filesystem.free_bytes} bytes) free, under the floor of {human(margins.floor_bytes)} "
            f"({margins.floor_bytes} bytes)",
            hint="something else fills this file system; free space on it",
        )
    if filesystem.total_inodes and filesystem.free_inodes < margins.floor_inodes:
        raise DiskTooSmall(
            f"stopped pulling {name}: {filesystem.path} has only {filesystem.free_inodes} inodes free, under the "
            f"floor of {margins.floor_inodes}",
            hint="something else fills this file system with small files",
        )


def sum_needs(needs: Iterable[Need]) -> Need:
    """Return all *needs* together."""
    total = Need()
    for need in needs:
        total += need
    return total


def human(size: int) -> str:
    """Return bytes for people: ``1.5 GiB``."""
    if abs(size) < 1024:
        return f"{size} B"
    value = size / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if abs(value) < 1023.95:  # what would be rounded to 1024.0 is one of the next unit
            return f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
