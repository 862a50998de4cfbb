"""Containers: their life, what is refused, commands in them, and the next attempt made from what CRI shows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from stokerd.errors import (
    RuntimeAlreadyExists,
    RuntimeFailure,
    RuntimeInvalid,
    RuntimeNotFound,
    RuntimeTimeout,
    RuntimeUnsupported,
)
from stokerd.runtime.blueprints import renewed
from stokerd.runtime.containerd import Containerd
from stokerd.runtime.pod_types import Blueprint, PodBlueprint
from tests.conformance.pods import differences, ended, make_pod, pod_status_of, ready, state_of, status_of
from tests.conformance.subject import FAILS, HEEDS, IGNORES, LASTS, MIB, MISSING, SAYS, Subject

MAY_DIFFER = {"linux.cgroupsPath"}
"""What a container's next attempt has otherwise in its runtime spec: the cgroup, whose path ends in the container's id.
CRI puts neither the id nor the attempt into annotations, and namespaces and mounts are those of the same sandbox."""


class TestContainers:
    async def test_live(self, subject: Subject) -> None:
        containers = subject.runtime.containers
        pod = await make_pod(subject)
        made = await pod.create(labels={"a": "b"}, annotations={"stoker.dev/c": "d"})
        (listed,) = await containers.list()
        assert (listed.id, listed.pod_id, listed.name, listed.attempt) == (made, pod.id, "app", 0)
        assert (listed.image, listed.state) == (pod.image, "created")
        assert (listed.labels, listed.annotations) == ({"a": "b"}, {"stoker.dev/c": "d"})
        image = await subject.runtime.cri.status(pod.image)
        assert image is not None
        assert listed.image_ref == image.id
        status = await status_of(subject, made)
        assert status.container == listed
        assert (status.pid, status.started_at, status.finished_at) == (0, None, None)

        await containers.start(made)
        status = await status_of(subject, made)
        assert (status.container.state, status.pid > 0) == ("running", True)
        assert status.started_at is not None
        await ready(subject, made)
        assert status.log_path == f"{pod.blueprint.config['log_directory']}/app-0.log"

        await containers.stop(made, 10)
        status = await status_of(subject, made)
        assert (status.container.state, status.exit_code, status.reason) == ("exited", 0, "Completed")
        assert status.finished_at is not None
        assert status.finished_at >= status.started_at  # type: ignore[operator]
        assert status.pid == 0

        await containers.remove(made)
        assert await containers.status(made) is None
        assert await containers.list() == ()

    async def test_are_listed_by_pod(self, subject: Subject) -> None:
        one, two = await make_pod(subject), await make_pod(subject, "two")
        first, second = await one.create(), await two.create()
        assert [each.id for each in await subject.runtime.containers.list(pod_id=one.id)] == [first]
        assert {each.id for each in await subject.runtime.containers.list()} == {first, second}
        assert await subject.runtime.containers.list(pod_id="feed") == ()

    async def test_of_two_attempts_run_side_by_side(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        old, new = await pod.run(), await pod.create(attempt=1)
        assert (await state_of(subject, old), await state_of(subject, new)) == ("running", "created")
        await subject.runtime.containers.start(new)
        found = await subject.runtime.containers.list(pod_id=pod.id)
        assert sorted((each.attempt, each.id) for each in found) == [(0, old), (1, new)]
        assert {each.state for each in found} == {"running"}

    async def test_are_found_by_the_beginning_of_their_id(self, subject: Subject) -> None:
        made = await (await make_pod(subject)).create()
        assert (await status_of(subject, made[:12])).container.id == made

    async def test_keep_their_images_in_use(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        made = await pod.create()
        image = await subject.runtime.cri.status(pod.image)
        assert image is not None
        assert {image.id, pod.image} <= await subject.runtime.cri.in_use()
        await subject.runtime.containers.remove(made)
        assert not {image.id, pod.image} & await subject.runtime.cri.in_use()

    async def test_outlive_the_runtime(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        runs, waits = await pod.run("runs"), await pod.create("waits")
        before = await status_of(subject, runs)
        await subject.crash()
        await subject.restart()
        await subject.runtime.wait_ready()
        after = await status_of(subject, runs)
        assert (after.container, after.pid, after.blueprint) == (before.container, before.pid, before.blueprint)
        assert (await pod_status_of(subject, pod.id)).pod.state == "ready"
        await subject.runtime.containers.start(waits)
        assert (await subject.runtime.containers.exec(runs, SAYS, timeout=10)).exit_code == 3


class TestEndings:
    async def test_by_themselves(self, subject: Subject) -> None:
        made = await (await make_pod(subject)).run(program=FAILS)
        status = await ended(subject, made)
        assert (status.exit_code, status.reason) == (7, "Error")

    async def test_that_come_before_the_beginning(self, subject: Subject) -> None:
        made = await (await make_pod(subject)).create(program=MISSING)
        with pytest.raises(RuntimeFailure, match="no such file"):
            await subject.runtime.containers.start(made)
        status = await status_of(subject, made)
        assert (status.container.state, status.exit_code, status.reason) == ("exited", 128, "StartError")
        assert MISSING[0] in status.message
        await subject.runtime.containers.remove(made)

    async def test_after_the_grace(self, subject: Subject) -> None:
        made = await (await make_pod(subject)).run(program=IGNORES)
        await ready(subject, made)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await subject.runtime.containers.stop(made, 0.6)  # CRI makes a whole second of it
        assert loop.time() - began >= 0.6
        status = await status_of(subject, made)
        assert (status.container.state, status.exit_code, status.reason) == ("exited", 137, "Error")

    async def test_without_grace(self, subject: Subject) -> None:
        made = await (await make_pod(subject)).run(program=HEEDS)
        await subject.runtime.containers.stop(made, 0)
        assert (await status_of(subject, made)).exit_code == 137

    async def test_that_were_asked_for_before(self, subject: Subject) -> None:
        containers = subject.runtime.containers
        made = await (await make_pod(subject)).create()
        await containers.stop(made, 5)
        assert await state_of(subject, made) == "created"
        await containers.start(made)
        await containers.stop(made, 5)
        await containers.stop(made, 5)
        await containers.remove(made)
        await containers.stop(made, 5)
        await containers.remove(made)

    async def test_by_removal(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        runs, stays = await pod.run("runs"), await pod.run("stays")
        await subject.runtime.containers.remove(runs)
        assert [each.id for each in await subject.runtime.containers.list()] == [stays]

    async def test_of_one_leave_the_others_alone(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        ends, *others = [await pod.run(name) for name in ("ends", "one", "two", "three")]
        before = [(await status_of(subject, each)).pid for each in others]
        await subject.runtime.containers.stop(ends, 5)
        await subject.runtime.containers.remove(ends)
        assert [(await status_of(subject, each)).pid for each in others] == before


class TestRefusals:
    async def test_of_a_name_that_is_taken(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        made = await pod.run()
        with pytest.raises(RuntimeAlreadyExists, match=made):
            await pod.create()
        assert await state_of(subject, made) == "running"

    async def test_of_an_image_that_is_not_there(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        for image in (subject.absent(), f"sha256:{'0' * 64}"):
            with pytest.raises(RuntimeNotFound, match="image"):
                await pod.create(image={"image": image})
        assert await subject.runtime.containers.list() == ()

    async def test_of_a_sandbox_that_is_not_there(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        with pytest.raises(RuntimeNotFound, match="sandbox"):
            await subject.runtime.containers.create("feed", pod.container(), pod.blueprint)

    async def test_of_a_sandbox_that_has_stopped(self, subject: Subject) -> None:
        """1.x refuses to create a container there, 2.1 to start it."""
        pod = await make_pod(subject)
        await subject.runtime.pods.stop(pod.id)
        if subject.generation == "2.1":
            made = await pod.create()
            with pytest.raises(RuntimeInvalid, match="not running"):
                await subject.runtime.containers.start(made)
        else:
            with pytest.raises(RuntimeNotFound, match="sandbox"):
                await pod.create()

    async def test_to_start_what_is_not_created(self, subject: Subject) -> None:
        containers = subject.runtime.containers
        made = await (await make_pod(subject)).run()
        with pytest.raises(RuntimeInvalid, match="CONTAINER_RUNNING"):
            await containers.start(made)
        await containers.stop(made, 5)
        with pytest.raises(RuntimeInvalid, match="CONTAINER_EXITED"):
            await containers.start(made)
        await containers.remove(made)
        with pytest.raises(RuntimeNotFound):
            await containers.start(made)

    async def test_of_fields_that_nobody_knows(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        odd = pod.container(linux={"security_context": {"shackles": True}}, mounts=[{"colour": "red"}])
        with pytest.raises(RuntimeUnsupported, match=r"linux\.security_context\.shackles, mounts\[0\]\.colour"):
            await subject.runtime.containers.create(pod.id, odd, pod.blueprint)
        with pytest.raises(RuntimeUnsupported, match="padlock"):
            await subject.runtime.containers.create(
                pod.id, pod.container(), PodBlueprint({**pod.blueprint.config, "padlock": 1})
            )
        assert await subject.runtime.containers.list() == ()

    async def test_of_what_has_no_name(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        containers = subject.runtime.containers
        for container, sandbox in (
            (Blueprint({"image": {"image": pod.image}}), pod.blueprint),
            (pod.container(), PodBlueprint({})),
        ):
            with pytest.raises(RuntimeInvalid, match="no name"):
                await containers.create(pod.id, container, sandbox)
        made = await pod.create()
        with pytest.raises(RuntimeInvalid):
            await containers.create("", pod.container(), pod.blueprint)
        for call in (containers.status, containers.start, containers.remove):
            with pytest.raises(RuntimeInvalid):
                await call("")
        with pytest.raises(RuntimeInvalid):
            await containers.stop("", 1)
        assert await containers.status("feed") is None
        assert [each.id for each in await containers.list()] == [made]


class TestCommands:
    async def test_answer(self, subject: Subject) -> None:
        made = await (await make_pod(subject)).run()
        result = await subject.runtime.containers.exec(made, SAYS, timeout=10)
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")

    async def test_take_too_long(self, subject: Subject) -> None:
        made = await (await make_pod(subject)).run()
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(RuntimeTimeout, match="timeout"):
            await subject.runtime.containers.exec(made, LASTS, timeout=0.5)
        assert loop.time() - began < 5
        assert await state_of(subject, made) == "running"

    async def test_cannot_be_run(self, subject: Subject) -> None:
        containers = subject.runtime.containers
        made = await (await make_pod(subject)).create()
        with pytest.raises(RuntimeInvalid, match="CONTAINER_CREATED"):
            await containers.exec(made, SAYS, timeout=5)
        await containers.start(made)
        with pytest.raises(RuntimeFailure, match="no such file"):
            await containers.exec(made, MISSING, timeout=5)
        await containers.stop(made, 5)
        with pytest.raises(RuntimeInvalid, match="CONTAINER_EXITED"):
            await containers.exec(made, SAYS, timeout=5)
        await containers.remove(made)
        with pytest.raises(RuntimeNotFound):
            await containers.exec(made, SAYS, timeout=5)


class TestRenewal:
    """A container made again from what CRI shows of it is the same but for what `MAY_DIFFER` lists."""

    async def test_keeps_everything(self, subject: Subject) -> None:
        pod = await make_pod(subject, linux={"security_context": {"namespace_options": {"pid": 1}}})
        old = await pod.run(**_everything(subject))
        before = await status_of(subject, old)
        assert before.blueprint.config == pod.container(**_everything(subject)).config
        address = (await pod_status_of(subject, pod.id)).ips

        sandbox = (await pod_status_of(subject, pod.id)).blueprint
        new = await subject.runtime.containers.create(pod.id, renewed(before.blueprint, attempt=1), sandbox)
        await subject.runtime.containers.stop(old, 5)
        await subject.runtime.containers.start(new)
        after = await status_of(subject, new)
        assert (after.container.attempt, after.container.state) == (1, "running")
        assert set(differences(before.spec, after.spec)) == MAY_DIFFER
        assert set(differences(before.blueprint.config, after.blueprint.config)) == {"metadata.attempt"}
        assert (after.mounts, after.log_path) == (before.mounts, before.log_path)
        assert (after.container.labels, after.container.annotations) == (
            before.container.labels,
            before.container.annotations,
        )
        assert (await pod_status_of(subject, pod.id)).ips == address
        await subject.runtime.containers.remove(old)
        assert [each.id for each in await subject.runtime.containers.list()] == [new]

    async def test_shows_everything_in_the_spec(self, subject: Subject) -> None:
        """What was asked for is in the spec at all, or comparing two of them would tell nothing."""
        pod = await make_pod(subject)
        spec = (await status_of(subject, await pod.create(**_everything(subject)))).spec
        process, linux = spec["process"], spec["linux"]
        assert {"SECRET=s3cr=t ü", "EMPTY=", "HOSTNAME=web"} <= set(process["env"])
        assert (process["user"]["uid"], process["user"]["gid"]) == (1234, 2345)
        assert 3456 in process["user"]["additionalGids"]
        assert (process["cwd"], process["noNewPrivileges"], spec["root"]["readonly"]) == ("/tmp", True, True)
        mounts = {each["destination"]: each for each in spec["mounts"]}
        assert mounts["/etc/volume"]["source"] == mounts["/shared"]["source"] == subject.directory("volume")
        assert "ro" in mounts["/etc/volume"]["options"]
        assert "/dev/stoker-zero" in {each["path"] for each in linux["devices"]}
        assert linux["seccomp"]
        assert linux["resources"]
        assert (linux["maskedPaths"], linux["readonlyPaths"]) == (["/proc/kcore"], ["/proc/sys"])

    async def test_keeps_devices_by_name(self, subject: Subject) -> None:
        """CDI is how GPUs come into containers. 1.6 has no field for it; 1.7 keeps it, and heeds it when told to."""
        pod = await make_pod(subject)
        devices = [{"name": await subject.cdi_device()}]
        kept = [] if subject.generation == "1.6" else devices
        before = await status_of(subject, await pod.run(CDI_devices=devices))
        assert before.blueprint.config.get("CDI_devices", []) == kept
        again = renewed(before.blueprint, attempt=1)
        new = await subject.runtime.containers.create(pod.id, again, pod.blueprint)
        after = await status_of(subject, new)
        assert after.blueprint.config.get("CDI_devices", []) == kept
        assert set(differences(before.spec, after.spec)) == MAY_DIFFER
        if subject.generation == "2.1" and isinstance(subject.runtime, Containerd):
            assert "CDI=1" in after.spec["process"]["env"]
            assert "/dev/stoker-cdi" in {each["path"] for each in after.spec["linux"]["devices"]}

    async def test_changes_what_it_is_told_to(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        old = await pod.run(envs=[{"key": "A", "value": "1"}, {"key": "B", "value": "2"}], labels={"x": "y"})
        before = await status_of(subject, old)
        changed = renewed(before.blueprint, attempt=1, env={"A": None, "B": "3", "C": ""}, labels={"stoker.dev/r": "1"})
        new = await subject.runtime.containers.create(pod.id, changed, pod.blueprint)
        after = await status_of(subject, new)
        added = [each for each in after.spec["process"]["env"] if each not in before.spec["process"]["env"]]
        assert added == ["B=3", "C="]
        assert "A=1" not in after.spec["process"]["env"]
        assert after.container.labels == {"x": "y", "stoker.dev/r": "1"}
        assert set(differences(before.spec, after.spec)) <= MAY_DIFFER | {"process.env"} | {
            f"process.env[{number}]" for number in range(20)
        }


def _everything(subject: Subject) -> dict[str, Any]:
    """Fields of a container's configuration, none left at its default."""
    volume = subject.directory("volume")
    return {
        "envs": [{"key": "SECRET", "value": "s3cr=t ü"}, {"key": "EMPTY"}],
        "working_dir": "/tmp",
        "labels": {"app": "web", "stoker.dev/x": "y"},
        "annotations": {"stoker.dev/note": "z"},
        "mounts": [
            {"container_path": "/etc/volume", "host_path": volume, "readonly": True},
            {"container_path": "/shared", "host_path": volume, "propagation": 1},
        ],
        "devices": [{"container_path": "/dev/stoker-zero", "host_path": "/dev/zero", "permissions": "rw"}],
        "log_path": "app/0.log",
        "linux": {
            "resources": {
                "cpu_period": 100_000,
                "cpu_quota": 50_000,
                "cpu_shares": 256,
                "memory_limit_in_bytes": 48 * MIB,
                "oom_score_adj": 900,
            },
            "security_context": {
                "capabilities": {"add_capabilities": ["NET_ADMIN"], "drop_capabilities": ["MKNOD"]},
                "namespace_options": {"pid": 1},
                "run_as_user": {"value": 1234},
                "run_as_group": {"value": 2345},
                "supplemental_groups": [3456],
                "readonly_rootfs": True,
                "no_new_privs": True,
                "masked_paths": ["/proc/kcore"],
                "readonly_paths": ["/proc/sys"],
                "seccomp": {"profile_type": 2, "localhost_ref": _profile(subject)},
            },
        },
    }


def _profile(subject: Subject) -> str:
    """Return the path of a seccomp profile that refuses one call."""
    directory = Path(subject.directory("profiles"))
    path = directory / "strict.json"
    if directory.is_dir():
        refused = {"names": ["swapon"], "action": "SCMP_ACT_ERRNO"}
        path.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [refused]}), encoding="utf-8")
    return str(path)
