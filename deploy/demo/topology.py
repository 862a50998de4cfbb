"""The part of the demo about topology."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

from deploy.demo.hardware import Hardware
from deploy.demo.scene import Scene, Story, check
from stoker.cli.text import Style
from stoker.client import Client
from stoker.objects.topology import TopologyEvent
from stoker.topology_view import change_line
from tests.rig import paths

PICTURE = paths.REPOSITORY / "build" / "demo-topology.svg"
PULLED = 3
SEEN_WITHIN = 1.0
"""Seconds, from the moment at which the cable is out to the change at whoever follows."""
_SHOWN = frozenset(("state", "", "physical"))


async def play(scene: Scene, story: Story) -> None:
    """Show the node as a tree and as a picture, why two devices are so far apart, and a cable that is pulled out."""
    hardware = scene.hardware
    with story.stage("What this node is made of, and what it hangs on") as stage:
        async with Client(scene.stokerd.socket) as client:
            await _until_all_are_heard(hardware, client)
        await _stoker(scene, "topology")
        stage.outcome = f"{len(hardware.machine.gpus)} GPUs, {len(hardware.machine.nics)} NICs, each on a real lldpd"
    with story.stage("Why are two devices so far apart?"):
        await _stoker(scene, "topology", "explain", "GPU3", "mlx5_3")
        await _stoker(scene, "topology", "explain", "GPU3", "mlx5_4")
    with story.stage("The same as a picture") as stage:
        PICTURE.parent.mkdir(exist_ok=True)
        await _stoker(scene, "topology", "--svg", str(PICTURE))
        stage.outcome = str(PICTURE.relative_to(paths.REPOSITORY))
    with story.stage("A cable is pulled out, and put back") as stage:
        async with Client(scene.stokerd.socket) as client, aclosing(client.follow_topology()) as events:
            await anext(events)
            out = await _change(hardware, events, "down")
            await _stoker(scene, "doctor", expected=1)
            back = await _change(hardware, events, "healthy")
        stage.outcome = f"seen after {out * 1000:.0f} ms, and after {back * 1000:.0f} ms"
        print(stage.outcome)


async def _until_all_are_heard(hardware: Hardware, client: Client) -> None:
    """Wait until every switch has said who it is, which they do in their own time; here they are asked to."""
    while any(not port.neighbours for nic in (await client.topology()).nics for port in nic.ports):
        await asyncio.to_thread(hardware.switches.speak)


async def _change(hardware: Hardware, events: AsyncIterator[TopologyEvent], health: str) -> float:
    """Take a cable out or put it back; return how many seconds it took until that was told."""
    nic = hardware.machine.nics[PULLED]
    act = hardware.switches.pull if health == "down" else hardware.switches.put_back
    print(f"the cable of {nic.netdev} is {'pulled out' if health == 'down' else 'put back'} ...")
    began = time.perf_counter()
    await asyncio.to_thread(act, nic.netdev)
    took = 0.0
    async for event in events:
        for change in event.changes:
            if (change.subject, change.field, change.after) == (f"nic {nic.rdma} port 1 health", "state", health):
                took = time.perf_counter() - began
            if change.field in _SHOWN:
                print(f"  {change_line(change, Style())}")
        if took:
            break
    check(took < SEEN_WITHIN, f"the change was seen within {SEEN_WITHIN:g} s, but it took {took:.2f} s")
    return took


async def _stoker(scene: Scene, *arguments: str, expected: int = 0) -> None:
    status = await asyncio.to_thread(scene.stoker, *arguments)
    check(status == expected, f"stoker {' '.join(arguments)}: exit status {status}")
