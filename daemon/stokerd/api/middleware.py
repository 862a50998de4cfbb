"""What every request passes: it is counted, its failures become an ErrorBody, and its sender must be allowed."""

from __future__ import annotations

import time

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from stoker.service.in_flight import InFlight
from stokerd.api.errors import (
    MethodNotAllowed,
    PeerRefused,
    UnknownRoute,
    failure_of,
    response_of,
)
from stokerd.api.peers import Peer, may_use, peer_of

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class Metrics:
    """Requests by method, route template and status class. The labels come from closed sets."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "stoker_api_requests",
            "HTTP requests to the local API; code is 2xx to 5xx, or gone when the client went away before the answer",
            ("method", "route", "code"),
            registry=registry,
        )
        self.seconds = Histogram(
            "stoker_api_request_seconds",
            "Time from the head of a request to its answer; event streams are not in it",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=registry,
        )
        self.streams = Gauge("stoker_api_streams", "Event streams that are open", registry=registry)


def counting(metrics: Metrics, in_flight: InFlight) -> Middleware:
    """Return the outermost middleware."""

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        method = request.method if request.method in _METHODS else "other"
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "unmatched"
        code = "gone"
        streaming = False
        start = time.perf_counter()
        in_flight.enter()
        try:
            response = await handler(request)
            streaming = not isinstance(response, web.Response)
            code = f"{response.status // 100}xx"
            return response
        finally:
            in_flight.leave()
            metrics.requests.labels(method, route, code).inc()
            if not streaming and code != "gone":
                metrics.seconds.labels(method, route).observe(time.perf_counter() - start)

    return count


@web.middleware
async def explain_failures(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises into an ErrorBody."""
    headers: dict[str, str] = {}
    try:
        return await handler(request)
    except ConnectionResetError:  # the client went away while it was being answered
        raise
    except web.HTTPMethodNotAllowed as refusal:
        allowed = ", ".join(sorted(refusal.allowed_methods))
        headers["Allow"] = allowed
        error: Exception = MethodNotAllowed(
            f"{request.path} does not take {request.method}", hint=f"it takes {allowed}"
        )
    except web.HTTPNotFound:
        error = UnknownRoute(f"there is no {request.path} in this API", hint="docs/api.md lists the routes")
    except Exception as raised:  # noqa: BLE001 - the border: nothing may reach aiohttp's own error page
        error = raised
    return response_of(failure_of(error, where=f"{request.method} {request.path}"), headers)


def checking_peers(*, own_uid: int, gid: int | None, group: str) -> Middleware:
    """Return the middleware that lets root, *own_uid* and members of group *gid* pass; *group* is its name."""
    may = f"root and members of the group {group!r} may" if gid is not None else "root may"

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        peer = _peer(request)
        if not may_use(peer, own_uid=own_uid, gid=gid):
            raise PeerRefused(f"uid {peer.uid} may not use this socket", hint=f"only {may}")
        return await handler(request)

    return check


def _peer(request: web.Request) -> Peer:
    transport = request.transport
    connection = transport.get_extra_info("socket") if transport is not None else None
    if connection is None:
        raise ConnectionResetError("the client has gone")
    return peer_of(connection)
