"""What tests of the images room share; `node.Node` is the room composed, `virtual` the time it runs in."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _quiet_log() -> Iterator[None]:
    """Nobody reads the log of tests that run a daemon a thousand times; errors are shown when a test fails."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.reset_defaults()
