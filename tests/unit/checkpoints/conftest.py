"""What several tests of trees begin with."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """An empty directory to copy into."""
    root = tmp_path / "target"
    root.mkdir()
    return root
