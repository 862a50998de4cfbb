"""The pages and their routes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from importlib.resources import files
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import quote

import jinja2
from aiohttp import web
from markupsafe import Markup

from stoker.objects.cluster_clones import Clone
from stoker.objects.cluster_images import AdvancedCronJob, ImageListPullJob, ImagePullJob, NodeImage
from stoker.objects.cluster_nodes import HyperNode, Node
from stoker.objects.cluster_requests import Checkpoint, Commit, ContainerRecreateRequest
from stoker.objects.meta import Key, Object
from stoker.units import format_size
from stoker_coordinator.auth import Principal
from stoker_coordinator.errors import Unauthorized
from stoker_coordinator.hypernodes.explain import why
from stoker_coordinator.hypernodes.exports import svg
from stoker_coordinator.hypernodes.exports.forms import FORMS
from stoker_coordinator.hypernodes.live import Live
from stoker_coordinator.hypernodes.model import SourceState
from stoker_coordinator.web import views
from stoker_coordinator.web.chronicle import Chronicle
from stoker_coordinator.web.live import Changes

O = TypeVar("O", bound=Object)  # noqa: E741 - an object
PREFIX = "/ui/"
COOKIE = "stoker_token"
PUBLIC = ("/ui/login", "/ui/static/")
_TABS = (
    ("/ui/", "Overview"),
    ("/ui/nodes", "Nodes"),
    ("/ui/jobs", "Image jobs"),
    ("/ui/topology", "Topology"),
    ("/ui/requests", "Checkpoints"),
    ("/ui/events", "Events"),
)
_STATIC = {"app.css": "text/css", "app.js": "text/javascript", "icon.svg": "image/svg+xml"}
_LATEST = 12


class Objects(Protocol):
    """What there is: an informer."""

    @property
    def objects(self) -> Mapping[Key, Object]: ...


class Topology(Protocol):
    """The fabrics as they are."""

    @property
    def live(self) -> Live: ...
    @property
    def states(self) -> Sequence[SourceState]: ...


Authenticate = Callable[[str], Principal]
"""Returns who has a token; raises Unauthorized."""
Who = Callable[[web.Request], Principal | None]


class Pages:
    """Reads from memory alone: a page costs no store and no node anything."""

    def __init__(
        self,
        objects: Objects,
        topology: Topology,
        leaf_of: Callable[[str], str],
        chronicle: Chronicle,
        changes: Changes,
        *,
        authenticate: Callable[[str], Principal],
        who: Who,
        clock: Callable[[], datetime],
    ) -> None:
        self._objects, self._topology, self._leaf_of = objects, topology, leaf_of
        self._chronicle, self._changes = chronicle, changes
        self._authenticate, self._who, self._clock = authenticate, who, clock
        loader = jinja2.PackageLoader("stoker_coordinator.web")
        self._templates = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
        self._templates.filters.update(ago=views.ago, size=format_size)
        self._static = {name: (files("stoker_coordinator.web") / "static" / name).read_bytes() for name in _STATIC}
        # The picture's own style is the only one within a page; it is told by its digest.
        style = base64.b64encode(hashlib.sha256(svg.STYLE.encode()).digest()).decode()
        self._policy = (
            f"default-src 'none'; style-src 'self' 'sha256-{style}'; script-src 'self'; img-src 'self'; "
            "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        )

    def routes(self) -> tuple[web.RouteDef, ...]:
        """Return all routes."""
        return (
            web.get("/", self._front),
            web.get("/ui", self._front),
            web.get("/ui/", self._overview),
            web.get("/ui/nodes", self._nodes),
            web.get("/ui/nodes/{name}", self._node),
            web.get("/ui/jobs", self._jobs),
            web.get("/ui/jobs/{kind}/{namespace}/{name}", self._job),
            web.get("/ui/topology", self._topology_page),
            web.get("/ui/topology.svg", self._picture),
            web.get("/ui/topology.txt", self._export),
            web.get("/ui/requests", self._requests),
            web.get("/ui/events", self._events),
            web.get("/ui/login", self._login),
            web.post("/ui/login", self._sign_in),
            web.post("/ui/logout", self._sign_out),
            web.get("/ui/live", self._live),
            web.get("/ui/static/{name}", self._file),
        )

    # ------------------------------------------------------------------------------------------ answers

    def _show(
        self, request: web.Request, template: str, here: str, *, status: int = 200, **values: Any
    ) -> web.Response:
        text = self._templates.get_template(template).render(
            tabs=_TABS,
            here=here,
            who=self._who(request),
            can_leave=COOKIE in request.cookies,
            now=self._clock(),
            **values,
        )
        return web.Response(text=text, content_type="text/html", status=status, headers=self._headers("no-store"))

    def _headers(self, cache: str) -> dict[str, str]:
        return {
            "Content-Security-Policy": self._policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",
            "Cache-Control": cache,
        }

    def _all(self, *kinds: type[O]) -> list[O]:
        return [each for each in self._objects.objects.values() if isinstance(each, kinds)]

    def _find(self, kind: type[O], name: str, namespace: str = "") -> O | None:
        key = Key(str(kind.__struct_config__.tag), namespace, name)
        return cast("O | None", self._objects.objects.get(key))

    def _missing(self, request: web.Request, what: str) -> web.Response:
        text = f"There is no {what} here; it may have been removed."
        return self._show(request, "problem.html", "", status=404, title="Not found", text=text)

    # ------------------------------------------------------------------------------------------ pages

    async def _front(self, _: web.Request) -> web.Response:
        return web.Response(status=303, headers={"Location": PREFIX})

    async def _overview(self, request: web.Request) -> web.Response:
        nodes = self._all(Node)
        rows = views.job_rows([*self._all(ImagePullJob), *self._all(ImageListPullJob)])
        domains = self._all(HyperNode)
        return self._show(
            request,
            "overview.html",
            "/ui/",
            nodes=len(nodes),
            ready=sum(views.node_state(node).word != "Not ready" for node in nodes),
            active_jobs=sum(row.ended is None for row in rows),
            bad_links=len(views.troubles(domains)),
            congested=sum(domain.status.congested for domain in domains),
            jobs=rows[:_LATEST],
            events=self._chronicle.latest(_LATEST),
        )

    async def _nodes(self, request: web.Request) -> web.Response:
        wanted = request.query.get("q", "")[:100]
        nodes = self._all(Node)
        leaves = {node.metadata.name: self._leaf_of(node.metadata.name) for node in nodes}
        rows = views.node_rows(nodes, leaves, wanted)
        pages = views.page(len(rows), request.query.get("page", ""))
        query = f"q={quote(wanted)}&" if wanted else ""
        shown = rows[pages.first : pages.last]
        return self._show(request, "nodes.html", "/ui/nodes", rows=shown, pages=pages, wanted=wanted, query=query)

    async def _node(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        node = self._find(Node, name)
        if node is None:
            return self._missing(request, f"node {name[:100]}")
        image = self._find(NodeImage, name)
        return self._show(
            request,
            "node.html",
            "/ui/nodes",
            row=views.node_row(node, self._leaf_of(name)),
            addresses=node.status.addresses,
            capabilities=node.status.capabilities,
            images=views.wanted_images(image) if image is not None else [],
            ports=self._topology.live.ports(name),
        )

    async def _jobs(self, request: web.Request) -> web.Response:
        rows = views.job_rows([*self._all(ImagePullJob), *self._all(ImageListPullJob)])
        pages = views.page(len(rows), request.query.get("page", ""))
        crons = sorted(self._all(AdvancedCronJob), key=lambda each: each.key)
        return self._show(
            request, "jobs.html", "/ui/jobs", rows=rows[pages.first : pages.last], pages=pages, crons=crons
        )

    async def _job(self, request: web.Request) -> web.Response:
        kinds: dict[str, type[ImagePullJob | ImageListPullJob]] = {
            "ImagePullJob": ImagePullJob,
            "ImageListPullJob": ImageListPullJob,
        }
        info = request.match_info
        kind = kinds.get(info["kind"])
        job = self._find(kind, info["name"], info["namespace"]) if kind is not None else None
        if job is None:
            return self._missing(request, f"job {info['namespace'][:100]}/{info['name'][:100]}")
        assert isinstance(job, ImagePullJob | ImageListPullJob)
        return self._show(
            request,
            "job.html",
            "/ui/jobs",
            row=views.job_row(job),
            silent=job.status.progress.nodes_silent,
            parallelism=job.spec.parallelism,
            troubles=job.status.troubles,
        )

    async def _requests(self, request: web.Request) -> web.Response:
        found = self._all(Checkpoint, Clone, Commit, ContainerRecreateRequest)
        rows = views.request_rows(cast("list[views.Request]", found))
        pages = views.page(len(rows), request.query.get("page", ""))
        return self._show(request, "requests.html", "/ui/requests", rows=rows[pages.first : pages.last], pages=pages)

    async def _events(self, request: web.Request) -> web.Response:
        return self._show(request, "events.html", "/ui/events", events=self._chronicle.latest())

    # ------------------------------------------------------------------------------------------ topology

    def _fabric(self, request: web.Request) -> tuple[list[str], str]:
        """Return the fabrics, and which is meant."""
        fabrics = sorted(fabric for fabric, tree in self._topology.live.trees.items() if tree.hypernodes)
        wanted = request.query.get("fabric", "")
        return fabrics, wanted if wanted in fabrics else next(iter(fabrics), "")

    async def _topology_page(self, request: web.Request) -> web.Response:
        live = self._topology.live
        fabrics, fabric = self._fabric(request)
        picture = svg.svg(live.hypernodes(fabric), fabric) if fabric else ""
        node, switch = request.query.get("node", "")[:200], request.query.get("switch", "")[:200]
        domains = [each for each in self._all(HyperNode) if each.status.fabric == fabric]
        return self._show(
            request,
            "topology.html",
            "/ui/topology",
            fabrics=fabrics,
            fabric=fabric,
            picture=Markup(picture),  # noqa: S704 - made here, with every name escaped
            unplaced=live.unplaced(fabric) if fabric else [],
            troubles=views.troubles(domains),
            sources=self._topology.states,
            why=why(live, node, switch) if node and switch else None,
        )

    async def _picture(self, request: web.Request) -> web.Response:
        _, fabric = self._fabric(request)
        text = svg.svg(self._topology.live.hypernodes(fabric), fabric)
        return web.Response(text=text, content_type="image/svg+xml", headers=self._headers("no-store"))

    async def _export(self, request: web.Request) -> web.Response:
        _, fabric = self._fabric(request)
        form = FORMS.get(request.query.get("format", ""))
        if form is None:
            return self._missing(request, f"format; there are {', '.join(FORMS)}")
        text = form.write(self._topology.live.hypernodes(fabric), fabric)
        return web.Response(text=text, content_type="text/plain", headers=self._headers("no-store"))

    # ------------------------------------------------------------------------------------------ who looks

    async def _login(self, request: web.Request) -> web.Response:
        return self._show(request, "login.html", "", problem="", next=_within(request.query.get("next", "")))

    async def _sign_in(self, request: web.Request) -> web.Response:
        form = await request.post()
        token, goal = str(form.get("token", "")).strip(), _within(str(form.get("next", "")))
        try:
            self._authenticate(f"Bearer {token[:400]}")
        except Unauthorized:
            problem = "This token is not known here, was revoked, or has expired."
            return self._show(request, "login.html", "", status=401, problem=problem, next=goal)
        answer = web.Response(status=303, headers={"Location": goal})
        answer.set_cookie(
            COOKIE, token, path=PREFIX, httponly=True, samesite="Strict", secure=request.secure, max_age=30 * 86_400
        )
        return answer

    async def _sign_out(self, _: web.Request) -> web.Response:
        answer = web.Response(status=303, headers={"Location": "/ui/login"})
        answer.del_cookie(COOKIE, path=PREFIX)
        return answer

    # ------------------------------------------------------------------------------------------ the rest

    async def _live(self, request: web.Request) -> web.StreamResponse:
        if self._changes.full:
            return web.Response(status=503, text="too many pages are open")
        response = web.StreamResponse(headers={**self._headers("no-store"), "Content-Type": "text/event-stream"})
        async with self._changes.streams.one(), aclosing(self._changes.follow()) as changes:
            await response.prepare(request)
            await response.write(b": here\n\n")
            async for names in changes:
                await response.write(f"event: changed\ndata: {names}\n\n".encode() if names else b": still here\n\n")
        return response

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in _STATIC:
            return self._missing(request, "file of that name")
        return web.Response(body=self._static[name], content_type=_STATIC[name], headers=self._headers("max-age=3600"))


def _within(goal: str) -> str:
    """Return a path of ours that somebody wanted; anything else is the overview."""
    sound = goal.startswith(PREFIX) and not goal.startswith(("//", PREFIX + "/")) and "\\" not in goal
    return goal if sound and goal.isprintable() and len(goal) < 1000 else PREFIX
