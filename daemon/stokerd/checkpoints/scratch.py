"""What a dump does to the container's files while it holds it, and how the copy of them is kept free of it.

To read a tmpfs that something is mounted on (/dev of every container), CRIU makes a directory in the container's /tmp,
or in / where there is none, and removes it a moment later. A copy that is made meanwhile may meet the directory, and
sees the new time of the one it is in. Blocking; runs in a thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from pathlib import Path

import msgspec

from stokerd.checkpoints.copying import Copied
from stokerd.checkpoints.overlay import PREFIXES
from stokerd.checkpoints.trees import DIRECTORY

_PLACES = ("tmp", "")
"""Where CRIU makes it: relative to the root, and in the order in which a copy is mended."""
_NAME = re.compile(r"(?:tmp/)?cr-tmpfs\.[A-Za-z0-9]{6}")
_COARSE = 0.02
"""How far, in seconds, times of files are behind the clock: up to two ticks of a kernel with 100 of them."""


class Scratch(msgspec.Struct, frozen=True):
    """An upper directory as it was before CRIU: what is not there is None, ``known`` are directories that are named as
    CRIU's but were there already."""

    places: dict[str, os.stat_result | None]
    known: frozenset[str]

    def is_criu(self, path: str) -> bool:
        """Say whether an entry, by its path from the root, is one of CRIU's."""
        return _NAME.fullmatch(path) is not None and path not in self.known

    def looked_again(self, later: Scratch, since: float, until: float = math.inf) -> Scratch:
        """Prefer what was found later, unless CRIU may have done it, which was at work from *since*, when the processes
        stood, *until* then (`perf_counter`)."""
        offset = time.time() - time.perf_counter()
        begun, ended = since + offset - _COARSE, until + offset + _COARSE
        sure = {
            place: about
            for place, about in later.places.items()
            if about is None or not begun <= about.st_mtime <= ended
        }
        return Scratch(self.places | sure, self.known)

    def mend(self, target: str, copied: Copied) -> None:
        """Give the directories of a copy the times that they had, and take away what was copied up for CRIU alone."""
        for place in _PLACES:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._mend(f"{target}/{place}", self.places[place], copied)

    def _mend(self, path: str, wanted: os.stat_result | None, copied: Copied) -> None:
        fd = os.open(path, DIRECTORY)
        try:
            if wanted is None and _was_copied_up(fd) and not _names(fd):
                Path(path).rmdir()
                copied.entries -= 1
            elif wanted is not None and os.fstat(fd).st_mtime_ns != wanted.st_mtime_ns:
                os.utime(fd, ns=(wanted.st_atime_ns, wanted.st_mtime_ns))
        finally:
            os.close(fd)


class Tried(msgspec.Struct, frozen=True):
    """A dump that has to be made once more: what there was before it, and when CRIU was at work (`perf_counter`)."""

    before: Scratch
    since: float
    until: float

    def and_now(self, now: Scratch) -> Scratch:
        """Return what there was before, with what the container has changed since."""
        return self.before.looked_again(now, self.since, self.until)


def look(upper: str) -> Scratch:
    """Look at what is in an upper directory before CRIU touches it. OSError when it cannot be read."""
    places: dict[str, os.stat_result | None] = {}
    known: set[str] = set()
    for place in _PLACES:
        path = f"{upper}/{place}"
        places[place] = _about(path)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            known |= _like_crius(path, place)
    return Scratch(places, frozenset(known))


def _like_crius(path: str, place: str) -> set[str]:
    fd = os.open(path, DIRECTORY)
    try:
        paths = (f"{place}/{name}" if place else name for name in _names(fd))
        return {each for each in paths if _NAME.fullmatch(each)}
    finally:
        os.close(fd)


def _names(fd: int) -> list[str]:
    return os.listdir(fd)


def _about(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _was_copied_up(fd: int) -> bool:
    """Say whether a directory stands for one of a lower layer, rather than being new."""
    return any(f"{prefix}origin" in os.listxattr(fd) for prefix in PREFIXES)
