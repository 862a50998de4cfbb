"""The suite on the in-memory runtime, as each generation of containerd that it can be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.contract_disk import SMALL_DISK
from tests.conformance.contracts import *  # noqa: F403
from tests.conformance.memory_subject import MemorySubject
from tests.conformance.subject import Generation, Subject


@pytest.fixture(params=["1.6", "1.7", "2.1"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    generation: Generation = request.param
    made = MemorySubject(generation, files=tmp_path)
    yield made
    await made.runtime.close()


@pytest.fixture(params=["1.6", "1.7", "2.1"])
async def small(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    generation: Generation = request.param
    made = MemorySubject(generation, SMALL_DISK)
    yield made
    await made.runtime.close()
