"""Captures of real machines and fabrics, which lie beside the repository (``../shared/data``) and are no part of it.

``STOKER_CAPTURES`` names another place. A test that needs one fails where it is missing: a parser that nobody holds
against the real thing is not tested.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_FOLDER = Path(os.environ.get("STOKER_CAPTURES") or Path(__file__).parents[4] / "shared" / "data")


def capture_path(name: str) -> Path:
    """Return where a capture is; the test fails if it is not there."""
    path = _FOLDER / name
    if not path.exists():
        pytest.fail(
            f"the capture {name} is missing: tests of the topology read real captures from {_FOLDER}; "
            "put them there, or set STOKER_CAPTURES to the folder that has them",
            pytrace=False,
        )
    return path


def capture(name: str) -> bytes:
    """Return a capture's bytes; the test fails if it is not there."""
    return capture_path(name).read_bytes()
