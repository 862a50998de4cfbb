"""Servers that play registries, and certificates for them."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stokerd.registry.client import RegistryClient
from stokerd.registry.hosts import RegistryEndpoint
from stokerd.registry.transport import Timeouts
from tests.unit.registry.fakes import FakeServer

Serve = Callable[..., Awaitable[FakeServer]]
Connect = Callable[..., RegistryClient]

QUICK = Timeouts(connect=5.0, read=5.0, total=20.0, backoff=(0.0, 0.0))


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start servers that are stopped when the test ends."""
    servers: list[FakeServer] = []

    async def start(tls: ssl.SSLContext | None = None) -> FakeServer:
        servers.append(await FakeServer(tls).start())
        return servers[-1]

    yield start
    for server in servers:
        await server.stop()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Make clients of endpoints; they are closed when the test ends."""
    clients: list[RegistryClient] = []

    def make(*endpoints: RegistryEndpoint, timeouts: Timeouts = QUICK, **settings: object) -> RegistryClient:
        clients.append(RegistryClient(hosts=lambda _: endpoints, timeouts=timeouts, **settings))  # type: ignore[arg-type]
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


@dataclass(frozen=True)
class Certificate:
    """Files of a certificate for 127.0.0.1 that signs itself."""

    cert: Path
    key: Path

    def server(self, *, clients: Path | None = None) -> ssl.SSLContext:
        """Return a server's context, which wants a certificate that *clients* signed if that is given."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        if clients is not None:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def make_certificate(directory: Path, name: str) -> Certificate:
    certificate = Certificate(directory / f"{name}.pem", directory / f"{name}.key")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(certificate.key), "-out", str(certificate.cert), "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return certificate


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"), "registry")


@pytest.fixture(scope="session")
def client_certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"), "node")
