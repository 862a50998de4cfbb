"""What a request is about, read from its path and its query. Pure but for aiohttp's types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from stoker.objects.kinds import ALL, BY_ROUTE, Kind
from stoker.objects.meta import Key
from stoker_coordinator.api.failures import BadRequest, UnknownRoute
from stoker_coordinator.errors import Invalid
from stoker_coordinator.objects.selectors import FieldSelector, Selector, parse_fields, parse_labels

_LARGEST = (1 << 63) - 1
_YES = frozenset({"1", "true", "yes"})


class Target(Struct, frozen=True):
    """One object, or all of a kind. ``namespace`` None: of any."""

    kind: Kind
    version: str
    namespace: str | None
    name: str = ""
    status: bool = False

    @property
    def key(self) -> Key:
        return Key(self.kind.name, self.namespace or "", self.name)


class ListQuery(Struct, frozen=True):
    """What a list or a watch is asked for."""

    labels: Selector
    fields: FieldSelector
    limit: int
    token: str
    watch: bool
    since: int | None
    bookmarks: bool
    timeout: float


def target_of(path: Mapping[str, str]) -> Target:
    """Return the target of a path's parts; UnknownRoute."""
    version, plural = f"{path['group']}/{path['version']}", path["plural"]
    kind = BY_ROUTE.get((version, plural))
    if kind is None:
        served = next((each for each in ALL if each.plural == plural), None)
        hint = f"{plural} are at /apis/{served.version}/{plural}" if served is not None else "GET /apis lists all kinds"
        raise UnknownRoute(f"there are no {plural[:60]} at /apis/{version[:120]}", hint=hint)
    namespace = path.get("namespace")
    if namespace is not None and not kind.namespaced:
        raise UnknownRoute(f"{plural} are in no namespace", hint=f"they are at /apis/{version}/{plural}")
    name, status = path.get("name", ""), path.get("sub", "")
    if status not in {"", "status"}:
        raise UnknownRoute(f"{plural} have no {status[:60]}", hint="there is only status")
    if name and namespace is None and kind.namespaced:
        raise UnknownRoute(
            f"{plural} are in namespaces", hint=f"it is at /apis/{version}/namespaces/NAMESPACE/{plural}/{name[:80]}"
        )
    return Target(kind, version, namespace if kind.namespaced else "", name, bool(status))


def list_query(query: Mapping[str, str], kind: Kind, *, page: int) -> ListQuery:
    """Return what a list is asked for; BadRequest. *page*: the limit where none is given."""
    try:
        labels = parse_labels(query.get("labelSelector", ""))
        fields = parse_fields(query.get("fieldSelector", ""), kind)
    except Invalid as error:
        raise BadRequest(error.message, hint=error.hint) from None
    since = query.get("resourceVersion", "")
    limit = _number(query, "limit")
    return ListQuery(
        labels=labels,
        fields=fields,
        limit=min(limit or page, page * 10),
        token=query.get("continue", ""),
        watch=flag(query, "watch"),
        since=_number(query, "resourceVersion") if since not in {"", "0"} else None,
        bookmarks=flag(query, "allowWatchBookmarks"),
        timeout=float(_number(query, "timeoutSeconds")),
    )


def flag(query: Mapping[str, str], name: str) -> bool:
    """Return whether a flag is set."""
    return query.get(name, "").lower() in _YES


def dry_run(query: Mapping[str, str]) -> bool:
    """Return whether nothing is to be written; BadRequest."""
    text = query.get("dryRun", "")
    if text not in {"", "All"}:
        raise BadRequest(f"dryRun is {text[:60]!r}, not All")
    return bool(text)


def precondition(query: Mapping[str, str]) -> tuple[str, int]:
    """Return uid and revision that an object must have to be deleted; BadRequest."""
    return query.get("uid", "")[:100], _number(query, "resourceVersion")


def _number(query: Mapping[str, str], name: Literal["limit", "resourceVersion", "timeoutSeconds"]) -> int:
    text = query.get(name, "")
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > _LARGEST:
        raise BadRequest(f"{name} is {text[:60]!r}, not a whole number")
    return int(text)
