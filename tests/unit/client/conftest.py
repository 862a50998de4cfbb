from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from stoker.client import Client
from tests.unit.api.fakes import Api, running_api


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with running_api() as running:
        yield running


@pytest.fixture
async def client(api: Api) -> AsyncIterator[Client]:
    async with Client(api.socket) as open_client:
        yield open_client
