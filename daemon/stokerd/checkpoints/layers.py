"""An upper directory packed as an OCI layer. Blocking; runs in a thread.

Whiteouts become ``.wh.`` files and opaque directories get ``.wh..wh..opq``, as the OCI image specification has it.
Sockets are left out, since no archive can hold them. Files of the container's own whose names begin with ``.wh.`` would
delete their siblings wherever the layer is unpacked: they are refused by name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stokerd.checkpoints.errors import OverlayUnsupported, TreeUnsupported
from stokerd.checkpoints.merging import walk_merged
from stokerd.checkpoints.overlay import Marks
from stokerd.checkpoints.tarring import (
    DIRECTORY,
    END,
    FIFO,
    FILE,
    LINK,
    SYMLINK,
    Member,
    device_type,
    header,
    padding,
)
from stokerd.checkpoints.trees import Entry, Stop, never, opened, permissions, walk

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
_STEP = 1 << 20

Write = Callable[[bytes], object]


@dataclass(slots=True)
class Packed:
    """What was packed; ``diff_id`` is the digest of the uncompressed archive, ``skipped`` names sockets left out."""

    diff_id: str = ""
    size: int = 0
    entries: int = 0
    skipped: list[str] = field(default_factory=list)


def pack_layer(upper: str, write: Write, stop: Stop = never, lowers: Sequence[str] = ()) -> Packed:
    """Hand the layer that *upper* makes over its parents to *write*, piece by piece; with *lowers*, the topmost first,
    the one layer that they make together.

    OSError when a file cannot be read; TreeUnsupported for what a layer cannot say; Stopped when *stop* says so.
    """
    packer = _Packer(write)
    roots: list[int] = []
    try:
        for each in (upper, *lowers):
            roots.append(opened(each))
        packer.mark_root(roots[0])
        for entry in walk_merged(roots, stop, marks=True) if lowers else walk(roots[0], stop):
            if not entry.leaving:
                packer.add(entry)
    finally:
        for root in roots:
            os.close(root)
    return packer.finish()


@dataclass(slots=True)
class _Packer:
    write: Write
    packed: Packed = field(default_factory=Packed)
    links: dict[tuple[int, int], str] = field(default_factory=dict)
    hash: hashlib._Hash = field(default_factory=hashlib.sha256)

    def mark_root(self, root: int) -> None:
        if Entry("", "", -1, os.fstat(root), "directory", root).marks().opaque:
            self._member(_opaque(OPAQUE, os.fstat(root)))

    def add(self, entry: Entry) -> None:
        if entry.kind == "socket":
            self.packed.skipped.append(entry.path)
            return
        if entry.name.startswith(WHITEOUT):
            raise TreeUnsupported(
                "a file whose name begins with .wh. cannot be in a layer: it would delete its sibling",
                entry.path,
                hint="rename or remove it in the container",
            )
        if entry.kind == "whiteout":
            self._whiteout(entry)
            return
        marks = self._marks(entry)
        if marks.whiteout and entry.kind == "file" and not entry.stat.st_size:
            self._whiteout(entry)
            return
        if entry.kind == "directory":
            self._member(_member(entry, DIRECTORY, marks))
            if marks.opaque:
                self._member(_opaque(f"{entry.path}/{OPAQUE}", entry.stat))
        elif not self._link(entry):
            self._other(entry, marks)

    def finish(self) -> Packed:
        self._emit(END)
        self.packed.diff_id = f"sha256:{self.hash.hexdigest()}"
        return self.packed

    def _marks(self, entry: Entry) -> Marks:
        marks = entry.marks()
        if marks.unsupported:
            raise OverlayUnsupported(f"cannot be packed: {marks.unsupported}", entry.path)
        return marks

    def _link(self, entry: Entry) -> bool:
        if entry.stat.st_nlink < 2:
            return False
        first = self.links.setdefault((entry.stat.st_dev, entry.stat.st_ino), entry.path)
        if first == entry.path:
            return False
        about = entry.stat
        self._member(
            Member(
                os.fsencode(entry.path),
                LINK,
                permissions(about),
                about.st_uid,
                about.st_gid,
                mtime=about.st_mtime_ns,
                link=os.fsencode(first),
            )
        )
        return True

    def _other(self, entry: Entry, marks: Marks) -> None:
        if entry.kind == "file":
            self._member(_member(entry, FILE, marks, size=entry.stat.st_size))
            self._data(entry)
        elif entry.kind == "symlink":
            target = os.fsencode(os.readlink(entry.name, dir_fd=entry.parent))
            self._member(_member(entry, SYMLINK, marks, link=target))
        elif entry.kind == "fifo":
            self._member(_member(entry, FIFO, marks))
        else:
            numbers = (os.major(entry.stat.st_rdev), os.minor(entry.stat.st_rdev))
            self._member(_member(entry, device_type(entry.stat.st_mode), marks, device=numbers))

    def _whiteout(self, entry: Entry) -> None:
        parent, _, name = entry.path.rpartition("/")
        path = f"{parent}/{WHITEOUT}{name}" if parent else f"{WHITEOUT}{name}"
        self._member(Member(os.fsencode(path), FILE, 0, mtime=entry.stat.st_mtime_ns))

    def _data(self, entry: Entry) -> None:
        """Write exactly as many bytes as the header says, whatever becomes of the file meanwhile."""
        left = entry.stat.st_size
        with os.fdopen(entry.open(), "rb", buffering=0) as file:
            while left:
                data = file.read(min(_STEP, left))
                if not data:
                    raise TreeUnsupported("it became shorter while it was packed", entry.path)
                self._emit(data)
                left -= len(data)
        self._emit(padding(entry.stat.st_size))

    def _member(self, member: Member) -> None:
        self.packed.entries += 1
        self._emit(header(member))

    def _emit(self, data: bytes) -> None:
        if data:
            self.hash.update(data)
            self.packed.size += len(data)
            self.write(data)


def _member(
    entry: Entry,
    kind: bytes,
    marks: Marks,
    *,
    size: int = 0,
    link: bytes = b"",
    device: tuple[int, int] = (0, 0),
) -> Member:
    about = entry.stat
    return Member(
        os.fsencode(entry.path),
        kind,  # type: ignore[arg-type]
        permissions(about),
        about.st_uid,
        about.st_gid,
        size,
        about.st_mtime_ns,
        link,
        device,
        marks.own,
    )


def _opaque(path: str, about: os.stat_result) -> Member:
    return Member(os.fsencode(path), FILE, 0, mtime=about.st_mtime_ns)
