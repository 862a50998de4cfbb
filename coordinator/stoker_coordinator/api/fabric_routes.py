"""The topology over HTTP: as JSON, in the forms of others, and why a node is where it is."""

from __future__ import annotations

from typing import Protocol

import msgspec
from aiohttp import web

from stoker_coordinator.api.failures import BadRequest
from stoker_coordinator.api.handlers import ASKED
from stoker_coordinator.auth import may
from stoker_coordinator.errors import Forbidden, NotFound
from stoker_coordinator.hypernodes.explain import why
from stoker_coordinator.hypernodes.exports.forms import FORMS
from stoker_coordinator.hypernodes.live import Live

_LONGEST = 200


class Topology(Protocol):
    """The fabrics as they are."""

    @property
    def live(self) -> Live: ...


class FabricRoutes:
    """``GET /topology?fabric=&format=`` and ``GET /topology/why?node=&switch=``."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def routes(self) -> tuple[web.RouteDef, ...]:
        """Return all routes."""
        return (web.get("/topology", self._show), web.get("/topology/why", self._why))

    async def _show(self, request: web.Request) -> web.Response:
        _check(request)
        live, fabric, form = self._topology.live, _given(request, "fabric"), _given(request, "format") or "json"
        known = sorted(name for name, tree in live.trees.items() if tree.hypernodes)
        if form not in FORMS:
            raise BadRequest(f"there is no format {form!r}", hint=f"there are {', '.join(FORMS)}")
        if fabric and fabric not in known:
            raise NotFound(f"there is no fabric {fabric!r}", hint=f"there are {', '.join(known) or 'none yet'}")
        if not fabric and form != "json":
            if len(known) > 1:
                raise BadRequest("which fabric?", hint=f"fabric=NAME: {', '.join(known)}")
            fabric = next(iter(known), "")
        text = FORMS[form].write(live.hypernodes(fabric or None), fabric)
        return web.Response(text=text, content_type=FORMS[form].media_type)

    async def _why(self, request: web.Request) -> web.Response:
        _check(request)
        node, switch = _given(request, "node"), _given(request, "switch")
        if not node or not switch:
            raise BadRequest("node and switch are needed", hint="/topology/why?node=n1&switch=leaf-1")
        found = why(self._topology.live, node, switch)
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")


def _check(request: web.Request) -> None:
    asked = request[ASKED]
    asked.verb = "get"
    if asked.who is None or not may(asked.who.role, "get", "HyperNode"):
        raise Forbidden("this token may not see the topology")


def _given(request: web.Request, name: str) -> str:
    text = request.query.get(name, "")
    if len(text) > _LONGEST:
        raise BadRequest(f"{name} is longer than {_LONGEST} characters")
    return text
