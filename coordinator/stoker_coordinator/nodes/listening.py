"""The gRPC servers: one for nodes with a certificate, one for those without, and a local one without TLS."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from msgspec import Struct

from stoker.objects.link import JOIN_SERVICE, MAX_MESSAGE, SERVICE
from stoker_coordinator.errors import AlreadyRunning, ConfigError
from stoker_coordinator.nodes.admission import Peer
from stoker_coordinator.nodes.authority import Authority
from stoker_coordinator.nodes.names import identity_of
from stoker_coordinator.nodes.settings import LinkSettings

_GRACE = 0.25
"""Streams do not end by themselves; this is for what is being written, and for joins."""
_JOIN_MESSAGE = 16 << 10
_OPTIONS: list[tuple[str, int]] = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.tsi.max_frame_size", 4096),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 4),
]
"""Small frames of TLS and no measuring of bandwidth save some kilobytes for each connection, of which there are ten
thousand; reports are small."""
_STREAMS = ("grpc.max_concurrent_streams", 100_000)
"""On the local address alone, where one peer may speak for many nodes. Others have one stream, and may open it anew."""

Connect = Callable[[Any, Any], Awaitable[None]]
Join = Callable[[bytes], Awaitable[bytes]]


class Ports(Struct, frozen=True):
    """Addresses that are listened at, with the ports that they really have; empty: none."""

    link: str = ""
    join: str = ""
    plain: str = ""


@asynccontextmanager
async def open_ports(
    settings: LinkSettings, authority: Authority, connect: Connect, join: Join
) -> AsyncIterator[Ports]:
    """Listen at all addresses of the settings. ConfigError, AlreadyRunning."""
    _check(settings)
    limit = 2 * settings.most_nodes
    link = _Server(settings.listen, [*_OPTIONS, ("grpc.max_concurrent_streams", 4)], _connects(connect), limit)
    plain = _Server(settings.plain_listen, [*_OPTIONS, _STREAMS], _connects(connect), limit)
    # Later options do not replace earlier ones of the same name, so the smaller limit comes first.
    small = [
        ("grpc.max_receive_message_length", _JOIN_MESSAGE),
        *(each for each in _OPTIONS if "receive" not in each[0]),
    ]
    joins = _Server(settings.join_listen, small, _joins(join), 512)
    names = _names(settings)
    servers: list[_Server] = []
    try:
        for server, credentials in (
            (link, _credentials(authority, names, certified=True)),
            (joins, _credentials(authority, names, certified=False)),
            (plain, None),
        ):
            if server.address:
                servers.append(server)
                await server.start(credentials)
        yield Ports(link.bound, joins.bound, plain.bound)
    finally:
        for server in servers:
            await server.stop()


class _Server:
    def __init__(self, address: str, options: list[tuple[str, int]], handler: Any, limit: int) -> None:
        self.address = address
        self.bound = ""
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limit)
        self._server.add_generic_rpc_handlers((handler,))

    async def start(self, credentials: grpc.ServerCredentials | None) -> None:
        try:
            if credentials is None:
                port = self._server.add_insecure_port(self.address)
            else:
                port = self._server.add_secure_port(self.address, credentials)
        except RuntimeError as error:
            raise AlreadyRunning(f"{self.address} cannot be listened at: {error}") from None
        unix = self.address.startswith("unix:")
        self.bound = self.address if unix else f"{self.address.rpartition(':')[0]}:{port}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(_GRACE)


def _connects(connect: Connect) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(SERVICE, {"Connect": grpc.stream_stream_rpc_method_handler(connect)})


def _joins(join: Join) -> grpc.GenericRpcHandler:
    async def answer(request: bytes, _context: Any) -> bytes:
        return await join(request)

    return grpc.method_handlers_generic_handler(JOIN_SERVICE, {"Join": grpc.unary_unary_rpc_method_handler(answer)})


def _credentials(authority: Authority, names: tuple[str, ...], *, certified: bool) -> grpc.ServerCredentials:
    """Return credentials that are asked for anew with each connection, so that the certificate is renewed in time."""

    pair = authority.server(names)

    def configuration() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)], authority.pem if certified else None)

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal pair
        fresh = authority.server(names)
        if fresh is pair:
            return None
        pair = fresh
        return configuration()

    return grpc.dynamic_ssl_server_credentials(configuration(), changed, certified)  # type: ignore[arg-type]


def _names(settings: LinkSettings) -> tuple[str, ...]:
    host = socket.gethostname()
    return tuple(dict.fromkeys(("localhost", "127.0.0.1", "::1", host, socket.getfqdn(), *settings.names)))


def _check(settings: LinkSettings) -> None:
    address = settings.plain_listen
    if not address or address.startswith("unix:"):
        return
    host = address.rpartition(":")[0].strip("[]")
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        problem = (
            f"link.plain_listen: {address} is neither a loopback address nor unix:/path; without TLS all of a node's "
        )
        raise ConfigError("the settings", [f"{problem}secrets would be there to be read"])


def peer_of(context: Any) -> Peer | None:
    """Return who is at the other end; None: somebody without a certificate where one is needed."""
    facts = context.auth_context()
    security = facts.get("transport_security_type", [b""])[0]
    if security == b"ssl":
        for uri in facts.get("x509_subject_alternative_name", ()):
            identity = identity_of(uri.decode("ascii", "replace"))
            if identity is not None:
                return Peer(identity, context.peer())
        return None
    return Peer(None, context.peer()) if security in {b"insecure", b""} else None
