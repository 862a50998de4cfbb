"""The disk budget at work: what running pulls were promised, what layers grew to, and the checks against the disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import structlog

from stokerd.errors import JournalError, RuntimeFailure
from stokerd.images.manifests import Compression, Manifest, compression_of
from stokerd.images.space import (
    DEFAULT_RATIOS,
    FileSystem,
    Margins,
    Need,
    Presence,
    Ratio,
    check_fits,
    check_floor,
    missing_need,
    sum_needs,
)
from stokerd.journal.images import ImageJournal
from stokerd.journal.rows import LayerRow, RatioRow
from stokerd.runtime.types import Usage

_log = structlog.get_logger("images")
ReadFileSystem = Callable[[], Awaitable[FileSystem]]


class DiskUnreadable(RuntimeFailure):
    """The file system under containerd's root cannot be asked: the process through which it is seen may be gone."""

    reason = "DiskUnreadable"
    retryable = True


class DiskBudget:
    """Shared by all pulls of the node. Raises DiskTooSmall and DiskUnreadable."""

    def __init__(self, margins: Margins, journal: ImageJournal, read: ReadFileSystem) -> None:
        self.margins = margins
        self._read = read
        self._journal = journal
        self._ratios: dict[Compression, Ratio] = dict(DEFAULT_RATIOS)
        self._promised: dict[str, Need] = {}

    def apply(self, margins: Margins) -> None:
        """Let new margins hold, for pulls that run, too."""
        self.margins = margins

    async def load(self) -> None:
        """Take up what earlier runs learned."""
        for row in await self._journal.ratios():
            for compression in DEFAULT_RATIOS:
                if row.compression == compression:
                    self._ratios[compression] = Ratio(row.compressed, row.unpacked, row.inodes)

    async def read(self) -> FileSystem:
        """Return the state of the file system under containerd's root."""
        try:
            return await self._read()
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            raise DiskUnreadable(
                f"containerd's file system{where} cannot be asked: {error.strerror or error}", call="statvfs"
            ) from error

    @property
    def ratios(self) -> Mapping[Compression, Ratio]:
        return self._ratios

    @property
    def promised(self) -> Need:
        """What all running pulls will still write."""
        return sum_needs(self._promised.values())

    async def known(self, manifest: Manifest) -> dict[str, Usage]:
        """Return exact unpacked sizes of those layers that were unpacked here before.

        A journal that cannot be read costs their exactness, not the pull.
        """
        try:
            rows = await self._journal.layers(layer.digest for layer in manifest.layers)
        except JournalError as error:
            _log.warning("sizes of layers are estimated: the journal cannot be read", why=error.message)
            return {}
        return {digest: Usage(row.unpacked, row.inodes) for digest, row in rows.items()}

    def need(self, manifest: Manifest, presence: Presence, known: Mapping[str, Usage]) -> Need:
        return missing_need(manifest, presence, self._ratios, known)

    async def admit(self, key: str, name: str, need: Need) -> None:
        """Promise *need* to the pull *key*, or refuse it."""
        disk = await self.read()
        # Nothing may come between the sum and the promise: a pull beside this one would not see it.
        others = sum_needs(need for other, need in self._promised.items() if other != key)
        check_fits(name, need, disk, self.margins, others)
        self._promised[key] = need

    async def watch(self, key: str, name: str, need: Need | None) -> None:
        """Note what pull *key* still needs, and stop it when the disk runs full under it."""
        if need is not None:
            self._promised[key] = need
        check_floor(name, await self.read(), self.margins)

    def release(self, key: str) -> None:
        self._promised.pop(key, None)

    async def learn(self, manifest: Manifest, grown: Mapping[str, Usage]) -> None:
        """Remember what layers (by digest) grew to when they were unpacked."""
        rows = []
        for layer in manifest.layers:
            usage = grown.get(layer.digest)
            if usage is None or layer.size <= 0:
                continue
            compression = compression_of(layer.media_type)
            self._ratios[compression] = self._ratios[compression].learned(layer.size, usage)
            rows.append(LayerRow(layer.digest, compression, layer.size, usage.bytes, usage.inodes))
        if rows:
            ratios = [
                RatioRow(compression, ratio.compressed_bytes, ratio.unpacked_bytes, ratio.inodes)
                for compression, ratio in self._ratios.items()
            ]
            await self._journal.learn(rows, ratios)
