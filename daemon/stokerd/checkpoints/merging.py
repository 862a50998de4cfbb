"""Several directories walked as the one that overlay makes of them: what is above hides what is beneath."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stokerd.checkpoints.errors import OverlayUnsupported, Stopped
from stokerd.checkpoints.overlay import kind_of, marks_of
from stokerd.checkpoints.trees import DIRECTORY, Entry, Stop, attributes_of, never


@dataclass(slots=True)
class _Level:
    """One directory: where it is open, the topmost first, and which of these has each name that is left."""

    path: str
    fds: list[int]
    entry: Entry | None
    names: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        first: dict[str, int] = {}
        for number, fd in enumerate(self.fds):
            for name in os.listdir(fd):  # noqa: PTH208 - of an open directory
                first.setdefault(name, number)
        self.names = sorted(first.items(), reverse=True)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def walk_merged(roots: Sequence[int], stop: Stop = never, *, marks: bool = False) -> Iterator[Entry]:
    """Yield what overlay would show of *roots*, the topmost first, in the manner of `trees.walk`.

    With *marks* there is something beneath them all: whiteouts are yielded too, and what hides it is opaque.
    OverlayUnsupported for marks of which only overlay itself knows the meaning.
    """
    levels = [_Level("", [os.open(".", DIRECTORY, dir_fd=fd) for fd in _visible(roots)[0]], None)]
    try:
        while levels:
            level = levels[-1]
            if stop():
                raise Stopped("the copy was told to stop")
            if not level.names:
                levels.pop()
                level.close()
                if level.entry is not None:
                    level.entry.parent, level.entry.fd, level.entry.leaving = -1, -1, True
                    yield level.entry
                continue
            name, number = level.names.pop()
            entry = _entry(level, name, level.fds[number], marks=marks)
            if entry is None:
                continue
            if entry.kind == "directory":
                fds, entry.opaque = _beneath(level.fds[number:], name)
                below = _Level(entry.path, fds, entry)
                levels.append(below)
                entry.fd = below.fds[0]
            yield entry
    finally:
        for level in levels:
            level.close()


def _entry(level: _Level, name: str, parent: int, *, marks: bool) -> Entry | None:
    about = os.stat(name, dir_fd=parent, follow_symlinks=False)
    path = f"{level.path}/{name}" if level.path else name
    entry = Entry(path, name, parent, about, kind_of(about.st_mode, about.st_rdev))
    hides = entry.kind == "whiteout" or (entry.kind == "file" and not about.st_size and entry.marks().whiteout)
    return None if hides and not marks else entry


def _beneath(fds: Sequence[int], name: str) -> tuple[list[int], bool]:
    """Open the directory in all that add to it: down to the first that is opaque, or where it is something else; say
    whether there was one."""
    found: list[int] = []
    ends = False
    try:
        for fd in fds:
            try:
                about = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if not stat.S_ISDIR(about.st_mode):
                ends = True
                break
            found.append(os.open(name, DIRECTORY, dir_fd=fd))
        visible, opaque = _visible(found, name)
    except BaseException:
        for fd in found:
            os.close(fd)
        raise
    for fd in found[len(visible) :]:
        os.close(fd)
    return visible, ends or opaque


def _visible(fds: Sequence[int], path: str = "/") -> tuple[list[int], bool]:
    """Return those that can be seen: down to the first that is opaque, and whether there is one."""
    for number, fd in enumerate(fds):
        marks = marks_of(attributes_of(fd))
        if marks.unsupported:
            raise OverlayUnsupported(f"cannot be read beneath overlay: {marks.unsupported}", path)
        if marks.opaque:
            return list(fds[: number + 1]), True
    return list(fds), False
