"""What tests of the containers room share; `house.House` is the room composed, on a node in memory."""

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
