"""A real stokerd and a real coordinator: they join, lose each other in every way, and nothing is lost or done twice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import MakeStokerd, Publish
from tests.rig.coordinator import Coordinator
from tests.rig.faultproxy import FaultProxy
from tests.rig.faults import Gate, Hold
from tests.rig.images import ImageSpec, random_image
from tests.rig.layers import LayerSpec
from tests.rig.node import Node
from tests.rig.stokerd import Stokerd, Store, ended
from tests.rig.waiting import until

NAME = "gpu-1.rack-7"


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    made = Coordinator(tmp_path / "coordinator")
    made.start()
    yield made
    assert made.stop() == 0


def printed(coordinator: Coordinator, *arguments: str) -> str:
    done = coordinator.cli(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def uplink(coordinator: Coordinator, directory: Path) -> dict[str, Any]:
    """Return a node's settings of the uplink, with a token that is good once."""
    authority, token = directory / "authority.pem", directory / "token"
    authority.write_text(printed(coordinator, "nodes", "authority"), encoding="ascii")
    token.write_text(printed(coordinator, "nodes", "token"), encoding="ascii")
    return {
        "coordinator": f"127.0.0.1:{coordinator.link_port}",
        "join": f"127.0.0.1:{coordinator.join_port}",
        "ca": str(authority),
        "token_file": str(token),
        "node": NAME,
        "inventory_interval": "300ms",
        "reconnect_initial": "100ms",
        "reconnect_max": "500ms",
    }


def node_object(coordinator: Coordinator) -> dict[str, Any]:
    done = coordinator.cli("get", "nodes", NAME, "-o", "json")
    return json.loads(done.stdout) if done.returncode == 0 else {}


def is_ready(coordinator: Coordinator) -> bool:
    found = node_object(coordinator).get("status", {})
    conditions = {each["type"]: each["status"] for each in found.get("conditions", [])}
    return bool(found.get("connected")) and conditions.get("Ready") == "True"


def pull_job(name: str, image: str) -> dict[str, Any]:
    return {
        "apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "ImagePullJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"image": image, "parallelism": 1, "completionPolicy": {"type": "Always"}},
    }


def job_status(coordinator: Coordinator, name: str) -> dict[str, Any]:
    status: dict[str, Any] = coordinator.get("imagepulljobs", name).get("status", {})
    return status


@pytest.mark.timeout(240)
async def test_a_node_and_its_coordinator_lose_and_find_each_other(
    coordinator: Coordinator,
    make_stokerd: MakeStokerd,
    clean_node: Node,
    proxy: FaultProxy,
    publish: Publish,
    tmp_path: Path,
) -> None:
    stokerd = make_stokerd(clean_node, uplink=uplink(coordinator, tmp_path))
    until("the node has joined", lambda: is_ready(coordinator))
    status = node_object(coordinator)["status"]
    assert status["runtimeName"] == "containerd"
    assert status["bootID"]
    identity = stokerd.directory / "state" / "uplink" / "identity.pem"
    assert identity.stat().st_mode & 0o777 == 0o600
    told = stokerd.cli("doctor").stdout
    assert re.search(r"coordinator \S+  \(connected for \d+s, certificate until 20", told), told

    # A wish by object becomes an image on the node.
    plain = publish(random_image(seed="uplink-plain"))
    coordinator.apply(pull_job("plain", plain.reference))
    until("the image is warm", lambda: job_status(coordinator, "plain").get("succeeded") == 1)
    assert plain.reference in Store.of(clean_node).images
    until("the inventory has it", lambda: node_object(coordinator)["status"].get("images", 0) > 0)

    # The coordinator is killed while the node pulls; the pull goes on, and its result comes when the next one is there.
    await lost_coordinator(coordinator, stokerd, proxy, publish)
    until("the node is back", lambda: is_ready(coordinator))

    # stokerd is killed while it pulls for the coordinator; one job, one result.
    await lost_stokerd(coordinator, stokerd, proxy, publish)

    # Without a coordinator the node works as ever; the token has been used up, so it is the certificate that counts.
    assert coordinator.stop() == 0
    alone = publish(random_image(seed="uplink-alone"))
    assert (await stokerd.warm(alone.reference)).state == "Succeeded"
    assert stokerd.curl("/readyz") == "200"
    coordinator.start()
    until("the node is back", lambda: is_ready(coordinator))

    # A node that is excluded stays out.
    printed(coordinator, "nodes", "exclude", NAME)
    until("the node knows it", lambda: "CertificateReplaced" in stokerd.log())
    until("the node is out", lambda: not node_object(coordinator)["status"].get("connected"))
    for secret in ((tmp_path / "token").read_text().strip().rpartition(".")[2], "PRIVATE KEY"):
        assert secret not in stokerd.log() + coordinator.log()


async def lost_coordinator(coordinator: Coordinator, stokerd: Stokerd, proxy: FaultProxy, publish: Publish) -> None:
    pushed = publish(ImageSpec(layers=(LayerSpec(size=4 << 20, seed="uplink-away"),)))
    gate = Gate()
    rule = proxy.rule(Hold(gate, after=1 << 20), path=pushed.layers[0].digest, method="GET")
    image = f"{proxy.address}/{pushed.repository}:{pushed.tag}"
    coordinator.apply(pull_job("away", image))
    until("the node has the job", lambda: job_status(coordinator, "away").get("active") == 1)
    await gate.reached()  # a job is active when it is given to a node; now the node is at it
    async with stokerd.client() as client:
        [job] = [each for each in await client.jobs() if each.state == "Active"]
        coordinator.kill()
        proxy.remove(rule)
        gate.release()
        assert (await ended(client, job.id)).state == "Succeeded"
    coordinator.start()
    until("the result is there", lambda: job_status(coordinator, "away").get("succeeded") == 1)


async def lost_stokerd(coordinator: Coordinator, stokerd: Stokerd, proxy: FaultProxy, publish: Publish) -> None:
    pushed = publish(ImageSpec(layers=(LayerSpec(size=4 << 20, seed="uplink-killed"),)))
    gate = Gate()
    rule = proxy.rule(Hold(gate, after=1 << 20), path=pushed.layers[0].digest, method="GET")
    coordinator.apply(pull_job("killed", f"{proxy.address}/{pushed.repository}:{pushed.tag}"))
    until("the node has the job", lambda: job_status(coordinator, "killed").get("active") == 1)
    await gate.reached()  # a job is active when it is given to a node; now the node is at it
    async with stokerd.client() as client:
        before = {each.id for each in await client.jobs()}
    stokerd.kill()
    proxy.remove(rule)
    gate.release()
    stokerd.start()
    until("the result is there", lambda: job_status(coordinator, "killed").get("succeeded") == 1)
    async with stokerd.client() as client:
        assert {each.id for each in await client.jobs()} == before
