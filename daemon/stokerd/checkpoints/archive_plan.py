"""What of an archive may come onto the node: decided for each entry, before anything of it is written. Pure.

An archive is hostile until the opposite is shown. What is allowed is what a root filesystem, or a directory of CRIU's
images, is made of; everything else is refused with its name.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import msgspec

from stokerd.checkpoints.errors import ArchiveRefused
from stokerd.checkpoints.manifest import IDENTITY, Manifest, Source
from stokerd.checkpoints.tarring import CHARACTER, DIRECTORY, FIFO, FILE, LINK, SYMLINK, Member

FORMAT = 1
CONTENTS = "stoker.json"
IMAGES = "checkpoint/"
ROOT = "rootfs-diff.tar"
SHM = "devshm-checkpoint.tar"
SPEC = "spec.dump"
FILES = "stoker-files.json"
FOR_OTHERS = ("config.dump", "status.dump", "status")
"""What checkpointctl looks at. It is written, and not read."""

_IMAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,200}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_WHITEOUT, _OPAQUE, _MARK = b".wh.", b".wh..wh..opq", b".wh..wh."
_LONGEST_PATH, _LONGEST_NAME, _DEEPEST = 4096, 255, 512
_MOST_ENTRIES = 2_000_000
_MOST_NAMES = 256 << 20
"""Bytes of all paths together: they are remembered until the end."""
_MOST_PARTS = 100_000
_SMALL = 16 << 20
_LONGEST_TEXT = 512
_LONGEST_FEATURES = 16 << 10
_MOST_LABELS = 64
_LONGEST_ATTRIBUTE = 64 << 10
_NO_ID = 2**32 - 1
_ATTRIBUTES = re.compile(r"user\.(?!overlay\.).+|security\.capability|system\.posix_acl_(?:access|default)")
_DEVICES = frozenset({(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)})
"""null, zero, full, random, urandom, tty, console, ptmx: what every container has anyhow."""
_TYPES = frozenset({FILE, DIRECTORY, SYMLINK, LINK, FIFO, CHARACTER})


class Piece(msgspec.Struct, frozen=True):
    """One file of the archive; ``size`` is that of what is in it, uncompressed."""

    size: int
    digest: str


class Contents(msgspec.Struct, frozen=True):
    """The first entry of an archive: what else is in it, and the manifest that it was made from."""

    format: int
    manifest: Manifest
    pieces: dict[str, Piece]

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.pieces.values())

    @property
    def memory(self) -> dict[str, Piece]:
        """CRIU's images, by their names."""
        return {name.removeprefix(IMAGES): each for name, each in self.pieces.items() if name.startswith(IMAGES)}


class Limits(msgspec.Struct, frozen=True):
    """How much may come: ``bytes`` and ``entries`` in all."""

    bytes: int
    entries: int = _MOST_ENTRIES


def come_from_elsewhere(source: Source) -> Source:
    """Return what is known of the container, but for its place: here another one may have these ids."""
    return msgspec.structs.replace(source, container_id="", pod_id="")


def read_contents(body: bytes, limits: Limits) -> Contents:
    """Read the first entry; ArchiveRefused says what is wrong with it."""
    try:
        found = msgspec.json.decode(body, type=Contents)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ArchiveRefused(f"it cannot be read: {str(error)[:200]}", CONTENTS) from None
    if found.format != FORMAT:
        raise ArchiveRefused(
            f"version {found.format} of the format is not known", CONTENTS, hint="it was made by a newer stokerd"
        )
    if len(found.pieces) > _MOST_PARTS:
        raise ArchiveRefused(f"it names {len(found.pieces)} parts, {_MOST_PARTS} are allowed", CONTENTS)
    for name, piece in found.pieces.items():
        _check_piece(name, piece)
    if ROOT not in found.pieces or SPEC not in found.pieces or not found.memory:
        raise ArchiveRefused("memory, root filesystem or runtime spec are missing", CONTENTS)
    if found.bytes > limits.bytes:
        raise ArchiveRefused(
            f"it says that it has {found.bytes} bytes, {limits.bytes} are allowed here",
            CONTENTS,
            hint="free space for the checkpoints",
        )
    _check_manifest(found.manifest)
    return found


