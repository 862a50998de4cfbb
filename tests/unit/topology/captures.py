"""Captures of real machines and fabrics, which lie beside the repository (``../shared/data``) and are no part of it.

They may not be where the repository is checked out alone: a test that needs one skips then, saying so. Where the
folder is there, or was named by ``STOKER_CAPTURES``, a capture that is missing is a failure.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_NAMED = os.environ.get("STOKER_CAPTURES")
_FOLDER = Path(_NAMED or Path(__file__).parents[4] / "shared" / "data")


def capture_path(name: str) -> Path:
    """Return where a capture is."""
    path = _FOLDER / name
    if path.exists():
        return path
    if not _NAMED and not _FOLDER.is_dir():
        pytest.skip(f"real captures are not beside this checkout ({_FOLDER}); set STOKER_CAPTURES to their folder")
    pytest.fail(f"the capture {name} is missing from {_FOLDER}", pytrace=False)


def capture(name: str) -> bytes:
    """Return a capture's bytes."""
    return capture_path(name).read_bytes()
