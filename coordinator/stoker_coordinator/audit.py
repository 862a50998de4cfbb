"""The audit log: who asked for which change, and what became of it. JSON lines, in a file that only grows.

No bodies, no tokens: what was asked for can be seen in the objects.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

_log = structlog.get_logger("audit")
_MOST_BYTES = 64 << 20


class Entry(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One request."""

    at: datetime
    who: str
    role: str
    peer: str
    """Where from."""
    verb: str
    kind: str
    namespace: str = ""
    name: str = ""
    status_only: bool = False
    dry_run: bool = False
    code: int
    reason: str = ""


class Audit:
    """Appends entries to a file; with *most* bytes in it, it is put aside as ``FILE.1`` and a new one begun."""

    def __init__(self, path: Path, *, most: int = _MOST_BYTES) -> None:
        self._path = path
        self._most = most
        self._descriptor: int | None = None
        self._failing = False

    def write(self, entry: Entry) -> None:
        """Append an entry. A log that cannot be written is told, and holds nothing up."""
        line = msgspec.json.encode(entry) + b"\n"
        try:
            if self._descriptor is None:
                self._open()
            assert self._descriptor is not None
            os.write(self._descriptor, line)
            if os.fstat(self._descriptor).st_size > self._most:
                self.close()
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        except OSError as error:
            if not self._failing:
                _log.error("the audit log cannot be written", path=str(self._path), why=error.strerror)
            self._failing = True
            self.close()
            return
        if self._failing:
            self._failing = False
            _log.info("the audit log can be written again", path=str(self._path))

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)

    def close(self) -> None:
        """Close the file; the next entry opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
