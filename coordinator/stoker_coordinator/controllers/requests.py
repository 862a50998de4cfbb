"""Requests of one node (recreate, checkpoint, commit, clone): to which, as which wish, and what came of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stoker.objects.checkpoints import CheckpointRequest, CommitRequest, Operation
from stoker.objects.cluster_clones import Clone
from stoker.objects.cluster_requests import (
    Checkpoint,
    CheckpointStatus,
    Commit,
    CommitStatus,
    ContainerRecreateRequest,
    ContainerRecreateRequestStatus,
    ContainerRecreateState,
)
from stoker.objects.containers import (
    EnvVar,
    Probe,
    RecreateRequest,
    RecreateStatus,
    RecreateStrategy,
    RecreateTarget,
)
from stoker.objects.images import InlineAuth
from stoker.objects.link import CheckpointWish, Result, Wish, WishKind
from stoker.units import parse_duration
from stoker_coordinator.controllers import cloning
from stoker_coordinator.controllers.details import decode

PodRequest: TypeAlias = ContainerRecreateRequest | Checkpoint | Commit
Request: TypeAlias = PodRequest | Clone
R = TypeVar("R", ContainerRecreateRequest, Checkpoint, Commit, Clone)
P = TypeVar("P", ContainerRecreateRequest, Checkpoint, Commit)
KINDS: tuple[type[Request], ...] = (ContainerRecreateRequest, Checkpoint, Commit, Clone)

OBJECT_LABEL = "coordinator.stoker.dev/object"
"""On checkpoints: the object that asked for them, as namespace/name."""

GRACE = timedelta(seconds=60)
"""So long a request waits for a pod that no node has, and for a node that does not answer after its deadline."""
_KIND_OF: Mapping[type[Request], WishKind] = {
    ContainerRecreateRequest: "recreate",
    Checkpoint: "checkpoint",
    Commit: "commit",
    Clone: "clone",
}
_encode = msgspec.msgpack.Encoder().encode


class Where(Struct, frozen=True):
    """Which node has the pod; without one, why."""

    node: str = ""
    reason: Literal["", "PodNotFound", "PodOnSeveralNodes"] = ""
    message: str = ""


def is_over(request: Request) -> bool:
    return request.status.completion_time is not None


def is_wished(request: Request) -> bool:
    """Whether the node is to be told of it."""
    if request.deleting:
        return False
    return cloning.is_lasting(request) if isinstance(request, Clone) else not is_over(request)


def secrets_of(request: Request) -> tuple[str, ...]:
    """Return the PullSecrets that the node needs for it, by name."""
    if is_over(request) or isinstance(request, ContainerRecreateRequest):
        return ()
    if (isinstance(request, Checkpoint) and not request.spec.destination) or (
        isinstance(request, Clone) and not request.status.reference
    ):
        return ()
    return tuple(each.name for each in request.spec.registry_auth.secrets)


def where(request: PodRequest, nodes: Collection[str], ready: Collection[str]) -> Where:
    """Return the node that a request goes to. *nodes*: those that have the pod; *ready*: those of them that answer."""
    pod = f"{request.metadata.namespace}/{request.spec.pod_name}"
    found = sorted(set(nodes) & set(ready)) or sorted(nodes)
    if len(found) == 1:
        return Where(found[0])
    if not found:
        return Where(reason="PodNotFound", message=f"no node has a pod {pod}")
    return Where(reason="PodOnSeveralNodes", message=f"pod {pod} is on {', '.join(found[:5])}")


def placed(request: P, node: str) -> P:
    """Return the request as it is when it has been given to *node*."""
    phases = {"ContainerRecreateRequest": "Recreating", "Checkpoint": "Creating", "Commit": "Running"}
    status: Any = request.status
    return replace(request, status=replace(status, node_name=node, phase=phases[request.kind], message=""))


def ended(request: R, reason: str, message: str, now: datetime) -> R:
    """Return the request as one that has failed without a node's word."""
    if isinstance(request, ContainerRecreateRequest):
        states = tuple(
            replace(each, phase="Failed", reason=reason, message=message)
            if each.phase in {"Pending", "Recreating"}
            else each
            for each in request.status.container_recreate_states
        )
        status: Any = replace(
            request.status,
            phase="Completed",
            result="Failed",
            message=message,
            completion_time=now,
            container_recreate_states=states,
        )
    else:
        status = replace(request.status, phase="Failed", reason=reason, message=message, completion_time=now)
    return replace(request, status=status)


