"""What all tests share: the rig's fixtures."""

from __future__ import annotations

pytest_plugins = ["tests.rig.fixtures"]
