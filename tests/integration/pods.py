"""What the tests of recreation share: asking for one, and what must hold whatever happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from cri_stubs.cri.v1 import runtime_pb2 as cri
from stoker.client import Client
from stoker.objects.containers import RecreateRequest, RecreateStatus, RecreateStrategy, RecreateTarget, TargetStatus
from tests.conformance.subject import eventually
from tests.rig.pods import BareCri, RigPod, Seen

GRACE = 2.0


def request(pod: RigPod, *names: str, every: bool = False, **options: Any) -> RecreateRequest:
    """Return a request with a short grace; *options* of the strategy are told by their names."""
    strategy = {name: options.pop(name) for name in list(options) if name in RecreateStrategy.__struct_fields__}
    strategy.setdefault("termination_grace_period_seconds", GRACE)
    targets = options.pop("containers", [RecreateTarget(name=name) for name in names])
    return RecreateRequest(pod=pod.id, containers=targets, all=every, strategy=RecreateStrategy(**strategy), **options)


async def recreated(client: Client, wish: RecreateRequest, *, timeout: float = 60) -> RecreateStatus:
    """Ask, and follow to the end."""
    status = await client.recreate(wish)
    return await completed(client, status.id, timeout=timeout)


async def completed(client: Client, request_id: str, *, timeout: float = 60) -> RecreateStatus:
    async with asyncio.timeout(timeout):
        status = await client.recreate_status(request_id)
        if status.phase != "Completed":
            async for event in client.follow_recreate(request_id):
                status = event.recreate
    assert status.phase == "Completed"
    return status


def only(status: RecreateStatus) -> TargetStatus:
    """Return the state of the one container that was asked for."""
    assert len(status.containers) == 1, status.containers
    return status.containers[0]


async def whole(bare: BareCri, pod: RigPod, *names: str) -> dict[str, Seen]:
    """Assert that each name has exactly one running container, and return them."""
    seen = await bare.list(pod)
    running = {each.name: each for each in seen if each.running}
    count = Counter(each.name for each in seen if each.running)
    assert count == dict.fromkeys(names, 1), told(seen)
    return running


async def tidy(bare: BareCri, pod: RigPod, *names: str, timeout: float = 10) -> dict[str, Seen]:
    """As `whole`, and wait until nothing but these containers is there: what ended requests left is removed after."""
    running = await whole(bare, pod, *names)

    async def alone() -> bool:
        return len(await bare.list(pod)) == len(names)

    await eventually(f"only {', '.join(names)} are left in {pod.name}", alone, timeout)
    return running


def told(seen: list[Seen]) -> list[tuple[str, int, str]]:
    states = cri.ContainerState
    return [(each.name, each.attempt, states.Name(states.ValueType(each.state))) for each in seen]
