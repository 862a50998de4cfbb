"""From a request of the API to what is recorded of it: which pod and containers are meant, and how they are now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.objects import containers as api
from stokerd.containers import checks
from stokerd.containers.clock import Clock
from stokerd.containers.hands import Hands, detailed, sandbox_state
from stokerd.containers.inventory import Inventory
from stokerd.containers.inventory_model import owner_of, seen
from stokerd.containers.job import Material
from stokerd.containers.model import Sight, Spec
from stokerd.errors import Conflict, NotFound
from stokerd.runtime.pod_types import Container, ContainerStatus, Pod, PodStatus
from stokerd.runtime.protocol import Runtime
from stokerd.settings import ContainerSettings


@dataclass(frozen=True)
class Intake:
    """A request that makes sense, with the pod as it was found."""

    request: api.RecreateRequest
    pod: PodStatus
    owner: api.Owner
    spec: Spec
    sight: Sight
    current: dict[str, ContainerStatus]
    """By name, in the order of the request."""
    materials: dict[str, Material]


class Desk:
    """Takes requests in."""

    def __init__(self, runtime: Runtime, inventory: Inventory, hands: Hands, clock: Clock) -> None:
        self._runtime = runtime
        self._inventory = inventory
        self._hands = hands
        self._clock = clock

    async def take(self, request: api.RecreateRequest, settings: ContainerSettings) -> Intake:
        """Find out what is meant. Raises NotFound, Conflict, InvalidInput, RuntimeFailure; nothing has been done."""
        pod, guess = await self._pod(request)
        wanted = None if request.all else [target.name for target in request.containers]
        at = self._clock.time()
        guessed = _pick(guess, wanted)
        listed, status, statuses = await asyncio.gather(
            self._runtime.containers.list(pod_id=pod.id),
            self._runtime.pods.status(pod.id),
            asyncio.gather(*(self._runtime.containers.status(each.id) for each in guessed.values())),
        )
        if status is None:
            self._inventory.suspect()
            raise NotFound(
                f"the pod {request.pod!r} went away this moment", hint="`stoker pods` lists those that are there"
            )
        read = {each.container.id: each for each in statuses if each is not None}
        chosen = _chosen(listed, wanted, f"{pod.namespace}/{pod.name}")
        current = await self._read(chosen, read)
        if request.all:
            current = dict(sorted(current.items(), key=lambda entry: _started(entry[1])))
        owner = owner_of(status.pod, listed)
        if owner == "kubelet":
            checks.check_owner(request, f"{pod.namespace}/{pod.name}")
        targets = request.containers or [api.RecreateTarget(name=name) for name in current]
        spec = checks.spec_of(request, targets, settings)
        sight = Sight(sandbox_state(status), tuple(seen(each) for each in listed), at)
        materials = {name: self._hands.material(spec, each, status) for name, each in current.items()}
        return Intake(request, status, owner, spec, sight, current, materials)

    async def _pod(self, request: api.RecreateRequest) -> tuple[Pod, Sequence[Container]]:
        pod, picture = await self._inventory.find_pod(request.pod, request.namespace)
        if pod.state != "ready":  # by what is remembered
            picture = await self._inventory.picture()
            pod = picture.find_pod(request.pod, request.namespace)
        return pod, picture.of(pod.id)

    async def _read(self, chosen: dict[str, Container], read: dict[str, ContainerStatus]) -> dict[str, ContainerStatus]:
        """Return the status of each container; most of them have been read by now."""
        missing = [each for each in chosen.values() if each.id not in read]
        for found in await asyncio.gather(*(self._runtime.containers.status(each.id) for each in missing)):
            if found is not None:
                read[found.container.id] = found
        gone = [name for name, each in chosen.items() if each.id not in read]
        if gone:
            raise Conflict(f"{', '.join(gone)}: the container is being replaced this moment", hint="ask again")
        return {name: read[each.id] for name, each in chosen.items()}


def _pick(containers: Sequence[Container], wanted: Sequence[str] | None) -> dict[str, Container]:
    """Return the container that each name stands for: the one that runs, else the newest that has run."""
    best: dict[str, Container] = {}
    for each in containers:
        if wanted is not None and each.name not in wanted:
            continue
        now = best.get(each.name)
        if now is None or _rank(each) > _rank(now):
            best[each.name] = each
    if wanted is None:
        return {name: each for name, each in best.items() if each.state == "running"}
    return {name: best[name] for name in wanted if name in best}


def _rank(container: Container) -> tuple[int, int]:
    return {"running": 3, "unknown": 2, "exited": 1, "created": 0}[container.state], container.attempt


def _chosen(listed: Sequence[Container], wanted: Sequence[str] | None, pod: str) -> dict[str, Container]:
    chosen = _pick(listed, wanted)
    missing = [name for name in wanted or () if name not in chosen]
    if missing:
        there = ", ".join(sorted({each.name for each in listed})) or "none"
        raise NotFound(f"the pod {pod} has no container {', '.join(missing)}", hint=f"its containers: {there}")
    if not chosen:
        raise Conflict(f"no container of the pod {pod} runs", hint="name the containers that are to be recreated")
    fresh = [name for name, each in chosen.items() if each.state == "created"]
    if fresh:
        raise Conflict(f"{', '.join(fresh)}: created, and not started yet by whoever made it", hint="ask again later")
    return chosen


def _started(status: ContainerStatus) -> tuple[float, float, str]:
    found = detailed(status)
    return found.started_at or found.created_at, found.created_at, found.name
