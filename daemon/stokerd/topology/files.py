"""Files that something else writes, as sources."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from stokerd.topology.blocking import Blocking
from stokerd.topology.outcomes import Absent

T = TypeVar("T")


class FileSources:
    """A source for each path."""

    def __init__(self) -> None:
        self._files: dict[str, _FileSource] = {}

    def of(self, path: str, most: int, parse: Callable[[bytes], T]) -> Callable[[float], Awaitable[T]]:
        """Return what reads the file within a time, and parses it when it has changed; Absent without a path."""
        source = self._files.setdefault(path, _FileSource(path, most))

        async def read(timeout: float) -> T:
            if not path:
                raise Absent
            found: T = await source.read(timeout, parse)
            return found

        return read


class _FileSource:
    """A file; it is read and parsed again when it has changed."""

    def __init__(self, path: str, most: int) -> None:
        self._path = path
        self._most = most
        self._blocking = Blocking(path, self._load)
        self._known: tuple[int, int, int] | None = None
        self._parsed: Any = None

    async def read(self, timeout: float, parse: Callable[[bytes], Any]) -> Any:
        return await self._blocking.call(timeout, parse)

    def _load(self, parse: Callable[[bytes], Any]) -> Any:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(0, "it is no file", self._path)
            state = (found.st_ino, found.st_size, found.st_mtime_ns)
            if state != self._known:
                with os.fdopen(descriptor, "rb", closefd=False) as file:
                    self._parsed = parse(file.read(self._most + 1))
                self._known = state
        finally:
            os.close(descriptor)
        return self._parsed
