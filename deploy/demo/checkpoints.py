"""The part of the demo about checkpoints, clones and images of containers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from deploy.demo import agent
from deploy.demo.agent import Told, counting
from deploy.demo.scene import Scene, Story, check
from stoker.client import Client
from stoker.objects.checkpoints import Operation
from stoker.units import fine_duration, format_size
from tests.rig.pods import BareCri, RigPod

POD = "agent"
LARGE = "large"
COPY = "copy"
CLONES = 10
GIBIBYTE = 1024  # MiB
_FOR_MEMORY = 120.0


async def play(scene: Scene, story: Story, *, keep: bool = False) -> None:
    """Checkpoint a program that runs, have ten go on from there, make an image of one, and resume a GiB lazily.

    With *keep* the checkpoint stays, for those who go on playing.
    """
    image = await asyncio.to_thread(agent.publish, scene)
    async with BareCri(scene.node) as cri, Client(scene.stokerd.socket) as client:
        await _checkpoint(scene, story, cri, client, image)
        clones = await _clone(scene, story, client)
        await _commit(scene, story, cri, client, clones[0])
        await _resume_lazily(scene, story, cri, client, image)
        if not keep:
            await _stoker(scene, "checkpoint", "rm", "golden")


def left(scene: Scene) -> list[str]:
    """Return what is there yet of checkpoints and clones: files, and namespaces of networks."""
    directory = scene.checkpoints
    files = [str(path) for pattern in ("[!.]*", ".*/*") for path in directory.glob(pattern)]
    return [*files, *scene.node.run("ls", "/run/stoker/netns").stdout.split()]


async def _checkpoint(scene: Scene, story: Story, cri: BareCri, client: Client, image: str) -> None:
    with story.stage("A program that counts, and says over HTTP how far it is"):
        await _stoker(scene, "image", "warm", image)
        pod = await _run(cri, POD, image)
        address = await cri.ip(pod)
        (told,) = await counting(scene.node, [address])
        print(f"http://{address}:8080/ is at {told.number}")
    with story.stage("Keep it as it is now, memory and files, while it runs") as stage:
        await _stoker(scene, "checkpoint", "create", POD, "--name", "golden")
        await _stoker(scene, "checkpoint", "ls")
        operation = await _last(client)
        (told,) = await counting(scene.node, [address], operation.finished_at)
        print(f"http://{address}:8080/ has gone on, it is at {told.number}")
        stage.outcome = f"it stood still for {fine_duration(operation.checkpoints[0].frozen_seconds)}"


async def _clone(scene: Scene, story: Story, client: Client) -> list[str]:
    """Make clones; return their ids."""
    with story.stage(f"{CLONES} clones of it go on, each with an address of its own") as stage:
        await _stoker(scene, "clone", "golden", "-n", str(CLONES))
        operation = await _last(client)
        await _stoker(scene, "clone", "ls")
        addresses = [clone.addresses[0] for clone in operation.clones]
        check(len(set(addresses)) == CLONES, "addresses of their own")
        told = await counting(scene.node, addresses, operation.created_at)
        starts = _show(told, operation.created_at)
        check(len(starts) == 1, f"all go on from one number, not from {starts}")
        stage.outcome = f"all from {starts.pop()} on, in {_took(operation)}"
        return [clone.id for clone in operation.clones]


async def _commit(scene: Scene, story: Story, cri: BareCri, client: Client, clone: str) -> None:
    name = scene.name("ai/agent:evolved")
    with story.stage("An image of one of them, pushed to the registry") as stage:
        await _stoker(scene, "commit", clone, name, "--push", "--message", "what the first has become")
        pushed = (await _last(client)).pushed
        assert pushed is not None
        stage.outcome = f"{format_size(pushed.sent_bytes)} sent, {format_size(pushed.existing_bytes)} there already"
        await _stoker(scene, "clone", "rm", "--of", "golden")
    with story.stage("Taken off the node, fetched from the registry, and run") as stage:
        await _stoker(scene, "image", "rm", name)
        await _stoker(scene, "image", "warm", name)
        address = await cri.ip(await _run(cri, COPY, name))
        (told,) = await counting(scene.node, [address])
        print(f"http://{address}:8080/ begins after what it finds in its files, and is at {told.number}")
        stage.outcome = f"it is at {told.number}"


async def _resume_lazily(scene: Scene, story: Story, cri: BareCri, client: Client, image: str) -> None:
    with story.stage("The same with 1 GiB of memory: kept, and ended") as stage:
        pod = await _run(cri, LARGE, image, GIBIBYTE)
        await counting(scene.node, [await cri.ip(pod)])
        await _stoker(scene, "checkpoint", "create", LARGE, "--name", LARGE, "--stop")
        stage.outcome = f"in {_took(await _last(client))}"
    with story.stage("It goes on before its memory is there") as stage:
        await _stoker(scene, "clone", LARGE, "--lazy")
        operation = await _last(client)
        await _stoker(scene, "clone", "ls")
        (told,) = await counting(scene.node, operation.clones[0].addresses, operation.created_at)
        first = fine_duration(_first(told, operation.created_at))
        print(f"from the request to its first number: {first}")
        loaded = await _all_in(client, operation)
        (told,) = await counting(scene.node, operation.clones[0].addresses, loaded)
        done = fine_duration(_between(operation.created_at, loaded))
        print(f"all of its memory is there after {done}; meanwhile it has counted to {told.number}")
        await _stoker(scene, "clone", "rm", "--all")
        await _stoker(scene, "checkpoint", "rm", LARGE)
        stage.outcome = f"first number after {first}, all memory after {done}"


async def _all_in(client: Client, operation: Operation) -> datetime:
    """Return when all memory of its clone was there."""
    (clone,) = operation.clones
    async with asyncio.timeout(_FOR_MEMORY):
        while (await client.clone_status(clone.id)).memory == "loading":  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.05)
    check((await client.clone_status(clone.id)).memory == "loaded", "all of its memory is there")
    return datetime.now(UTC)


def _show(told: Sequence[Told], moment: datetime | None) -> set[int]:
    """Print from where they went on, and where they are; return where they went on."""
    for each in told:
        print(f"http://{each.address}:8080/ went on with {each.since(moment)[0][0]}, is at {each.number}")
    return {each.since(moment)[0][0] for each in told}


def _first(told: Told, moment: datetime | None) -> float:
    """Return how many seconds after *moment* it counted."""
    assert moment is not None
    return told.since(moment)[0][1] - moment.timestamp()


def _took(operation: Operation) -> str:
    return fine_duration(_between(operation.created_at, operation.finished_at))


def _between(start: datetime | None, end: datetime | None) -> float:
    assert start is not None
    assert end is not None
    return (end - start).total_seconds()


async def _last(client: Client) -> Operation:
    """Return the operation that ended last."""
    return (await client.operations())[0]


async def _run(cri: BareCri, name: str, image: str, memory: int = 1) -> RigPod:
    """Run the program in a pod; it holds so many MiB."""
    pod = await cri.run_pod(name, namespace="demo")
    await cri.run(pod, "main", image=image, command=(), args=[str(memory)])
    return pod


async def _stoker(scene: Scene, *arguments: str) -> None:
    status = await asyncio.to_thread(scene.stoker, *arguments)
    check(status == 0, f"stoker {' '.join(arguments)}: exit status {status}")