def hopeless_at(request: Request, silent_since: datetime | None, now: datetime) -> datetime | None:
    """Return when to give a request up that its node says nothing of; None: it is not silent."""
    if silent_since is None:
        return None
    deadline = 0.0
    if isinstance(request, ContainerRecreateRequest):
        deadline = request.spec.active_deadline_seconds or 0.0
    elif isinstance(request, Commit):
        deadline = float(request.spec.timeout_seconds)
    created = request.metadata.creation_timestamp or now
    return max(silent_since, created + timedelta(seconds=deadline)) + GRACE


def expires_at(request: Request) -> datetime | None:
    """Return when a request that is over is to be removed; None: it stays."""
    over = request.status.completion_time
    if over is None:
        return None
    if isinstance(request, Clone):
        return None
    if isinstance(request, ContainerRecreateRequest):
        seconds = request.spec.ttl_seconds_after_finished
    else:
        seconds = duration(request.spec.ttl_after_finished if isinstance(request, Checkpoint) else request.spec.ttl)
    return None if seconds is None else over + timedelta(seconds=seconds)


def duration(text: str) -> float | None:
    """Read ``1h30m``; None where there is nothing that can be read."""
    try:
        return parse_duration(text)
    except ValueError:
        return None


# ---------------------------------------------------------------------------------------------- wishes


def wish(request: Request, auths: Sequence[InlineAuth] = ()) -> Wish:
    """Return what the node is told. *auths*: with which it pushes or pulls."""
    if isinstance(request, Clone):
        return cloning.wish(request, auths)
    meta = request.metadata
    spec: RecreateRequest | CheckpointWish | CommitRequest
    kind: WishKind
    if isinstance(request, ContainerRecreateRequest):
        kind, spec = "recreate", _recreate(request)
    elif isinstance(request, Checkpoint):
        kind = "checkpoint"
        spec = CheckpointWish(request=_checkpoint(request), destination=request.spec.destination, auths=list(auths))
    else:
        kind, spec = "commit", _commit(request, auths)
    return Wish(
        uid=meta.uid,
        generation=meta.generation,
        kind=kind,
        name=f"{meta.namespace}/{meta.name}",
        spec=msgspec.Raw(_encode(spec)),
    )


def kept(request: Request) -> Wish | None:
    """Return what the node is told of a request whose secrets cannot be opened: to go on if it has it, else to begin
    nothing. What it is told nothing of it breaks off.

    None for clones of which it has said nothing yet: it would take them for made, and never begin with them.
    """
    meta = request.metadata
    if isinstance(request, Clone) and request.status.observed_generation != meta.generation:
        return None
    kind = _KIND_OF[type(request)]
    return Wish(uid=meta.uid, generation=meta.generation, kind=kind, name=f"{meta.namespace}/{meta.name}", done=True)


def _recreate(request: ContainerRecreateRequest) -> RecreateRequest:
    spec, rules = request.spec, request.spec.strategy
    targets = [
        RecreateTarget(
            name=each.name,
            image=each.image,
            env=[EnvVar(name=env.name, value=None if env.unset else env.value or "") for env in each.env],
            probe=None if each.probe is None else msgspec.convert(msgspec.to_builtins(each.probe), Probe),
        )
        for each in spec.containers
    ]
    strategy = RecreateStrategy(
        failure_policy=rules.failure_policy,
        ordered_recreate=rules.ordered_recreate,
        force_recreate=rules.force_recreate,
        termination_grace_period_seconds=rules.termination_grace_period_seconds,
        unready_grace_period_seconds=rules.unready_grace_period_seconds,
        min_started_seconds=rules.min_started_seconds,
    )
    return RecreateRequest(
        pod=spec.pod_name,
        name=request.metadata.uid,
        namespace=request.metadata.namespace,
        containers=targets,
        all=spec.all,
        strategy=strategy,
        active_deadline_seconds=spec.active_deadline_seconds,
    )


