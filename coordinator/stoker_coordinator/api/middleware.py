"""What every request passes: who asks is found out, failures are explained, changes are put on record."""

from __future__ import annotations

import socket
import time
from datetime import UTC, datetime
from functools import partial
from urllib.parse import quote

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from msgspec import Struct

from stoker.service.in_flight import InFlight
from stoker_coordinator.api.failures import MethodNotAllowed, UnknownRoute, failure_of, response_of
from stoker_coordinator.api.handlers import ASKED, Asked
from stoker_coordinator.api.metrics import ApiMetrics
from stoker_coordinator.api.peers import principal_of
from stoker_coordinator.audit import Audit, Entry
from stoker_coordinator.auth import READS, Principal, Tokens
from stoker_coordinator.errors import Forbidden, Unauthorized

_PUBLIC = frozenset({"/healthz", "/readyz"})


def recording(metrics: ApiMetrics, audit: Audit, in_flight: InFlight) -> Middleware:
    """Return the outermost middleware: it counts, and writes the audit log."""

    @web.middleware
    async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = request[ASKED] = Asked()
        code, start = 0, time.perf_counter()
        in_flight.enter()
        try:
            response = await handler(request)
            code = response.status
            return response
        finally:
            in_flight.leave()
            kind = asked.target.kind.name if asked.target is not None else ""
            metrics.requests.labels(asked.verb, kind, str(code) if code else "gone").inc()
            if code and asked.verb != "watch":
                metrics.seconds.labels(asked.verb).observe(time.perf_counter() - start)
            if code == 401:
                metrics.refused.inc()
            if not asked.public and (asked.verb not in READS or code in {401, 403}):
                audit.write(_entry(request, asked, code))

    return record


def _entry(request: web.Request, asked: Asked, code: int) -> Entry:
    target, who = asked.target, asked.who
    return Entry(
        at=datetime.now(UTC),
        who=who.name if who is not None else "",
        role=who.role if who is not None else "",
        peer=request.remote or "unix",
        verb=asked.verb or request.method.lower()[:10],
        kind=target.kind.name if target is not None else asked.kind,
        namespace=(target.namespace or "") if target is not None else "",
        name=target.name if target is not None else asked.name,
        status_only=target.status if target is not None else False,
        dry_run=asked.dry_run,
        code=code,
        reason=asked.reason,
    )


@web.middleware
async def explaining(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises into an answer."""
    try:
        return await handler(request)
    except ConnectionResetError:  # the client went away while it was being answered
        raise
    except web.HTTPMethodNotAllowed as refusal:
        allowed = ", ".join(sorted(refusal.allowed_methods))
        error: Exception = MethodNotAllowed(
            f"{request.path[:200]} does not take {request.method[:20]}", hint=f"it takes {allowed}"
        )
    except web.HTTPNotFound:
        error = UnknownRoute(f"there is no {request.path[:200]} here", hint="GET /apis lists all kinds")
    except Exception as raised:  # noqa: BLE001 - the border: nothing may reach aiohttp's own error page
        error = raised
    failure = failure_of(error, f"{request.method} {request.path[:200]}")
    request[ASKED].reason = failure.reason
    return response_of(failure)


class PageGate(Struct, frozen=True):
    """How people who look at pages are known: by a cookie with their token. Whoever has none is sent to sign in."""

    prefix: str
    cookie: str
    public: tuple[str, ...]
    """What may be seen by everybody: the first of these is where one signs in; beginnings of paths."""


def recognising(tokens: Tokens, gid: int | None, gate: PageGate | None = None) -> Middleware:
    """Return the middleware that finds out who asks. *gid*: the group that may use the unix socket."""

    @web.middleware
    async def recognise(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked, path = request[ASKED], request.path
        page = gate is not None and path.startswith(gate.prefix)
        if gate is not None and page:
            asked.verb = "get"
        if path in _PUBLIC or (gate is not None and (path == "/" or path.startswith(gate.public))):
            return await handler(request)
        connection = _unix_socket(request)
        if connection is not None:
            asked.who = principal_of(connection, gid)
        else:
            header = request.headers.get("Authorization", "")
            if gate is not None and page and not header:
                header = f"Bearer {request.cookies.get(gate.cookie, '')}"
            try:
                asked.who = _authenticated(tokens, header)
                asked.recheck = partial(_authenticated, tokens, header)
            except Unauthorized:
                if gate is None or not page or request.method != "GET":
                    raise
                goal = quote(request.path_qs if not path.endswith("/live") else gate.prefix)
                return web.Response(status=303, headers={"Location": f"{gate.public[0]}?next={goal}"})
        if page and asked.who.role == "node":
            raise Forbidden("pages are for people; this token is a node's")
        return await handler(request)

    return recognise


def _authenticated(tokens: Tokens, header: str) -> Principal:
    if len(header) > 500:
        raise Unauthorized("this is no token of ours")
    return tokens.authenticate(header, datetime.now(UTC))


def _unix_socket(request: web.Request) -> socket.socket | None:
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has gone")
    connection: socket.socket | None = transport.get_extra_info("socket")
    return connection if connection is not None and connection.family == socket.AF_UNIX else None
