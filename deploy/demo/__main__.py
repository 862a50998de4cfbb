"""Plays the demo. ``KEEP=1`` leaves the node running at the end."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

from deploy.demo import checkpoints, cluster, pods, topology
from deploy.demo.scene import MIB, Scene, Story, check, image_specs, make_scene, publish
from stoker.client import Client
from stoker.objects.images import ItemEvent, WarmRequest
from tests.rig import cleanup, paths
from tests.rig.faultproxy import FaultProxy
from tests.rig.faults import Trickle
from tests.rig.images import ImageSpec, build
from tests.rig.layers import LayerSpec
from tests.rig.lock import RunLock
from tests.rig.stokerd import Store, ended

KILL_AT = 0.5


def main() -> int:
    keep = os.environ.get("KEEP", "") not in {"", "0"}
    lock = RunLock()
    lock.acquire()
    try:
        cleanup.cleanup()
        return _play(paths.DEFAULT_WORKDIR / "demo", keep=keep)
    finally:
        lock.release()


def _play(workdir: Path, *, keep: bool) -> int:
    story = Story()
    scene = make_scene(workdir)
    racks = cluster.Racks(scene.registry, workdir / "cluster")
    kept = False
    try:
        _set_up(scene, story)
        list_file = workdir / "images.txt"
        list_file.write_text("".join(f"{scene.name(name)}\n" for name in image_specs()), encoding="utf-8")
        before = Store.of(scene.node)
        _warm(scene, story, list_file)
        _pin(scene, story)
        asyncio.run(_survive(scene, story))
        asyncio.run(pods.play(scene, story))
        asyncio.run(topology.play(scene, story))
        asyncio.run(checkpoints.play(scene, story, keep=keep))
        if not keep:
            _clean(scene, story, before)
        cluster.play(scene, story, racks)
        if keep:
            kept = True
            _leave_running(scene, racks)
        print(f"\nWhat was done\n{story.table()}")
    finally:
        if not kept:
            racks.stop()
            scene.stokerd.stop()
            scene.hardware.stop()
            scene.node.stop()
            scene.registry.stop()
            cleanup.cleanup()
            shutil.rmtree(workdir)
    return 0


def _set_up(scene: Scene, story: Story) -> None:
    with story.stage("A fresh node: containerd, runc, CRIU, CNI; and a registry") as stage:
        scene.registry.start()
        scene.node.start()
        scene.node.expose(scene.registry.port)
        scene.node.hosts(scene.registry.address)
        stage.outcome = scene.node.ctr("version").stdout.split("Server:")[-1].split("Version:")[-1].split()[0]
        stage.outcome = f"containerd {stage.outcome}"
        print(f"containerd listens at {scene.node.endpoint}")
    with story.stage("Images to warm, built and pushed to the registry") as stage:
        size = publish(scene)
        stage.outcome = f"{len(image_specs())} images, {size / MIB:.0f} MiB of layers"
        print(stage.outcome)
    with story.stage("A machine of files: 8 GPUs, 11 NICs; real cables, real lldpd") as stage:
        scene.hardware.start()
        stage.outcome = f"{len(scene.hardware.switches.cables)} cables"
    with story.stage("stokerd starts") as stage:
        scene.stokerd.start()
        stage.outcome = f"process {scene.stokerd.pid}"
        check(scene.stoker("doctor") in {0, 1}, "stoker doctor")


def _warm(scene: Scene, story: Story, list_file: Path) -> None:
    with story.stage("What would it take?"):
        check(scene.stoker("image", "plan", "-f", str(list_file)) == 0, "the plan")
    with story.stage("Warm them all") as stage:
        check(scene.stoker("image", "warm", "-f", str(list_file)) == 0, "warming")
        stage.outcome = f"{len(image_specs())} images"
    with story.stage("Warm them again: they are there") as stage:
        check(scene.stoker("image", "warm", "-f", str(list_file)) == 0, "warming again")
        stage.outcome = "nothing to pull"


def _pin(scene: Scene, story: Story) -> None:
    with story.stage("Pin one: the kubelet's garbage collector leaves it alone") as stage:
        check(scene.stoker("image", "pin", scene.name("ai/server:0.9"), "--for", "24h") == 0, "pinning")
        check(scene.stoker("image", "pins") == 0, "listing pins")
        check(scene.stoker("image", "ls") == 0, "listing images")
        stage.outcome = "for 24 hours"


async def _survive(scene: Scene, story: Story) -> None:
    with story.stage("kill -9 of stokerd in the middle of a pull") as stage:
        spec = ImageSpec(layers=(LayerSpec(size=48 * MIB, files=60, seed="demo weights", directory="weights"),))
        image = await asyncio.to_thread(build, spec)
        pushed = await asyncio.to_thread(scene.registry.push, "ai/weights", image)
        async with FaultProxy(scene.registry.address) as proxy:
            scene.node.expose(proxy.port)
            scene.node.hosts(proxy.address)
            proxy.rule(Trickle(24 * MIB), path="/blobs/")
            name = f"{proxy.address}/ai/weights:v1"
            async with Client(scene.stokerd.socket) as client:
                job = await client.warm(WarmRequest(images=[name]))
                async for event in client.follow(job.id):
                    done = event.item.progress.bytes_done if isinstance(event, ItemEvent) else 0
                    if done > KILL_AT * pushed.compressed_size:
                        print(f"pulling {name}: {done / MIB:.0f} MiB are there … kill -9 {scene.stokerd.pid}")
                        break
            await asyncio.to_thread(scene.stokerd.kill)
            await asyncio.to_thread(scene.stokerd.start)
            print(f"stokerd is back as process {scene.stokerd.pid}; the job goes on by itself")
            async with Client(scene.stokerd.socket) as client:
                job = await ended(client, job.id)
            check(job.state == "Succeeded", "the job after the kill")
            twice = max(proxy.bytes_sent(pushed.layers[0].digest) - pushed.compressed_size, 0) / MIB
            stage.outcome = f"the rest was fetched ({twice:.1f} of {pushed.compressed_size / MIB:.0f} MiB twice)"
            print(stage.outcome)
            await asyncio.to_thread(scene.stoker, "image", "history", name)


def _clean(scene: Scene, story: Story, before: Store) -> None:
    with story.stage("Everything is removed again") as stage:
        names = sorted(Store.of(scene.node).images - before.images)
        tags = [name for name in names if "@" not in name and not name.startswith("sha256:")]
        check(scene.stoker("image", "rm", "--force", *tags) == 0, "removing images")
        left = Store.of(scene.node) - before
        check(not left, f"nothing left in containerd, but there is {left}")
        of_clones = checkpoints.left(scene)
        check(not of_clones, f"nothing left of checkpoints and clones, but there is {of_clones}")
        stage.outcome = "containerd holds what it held before"
        print(stage.outcome)


def _leave_running(scene: Scene, racks: cluster.Racks) -> None:
    pages, token, pids = racks.leave_running()
    names = " ".join([scene.node.name, scene.hardware.switches.name, *racks.names])
    scene.registry.detach()
    scene.hardware.switches.detach()
    scene.node.detach()
    print(
        f"""
The pages of the coordinator, for a browser on this machine:
  {pages}      sign in with the token  {token}
  export STOKER_SERVER=unix:{racks.socket}; .venv/bin/stoker nodes; .venv/bin/stoker topology --server "$STOKER_SERVER"
The node of its own goes on running, too. Play with it:
  export STOKER_SOCKET={scene.stokerd.socket}
  .venv/bin/stoker image ls
  .venv/bin/stoker image watch
  .venv/bin/stoker topology --watch
  .venv/bin/stoker clone golden -n 3; .venv/bin/stoker clone ls
  make rig-shell NAME=demo          # a shell in the node
Stop it all:
  kill {pids} {scene.stokerd.pid}
  for each in {names}; do make rig-down NAME=$each; done; make rig-clean
  rm -r {scene.stokerd.directory.parent}"""
    )


if __name__ == "__main__":
    sys.exit(main())