def _checkpoint(request: Checkpoint) -> CheckpointRequest:
    spec, meta = request.spec, request.metadata
    return CheckpointRequest(
        pod=f"{meta.namespace}/{spec.pod_name}",
        containers=[each.name for each in spec.containers],
        name=meta.name,
        request=meta.uid,
        stop=not spec.keep_running,
        tcp=spec.tcp,
        file_locks=spec.file_locks,
        external_unix_sockets=spec.external_unix_sockets,
        timeout_seconds=spec.timeout_seconds,
        labels={OBJECT_LABEL: f"{meta.namespace}/{meta.name}"},
    )


def _commit(request: Commit, auths: Sequence[InlineAuth]) -> CommitRequest:
    spec, meta = request.spec, request.metadata
    return CommitRequest(
        container="/".join(each for each in (meta.namespace, spec.pod_name, spec.container_name) if each),
        image=spec.image,
        request=meta.uid,
        changes=list(spec.changes),
        author=spec.author,
        message=spec.message,
        squash=spec.squash_layer,
        compression=spec.compression,
        push=True,
        auths=list(auths),
    )


# ---------------------------------------------------------------------------------------------- results


def with_result(request: R, result: Result, now: datetime) -> R:
    """Return the request with what its node says of it. What is over stays as it is."""
    if is_over(request) or result.generation != request.metadata.generation:
        return request
    final = result.phase in {"Succeeded", "Failed", "Cancelled"}
    over = now if final else None
    status: Any
    if isinstance(request, ContainerRecreateRequest):
        status = _recreated(request.status, result, over)
    elif isinstance(request, Checkpoint):
        status = _checkpointed(request.status, result, over)
    elif isinstance(request, Clone):
        status = cloning.with_result(request.status, result, over)
    else:
        status = _committed(request.status, result, over, now)
    return replace(request, status=replace(status, observed_generation=request.metadata.generation))


def _recreated(
    old: ContainerRecreateRequestStatus, result: Result, over: datetime | None
) -> ContainerRecreateRequestStatus:
    detail = decode(result, RecreateStatus)
    states = old.container_recreate_states
    if detail is not None:
        states = tuple(
            ContainerRecreateState(
                name=each.name, phase=each.phase, message=each.message, is_killed=each.is_killed, reason=each.reason
            )
            for each in detail.containers
        )
    outcome: Mapping[str, Literal["Succeeded", "Failed", "Cancelled"]] = {
        "Succeeded": "Succeeded",
        "Failed": "Failed",
        "Cancelled": "Cancelled",
    }
    return replace(
        old,
        phase="Completed" if over else "Recreating",
        result=outcome.get(result.phase, ""),
        message=result.message,
        completion_time=over,
        container_recreate_states=states,
    )


def _checkpointed(old: CheckpointStatus, result: Result, over: datetime | None) -> CheckpointStatus:
    detail = decode(result, Operation)
    phase: Any = "Creating" if over is None else "Succeeded" if result.phase == "Succeeded" else "Failed"
    status = replace(old, phase=phase, message=result.message, reason=result.reason, completion_time=over)
    made = detail.checkpoints if detail is not None else []
    if made:
        frozen = max(each.frozen_seconds for each in made)
        status = replace(
            status,
            checkpoint_id=made[0].id if len(made) == 1 else made[0].group,
            size_bytes=sum(each.bytes for each in made),
            frozen_milliseconds=round(frozen * 1000, 1),
        )
    if detail is not None and detail.pushed is not None:
        status = replace(status, reference=f"{detail.pushed.reference}@{detail.pushed.digest}")
    return status


def _committed(old: CommitStatus, result: Result, over: datetime | None, now: datetime) -> CommitStatus:
    detail = decode(result, Operation)
    image = detail.image if detail is not None else None
    phase: Any = "Running" if over is None else "Succeeded" if result.phase == "Succeeded" else "Failed"
    return replace(
        old,
        phase=phase,
        digest=image.digest if image is not None else old.digest,
        message=result.message,
        reason=result.reason,
        start_time=old.start_time or now,
        completion_time=over,
    )
