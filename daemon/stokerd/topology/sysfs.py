"""Reading sysfs and procfs below any root. Thin: what the values mean is decided elsewhere.

Devices come and go while they are read, and drivers refuse to tell some things. So nothing here raises: a value that is
not there is None, and what could not be read for any other reason is counted.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from stoker.fabrics.foreign import Unread, Unreadable

_PAGE = 4096
# What a kernel says of an attribute that does not exist (any more), or of a value that a device does not have just now.
_NOT_THERE = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENODEV,
        errno.ENXIO,
        errno.EINVAL,
        errno.EOPNOTSUPP,
        errno.ENODATA,
        errno.EISDIR,
    )
)


class Sysfs:
    """The files below *root* (``/``, or where the host's root is mounted)."""

    def __init__(self, root: Path) -> None:
        self._root = str(root).rstrip("/")
        self._lost = Unreadable()

    @property
    def lost(self) -> Unread:
        """What could not be read, though it is there."""
        return self._lost.total

    def text(self, path: str, limit: int = _PAGE) -> str | None:
        """Return a file's text without the blanks around it; None if it cannot be read."""
        data = self.data(path, limit)
        return None if data is None else data.decode("utf-8", errors="replace").strip()

    def data(self, path: str, limit: int = _PAGE) -> bytes | None:
        """Return the first *limit* bytes of a file; None if it cannot be read."""
        try:
            descriptor = os.open(f"{self._root}/{path}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self._note(path, error)
            return None
        try:
            parts = []
            while limit > 0 and (part := os.read(descriptor, limit)):
                parts.append(part)
                limit -= len(part)
            return b"".join(parts)
        except OSError as error:
            self._note(path, error)
            return None
        finally:
            os.close(descriptor)

    def names(self, path: str) -> list[str]:
        """Return what is in a directory, sorted; nothing if it cannot be read."""
        try:
            with os.scandir(f"{self._root}/{path}") as entries:
                return sorted(entry.name for entry in entries)
        except OSError as error:
            self._note(path, error)
            return []

    def target(self, path: str) -> str:
        """Return where a link leads, as it is written; empty if it is none."""
        try:
            return str(Path(f"{self._root}/{path}").readlink())
        except OSError as error:
            self._note(path, error)
            return ""

    def exists(self, path: str) -> bool:
        """Say whether there is such a file or directory."""
        return os.path.lexists(f"{self._root}/{path}")

    def _note(self, path: str, error: OSError) -> None:
        if error.errno not in _NOT_THERE:
            self._lost.add(f"{path}: {os.strerror(error.errno or 0)}")
