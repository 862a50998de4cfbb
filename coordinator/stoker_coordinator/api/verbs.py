"""What is done with objects that come from outside: checked, sealed, kept. No HTTP in here."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from stoker.objects.meta import Object
from stoker_coordinator.api.failures import BadRequest
from stoker_coordinator.api.targets import Target
from stoker_coordinator.errors import AlreadyExists, Conflict, Invalid, NotFound
from stoker_coordinator.objects import admission, pull_secrets, shapes
from stoker_coordinator.sealing import Sealer
from stoker_coordinator.store import lifecycle
from stoker_coordinator.store.protocol import Store

_TRIES = 5


Outcome = Literal["created", "changed", "unchanged", "deleted", "deleting"]


class Done(Struct, frozen=True):
    """What became of a request."""

    object: Object
    outcome: Outcome
    warnings: tuple[str, ...] = ()


class Verbs:
    """Changes of objects, as people may make them."""

    def __init__(self, store: Store, sealer: Sealer) -> None:
        self._store = store
        self._sealer = sealer

    async def create(self, target: Target, document: Mapping[str, Any], *, dry_run: bool) -> Done:
        """Make a new object."""
        admitted = self._admit(target, document)
        obj = lifecycle.named(admitted.object, secrets.randbits(64))
        made = await self._store.create(self._sealer.sealed(obj), dry_run=dry_run)
        return Done(made, "created", admitted.warnings)

    async def replace(self, target: Target, document: Mapping[str, Any], *, dry_run: bool) -> Done:
        """Put an object in the place of another of its name."""
        if target.status:
            return await self._replace_status(target, document, dry_run=dry_run)
        admitted = self._admit(target, document)
        wanted = self._sealer.sealed(admitted.object)

        def change(current: Object) -> Object:
            lifecycle.check_meant(current, wanted.metadata)
            admission.check_change(current, wanted)
            return wanted

        return await self._change(target, change, admitted.warnings, dry_run=dry_run)

    async def _replace_status(self, target: Target, document: Mapping[str, Any], *, dry_run: bool) -> Done:
        meta = document.get("metadata")
        condition = {name: meta[name] for name in ("uid", "resourceVersion") if meta.get(name)} if _is_map(meta) else {}
        # A merge patch could only add: everything is replaced here.
        given = document.get("status")
        patch = {"metadata": condition, "status": given if _is_map(given) else {}}
        admission.remarks_on_patch(patch, target.kind, target.version)

        def change(current: Object) -> Object:
            empty = replace(current, status=type(current.status)())
            wanted: Object = lifecycle.patched(empty, patch, status=True)
            return wanted

        return await self._change(target, change, dry_run=dry_run)

    async def patch(self, target: Target, patch: Mapping[str, Any], *, dry_run: bool) -> Done:
        """Merge a patch into an object."""
        warnings = admission.remarks_on_patch(patch, target.kind, target.version)
        sealed = self._seal_patch(target, patch)

        def change(current: Object) -> Object:
            wanted: Object = lifecycle.patched(current, sealed, status=target.status)
            if not target.status:
                admission.check(wanted, target.version)
                admission.check_change(current, wanted)
            return wanted

        return await self._change(target, change, warnings, dry_run=dry_run)

    async def apply(self, target: Target, document: Mapping[str, Any], *, dry_run: bool) -> Done:
        """Make an object, or make the one that is there like it: the spec is replaced, labels and annotations are
        merged, finalizers and owners stay unless they are given."""
        if target.status:
            raise BadRequest("a status cannot be applied", hint="send a merge patch")
        admitted = self._admit(target, document)
        wanted = self._sealer.sealed(admitted.object)

        def change(current: Object) -> Object:
            lifecycle.check_meant(current, wanted.metadata)
            admission.check_change(current, wanted)
            return _over(current, wanted)

        for _ in range(_TRIES):
            try:
                return await self._change(target, change, admitted.warnings, dry_run=dry_run)
            except NotFound:
                if wanted.metadata.resource_version or wanted.metadata.uid:
                    raise
            try:
                made = await self._store.create(wanted, dry_run=dry_run)
            except AlreadyExists:
                continue
            return Done(made, "created", admitted.warnings)
        raise Conflict(f"{target.key} comes and goes", hint="try again")

    async def delete(self, target: Target, *, uid: str, revision: int, dry_run: bool) -> Done:
        """Remove an object, or have it go when its finalizers are done."""
        kind, namespace = target.kind.type, target.namespace or ""
        gone = await self._store.delete(kind, target.name, namespace, uid=uid, revision=revision, dry_run=dry_run)
        return Done(gone, "deleting" if gone.deleting else "deleted")

    async def _change(
        self, target: Target, change: Callable[[Object], Object], warnings: tuple[str, ...] = (), *, dry_run: bool
    ) -> Done:
        before: Object | None = None

        def noting(current: Object) -> Object:
            nonlocal before
            before = current
            return change(current)

        kind, namespace = target.kind.type, target.namespace or ""
        after = await self._store.change(
            kind, target.name, namespace, change=noting, status=target.status, dry_run=dry_run
        )
        return Done(after, "unchanged" if after == before else "changed", warnings)

    def _admit(self, target: Target, document: Mapping[str, Any]) -> admission.Admitted:
        if target.kind.name == "PullSecret" and pull_secrets.is_secret(document):
            document = pull_secrets.converted(document)
        admitted = admission.admit(document, target.kind, target.version, target.namespace or "")
        name = admitted.object.metadata.name
        if target.name and name != target.name:
            raise Invalid(f"metadata.name: is {name[:80]!r}, and {target.name[:80]!r} was asked for")
        return admitted

    def _seal_patch(self, target: Target, patch: Mapping[str, Any]) -> Mapping[str, Any]:
        kind = target.kind.type
        if not shapes.has_secrets(kind):
            return patch
        sealed: Mapping[str, Any] = shapes.map_secrets(
            patch, kind, lambda path, text: self._sealer.seal(f"{target.key} {path}", text)
        )
        return sealed


def _over(current: Object, wanted: Object) -> Object:
    old, new = current.metadata, wanted.metadata
    meta = replace(
        new,
        labels={**old.labels, **new.labels},
        annotations={**old.annotations, **new.annotations},
        finalizers=new.finalizers or old.finalizers,
        owner_references=new.owner_references or old.owner_references,
    )
    return replace(wanted, metadata=meta)


def _is_map(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)
