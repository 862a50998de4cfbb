"""Walking a directory tree that others wrote, by descriptors alone: no name in it can lead anywhere else."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from stokerd.checkpoints.errors import Stopped, TreeUnsupported
from stokerd.checkpoints.overlay import Kind, Marks, kind_of, marks_of

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_PATH = 1 << 16
"""Nobody has such paths by accident: paths and the walk's memory would grow with the square of the depth."""

Stop = Callable[[], bool]
Skip = Callable[[str], bool]
"""Says of an entry, by its path from the root, that it does not belong to the tree."""


def never() -> bool:
    return False


def nothing(path: str) -> bool:  # noqa: ARG001 - what belongs to a tree where nobody says otherwise
    return False


@dataclass(slots=True, eq=False)
class Entry:
    """One entry. ``parent`` is the open directory that it is in, ``fd`` the directory itself when it is one; both are
    open only until the walk goes on. ``leaving`` marks the second visit of a directory, after all that is in it;
    ``opaque`` one that hides what is beneath it although it does not say so itself."""

    path: str
    name: str
    parent: int
    stat: os.stat_result
    kind: Kind
    fd: int = -1
    leaving: bool = False
    opaque: bool = False

    def open(self) -> int:
        """Open a regular file for reading; the caller closes it. OSError when it has become something else."""
        fd = os.open(self.name, _FILE, dir_fd=self.parent)
        now = os.fstat(fd)
        if (now.st_dev, now.st_ino) != (self.stat.st_dev, self.stat.st_ino):
            os.close(fd)
            raise TreeUnsupported("it was replaced while it was copied", self.path)
        return fd

    def attributes(self) -> dict[str, bytes]:
        """Return all extended attributes, of symlinks and devices too."""
        if self.fd >= 0:
            return attributes_of(self.fd)
        fd = os.open(self.name, _HANDLE, dir_fd=self.parent)
        try:
            return attributes_of(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)

    def marks(self) -> Marks:
        found = marks_of(self.attributes())
        return replace(found, opaque=True) if self.opaque else found


def attributes_of(target: int | str) -> dict[str, bytes]:
    """Return the extended attributes of an open file, or of what a path of /proc/self/fd stands for."""
    return {name: os.getxattr(target, name) for name in os.listxattr(target)}


def opened(path: str) -> int:
    """Open the directory that a tree begins with."""
    return os.open(path, DIRECTORY)


@dataclass(slots=True)
class _Level:
    """A directory that the walk is in: what is left of it, and which directory it was reached from."""

    path: str
    names: list[str]
    above: tuple[int, int]
    entry: Entry | None
    prefix: str = field(init=False)

    def __post_init__(self) -> None:
        self.prefix = f"{self.path}/" if self.path else ""
        if len(self.prefix) > _MAX_PATH:
            raise TreeUnsupported(f"directories nested deeper than {_MAX_PATH} bytes of path", self.path[:80])


def walk(root: int, stop: Stop = never, skip: Skip = nothing) -> Iterator[Entry]:
    """Yield all entries below the directory *root*, in the order of their names; directories before what is in them,
    and once more after it. Only two descriptors are open at a time, however deep the tree is."""
    current = os.open(".", DIRECTORY, dir_fd=root)
    levels = [_Level("", _names(current), (0, 0), None)]
    try:
        while levels:
            level = levels[-1]
            if stop():
                raise Stopped("the copy was told to stop")
            if not level.names:
                levels.pop()
                if level.entry is not None:
                    current = _ascend(current, level.above)
                    level.entry.parent, level.entry.fd, level.entry.leaving = current, -1, True
                    yield level.entry
                continue
            if skip(level.prefix + level.names[-1]):
                level.names.pop()
                continue
            entry = _entry(current, level)
            if entry.kind != "directory":
                yield entry
                continue
            below = os.open(entry.name, DIRECTORY, dir_fd=current)
            above = os.fstat(current)
            try:
                entry.fd = below
                yield entry
                levels.append(_Level(entry.path, _names(below), (above.st_dev, above.st_ino), entry))
            except BaseException:
                os.close(below)
                raise
            os.close(current)
            current = below
    finally:
        os.close(current)


def _entry(current: int, level: _Level) -> Entry:
    name = level.names.pop()
    about = os.stat(name, dir_fd=current, follow_symlinks=False)
    return Entry(level.prefix + name, name, current, about, kind_of(about.st_mode, about.st_rdev))


def _names(fd: int) -> list[str]:
    return sorted(os.listdir(fd), reverse=True)


def _ascend(current: int, above: tuple[int, int]) -> int:
    """Return the directory above, and make sure that it is the one that the walk came from."""
    parent = os.open("..", DIRECTORY, dir_fd=current)
    now = os.fstat(parent)
    if (now.st_dev, now.st_ino) != above:
        os.close(parent)
        raise TreeUnsupported("a directory was moved while it was copied", "..")
    os.close(current)
    return parent


def extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of what is written of a sparse file."""
    offset = 0
    while offset < size:
        try:
            start = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole is left
            return
        end = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        if start >= end:
            return
        yield start, end - start
        offset = end


def is_sparse(about: os.stat_result) -> bool:
    return about.st_blocks * 512 < about.st_size


def permissions(about: os.stat_result) -> int:
    return stat.S_IMODE(about.st_mode)
