"""Containers recreated in place on real containerd, without a kubelet: what stays, what changes, what goes wrong."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from cri_stubs.cri.v1 import runtime_pb2 as cri
from stoker.client import ClientError
from stoker.objects.containers import EnvVar, Probe, RecreateTarget
from tests.integration.conftest import MakeStokerd
from tests.integration.pods import completed, only, recreated, request, tidy, whole
from tests.rig.bundled import busybox
from tests.rig.fixtures import MakeNode
from tests.rig.layers import Entry, LayerSpec
from tests.rig.node import Node
from tests.rig.pods import SLEEP, STUBBORN, BareCri
from tests.rig.push import Pushed
from tests.rig.registry import Registry
from tests.rig.stokerd import Stokerd
from tests.rig.waiting import until

MAY_DIFFER = {"cgroupsPath", "annotations"}
"""Of the runtime spec: the cgroup is named after the container, and CRI's annotations name no attempt but the id."""


def publish_app(registry: Registry, tag: str) -> Pushed:
    """A runnable image that knows its version."""
    return registry.push("test/app", busybox(LayerSpec(entries=(Entry("version", tag.encode()),))), tag=tag)


def rich_config(host: Path, name: str = "main") -> dict[str, Any]:
    """Everything that a container can be given and that must come back."""
    security = cri.LinuxContainerSecurityContext(
        namespace_options=cri.NamespaceOption(pid=cri.CONTAINER),
        run_as_user=cri.Int64Value(value=1234),
        run_as_group=cri.Int64Value(value=4321),
        supplemental_groups=[5000],
        capabilities=cri.Capability(add_capabilities=["NET_RAW"], drop_capabilities=["MKNOD"]),
        no_new_privs=True,
        readonly_rootfs=True,
        seccomp=cri.SecurityProfile(profile_type=cri.SecurityProfile.RuntimeDefault),
        masked_paths=["/proc/kcore"],
        readonly_paths=["/proc/sys"],
    )
    resources = cri.LinuxContainerResources(cpu_shares=512, memory_limit_in_bytes=64 << 20, cpu_quota=50_000)
    return {
        "env": {"PLAIN": "value", "ODD": 'a "quoted" \\ value=with\nlines', "EMPTY": ""},
        "mounts": [
            cri.Mount(container_path="/data", host_path=str(host)),
            cri.Mount(container_path="/config", host_path=str(host), readonly=True),
        ],
        "devices": [cri.Device(container_path="/dev/twin", host_path="/dev/null", permissions="rw")],
        "working_dir": "/data",
        "labels": {"app": "rich", "io.kubernetes.container.name": name},
        "annotations": {"note": "kept"},
        "linux": cri.LinuxContainerConfig(resources=resources, security_context=security),
    }


def comparable(spec: dict[str, Any], container: str) -> dict[str, Any]:
    """Return a runtime spec without what is named after the container itself."""
    text = json.dumps({key: value for key, value in spec.items() if key not in MAY_DIFFER}, sort_keys=True)
    plain: dict[str, Any] = json.loads(text.replace(container, "THIS"))
    plain["linux"].pop("cgroupsPath", None)
    return plain


async def test_the_new_container_is_what_the_old_one_was(stokerd: Stokerd, node: Node) -> None:
    shared = node.artifacts_dir / "shared"
    shared.mkdir(exist_ok=True)
    async with BareCri(node) as bare, stokerd.client() as client:
        pod = await bare.run_pod("rich")
        old = await bare.run(pod, "main", **rich_config(shared))
        siblings = {name: await bare.run(pod, name) for name in ("one", "two", "three")}
        pids = {name: (await bare.info(each))["pid"] for name, each in siblings.items()}
        address = await bare.ip(pod)
        before = await bare.info(old)
        done = await recreated(client, request(pod, "main"))
        assert done.result == "Succeeded", done
        running = await tidy(bare, pod, "main", *siblings)
        new = running["main"]
        assert (only(done).new_id, new.attempt) == (new.id, 1)
        assert new.id != old
        after = await bare.info(new.id)
        assert comparable(after["runtimeSpec"], new.id) == comparable(before["runtimeSpec"], old)
        assert after["config"]["envs"] == before["config"]["envs"]
        assert (await bare.status(new.id)).log_path == str(pod.log_directory / "main.log")
        assert await bare.ip(pod) == address
        assert (await bare.exec(new.id, "hostname")).strip() == "rich"
        assert address in await bare.exec(new.id, "ip", "-4", "addr", "show", "eth0")
        assert {name: (await bare.info(each))["pid"] for name, each in siblings.items()} == pids


