"""A directory tree copied as it is: the root filesystem of a checkpoint, from an upper directory to a snapshot's own.

Whiteouts, opaque directories and all attributes are copied as overlay keeps them; the copy means the same on the same
parents. Blocking; runs in a thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field

from stokerd.checkpoints.errors import OverlayUnsupported, Stopped
from stokerd.checkpoints.merging import walk_merged
from stokerd.checkpoints.overlay import marks_of
from stokerd.checkpoints.trees import (
    DIRECTORY,
    Entry,
    Skip,
    Stop,
    attributes_of,
    extents,
    is_sparse,
    never,
    nothing,
    opened,
    permissions,
    walk,
)

_FICLONE = 0x40049409
_STEP = 16 << 20
_NO_REFLINK = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS})
_NO_RANGE = frozenset({errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Copied:
    """What was copied: entries, and bytes of files without their holes."""

    entries: int = 0
    bytes: int = 0


def copy_tree(source: str, target: str, stop: Stop = never, lowers: Sequence[str] = (), skip: Skip = nothing) -> Copied:
    """Copy all that is in *source* into the empty directory *target*, and make that like *source* itself.

    With *lowers*, the topmost first, what is copied is what overlay makes of them all, without marks of its own, and
    nothing is skipped.

    OSError when a file system fails; TreeUnsupported for what a copy would change the meaning of; Stopped when *stop*
    says so.
    """
    copier = _Copier(stop, skip, merged=bool(lowers))
    origins: list[int] = []
    try:
        for each in (source, *lowers):
            origins.append(opened(each))
        copier.root = opened(target)
        try:
            copier.run(origins)
        finally:
            os.close(copier.root)
    finally:
        for origin in origins:
            os.close(origin)
    return copier.copied


@dataclass(slots=True)
class _Copier:
    stop: Stop
    skip: Skip = nothing
    merged: bool = False
    root: int = -1
    here: int = -1
    """The directory of the copy in which the walk is."""
    reflink: bool = True
    ranges: bool = True
    copied: Copied = field(default_factory=Copied)
    links: dict[tuple[int, int], str] = field(default_factory=dict)

    def run(self, origins: Sequence[int]) -> None:
        self.here = os.open(".", DIRECTORY, dir_fd=self.root)
        origin = origins[0]
        try:
            for entry in walk_merged(origins, self.stop) if self.merged else walk(origin, self.stop, self.skip):
                if entry.leaving:
                    self._leave(entry)
                else:
                    self._take(entry)
        finally:
            os.close(self.here)
        _dress(self.root, os.fstat(origin), self._own(attributes_of(origin), "/"))

    def _own(self, attributes: dict[str, bytes], path: str) -> dict[str, bytes]:
        """Return the attributes that the copy gets; refuse those of which overlay alone knows the meaning."""
        marks = marks_of(attributes)
        if marks.unsupported:
            raise OverlayUnsupported(f"cannot be copied: {marks.unsupported}", path)
        return marks.own if self.merged else attributes

    def _take(self, entry: Entry) -> None:
        self.copied.entries += 1
        if entry.kind == "directory":
            self._enter(entry)
            return
        if entry.kind != "whiteout" and entry.stat.st_nlink > 1 and self._link(entry):
            return
        if entry.kind == "file":
            self._file(entry)
        elif entry.kind == "symlink":
            os.symlink(os.readlink(entry.name, dir_fd=entry.parent), entry.name, dir_fd=self.here)
            self._dress_by_name(entry)
        else:
            os.mknod(entry.name, entry.stat.st_mode, entry.stat.st_rdev, dir_fd=self.here)
            self._dress_by_name(entry)

    def _enter(self, entry: Entry) -> None:
        os.mkdir(entry.name, 0o700, dir_fd=self.here)
        below = os.open(entry.name, DIRECTORY, dir_fd=self.here)
        os.close(self.here)
        self.here = below
        _dress(below, entry.stat, self._own(entry.attributes(), entry.path))

    def _leave(self, entry: Entry) -> None:
        """What was put into the directory has changed its time; and its name leads back up."""
        os.utime(self.here, ns=(entry.stat.st_atime_ns, entry.stat.st_mtime_ns))
        above = os.open("..", DIRECTORY, dir_fd=self.here)
        os.close(self.here)
        self.here = above

    def _link(self, entry: Entry) -> bool:
        """Link to the copy of the same inode, where there is one already."""
        key = (entry.stat.st_dev, entry.stat.st_ino)
        first = self.links.setdefault(key, entry.path)
        if first == entry.path:
            return False
        os.link(first, entry.name, src_dir_fd=self.root, dst_dir_fd=self.here, follow_symlinks=False)
        return True

    def _file(self, entry: Entry) -> None:
        source = entry.open()
        try:
            target = os.open(entry.name, _NEW, 0o600, dir_fd=self.here)
            try:
                self._data(source, target, entry.stat)
                _dress(target, entry.stat, self._own(attributes_of(source), entry.path))
            finally:
                os.close(target)
        finally:
            os.close(source)

    def _data(self, source: int, target: int, about: os.stat_result) -> None:
        size = about.st_size
        if not size:
            return
        if self.reflink:
            try:
                fcntl.ioctl(target, _FICLONE, source)
            except OSError as error:
                if error.errno not in _NO_REFLINK:
                    raise
                self.reflink = False
            else:
                self.copied.bytes += size
                return
        pieces = extents(source, size) if is_sparse(about) else iter(((0, size),))
        for offset, length in pieces:
            self._range(source, target, offset, length)
        if os.fstat(target).st_size != size:
            os.ftruncate(target, size)

    def _range(self, source: int, target: int, offset: int, length: int) -> None:
        end = offset + length
        while offset < end:
            if self.stop():
                raise Stopped("the copy was told to stop")
            step = self._step(source, target, offset, min(_STEP, end - offset))
            if not step:  # the file has become shorter
                return
            offset += step
            self.copied.bytes += step

    def _step(self, source: int, target: int, offset: int, length: int) -> int:
        if self.ranges:
            try:
                return os.copy_file_range(source, target, length, offset, offset)
            except OSError as error:
                if error.errno not in _NO_RANGE:
                    raise
                self.ranges = False
        os.lseek(target, offset, os.SEEK_SET)
        return os.sendfile(target, source, offset, length)

    def _dress_by_name(self, entry: Entry) -> None:
        """Give a symlink or a device what it has beside its kind. A whiteout's own attributes mean nothing."""
        os.chown(entry.name, entry.stat.st_uid, entry.stat.st_gid, dir_fd=self.here, follow_symlinks=False)
        if entry.kind != "symlink":
            os.chmod(entry.name, permissions(entry.stat), dir_fd=self.here)
        attributes = self._own(entry.attributes(), entry.path) if self.merged else entry.attributes()
        if attributes:
            handle = os.open(entry.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.here)
            try:
                for name, value in attributes.items():
                    os.setxattr(f"/proc/self/fd/{handle}", name, value)
            finally:
                os.close(handle)
        times = (entry.stat.st_atime_ns, entry.stat.st_mtime_ns)
        os.utime(entry.name, ns=times, dir_fd=self.here, follow_symlinks=False)


def _dress(fd: int, about: os.stat_result, attributes: dict[str, bytes]) -> None:
    """Owner before mode and capabilities: a change of owner takes set-id bits and capabilities away."""
    os.fchown(fd, about.st_uid, about.st_gid)
    os.fchmod(fd, stat.S_IMODE(about.st_mode))
    for name, value in attributes.items():
        os.setxattr(fd, name, value)
    os.utime(fd, ns=(about.st_atime_ns, about.st_mtime_ns))
