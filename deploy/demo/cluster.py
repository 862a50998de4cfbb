"""The part of the demo about many nodes: a coordinator, three nodes that have joined it, and switches between them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.demo import agent
from deploy.demo.scene import Scene, Story, check
from tests.rig.cluster import Cluster
from tests.rig.node import Node, NodeOptions
from tests.rig.pods import BareCri, own_pids
from tests.rig.rack import Rack, server
from tests.rig.registry import Registry
from tests.rig.waiting import until

PLACES: Mapping[str, tuple[int, ...]] = {"node1": (1, 2), "node2": (1, 2), "node3": (3, 4)}
"""Each node has a NIC on each of these leaf switches."""
FABRIC = "\n".join(
    [
        "fabric: roce",
        "switches:",
        *(f"  - {{name: leaf-{number:02}, links: [spine-1, spine-2], gbps: 400}}" for number in range(1, 5)),
    ]
)
CABLE = ("node2", "mlx5_0")
SEEN_WITHIN = 5.0
NAMESPACE = "demo"


class Racks:
    """All that this part of the demo starts. ``keep`` leaves it to whoever plays on."""

    def __init__(self, registry: Registry, workdir: Path) -> None:
        options = NodeOptions(expose=(registry.port,))
        self.nodes = [Node(f"demo-{name}", "forky", workdir=workdir, options=options) for name in PLACES]
        self.rack = Rack(
            "demo-rack", [server(name, *leaves) for name, leaves in PLACES.items()], workdir / "rack", prefix="d"
        )
        source = workdir / "fabric.yaml"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(FABRIC, encoding="ascii")
        settings = [
            {
                "topology": self.rack.settings(index),
                "daemon": {"log_level": "info"},
                "checkpoints": {"directory": str(node.artifacts_dir / "checkpoints")},
            }
            for index, node in enumerate(self.nodes)
        ]
        fabric = {"fabric": {"static": str(source), "interval": "2s"}}
        self.cluster = Cluster(workdir, self.nodes, settings=settings, coordinator=fabric)
        self._registry = registry

    @property
    def registry(self) -> str:
        return self._registry.address

    @property
    def socket(self) -> Path:
        return self.cluster.coordinator.socket

    def start(self) -> None:
        """Start nodes, switches, coordinator and daemons."""
        self.rack.start()
        for node in self.nodes:
            node.start()
            node.hosts(self._registry.address)
        self.cluster.start()

    def stop(self) -> None:
        """End all of it; may be called without `start`."""
        self.cluster.stop()
        self.rack.stop()
        for node in self.nodes:
            node.stop()

    @property
    def names(self) -> list[str]:
        """Return what the rig calls nodes and switches."""
        return [*(node.name for node in self.nodes), self.rack.switches.name]

    def leave_running(self) -> tuple[str, str, str]:
        """Let all of it outlive this process; return where the pages are, a token for them, and whom to end."""
        coordinator = self.cluster.coordinator
        token = coordinator.token("admin")
        pids = [coordinator.pid, *(member.stokerd.pid for member in self.cluster.members)]
        self.rack.switches.detach()
        for node in self.nodes:
            node.detach()
        return f"{coordinator.url}/ui/", token, " ".join(map(str, pids))

    # ------------------------------------------------------------------------------------------ asked

    def stoker(self, *arguments: str, stdin: str = "", expected: int = 0) -> None:
        """Run the command line against the coordinator as a person would, its output going where ours goes."""
        shown = " ".join(["stoker", "--server", "$COORDINATOR", *arguments])
        print(f"\x1b[2m$ {shown}\x1b[0m" if sys.stdout.isatty() else f"$ {shown}", flush=True)
        argv = [sys.executable, "-m", "stoker", "--server", f"unix:{self.cluster.coordinator.socket}", *arguments]
        done = subprocess.run(argv, check=False, input=stdin or None, text=True)
        check(done.returncode == expected, shown)

    def apply(self, *documents: Mapping[str, Any], wait: bool = True) -> None:
        """Show objects, have them made, and wait until they are over."""
        text = "\n---\n".join(_yaml(document) for document in documents)
        print(text, flush=True)
        self.stoker("apply", "-f", "-", *(["--wait"] if wait else []), stdin=text)

    def status(self, kind: str, name: str, namespace: str = NAMESPACE) -> dict[str, Any]:
        return self.cluster.coordinator.get(kind, name, namespace).get("status") or {}

    def unwell(self) -> list[str]:
        """Return the links that the coordinator knows to be down or worse."""
        domains = [each for each in self.cluster.coordinator.all("hypernodes") if each["spec"]["tier"] == 1]
        return [f"{link['a']}" for each in domains for link in each["status"].get("unhealthyLinks", ())]

    def places(self) -> list[set[str]]:
        """Return who is with whom at tier 1."""
        found = []
        for each in self.cluster.coordinator.all("hypernodes"):
            if each["spec"]["tier"] == 1:
                found.append({member["selector"]["exactMatch"]["name"] for member in each["spec"]["members"]})
        return found


def _yaml(document: Mapping[str, Any]) -> str:
    """Return an object as people write it."""
    import yaml

    return yaml.safe_dump(json.loads(json.dumps(document)), sort_keys=False).strip()


def _object(version: str, kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }


# ---------------------------------------------------------------------------------------------- the story


def play(scene: Scene, story: Story, racks: Racks) -> None:
    """Tell it; *racks* is ended by whoever made it."""
    with story.stage("Three more nodes, and a coordinator that they join by token") as stage:
        racks.start()
        racks.stoker("nodes")
        stage.outcome = f"{len(racks.nodes)} nodes, {len(racks.rack.switches.cables)} cables"
    image = agent.publish(scene)
    _warm(scene, story, racks, image)
    _topology(story, racks)
    asyncio.run(_requests(story, racks, image))


def _warm(scene: Scene, story: Story, racks: Racks, image: str) -> None:
    with story.stage("One object warms images on all of them") as stage:
        images = [scene.name("ai/server:0.9"), scene.name("ai/sandbox:1.3"), image]
        racks.apply(_object("apps.kruise.io/v1beta1", "ImageListPullJob", "serving", images=images, parallelism="70%"))
        racks.stoker("jobs", "-A")
        status = racks.status("imagelistpulljobs", "serving")
        check(status["succeeded"] == len(images), "all images on all nodes")
        stage.outcome = f"{len(images)} images on {len(racks.nodes)} nodes"


def _topology(story: Story, racks: Racks) -> None:
    with story.stage("What hangs on what, from what the nodes hear on their cables") as stage:
        until("all neighbours are heard", lambda: _heard(racks), timeout=60)
        racks.stoker("topology")
        racks.stoker("topology", "why", "node1", "leaf-02")
        racks.stoker("topology", "--format", "slurm-tree")
        stage.outcome = "node1 and node2 are one HyperNode, node3 is another"
    with story.stage("A cable is pulled out, and put back") as stage:
        began = time.monotonic()
        racks.rack.pull(*CABLE)
        until("the broken link is seen", racks.unwell, timeout=SEEN_WITHIN)
        out = time.monotonic() - began
        racks.stoker("topology")
        began = time.monotonic()
        racks.rack.put_back(*CABLE)
        until("the link is well again", lambda: not racks.unwell(), timeout=60)
        stage.outcome = (
            f"the HyperNode says so after {out * 1000:.0f} ms; {time.monotonic() - began:.1f} s to trust it again"
        )
        print(stage.outcome)


def _heard(racks: Racks) -> bool:
    racks.rack.speak()
    places = racks.places()
    return not racks.unwell() and {"node1", "node2"} in places and {"node3"} in places


async def _requests(story: Story, racks: Racks, image: str) -> None:
    first = racks.nodes[0]
    async with BareCri(first) as cri:
        pod = await cri.run_pod("agent-0", namespace=NAMESPACE)
        await cri.run(pod, "main", image=image, command=(), args=["1"], linux=own_pids())
        address = await cri.ip(pod)
        (told,) = await agent.counting(first, [address])
        print(f"pod {NAMESPACE}/agent-0 runs on node1 and has counted to {told.number}")
        await asyncio.to_thread(_clone_elsewhere, story, racks, told.number)
        with story.stage("A container is recreated in place, by an object") as stage:
            wish = _object(
                "apps.kruise.io/v1beta1",
                "ContainerRecreateRequest",
                "agent-again",
                podName="agent-0",
                containers=[{"name": "main"}],
                strategy={"terminationGracePeriodSeconds": 1},
            )
            await asyncio.to_thread(racks.apply, wish)
            status = racks.status("containerrecreaterequests", "agent-again")
            check(status["result"] == "Succeeded", "recreated")
            stage.outcome = f"on {status['nodeName']}, found by the name of its pod"


def _clone_elsewhere(story: Story, racks: Racks, number: int) -> None:
    with story.stage("A checkpoint of node1 is cloned on node2 and node3") as stage:
        began = time.monotonic()
        reference = f"{racks.registry}/checkpoints/agent:golden"
        checkpoint = _object("stoker.dev/v1", "Checkpoint", "golden", podName="agent-0", destination=reference)
        racks.apply(checkpoint)
        for name in ("node2", "node3"):
            racks.apply(_object("stoker.dev/v1", "Clone", f"on-{name}", checkpoint="golden", nodeName=name, trust=True))
        racks.stoker("get", "clones", "-n", NAMESPACE)
        counts = []
        for index, name in enumerate(("node2", "node3"), 1):
            clones = racks.status("clones", f"on-{name}")["clones"]
            (told,) = asyncio.run(agent.counting(racks.nodes[index], clones[0]["addresses"]))
            check(told.counts[0][0] == 1 and told.number > number, f"the clone on {name} goes on")
            counts.append(f"{name} at {told.number}")
        stage.outcome = f"both go on: {', '.join(counts)}, after {time.monotonic() - began:.1f} s"
        print(stage.outcome)
        for name in ("node2", "node3"):
            racks.stoker("delete", "clones", f"on-{name}", "-n", NAMESPACE)
