"""Trees made of archives whose entries have been judged: into a directory that nobody else can reach. Blocking."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from stokerd.checkpoints.archive_plan import Placed, TreePlan
from stokerd.checkpoints.errors import Stopped
from stokerd.checkpoints.tarring import CHARACTER, DIRECTORY, FIFO, FILE
from stokerd.checkpoints.trees import DIRECTORY as OPEN_DIRECTORY
from stokerd.checkpoints.trees import Stop, opened
from stokerd.checkpoints.untarring import TarReader

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPAQUE = "trusted.overlay.opaque"
_HOLE = 64 << 10


def unpack(reader: TarReader, plan: TreePlan, target: str, stop: Stop) -> None:
    """Make all entries of the archive in the empty directory *target*, as overlay keeps them.

    OSError when a file system fails, ArchiveRefused for what may not be, Stopped when *stop* says so.
    """
    root = opened(target)
    try:
        Unpacker(root, reader, plan, stop).run()
    finally:
        os.close(root)


class Unpacker:
    """One archive on its way to the disk."""

    def __init__(self, root: int, reader: TarReader, plan: TreePlan, stop: Stop) -> None:
        self._root, self._reader, self._plan, self._stop = root, reader, plan, stop
        self._at: bytes = b""
        self._here = -1
        self._times: list[tuple[bytes, int]] = []

    def run(self) -> None:
        try:
            for member in self._reader.members():
                if self._stop():
                    raise Stopped("the unpacking was told to stop")
                self._make(self._plan.place(member))
            for path, when in reversed(self._times):
                os.utime(self._directory(path), ns=(when, when))
        finally:
            if self._here >= 0:
                os.close(self._here)

    def _directory(self, path: bytes) -> int:
        """Return the open directory *path*. Each step was made by us, and is opened as a directory or not at all."""
        if self._here >= 0 and path == self._at:
            return self._here
        here = os.open(b".", OPEN_DIRECTORY, dir_fd=self._root)
        for step in filter(None, path.split(b"/")):
            try:
                below = os.open(step, OPEN_DIRECTORY, dir_fd=here)
            finally:
                os.close(here)
            here = below
        if self._here >= 0:
            os.close(self._here)
        self._here, self._at = here, path
        return here

    def _make(self, placed: Placed) -> None:
        if placed.action == "opaque":
            os.setxattr(self._directory(placed.path), _OPAQUE, b"y")
            return
        head, _, name = placed.path.rpartition(b"/")
        here = self._directory(head)
        if placed.action == "whiteout":
            os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=here)
            os.utime(name, ns=(placed.member.mtime, placed.member.mtime), dir_fd=here, follow_symlinks=False)
        elif placed.action == "link":
            os.link(placed.link, name, src_dir_fd=self._root, dst_dir_fd=here, follow_symlinks=False)
        elif placed.member.type == FILE:
            self._file(placed, name, here)
        elif placed.member.type == DIRECTORY:
            os.mkdir(name, 0o700, dir_fd=here)
            self._dress(placed, self._directory(placed.path))
            self._times.append((placed.path, placed.member.mtime))
        else:
            self._other(placed, name, here)

    def _file(self, placed: Placed, name: bytes, here: int) -> None:
        target = os.open(name, _NEW, 0o600, dir_fd=here)
        try:
            for piece in self._reader.data():
                if self._stop():
                    raise Stopped("the unpacking was told to stop")
                _write(target, piece)
            os.ftruncate(target, placed.member.size)
            self._dress(placed, target)
            os.utime(target, ns=(placed.member.mtime, placed.member.mtime))
        finally:
            os.close(target)

    def _other(self, placed: Placed, name: bytes, here: int) -> None:
        member = placed.member
        if member.type == FIFO:
            os.mkfifo(name, 0o600, dir_fd=here)
        elif member.type == CHARACTER:
            os.mknod(name, stat.S_IFCHR | 0o600, os.makedev(*member.device), dir_fd=here)
        else:
            os.symlink(member.link, name, dir_fd=here)
        os.chown(name, member.uid, member.gid, dir_fd=here, follow_symlinks=False)
        if member.type in {FIFO, CHARACTER}:
            os.chmod(name, member.mode, dir_fd=here)
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        try:
            for attribute, value in member.xattrs.items():
                os.setxattr(f"/proc/self/fd/{handle}", attribute, value)
        finally:
            os.close(handle)
        os.utime(name, ns=(member.mtime, member.mtime), dir_fd=here, follow_symlinks=False)

    @staticmethod
    def _dress(placed: Placed, fd: int) -> None:
        """Owner before mode and capabilities: a change of owner takes set-id bits and capabilities away."""
        os.fchown(fd, placed.member.uid, placed.member.gid)
        os.fchmod(fd, placed.member.mode)
        for name, value in placed.member.xattrs.items():
            os.setxattr(fd, name, value)


def _write(fd: int, piece: bytes) -> None:
    """Write it, and leave holes where there are only zeros."""
    for part in _parts(piece):
        if any(part):
            while part:
                part = part[os.write(fd, part) :]
        else:
            os.lseek(fd, len(part), os.SEEK_CUR)


def _parts(piece: bytes) -> Iterator[bytes]:
    for start in range(0, len(piece), _HOLE):
        yield piece[start : start + _HOLE]
