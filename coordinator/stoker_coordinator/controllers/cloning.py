"""Clones: which node makes them of what, what it is told, and what came of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stoker.objects.checkpoints import CloneInfo, CloneRequest, Operation
from stoker.objects.cluster_clones import Clone, CloneSpec, CloneState, CloneStatus
from stoker.objects.cluster_nodes import Node
from stoker.objects.cluster_requests import Checkpoint
from stoker.objects.containers import EnvVar
from stoker.objects.images import InlineAuth
from stoker.objects.link import CloneWish, Result, Wish
from stoker.objects.meta import LabelSelector
from stoker_coordinator.controllers.details import decode
from stoker_coordinator.objects.selectors import of_labels

_CAPABILITY = "clone"
_encode = msgspec.msgpack.Encoder().encode


class Place(Struct, frozen=True):
    """The node that makes the clones, and what it makes them of; without one, why."""

    node: str = ""
    checkpoint_id: str = ""
    reference: str = ""
    reason: str = ""
    message: str = ""
    outlook: Literal["soon", "waits", "never"] = "soon"
    """soon: it is given up when that stays so; waits: for as long as it takes; never: waiting changes nothing."""


def place(clone: Clone, checkpoint: Checkpoint | None, nodes: Collection[Node], load: Mapping[str, int]) -> Place:
    """Return where to make clones. *checkpoint*: the one that is named. *load*: clones by node."""
    spec = clone.spec
    if not spec.checkpoint:
        return _placed(spec, "", "", spec.reference, nodes, load)
    named = f"Checkpoint {clone.metadata.namespace}/{spec.checkpoint}"
    if checkpoint is None:
        return Place(reason="CheckpointNotFound", message=f"there is no {named}")
    made = checkpoint.status
    if made.completion_time is None:
        return Place(reason="CheckpointNotReady", message=f"waits for {named}", outlook="waits")
    if not made.checkpoint_id:
        return Place(reason="CheckpointFailed", message=f"{named} failed: {made.message}", outlook="never")
    return _placed(spec, made.node_name, made.checkpoint_id, made.reference, nodes, load)


def _placed(
    spec: CloneSpec, home: str, checkpoint: str, reference: str, nodes: Collection[Node], load: Mapping[str, int]
) -> Place:
    node = _choose(spec, home, nodes, load)
    if not node:
        wanted = f"there is no node {spec.node_name!r}" if spec.node_name else "no node that answers is meant"
        return Place(reason="NodeNotFound", message=wanted)
    if node != home:
        if not reference:
            why = f"the checkpoint is on {home} alone: for {node}, give the Checkpoint a spec.destination"
            return Place(reason="NotPushed", message=why, outlook="never")
        if not (spec.like or spec.trust):
            why = f"on {node}, another node than {home}, it must be said what clones may do: spec.like or spec.trust"
            return Place(reason="NotTrusted", message=why, outlook="never")
    return Place(node, checkpoint, reference)


def _choose(spec: CloneSpec, home: str, nodes: Collection[Node], load: Mapping[str, int]) -> str:
    if spec.node_name:
        return spec.node_name if any(each.metadata.name == spec.node_name for each in nodes) else ""
    if home and spec.selector is None:
        return home
    meant = [each for each in nodes if _takes(each) and _is_meant(spec, each)]
    if any(each.metadata.name == home for each in meant):
        return home
    able = [
        each for each in meant if any(can.name == _CAPABILITY and can.available for can in each.status.capabilities)
    ]
    names = sorted(each.metadata.name for each in able or meant)
    return min(names, key=lambda name: load.get(name, 0), default="")


def _takes(node: Node) -> bool:
    return node.status.connected and not node.spec.paused and not node.deleting


def _is_meant(spec: CloneSpec, node: Node) -> bool:
    selector = spec.selector
    if selector is None:
        return True
    if selector.names:
        return node.metadata.name in selector.names
    labels = LabelSelector(match_labels=selector.match_labels, match_expressions=selector.match_expressions)
    return of_labels(labels).matches(node.metadata.labels)


def given(clone: Clone, found: Place, now: datetime) -> Clone:
    """Return the object as it is when a node was found."""
    status = replace(
        clone.status,
        phase="Creating",
        node_name=found.node,
        checkpoint_id=found.checkpoint_id,
        reference=found.reference,
        message="",
        reason="",
        start_time=now,
    )
    return replace(clone, status=status)


def waiting(clone: Clone, found: Place) -> Clone:
    """Return the object with why there is no node yet."""
    return replace(clone, status=replace(clone.status, reason=found.reason, message=found.message))


def is_lasting(clone: Clone) -> bool:
    """Whether the node still has something to do for it: clones that were made stay as long as they are wished for."""
    return clone.status.completion_time is None or bool(clone.status.clones)


def wish(clone: Clone, auths: Sequence[InlineAuth]) -> Wish:
    """Return what the node is told. Once it is over, secrets are not said again."""
    meta, spec, status = clone.metadata, clone.spec, clone.status
    name = f"{meta.namespace}/{meta.name}"
    if status.completion_time is not None:
        return Wish(uid=meta.uid, generation=meta.generation, kind="clone", name=name, done=True)
    request = CloneRequest(
        checkpoint=status.checkpoint_id,
        count=spec.count,
        hostname=spec.hostname,
        mode=spec.mode,
        env=[EnvVar(name=each.name, value=each.value) for each in spec.env],
    )
    wanted = CloneWish(request=request, reference=status.reference, like=spec.like, trust=spec.trust, auths=list(auths))
    return Wish(uid=meta.uid, generation=meta.generation, kind="clone", name=name, spec=msgspec.Raw(_encode(wanted)))


def with_result(old: CloneStatus, result: Result, over: datetime | None) -> CloneStatus:
    """Return the status with what the node says."""
    detail = decode(result, Operation)
    clones = old.clones
    if detail is not None and detail.kind == "Clone":
        clones = tuple(_state(each) for each in detail.clones)
    message = result.message
    if over is None and not message and detail is not None:
        message = _doing(detail)
    return replace(
        old,
        phase="Creating" if over is None else "Succeeded" if result.phase == "Succeeded" else "Failed",
        clones=clones,
        ready=len(clones),
        message=message,
        reason=result.reason,
        completion_time=over,
    )


def _state(clone: CloneInfo) -> CloneState:
    return CloneState(id=clone.id, addresses=tuple(clone.addresses), memory=clone.memory)


def _doing(operation: Operation) -> str:
    if operation.kind != "Pull":
        return ""
    total = operation.total_bytes
    return "pulling the checkpoint" + (f", {min(99, operation.done_bytes * 100 // total)} %" if total else "")
