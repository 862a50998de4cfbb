"""Objects as JSON: in the version that was asked for, and without the secrets in them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from stoker.objects.kinds import ALL, Kind
from stoker.objects.meta import Object
from stoker_coordinator.objects import shapes
from stoker_coordinator.objects.admission import SEALED
from stoker_coordinator.store.protocol import Event, Page


def shown(obj: Object, version: str) -> Any:
    """Return an object as somebody outside may see it; encode it as JSON."""
    if obj.api_version != version:
        obj = replace(obj, api_version=version)
    if not shapes.has_secrets(type(obj)):
        return obj
    return shapes.map_secrets(msgspec.to_builtins(obj), type(obj), lambda _path, _text: SEALED)


def encoded(obj: Object, version: str) -> bytes:
    """Return one object as JSON."""
    return msgspec.json.encode(shown(obj, version))


def page(found: Page[Any], kind: Kind, version: str) -> bytes:
    """Return a list as JSON."""
    meta: dict[str, Any] = {"resourceVersion": str(found.revision)}
    if found.token:
        meta |= {"continue": found.token, "remainingItemCount": found.remaining}
    items = [shown(obj, version) for obj in found.items]
    return msgspec.json.encode({"kind": f"{kind.name}List", "apiVersion": version, "metadata": meta, "items": items})


def event(happened: Event[Any], kind: Kind, version: str) -> bytes:
    """Return one event of a watch as JSON."""
    if happened.object is not None:
        return msgspec.json.encode({"type": happened.type, "object": shown(happened.object, version)})
    meta = {"resourceVersion": str(happened.revision)}
    bookmark = {"kind": kind.name, "apiVersion": version, "metadata": meta}
    return msgspec.json.encode({"type": happened.type, "object": bookmark})


def kinds(version: str, revision: int) -> bytes:
    """Return which kinds there are, and the program's own version."""
    listed: Sequence[dict[str, Any]] = [
        {
            "kind": kind.name,
            "plural": kind.plural,
            "shortNames": list(kind.short),
            "versions": list(kind.versions),
            "namespaced": kind.namespaced,
        }
        for kind in ALL
    ]
    return msgspec.json.encode({"kinds": listed, "version": version, "resourceVersion": str(revision)})