async def test_a_new_image_and_environment_are_warmed_and_swapped_in(
    stokerd: Stokerd, node: Node, registry: Registry
) -> None:
    second = publish_app(registry, "v2")
    async with BareCri(node) as bare, stokerd.client() as client:
        pod = await bare.run_pod("update")
        await bare.run(pod, "main", env={"KEEP": "1", "CHANGE": "old", "DROP": "x"})
        change = RecreateTarget(
            name="main",
            image=second.reference,
            env=[EnvVar(name="CHANGE", value="s3cret-value"), EnvVar(name="DROP"), EnvVar(name="ADD", value="2")],
        )
        done = await recreated(client, request(pod, containers=[change]))
        assert done.result == "Succeeded", done
        new = (await whole(bare, pod, "main"))["main"]
        assert await bare.exec(new.id, "cat", "/version") == "v2"
        environment = dict(line.split("=", 1) for line in (await bare.exec(new.id, "env")).splitlines() if "=" in line)
        assert {name: environment.get(name) for name in ("KEEP", "CHANGE", "DROP", "ADD")} == {
            "KEEP": "1",
            "CHANGE": "s3cret-value",
            "DROP": None,
            "ADD": "2",
        }
        journal = b"".join(path.read_bytes() for path in (stokerd.directory / "state").glob("journal.db*"))
        assert b"s3cret-value" not in journal
        assert "s3cret-value" not in stokerd.log()


@pytest.mark.parametrize("fault", ["missing", "exits", "no-command", "unready"])
async def test_an_update_that_fails_leaves_the_old_version_running(
    stokerd: Stokerd, node: Node, registry: Registry, fault: str
) -> None:
    good, bad = publish_app(registry, "v1"), publish_app(registry, "v3")
    broken = registry.push("test/broken", busybox(LayerSpec(entries=(Entry("bin/busybox", b"not a program", 0o755),))))
    image = {"missing": f"{registry.address}/test/none:v1", "no-command": broken.reference}.get(fault, bad.reference)
    command = ("sh", "-c", "test $(cat /version) = v3 && exit 3; sleep 600") if fault == "exits" else SLEEP
    probe = Probe(exec=["test", "-e", "/nowhere"], period_seconds=0.1, failure_threshold=3)
    async with BareCri(node) as bare, stokerd.client() as client:
        pod = await bare.run_pod("rollback")
        await bare.images.PullImage(cri.PullImageRequest(image=cri.ImageSpec(image=good.reference)), timeout=30)
        old = await bare.run(pod, "main", image=good.reference, command=command)
        sibling = await bare.run(pod, "sibling")
        target = RecreateTarget(name="main", image=image, probe=probe if fault == "unready" else None)
        done = await recreated(client, request(pod, containers=[target], min_started_seconds=1))
        assert done.result == "Failed", done
        state = only(done)
        assert state.message
        running = await tidy(bare, pod, "main", "sibling")
        assert await bare.exec(running["main"].id, "cat", "/version") == "v1"
        assert running["sibling"].id == sibling
        if fault == "missing":
            assert running["main"].id == old  # it was never touched
        else:
            assert state.rolled_back


async def test_all_containers_restart_in_the_order_in_which_they_began(stokerd: Stokerd, node: Node) -> None:
    names = ["late", "early", "middle"]
    async with BareCri(node) as bare, stokerd.client() as client:
        pod = await bare.run_pod("group")
        for name in names:
            await bare.run(pod, name)
        done = await recreated(client, request(pod, every=True, ordered_recreate=True))
        assert done.result == "Succeeded", done
        assert [each.name for each in done.containers] == names
        running = await whole(bare, pod, *names)
        begun = [(await bare.status(running[name].id)).started_at for name in names]
        assert begun == sorted(begun)


