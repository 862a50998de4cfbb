"""Imports libraries without the parts of them that a daemon on every node should not pay for.

`main` imports this module before any other. On leaving, everything is as it was.
"""

from __future__ import annotations

import gc
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def lean_imports() -> Iterator[None]:
    """Keep rich, the system's certificates and the garbage collector out of what is imported within."""
    # structlog imports rich wherever it is installed; the daemon never uses it, and it would cost 5 MiB.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    # What is imported stays: collecting among it is a tenth of the start, for nothing.
    gc.disable()
    try:
        with _no_certificates():
            import aiohttp  # noqa: F401
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _no_certificates() -> Iterator[None]:
    """aiohttp makes a TLS context for everybody when it is imported, and reads all of the system's certificates for it:
    a sixth of the start, and 2 MiB. registry/ makes contexts of its own, when it needs one. Should anything else use
    aiohttp's, it finds no server trustworthy."""
    saved = ssl.SSLContext.load_default_certs, ssl.SSLContext.set_default_verify_paths

    def nothing(*_: Any) -> None: ...

    ssl.SSLContext.load_default_certs = nothing  # type: ignore[method-assign, assignment]
    ssl.SSLContext.set_default_verify_paths = nothing  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ssl.SSLContext.load_default_certs, ssl.SSLContext.set_default_verify_paths = saved  # type: ignore[method-assign]
