"""The part of the demo about containers recreated in place."""

from __future__ import annotations

import asyncio

from deploy.demo.scene import MIB, Scene, Story, check
from tests.rig.bundled import busybox
from tests.rig.layers import Entry, LayerSpec
from tests.rig.pods import BareCri, RigPod

POD = "trainer"
CONTAINERS = ("worker", "metrics", "logs")
SERVE = ("sh", "-c", "trap 'exit 0' TERM; test -e /broken && exit 3; while :; do sleep 3600 & wait $!; done")


def publish_versions(scene: Scene) -> dict[str, str]:
    """Push three versions of one program; the last does not stay up."""
    names = {}
    for tag, files in {"1.0": (), "1.1": (), "1.2": (Entry("broken", b""),)}.items():
        own = LayerSpec(size=4 * MIB, seed=f"demo worker {tag}", directory="srv", entries=files)
        names[tag] = scene.registry.push("ai/worker", busybox(own), tag=tag).reference
    return names


async def play(scene: Scene, story: Story) -> None:
    """Recreate one container with a new image, then all, then with an image that fails."""
    versions = await asyncio.to_thread(publish_versions, scene)
    async with BareCri(scene.node) as cri:
        pod = await _make_pod(scene, story, cri, versions["1.0"])
        before = await _facts(cri, pod)
        with story.stage("Give one container a new image, in place") as stage:
            await _stoker(scene, "recreate", POD, "worker", "--image", versions["1.1"])
            after = await _facts(cri, pod)
            check(after["ip"] == before["ip"], "the pod keeps its address")
            check(after["metrics"] == before["metrics"] and after["logs"] == before["logs"], "siblings untouched")
            check(after["worker"] != before["worker"], "a new worker")
            stage.outcome = "same address, siblings' processes untouched"
            print(stage.outcome)
        with story.stage("Restart the whole pod in place") as stage:
            await _stoker(scene, "recreate", POD, "--all", "--ordered")
            again = await _facts(cri, pod)
            check(all(again[name] != after[name] for name in CONTAINERS), "all containers are new")
            check(again["ip"] == before["ip"], "the pod keeps its address")
            stage.outcome = f"{len(CONTAINERS)} containers, same address"
        with story.stage("An update that does not stay up is rolled back") as stage:
            arguments = ("recreate", POD, "worker", "--image", versions["1.2"], "--min-started", "1s")
            await _stoker(scene, *arguments, expected=1)
            await _stoker(scene, "pods")
            last = await _facts(cri, pod)
            check(last["image"] == versions["1.1"], "the version before runs again")
            stage.outcome = "version 1.1 runs again"


async def _make_pod(scene: Scene, story: Story, cri: BareCri, image: str) -> RigPod:
    with story.stage("A pod with three containers") as stage:
        await _stoker(scene, "image", "warm", image)
        pod = await cri.run_pod(POD, namespace="demo")
        for name in CONTAINERS:
            await cri.run(pod, name, image=image, command=SERVE)
        await _stoker(scene, "pods")
        stage.outcome = f"{', '.join(CONTAINERS)} at {await cri.ip(pod)}"
        return pod


async def _facts(cri: BareCri, pod: RigPod) -> dict[str, object]:
    """Return what must stay and what must change: the address, each container's process, the worker's image."""
    facts: dict[str, object] = {"ip": await cri.ip(pod)}
    for seen in await cri.list(pod):
        if seen.running:
            facts[seen.name] = (await cri.info(seen.id))["pid"]
            if seen.name == "worker":
                facts["image"] = (await cri.info(seen.id))["config"]["image"]["image"]
    return facts


async def _stoker(scene: Scene, *arguments: str, expected: int = 0) -> None:
    status = await asyncio.to_thread(scene.stoker, *arguments)
    check(status == expected, f"stoker {arguments[0]}: exit status {status}")
