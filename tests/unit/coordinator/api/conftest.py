"""The API over a store in memory, on a socket and on loopback."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from stoker_coordinator.api.metrics import StoreCollector
from stoker_coordinator.api.server import IDLE_SECONDS, ApiServer
from stoker_coordinator.audit import Audit
from stoker_coordinator.auth import Role, Tokens
from stoker_coordinator.sealing import Sealer
from stoker_coordinator.settings import ApiSettings
from stoker_coordinator.store.base import Limits
from stoker_coordinator.store.memory import MemoryStore

JOBS = "/apis/apps.kruise.io/v1beta1/namespaces/default/imagepulljobs"
ALL_JOBS = "/apis/apps.kruise.io/v1beta1/imagepulljobs"
SECRETS = "/apis/stoker.dev/v1/namespaces/default/pullsecrets"


def job(name: str, image: str = "docker.io/library/nginx:1", **spec: Any) -> dict[str, Any]:
    meta = {"name": name}
    return {
        "apiVersion": "apps.kruise.io/v1beta1",
        "kind": "ImagePullJob",
        "metadata": meta,
        "spec": {"image": image, **spec},
    }


class Api:
    """A running server, and clients of it."""

    def __init__(
        self, directory: Path, routes: tuple[web.RouteDef, ...] = (), idle: float = IDLE_SECONDS, **settings: Any
    ) -> None:
        self.directory = directory
        self.settings = replace(
            ApiSettings(listen="127.0.0.1:0", socket=directory / "api.sock", group="", bookmarks=0.05), **settings
        )
        self.store = MemoryStore(Limits(history_changes=100))
        self.tokens = Tokens(directory / "tokens.json")
        self.sealer = Sealer.load(directory / "seal.key")
        self.problems: dict[str, str] = {}
        registry = CollectorRegistry()
        registry.register(StoreCollector(self.store.counts, lambda: self.store.revision))
        self.server = ApiServer(
            self.settings,
            self.store,
            tokens=self.tokens,
            sealer=self.sealer,
            audit=Audit(directory / "audit.log"),
            registry=registry,
            version="1.2.3",
            problems=lambda: self.problems,
            routes=routes,
            idle=idle,
        )
        self.admin: aiohttp.ClientSession

    def audit(self) -> list[dict[str, Any]]:
        path = self.directory / "audit.log"
        return [msgspec.json.decode(line) for line in path.read_text().splitlines()] if path.exists() else []

    def token(self, role: Role, lifetime: float | None = None) -> str:
        return self.tokens.create(f"a-{role}", role, lifetime)[1]

    @asynccontextmanager
    async def over_tcp(self, token: str = "") -> AsyncIterator[aiohttp.ClientSession]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{self.server.port}", headers=headers) as session:
            yield session

    async def call(self, method: str, path: str, body: Any = None, *, media: str = "application/json") -> Answer:
        return await ask(self.admin, method, path, body, media=media)


class Answer:
    def __init__(self, response: aiohttp.ClientResponse, raw: bytes) -> None:
        self.status = response.status
        self.headers = response.headers
        self.raw = raw

    @property
    def body(self) -> Any:
        return msgspec.json.decode(self.raw)

    @property
    def warnings(self) -> list[str]:
        return [text.split('"', 1)[1].rstrip('"') for text in self.headers.getall("Warning", [])]


async def ask(
    session: aiohttp.ClientSession, method: str, path: str, body: Any = None, *, media: str = "application/json"
) -> Answer:
    data = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
    headers = {"Content-Type": media} if data is not None else {}
    async with session.request(
        method, path, data=io.BytesIO(data) if data is not None else None, headers=headers
    ) as response:
        return Answer(response, await response.read())


@asynccontextmanager
async def running(directory: Path, routes: tuple[web.RouteDef, ...] = (), **settings: Any) -> AsyncIterator[Api]:
    api = Api(directory, routes, **settings)
    await api.server.start()
    connector = aiohttp.UnixConnector(str(api.settings.socket))
    try:
        async with aiohttp.ClientSession("http://coordinator", connector=connector) as api.admin:
            yield api
    finally:
        await api.server.stop(1)
        await api.store.close()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running(tmp_path) as served:
        yield served
