"""Whether a request to recreate makes sense, and what of it is remembered. Pure."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable

import msgspec
import msgspec.structs

from stoker.objects.containers import EnvVar, Probe, RecreateRequest, RecreateTarget
from stokerd.containers.model import Spec, TargetSpec
from stokerd.errors import InvalidInput
from stokerd.registry.references import parse_reference
from stokerd.settings import ContainerSettings

_MOST_CONTAINERS = 200
_MOST_VARIABLES = 1000
_LONGEST = 365 * 86_400.0
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[^\x00=]{1,1000}")


def check(request: RecreateRequest) -> None:
    """Raise InvalidInput, naming the field, for a request that cannot be meant so."""
    if not request.pod:
        raise InvalidInput("pod: none was named")
    for field, text in (("name", request.name), ("namespace", request.namespace)):
        if text and not _NAME.fullmatch(text):
            raise InvalidInput(f"{field}: {text[:60]!r} is not a name", hint="letters, digits, '-', '.' and '_'")
    if bool(request.containers) == request.all:
        raise InvalidInput(
            "containers: name at least one container, or ask for all",
            hint="give one of `containers` and `all`, not both",
        )
    if len(request.containers) > _MOST_CONTAINERS:
        raise InvalidInput(f"containers: {len(request.containers)} are more than the {_MOST_CONTAINERS} that may be")
    names = [target.name for target in request.containers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInput(f"containers: {', '.join(twice)} named twice")
    for target in request.containers:
        _check_target(target)
    _check_durations(request)


def _check_target(target: RecreateTarget) -> None:
    where = f"containers[{target.name[:60]}]"
    if not target.name:
        raise InvalidInput("containers: a container has no name")
    if len(target.env) > _MOST_VARIABLES:
        raise InvalidInput(f"{where}.env: {len(target.env)} are more than the {_MOST_VARIABLES} that may be")
    variables = [variable.name for variable in target.env]
    for variable in target.env:
        _check_variable(where, variable)
    if len(set(variables)) != len(variables):
        raise InvalidInput(f"{where}.env: a variable is named twice")
    if target.image:
        parse_reference(target.image)
    if target.probe is not None:
        _check_probe(where, target.probe)


def _check_variable(where: str, variable: EnvVar) -> None:
    if not _VARIABLE.fullmatch(variable.name):
        raise InvalidInput(f"{where}.env: a name is empty, too long, or has a '=' in it")
    if variable.value is not None and "\0" in variable.value:
        raise InvalidInput(f"{where}.env: the value of {variable.name} has a NUL in it")


def _check_probe(where: str, probe: Probe) -> None:
    if bool(probe.exec) == bool(probe.tcp_port):
        raise InvalidInput(f"{where}.probe: give one of exec and tcpPort")
    if any("\0" in word for word in probe.exec):
        raise InvalidInput(f"{where}.probe.exec: a word has a NUL in it")
    if not 0 <= probe.tcp_port <= 65_535:
        raise InvalidInput(f"{where}.probe.tcpPort: {probe.tcp_port} is no port")
    for field, value in (("periodSeconds", probe.period_seconds), ("timeoutSeconds", probe.timeout_seconds)):
        if not 0.01 <= value <= 3600:
            raise InvalidInput(f"{where}.probe.{field}: {value} is not between 0.01 and 3600")
    if not 1 <= probe.failure_threshold <= 1_000_000:
        raise InvalidInput(f"{where}.probe.failureThreshold: {probe.failure_threshold} is not between 1 and 1000000")


def _check_durations(request: RecreateRequest) -> None:
    strategy = request.strategy
    durations = (
        ("strategy.terminationGracePeriodSeconds", strategy.termination_grace_period_seconds, 0.0),
        ("strategy.unreadyGracePeriodSeconds", strategy.unready_grace_period_seconds, 0.0),
        ("strategy.minStartedSeconds", strategy.min_started_seconds, 0.0),
        ("activeDeadlineSeconds", request.active_deadline_seconds, 0.001),
        ("ttlSecondsAfterFinished", request.ttl_seconds_after_finished, 0.0),
    )
    for field, value, least in durations:
        if value is not None and not (math.isfinite(value) and least <= value <= _LONGEST):
            raise InvalidInput(f"{field}: {value} is not a duration in seconds")


def check_owner(request: RecreateRequest, pod: str) -> None:
    """Refuse what only the kubelet's own configuration can change."""
    for target in request.containers:
        what = "image" if target.image else "environment" if target.env else ""
        if what:
            raise InvalidInput(
                f"containers[{target.name}]: the pod {pod} belongs to the kubelet, which starts containers from its "
                f"own configuration and would undo a change of the {what}",
                hint="change the Pod, or what makes it, in the API server; without the change it can be recreated here",
            )


def spec_of(request: RecreateRequest, targets: Iterable[RecreateTarget], settings: ContainerSettings) -> Spec:
    """Return what of a request is remembered."""
    strategy = request.strategy
    ttl = request.ttl_seconds_after_finished
    return Spec(
        targets=tuple(_target_spec(target) for target in targets),
        failure_policy=strategy.failure_policy,
        ordered=strategy.ordered_recreate,
        force=strategy.force_recreate,
        grace=strategy.termination_grace_period_seconds,
        unready_grace=strategy.unready_grace_period_seconds,
        min_started=strategy.min_started_seconds,
        ttl=settings.request_ttl if ttl is None else ttl,
    )


def _target_spec(target: RecreateTarget) -> TargetSpec:
    return TargetSpec(
        name=target.name,
        image=parse_reference(target.image).pull_spec if target.image else "",
        env_set=tuple(variable.name for variable in target.env if variable.value is not None),
        env_removed=tuple(variable.name for variable in target.env if variable.value is None),
        probe=target.probe,
    )


def digest_of(request: RecreateRequest, salt: bytes) -> str:
    """Return what is equal for requests of equal content, and tells nobody without *salt* anything about it.

    Credentials are no part of it: they may be new ones each time.
    """
    content = msgspec.json.encode(msgspec.structs.replace(request, auths=[]), order="deterministic")
    return hashlib.blake2b(content, key=salt[:64], digest_size=20).hexdigest()
