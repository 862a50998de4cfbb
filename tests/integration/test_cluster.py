"""A coordinator and three real nodes: wishes as objects, and their outcomes, whoever is killed in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Publish
from tests.rig.cluster import Cluster, Member
from tests.rig.images import ImageSpec, build
from tests.rig.layers import LayerSpec
from tests.rig.node import Node, NodeOptions
from tests.rig.pods import BareCri, own_pids
from tests.rig.registry import Registry
from tests.rig.stokerd import Store
from tests.rig.waiting import until

NODES = ("node1", "node2", "node3")


@pytest.fixture(scope="module")
def cluster(rig: Path, suite: str, registry: Registry, proxy_port: int) -> Iterator[Cluster]:
    """Three nodes of one suite with a coordinator, shared by the tests of this module."""
    expose = (registry.port, proxy_port)
    nodes = [
        Node(f"{suite}-cluster{number}", suite, workdir=rig, options=NodeOptions(expose=expose)) for number in (1, 2, 3)
    ]
    made = Cluster(rig / f"cluster-{suite}", nodes)
    try:
        for node in nodes:
            node.start()
            node.hosts(registry.address)
            node.hosts(f"127.0.0.1:{proxy_port}")
        made.start()
        yield made
    finally:
        made.stop()
        for node in nodes:
            node.stop()


@pytest.fixture(scope="module")
def every_minute(cluster: Cluster, registry: Registry) -> str:
    """A cron job that goes on through the tests of this module; returns the image that it keeps on two of the nodes."""
    image = registry.push("test/every-minute", build(sized("every minute"))).reference
    cluster.coordinator.apply(cron_job(image, paused=False))
    return image


def cron_job(image: str, *, paused: bool) -> dict[str, Any]:
    spec = {"images": [image], "selector": {"names": ["node2", "node3"]}, "parallelism": 2}
    return {
        "apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "AdvancedCronJob",
        "metadata": {"name": "every-minute", "namespace": "default"},
        "spec": {
            "schedule": "* * * * *",
            "paused": paused,
            "template": {"imageListPullJobTemplate": {"spec": spec}},
        },
    }


def pull_job(name: str, *images: str, **spec: Any) -> dict[str, Any]:
    kind = "ImagePullJob" if len(images) == 1 else "ImageListPullJob"
    what = {"image": images[0]} if len(images) == 1 else {"images": list(images)}
    return {
        "apiVersion": "apps.kruise.io/v1beta1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {**what, **spec},
    }


def ended(cluster: Cluster, kind: str, name: str, *, timeout: float = 60) -> dict[str, Any]:
    """Wait until an object says when it was over; return its status."""
    status: dict[str, Any] = {}

    def over() -> bool:
        status.clear()
        status.update(cluster.coordinator.get(kind, name).get("status") or {})
        return bool(status.get("completionTime"))

    until(f"{kind} {name} is over", over, timeout=timeout)
    return status


def has(node: Node, image: str) -> bool:
    return image in Store.of(node).images


def sized(seed: str, size: int = 1 << 20) -> ImageSpec:
    return ImageSpec(layers=(LayerSpec(size=size, seed=seed, files=8),))


@pytest.mark.usefixtures("every_minute")
def test_a_job_warms_all_nodes_and_a_list_those_that_are_selected(cluster: Cluster, publish: Publish) -> None:
    one, two, three = (publish(sized(f"cluster {number}")).reference for number in range(3))
    cluster.coordinator.apply(pull_job("all", one, parallelism=2))
    cluster.coordinator.apply(pull_job("some", two, three, selector={"names": ["node2"]}))
    status = ended(cluster, "imagepulljobs", "all")
    assert (status["desired"], status["succeeded"], status.get("failed", 0)) == (3, 3, 0)
    assert all(has(member.node, one) for member in cluster.members)
    listed = ended(cluster, "imagelistpulljobs", "some")
    assert (listed["desired"], listed["succeeded"]) == (2, 2)
    assert [has(member.node, two) and has(member.node, three) for member in cluster.members] == [False, True, False]
    shown = cluster.coordinator.cli("jobs", "-A")
    assert "3/3 nodes" in shown.stdout


def test_what_fails_on_every_node_is_told_with_the_registrys_reason(cluster: Cluster, registry: Registry) -> None:
    job = pull_job(
        "absent", f"{registry.address}/test/never-pushed:1", pullPolicy={"backoffLimit": 0}, parallelism="100%"
    )
    cluster.coordinator.apply(job)
    status = ended(cluster, "imagepulljobs", "absent")
    assert (status["failed"], sorted(status["failedNodes"])) == (3, sorted(NODES))
    assert {trouble["reason"] for trouble in status["troubles"]} == {"NotFound"}


async def test_requests_find_the_node_of_their_pod(cluster: Cluster, registry: Registry) -> None:
    member = cluster.members[1]
    async with BareCri(member.node) as bare:
        pod = await bare.run_pod("web-0", namespace="shop")
        await bare.run(pod, "app", linux=own_pids())
        before = {each.name: each.id for each in await bare.list(pod)}
        recreate = {
            "apiVersion": "apps.kruise.io/v1beta1",
            "kind": "ContainerRecreateRequest",
            "metadata": {"name": "again", "namespace": "shop"},
            "spec": {
                "podName": "web-0",
                "containers": [{"name": "app"}],
                "strategy": {"terminationGracePeriodSeconds": 1},
            },
        }
        await asyncio.to_thread(cluster.coordinator.apply, recreate)
        status = await asyncio.to_thread(_over, cluster, "containerrecreaterequests", "again")
        assert (status["result"], status["nodeName"]) == ("Succeeded", "node2")
        after = {each.name: each.id for each in await bare.list(pod) if each.running}
        assert after["app"] != before["app"]

        kept = f"{registry.address}/shop/kept:1"
        commit = {
            "apiVersion": "agents.kruise.io/v1alpha1",
            "kind": "Commit",
            "metadata": {"name": "kept", "namespace": "shop"},
            "spec": {"podName": "web-0", "containerName": "app", "image": kept},
        }
        await asyncio.to_thread(cluster.coordinator.apply, commit)
        status = await asyncio.to_thread(_over, cluster, "commits", "kept")
        assert status["phase"] == "Succeeded", status
    # It was pushed: any other node can have it.
    await asyncio.to_thread(cluster.coordinator.apply, pull_job("kept", kept, parallelism="100%"))
    assert (await asyncio.to_thread(ended, cluster, "imagepulljobs", "kept"))["succeeded"] == 3


@pytest.mark.criu
async def test_a_checkpoint_by_object(cluster: Cluster) -> None:
    member = cluster.members[2]
    async with BareCri(member.node) as bare:
        pod = await bare.run_pod("worker-0", namespace="shop")
        await bare.run(pod, "app", linux=own_pids())
        wish = {
            "apiVersion": "agents.kruise.io/v1alpha1",
            "kind": "Checkpoint",
            "metadata": {"name": "saved", "namespace": "shop"},
            "spec": {"podName": "worker-0"},
        }
        await asyncio.to_thread(cluster.coordinator.apply, wish)
        status = await asyncio.to_thread(_over, cluster, "checkpoints", "saved")
        assert (status["phase"], status["nodeName"]) == ("Succeeded", "node3"), status
        listed = await asyncio.to_thread(member.stokerd.cli, "checkpoint", "ls", "--json")
        assert status["checkpointId"] in listed.stdout
        await asyncio.to_thread(member.stokerd.cli, "checkpoint", "rm", status["checkpointId"])


COUNT = (
    "token=$(cat /proc/sys/kernel/random/uuid); i=0; "
    'while true; do i=$((i+1)); echo "$token $i" > /next; mv /next /count; sleep 0.05; done'
)
"""Counts, and has a word in memory that no other run of it has."""
COUNTED_TWENTY = 'until test "$(cut -d" " -f2 /count 2>/dev/null || echo 0)" -ge 20; do sleep 0.05; done'


@pytest.mark.criu
async def test_a_checkpoint_on_one_node_goes_on_on_another_as_long_as_its_object_is_there(
    cluster: Cluster, registry: Registry
) -> None:
    """By way of the registry; a coordinator and a stokerd that are killed in the middle lose and double nothing."""
    home, other = cluster.members[:2]
    async with BareCri(home.node) as bare, BareCri(other.node):
        pod = await bare.run_pod("agent-0", namespace="shop")
        app = await bare.run(pod, "app", command=["sh", "-c", COUNT], linux=own_pids())
        await bare.exec(app, "sh", "-c", COUNTED_TWENTY)
        await asyncio.to_thread(cluster.coordinator.apply, _clone("copies", "golden", count=2))
        checkpoint = _checkpoint("golden", "agent-0", destination=f"{registry.address}/shop/golden:1")
        await asyncio.to_thread(cluster.coordinator.apply, checkpoint)
        await asyncio.to_thread(until, "it is being made", _placed(cluster, "checkpoints", "golden"), timeout=60)
        cluster.coordinator.kill()
        await asyncio.to_thread(cluster.coordinator.start)
        made = await asyncio.to_thread(_over, cluster, "checkpoints", "golden")
        assert (made["phase"], made["nodeName"]) == ("Succeeded", "node1"), made
        assert made["reference"].startswith(f"{registry.address}/shop/golden:1@sha256:")
        token, counted = (await bare.exec(app, "cat", "/count")).split()

        await asyncio.to_thread(until, "clones are begun", _placed(cluster, "clones", "copies"), timeout=60)
        other.stokerd.kill()
        await asyncio.to_thread(other.stokerd.start)
        status = await asyncio.to_thread(_over, cluster, "clones", "copies")
        assert (status["phase"], status["nodeName"], status.get("ready")) == ("Succeeded", "node2", 2), status
        ids = sorted(each["id"] for each in status["clones"])
        assert sorted(each["id"] for each in await asyncio.to_thread(_listed, other, "clone", "ls")) == ids
        for identity in ids:
            first = await asyncio.to_thread(_counted, other, identity)
            assert first[0] == token
            assert first[1] >= 20
            goes_on = partial(_counted_further, other, identity, than=int(counted))
            await asyncio.to_thread(until, "it goes on", goes_on, timeout=60)
        shown = await asyncio.to_thread(cluster.coordinator.cli, "get", "clones", "-n", "shop")
        assert "2/2" in shown.stdout

        # The node is away while the object goes; what was made goes when it is back, and the copy with it.
        other.stokerd.kill()
        await asyncio.to_thread(cluster.coordinator.cli, "delete", "clones", "copies", "-n", "shop")
        await asyncio.to_thread(other.stokerd.start)
        await asyncio.to_thread(until, "the clones are gone", lambda: not _listed(other, "clone", "ls"), timeout=60)
        await asyncio.to_thread(until, "the copy, too", lambda: not _listed(other, "checkpoint", "ls"), timeout=60)
        await asyncio.to_thread(home.stokerd.cli, "checkpoint", "rm", made["checkpointId"])


def _checkpoint(name: str, pod: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "stoker.dev/v1",
        "kind": "Checkpoint",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"podName": pod, **spec},
    }


def _clone(name: str, checkpoint: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "stoker.dev/v1",
        "kind": "Clone",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"checkpoint": checkpoint, "nodeName": "node2", "trust": True, **spec},
    }


def _placed(cluster: Cluster, kind: str, name: str) -> Callable[[], bool]:
    return lambda: bool((cluster.coordinator.get(kind, name, "shop").get("status") or {}).get("nodeName"))


def _listed(member: Member, *words: str) -> list[dict[str, Any]]:
    done = member.stokerd.cli(*words, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def _counted(member: Member, clone: str) -> tuple[str, int]:
    """Return the word that the program in a clone remembers, and how far it has counted."""
    pid = next(each["pid"] for each in _listed(member, "clone", "ls") if each["id"] == clone)
    token, count = Path(f"/proc/{pid}/root/count").read_text(encoding="ascii").split()
    return token, int(count)


def _counted_further(member: Member, clone: str, *, than: int) -> bool:
    return _counted(member, clone)[1] > than


def _over(cluster: Cluster, kind: str, name: str) -> dict[str, Any]:
    status: dict[str, Any] = {}

    def over() -> bool:
        status.clear()
        status.update(cluster.coordinator.get(kind, name, "shop").get("status") or {})
        return bool(status.get("completionTime"))

    until(f"{kind} {name} is over", over, timeout=60)
    return status


def test_a_node_cut_off_is_missed_and_taken_back(cluster: Cluster, publish: Publish) -> None:
    image = publish(sized("cut off")).reference
    cut = cluster.members[0]
    cut.stokerd.kill()
    until("the node is missed", lambda: not cluster.is_ready("node1"), timeout=60)
    cluster.coordinator.apply(pull_job("lasting", image, parallelism=3, completionPolicy={"type": "Never"}))
    until("the others have it", lambda: _succeeded(cluster, "lasting") == 2, timeout=60)
    cut.stokerd.start()
    until("the node that is back has it, too", lambda: _succeeded(cluster, "lasting") == 3, timeout=60)
    assert has(cut.node, image)
    cluster.coordinator.cli("delete", "imagepulljobs", "lasting")


def _succeeded(cluster: Cluster, name: str) -> int:
    return int((cluster.coordinator.get("imagepulljobs", name).get("status") or {}).get("succeeded", 0))


def test_a_coordinator_killed_again_and_again_loses_nothing(cluster: Cluster, publish: Publish) -> None:
    images = [publish(sized(f"killed {number}", 4 << 20)).reference for number in range(4)]
    accepted: list[str] = []
    for number, image in enumerate(images):
        name = f"killed{number}"
        cluster.coordinator.apply(pull_job(name, image, parallelism=1 + number % 3))
        accepted.append(name)
        until(f"{name} is begun", _begun(cluster, name), timeout=60)
        cluster.coordinator.kill()
        cluster.coordinator.start()
    for name, image in zip(accepted, images, strict=True):
        status = ended(cluster, "imagepulljobs", name)
        assert (status["desired"], status["succeeded"]) == (3, 3), name
        assert all(has(member.node, image) for member in cluster.members)
    until("nothing more is wanted", lambda: _nothing_wanted(cluster), timeout=20)
    assert len(cluster.coordinator.all("nodeimages")) == 3


def _begun(cluster: Cluster, name: str) -> Callable[[], bool]:
    return lambda: bool((cluster.coordinator.get("imagepulljobs", name).get("status") or {}).get("startTime"))


def _nothing_wanted(cluster: Cluster) -> bool:
    return all(not (each.get("spec") or {}).get("images") for each in cluster.coordinator.all("nodeimages"))


def test_a_cron_job_has_made_a_job_of_every_minute_that_came(cluster: Cluster, every_minute: str) -> None:
    """And no two of one, although the coordinator was killed now and then."""

    def made() -> list[dict[str, Any]]:
        jobs = cluster.coordinator.all("imagelistpulljobs")
        return [job for job in jobs if job["metadata"].get("ownerReferences", [{}])[0].get("name") == "every-minute"]

    until("a minute has come", lambda: bool(made()), timeout=90)
    cluster.coordinator.apply(cron_job(every_minute, paused=True))
    jobs = made()
    for job in jobs:
        status = ended(cluster, "imagelistpulljobs", job["metadata"]["name"])
        assert (status["desired"], status["succeeded"]) == (1, 1)
    minutes = [datetime.fromisoformat(job["metadata"]["annotations"]["stoker.dev/scheduled-at"]) for job in jobs]
    assert len(set(minutes)) == len(minutes)
    assert {minute.second for minute in minutes} == {0}
    assert [has(member.node, every_minute) for member in cluster.members] == [False, True, True]
    status = cluster.coordinator.get("advancedcronjobs", "every-minute")["status"]
    assert datetime.fromisoformat(status["lastScheduleTime"]) == max(minutes)
    cluster.coordinator.cli("delete", "advancedcronjobs", "every-minute")
    until("its jobs have gone with it", lambda: not made(), timeout=30)


def test_a_node_that_was_shut_out_comes_back_with_a_token_for_its_name_alone(cluster: Cluster) -> None:
    member = cluster.members[2]
    done = cluster.coordinator.cli("nodes", "exclude", member.name)
    assert done.returncode == 0, done.stderr
    until("the node is gone", lambda: not cluster.is_ready(member.name), timeout=60)
    until("it has tried to come back", lambda: "lets this node not join" in member.stokerd.log(), timeout=60)
    assert not cluster.is_ready(member.name)
    token = cluster.coordinator.cli("nodes", "token", "--node", member.name).stdout
    (member.stokerd.directory / "join-token").write_text(token, encoding="ascii")
    until("it is back", lambda: cluster.is_ready(member.name), timeout=60)