def _check_piece(name: str, piece: Piece) -> None:
    image = name.removeprefix(IMAGES) if name.startswith(IMAGES) else ""
    known = name in {ROOT, SHM, SPEC, FILES, *FOR_OTHERS} or bool(image and _IMAGE_NAME.fullmatch(image))
    if not known:
        raise ArchiveRefused("it is no part of a checkpoint", name)
    if piece.size < 0 or not _DIGEST.fullmatch(piece.digest):
        raise ArchiveRefused("its size or its digest is none", name)
    if name in {SPEC, FILES, *FOR_OTHERS} and piece.size > _SMALL:
        raise ArchiveRefused(f"it has {piece.size} bytes, {_SMALL} are allowed", name)


def _check_manifest(manifest: Manifest) -> None:
    source, root = manifest.source, manifest.root
    node = manifest.node
    texts = [*map(str, msgspec.structs.astuple(source)), node.kernel, node.architecture]
    texts += [node.criu, node.runc, node.containerd, manifest.tcp]
    long = any(len(each) > _LONGEST_TEXT for each in texts) or len(node.cpu_features) > _LONGEST_FEATURES
    if long or not all(each.isprintable() for each in (*texts, node.cpu_features)):
        raise ArchiveRefused("a name in its manifest is too long, or has characters that no name has", CONTENTS)
    if not _DIGEST.fullmatch(source.image_digest) or not _DIGEST.fullmatch(root.parent):
        raise ArchiveRefused("it does not say by digest which image it stands on", CONTENTS)
    if not IDENTITY.fullmatch(manifest.id):
        raise ArchiveRefused("its id is none", CONTENTS)


def labels_of(manifest: Manifest, ours: str) -> dict[str, str]:
    """Return the labels that people gave it; those that begin with *ours* are for the daemon alone."""
    kept = {
        name: value
        for name, value in manifest.labels.items()
        if not name.startswith(ours) and name.isprintable() and len(name) <= _LONGEST_TEXT and len(value) <= 1024
    }
    return dict(list(kept.items())[:_MOST_LABELS])


def name_of(manifest: Manifest, identity: str) -> str:
    """Return the name for people, when it is one; else the new id."""
    name = manifest.name
    good = name.isprintable() and 0 < len(name) <= 253 and name == name.strip() and name != manifest.id
    return name if good else identity


# ------------------------------------------------------------------------------------------------ entries


class Placed(msgspec.Struct, frozen=True):
    """What is to be made of an entry: ``path`` is below the target, every directory of it was made before.

    ``opaque`` marks the directory ``path``; ``whiteout`` hides what is beneath under that name; ``link`` is the path of
    the first name of the same file.
    """

    action: Literal["make", "opaque", "whiteout", "link"]
    path: bytes
    member: Member
    link: bytes = b""


