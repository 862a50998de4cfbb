"""The routes: HTTP to verbs and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from stoker.objects.meta import Object
from stoker_coordinator.api import targets, views
from stoker_coordinator.api.failures import BadRequest, MethodNotAllowed, TooSlow, UnsupportedMedia
from stoker_coordinator.api.targets import Target
from stoker_coordinator.api.verbs import Done, Verbs
from stoker_coordinator.api.watching import Watches
from stoker_coordinator.auth import Principal, may
from stoker_coordinator.errors import Forbidden, TooLarge
from stoker_coordinator.store.protocol import Store

BODY_SECONDS = 30.0
JSON = "application/json"
_MERGE, _APPLY = "application/merge-patch+json", "application/apply-patch+json"
_WARNING_LENGTH = 400
_MOST_WARNINGS = 20
_DEEPEST = 50


class Asked(Struct):
    """What a request turned out to be about, for the audit log and the metrics."""

    who: Principal | None = None
    verb: str = ""
    target: Target | None = None
    dry_run: bool = False
    public: bool = False
    reason: str = ""
    """Of a failure."""
    recheck: Callable[[], object] = lambda: None
    """Raises when who asks would not be let in any more; for answers that last."""
    kind: str = ""
    """Of what is no object."""
    name: str = ""


ASKED: web.RequestKey[Asked] = web.RequestKey("asked", Asked)


class Handlers:
    """Everything under /apis, and what is said of the coordinator itself."""

    def __init__(
        self,
        store: Store,
        verbs: Verbs,
        watches: Watches,
        registry: CollectorRegistry,
        problems: Callable[[], Mapping[str, str]],
        *,
        version: str,
        page: int,
    ) -> None:
        """*problems*: what is wrong with the parts of the coordinator now, by part."""
        self._store = store
        self._verbs = verbs
        self._watches = watches
        self._registry = registry
        self._problems = problems
        self._version = version
        self._page = page

    def routes(self) -> list[web.RouteDef]:
        """Return all routes."""
        every = "/apis/{group}/{version}"
        routes = [
            web.get("/healthz", self._health),
            web.get("/readyz", self._ready),
            web.get("/metrics", self._metrics),
            web.get("/apis", self._kinds),
        ]
        # No kind is called namespaces.
        for base in (f"{every}/namespaces/{{namespace}}/{{plural}}", f"{every}/{{plural:(?!namespaces/)[^/]+}}"):
            routes += [
                web.get(base, self._list),
                web.post(base, self._create),
                *self._of_one(f"{base}/{{name}}"),
                *self._of_one(f"{base}/{{name}}/{{sub}}"),
            ]
        return routes

    def _of_one(self, path: str) -> list[web.RouteDef]:
        return [
            web.get(path, self._get),
            web.put(path, self._replace),
            web.patch(path, self._patch),
            web.delete(path, self._delete),
        ]

    # ------------------------------------------------------------------------------------------ the coordinator

    async def _health(self, request: web.Request) -> web.Response:
        request[ASKED].public = True
        return web.json_response({"ok": True})

    async def _ready(self, request: web.Request) -> web.Response:
        request[ASKED].public = True
        problems = dict(self._problems())
        return web.json_response({"ok": not problems, "parts": problems}, status=503 if problems else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        check_allowed(request, "get", "")
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _kinds(self, request: web.Request) -> web.Response:
        check_allowed(request, "get", "")
        return json_response(views.kinds(self._version, self._store.revision))

    # ------------------------------------------------------------------------------------------ objects

    async def _list(self, request: web.Request) -> web.StreamResponse:
        target = targets.target_of(request.match_info)
        query = targets.list_query(request.query, target.kind, page=self._page)
        check_allowed(request, "watch" if query.watch else "list", target.kind.name, target)
        if query.watch:
            return await self._watches.serve(request, target, query, request[ASKED].recheck)
        found = await self._store.list(
            target.kind.type,
            namespace=target.namespace,
            labels=query.labels,
            fields=query.fields,
            limit=query.limit,
            token=query.token,
        )
        return json_response(views.page(found, target.kind, target.version))

    async def _get(self, request: web.Request) -> web.Response:
        target = targets.target_of(request.match_info)
        check_allowed(request, "get", target.kind.name, target)
        obj: Object = await self._store.get(target.kind.type, target.name, target.namespace or "")
        return json_response(views.encoded(obj, target.version))

    async def _create(self, request: web.Request) -> web.Response:
        target, dry_run = self._change(request, "create")
        document = await read_body(request, JSON)
        done = await self._verbs.create(target, document, dry_run=dry_run)
        meta = done.object.metadata
        request[ASKED].target = replace(target, namespace=meta.namespace, name=meta.name)
        return _done(done, target)

    async def _replace(self, request: web.Request) -> web.Response:
        target, dry_run = self._change(request, "update")
        document = await read_body(request, JSON)
        return _done(await self._verbs.replace(target, document, dry_run=dry_run), target)

    async def _patch(self, request: web.Request) -> web.Response:
        applied = request.content_type == _APPLY
        target, dry_run = self._change(request, "apply" if applied else "patch")
        document = await read_body(request, JSON, _MERGE, _APPLY)
        act = self._verbs.apply if applied else self._verbs.patch
        return _done(await act(target, document, dry_run=dry_run), target)

    async def _delete(self, request: web.Request) -> web.Response:
        target, dry_run = self._change(request, "delete")
        if target.status:
            raise MethodNotAllowed("a status cannot be deleted")
        uid, revision = targets.precondition(request.query)
        return _done(await self._verbs.delete(target, uid=uid, revision=revision, dry_run=dry_run), target)

    def _change(self, request: web.Request, verb: str) -> tuple[Target, bool]:
        target = targets.target_of(request.match_info)
        dry_run = targets.dry_run(request.query)
        request[ASKED].dry_run = dry_run
        check_allowed(request, verb, target.kind.name, target)
        return target, dry_run


def check_allowed(request: web.Request, verb: str, kind: str, target: Target | None = None, name: str = "") -> None:
    """Note what is asked for; Forbidden when who asks may not."""
    asked = request[ASKED]
    asked.verb, asked.target, asked.kind, asked.name = verb, target, kind, name
    who = asked.who
    if who is None or not may(who.role, verb, kind, status=target is not None and target.status):
        role = who.role if who is not None else "nobody"
        what = f"{target.kind.plural}{'/status' if target.status else ''}" if target is not None else kind or "this"
        raise Forbidden(f"the role {role} may not {verb} {what}", hint="ask for a token with another role")


async def read_body(request: web.Request, *media: str) -> Mapping[str, Any]:
    """Return the JSON object that is a request's body; *media*: what it may call itself."""
    if request.content_type not in media:
        raise UnsupportedMedia(f"the body is {request.content_type[:60]!r}, not {' or '.join(media)}")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            raw = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise TooLarge(error.text or "the body is too large") from None
    except TimeoutError:
        raise TooSlow(f"the body did not arrive within {BODY_SECONDS:g} seconds") from None
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest("the body is not an object")
    _check_depth(document)
    return document


def _check_depth(document: Any) -> None:
    """BadRequest when a document is nested so deeply that walking through it could fail."""
    level = [document]
    for _ in range(_DEEPEST):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise BadRequest(f"the body is nested more than {_DEEPEST} levels deep")


def _done(done: Done, target: Target) -> web.Response:
    response = json_response(views.encoded(done.object, target.version), 201 if done.outcome == "created" else 200)
    response.headers["Stoker-Outcome"] = done.outcome
    for text in done.warnings[:_MOST_WARNINGS]:
        response.headers.add("Warning", f'299 - "{_quoted(text)}"')
    return response


def _quoted(text: str) -> str:
    plain = "".join(char if char.isascii() and char.isprintable() else "?" for char in text[:_WARNING_LENGTH])
    return plain.replace("\\", "\\\\").replace('"', '\\"')


def json_response(body: bytes, status: int = 200) -> web.Response:
    """Return a response with JSON."""
    return web.Response(status=status, body=body, content_type=JSON)
