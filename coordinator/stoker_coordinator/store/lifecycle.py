"""How an object becomes the next one: made, changed, patched, marked as to go. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeGuard, TypeVar

import msgspec
from msgspec.structs import replace

from stoker.objects.kinds import kind_of
from stoker.objects.meta import Object, ObjectMeta
from stoker_coordinator.errors import Conflict, Invalid
from stoker_coordinator.objects.merging import merge

T = TypeVar("T", bound=Object)

_KEPT = ("uid", "resource_version", "generation", "creation_timestamp", "deletion_timestamp", "name", "namespace")
_ENDINGS = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BEGINNING = 247


def named(obj: T, number: int) -> T:
    """Return the object with a name: its own, or *number* (of 64 random bits) after its generateName."""
    meta = obj.metadata
    if meta.name:
        return obj
    if not meta.generate_name:
        raise Invalid(f"{obj.kind}: metadata.name is missing")
    ending = ""
    for _ in range(5):
        number, digit = divmod(number, len(_ENDINGS))
        ending += _ENDINGS[digit]
    return replace(obj, metadata=replace(meta, name=meta.generate_name[:_LONGEST_BEGINNING] + ending))


def made(obj: T, *, uid: str, now: datetime) -> T:
    """Return a new object as it is kept, but for its resource version."""
    if obj.metadata.resource_version:
        raise Invalid(f"{obj.key}: metadata.resourceVersion must not be set on an object that is to be made")
    meta = replace(
        obj.metadata, uid=uid, generation=1, creation_timestamp=now, deletion_timestamp=None, resource_version=""
    )
    return replace(obj, api_version=kind_of(obj).version, metadata=meta)


def check_meant(current: Object, meta: ObjectMeta) -> None:
    """Conflict when *meta* speaks of another object, or of another moment."""
    if meta.uid and meta.uid != current.metadata.uid:
        raise Conflict(
            f"{current.key} is another object of that name: its uid is {current.metadata.uid}, not {meta.uid}",
            hint="read it again",
        )
    if meta.resource_version and meta.resource_version != current.metadata.resource_version:
        raise Conflict(
            f"{current.key} has changed: its resourceVersion is {current.metadata.resource_version}, not"
            f" {meta.resource_version}",
            hint="read it again, and change that",
        )


def changed(current: T, wanted: T, *, status: bool) -> T:
    """Return *current* with what an update of it to *wanted* changes; *current* itself when that is nothing.

    An object that is being deleted gets no finalizers that it does not have.
    """
    check_meant(current, wanted.metadata)
    if status:
        return current if wanted.status == current.status else replace(current, status=wanted.status)
    kept = {name: getattr(current.metadata, name) for name in _KEPT}
    meta = replace(wanted.metadata, **kept, generate_name=current.metadata.generate_name)
    if current.deleting:
        meta = replace(meta, finalizers=tuple(each for each in meta.finalizers if each in current.metadata.finalizers))
    if wanted.spec != current.spec:
        meta = replace(meta, generation=current.metadata.generation + 1)
    elif meta == current.metadata:
        return current
    return replace(current, metadata=meta, spec=wanted.spec)


def patched(current: T, patch: Mapping[str, Any], *, status: bool) -> T:
    """Return *current* with a merge patch applied, or *current* itself. Invalid when no object comes out."""
    sent = patch.get("metadata")
    condition = {name: sent[name] for name in ("resourceVersion", "uid") if name in sent} if _is_map(sent) else {}
    if status:
        patch = {"status": patch.get("status", {})}
    else:
        patch = {name: value for name, value in patch.items() if name != "status"}
    document = merge(msgspec.to_builtins(current), patch)
    if _is_map(document.get("metadata")):
        # Only what the patch itself says is a condition.
        kept = {name: value for name, value in document["metadata"].items() if name not in {"resourceVersion", "uid"}}
        document["metadata"] = {**kept, **condition}
    try:
        wanted = msgspec.convert(document, type(current))
    except msgspec.ValidationError as error:
        raise Invalid(f"{current.key} cannot be patched so", [str(error)]) from None
    if wanted.metadata.name != current.metadata.name or wanted.metadata.namespace != current.metadata.namespace:
        raise Invalid(f"{current.key}: a patch cannot change its name or namespace")
    return changed(current, wanted, status=status)


def _is_map(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def removed(current: T, *, now: datetime) -> T | None:
    """Return what deleting makes of an object: None, or while there are finalizers one that is marked."""
    if not current.metadata.finalizers:
        return None
    if current.deleting:
        return current
    return replace(current, metadata=replace(current.metadata, deletion_timestamp=now))


def is_over(obj: Object) -> bool:
    """Whether an object that is being deleted waits for nobody any more."""
    return obj.deleting and not obj.metadata.finalizers


def at_revision(obj: T, revision: int) -> T:
    """Return the object with this resource version."""
    return replace(obj, metadata=replace(obj.metadata, resource_version=str(revision)))