class TreePlan:
    """Decides over the entries of one tree, in their order. What it knows is what it has let through so far."""

    def __init__(self, limits: Limits, *, layers: bool = True) -> None:
        """Without *layers*, there is nothing beneath that could be hidden."""
        self._limits, self._layers = limits, layers
        self._kinds: dict[bytes, bytes] = {b"": DIRECTORY}
        self.taken = self.entries = self._names = 0

    def place(self, member: Member) -> Placed:
        """Return what is to be made of *member*; ArchiveRefused when it may not be."""
        self.entries += 1
        if self.entries > self._limits.entries:
            raise self._no(member, f"more than {self._limits.entries} entries")
        if member.type not in _TYPES:
            raise self._no(member, "a device that no container needs to bring along")
        path = self._path(member)
        self._names += len(path)
        if self._names > _MOST_NAMES:
            raise self._no(member, "the names of the archive are too long together")
        head, _, name = path.rpartition(b"/")
        if self._kinds.get(head) != DIRECTORY:
            raise self._no(member, "its directory is not in the archive before it, or is none")
        if name.startswith(_WHITEOUT):
            return self._hidden(member, head, name)
        if path in self._kinds:
            raise self._no(member, "it is there twice")
        self._check(member)
        self._kinds[path] = member.type
        if member.type == LINK:
            target = self._normal(member, member.link)
            if self._kinds.get(target) not in {FILE, FIFO, SYMLINK, CHARACTER}:
                raise self._no(member, "it is linked to what is no file of the archive before it")
            self._kinds[path] = self._kinds[target]
            return Placed("link", path, member, target)
        return Placed("make", path, member)

    def _path(self, member: Member) -> bytes:
        name = member.name.removesuffix(b"/") if member.type == DIRECTORY else member.name
        return self._normal(member, name)

    def _normal(self, member: Member, name: bytes) -> bytes:
        steps = name.split(b"/")
        if not name or len(name) > _LONGEST_PATH or len(steps) > _DEEPEST or b"\0" in name:
            raise self._no(member, "its name is empty or too long")
        if any(step in {b"", b".", b".."} or len(step) > _LONGEST_NAME for step in steps):
            raise self._no(member, "its name leads out of the tree, or is no plain path")
        return name

    def _hidden(self, member: Member, head: bytes, name: bytes) -> Placed:
        """A name that begins with ``.wh.`` is no file: it says what is not there any more."""
        hides = name.removeprefix(_WHITEOUT)
        if not self._layers or member.type != FILE or member.size or member.xattrs:
            raise self._no(member, "a mark of layers where there can be none")
        if name == _OPAQUE:
            return Placed("opaque", head, member)
        path = b"/".join(filter(None, (head, hides)))
        if name.startswith(_MARK) or hides in {b"", b".", b".."} or path in self._kinds:
            raise self._no(member, "a mark of layers that means nothing")
        self._kinds[path] = _WHITEOUT
        return Placed("whiteout", path, member)

    def _check(self, member: Member) -> None:
        if member.mode & ~0o7777 or not (0 <= member.uid < _NO_ID and 0 <= member.gid < _NO_ID):
            raise self._no(member, "its mode or its owner is none")
        if member.type == CHARACTER and member.device not in _DEVICES:
            raise self._no(member, "a device that no container needs to bring along")
        if member.type == SYMLINK and (not member.link or len(member.link) > _LONGEST_PATH or b"\0" in member.link):
            raise self._no(member, "it leads nowhere")
        for name, value in member.xattrs.items():
            if not _ATTRIBUTES.fullmatch(name) or len(name) > _LONGEST_NAME or len(value) > _LONGEST_ATTRIBUTE:
                raise self._no(member, f"an attribute {name[:80]!r} that no file brings along")
        self.taken += member.size
        if self.taken > self._limits.bytes:
            raise self._no(member, f"with it there are more than {self._limits.bytes} bytes")

    @staticmethod
    def _no(member: Member, what: str) -> ArchiveRefused:
        return ArchiveRefused(what, member.name.decode("utf-8", "replace"))


class OuterPlan:
    """Decides over the files of the archive itself: each that was named comes once, with the size that was said."""

    def __init__(self, contents: Contents) -> None:
        self._missing = dict(contents.pieces)

    def expect(self, member: Member) -> tuple[str, Piece]:
        """Return which part *member* is; ArchiveRefused when it is none, or is there twice."""
        name = member.name.decode("utf-8", "replace")
        if member.type != FILE or member.xattrs or stat.S_IFMT(member.mode):
            raise ArchiveRefused("it is no plain file", name)
        piece = self._missing.pop(name, None)
        if piece is None:
            raise ArchiveRefused("it was not announced, or is there twice", name)
        if piece.size != member.size:
            raise ArchiveRefused(f"it has {member.size} bytes, {piece.size} were announced", name)
        return name, piece

    def check_complete(self) -> None:
        """ArchiveRefused when something that was announced did not come."""
        if self._missing:
            raise ArchiveRefused("it was announced, and did not come", next(iter(self._missing)))


# ------------------------------------------------------------------------------------------------ for checkpointctl


def documents(manifest: Manifest, created: datetime) -> Mapping[str, bytes]:
    """Return what `checkpointctl` reads beside the images, by the names that it looks for."""
    source = manifest.source
    config = {
        "id": source.container_id,
        "name": source.container_name,
        "rootfsImage": source.image,
        "rootfsImageRef": source.image_digest,
        "rootfsImageName": source.image,
        "runtime": source.runtime,
        "createdTime": created.isoformat(),
        "checkpointedTime": created.isoformat(),
        "restored": False,
    }
    status = {
        "CreatedAt": int(created.timestamp()) * 1_000_000_000,
        "StartedAt": int(created.timestamp()) * 1_000_000_000,
        "FinishedAt": 0,
        "ExitCode": 0,
        "Pid": 0,
        "Reason": "",
        "Message": "",
    }
    body = msgspec.json.encode(status)
    return {"config.dump": msgspec.json.encode(config), "status.dump": body, "status": body}