async def test_a_container_that_ignores_the_signal_is_killed_after_its_grace(stokerd: Stokerd, node: Node) -> None:
    async with BareCri(node) as bare, stokerd.client() as client:
        pod = await bare.run_pod("stubborn")
        await bare.ready(await bare.run(pod, "main", command=STUBBORN))
        done = await recreated(client, request(pod, "main", termination_grace_period_seconds=1))
        assert done.result == "Succeeded", done
        await whole(bare, pod, "main")


async def test_a_container_that_has_crashed_is_started_again(stokerd: Stokerd, node: Node) -> None:
    async with BareCri(node) as bare, stokerd.client() as client:
        pod = await bare.run_pod("crashed")
        old = await bare.run(pod, "main")
        await bare.stop(old, 0)
        done = await recreated(client, request(pod, "main"))
        assert done.result == "Succeeded", done
        assert not only(done).is_killed
        await whole(bare, pod, "main")


async def test_a_sandbox_that_is_gone_is_said_to_be(stokerd: Stokerd, node: Node) -> None:
    async with BareCri(node) as bare, stokerd.client() as client:
        pod = await bare.run_pod("gone")
        await bare.run(pod, "main")
        await bare.stop_pod(pod)
        done = await recreated(client, request(pod, "main"))
        assert (done.result, only(done).reason) == ("Failed", "SandboxGone"), done
        assert not [each for each in await bare.list(pod) if each.running]


async def test_a_broken_network_plugin_does_not_matter(make_node: MakeNode, make_stokerd: MakeStokerd) -> None:
    """The sandbox has its network: a CNI configuration that is gone when containerd comes back changes nothing."""
    node = make_node()
    stokerd = make_stokerd(node)
    async with BareCri(node) as bare, stokerd.client() as client:
        pod = await bare.run_pod("network")
        await bare.run(pod, "main")
        address = await bare.ip(pod)
        saved = {path: path.read_bytes() for path in node.cni_dir.iterdir()}
        for path in saved:
            path.unlink()
        await asyncio.to_thread(node.restart_containerd)
        await asyncio.to_thread(until, "stokerd is connected", lambda: stokerd.curl("/readyz") == "200")
        done = await recreated(client, request(pod, "main"))
        assert done.result == "Succeeded", done
        new = (await whole(bare, pod, "main"))["main"]
        assert address in await bare.exec(new.id, "ip", "-4", "addr", "show", "eth0")
        for path, content in saved.items():
            path.write_bytes(content)
        await asyncio.to_thread(node.restart_containerd)  # it has to read them to take the pod's network down


async def test_the_same_request_twice_is_one(stokerd: Stokerd, node: Node) -> None:
    async with BareCri(node) as bare, stokerd.client() as client:
        pod = await bare.run_pod("twice")
        await bare.run(pod, "main")
        first = await recreated(client, request(pod, "main", name="once"))
        again = await recreated(client, request(pod, "main", name="once"))
        assert (again.id, only(again).new_id) == (first.id, only(first).new_id)
        with pytest.raises(ClientError) as caught:
            await client.recreate(request(pod, every=True, name="once"))
        assert caught.value.status == 409
        assert (await whole(bare, pod, "main"))["main"].attempt == 1


async def test_requests_on_one_pod_follow_each_other(stokerd: Stokerd, node: Node) -> None:
    async with BareCri(node) as bare, stokerd.client() as client:
        pod = await bare.run_pod("queue")
        for name in ("one", "two"):
            await bare.run(pod, name)
        asked = [await client.recreate(request(pod, name, force_recreate=True)) for name in ("one", "two", "one")]
        ended = [await completed(client, each.id) for each in asked]
        assert [each.result for each in ended] == ["Succeeded"] * 3, ended
        assert [each.finished_at for each in ended] == sorted(each.finished_at for each in ended if each.finished_at)
        running = await whole(bare, pod, "one", "two")
        assert (running["one"].attempt, running["two"].attempt) == (2, 1)
