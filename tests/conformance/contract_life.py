"""The connection: what it finds out, and that it breaks and comes back as it promises."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from stokerd.errors import RuntimeUnavailable
from stokerd.runtime.pod_types import Blueprint, PodBlueprint
from stokerd.runtime.protocol import Runtime
from tests.conformance.subject import Subject

Call = Callable[[Runtime], Awaitable[object]]

_NAMED = {"metadata": {"name": "none"}}

CALLS: dict[str, Call] = {
    "cri.pull": lambda runtime: runtime.cri.pull("stoker.test/none:v1"),
    "cri.status": lambda runtime: runtime.cri.status("stoker.test/none:v1"),
    "cri.list": lambda runtime: runtime.cri.list(),
    "cri.remove": lambda runtime: runtime.cri.remove("stoker.test/none:v1"),
    "cri.fs_info": lambda runtime: runtime.cri.fs_info(),
    "cri.in_use": lambda runtime: runtime.cri.in_use(),
    "pods.list": lambda runtime: runtime.pods.list(),
    "pods.status": lambda runtime: runtime.pods.status("none"),
    "pods.run": lambda runtime: runtime.pods.run(PodBlueprint(_NAMED)),
    "pods.stop": lambda runtime: runtime.pods.stop("none"),
    "pods.remove": lambda runtime: runtime.pods.remove("none"),
    "containers.list": lambda runtime: runtime.containers.list(),
    "containers.status": lambda runtime: runtime.containers.status("none"),
    "containers.create": lambda runtime: runtime.containers.create("none", Blueprint(_NAMED), PodBlueprint(_NAMED)),
    "containers.start": lambda runtime: runtime.containers.start("none"),
    "containers.stop": lambda runtime: runtime.containers.stop("none", 1),
    "containers.remove": lambda runtime: runtime.containers.remove("none"),
    "containers.exec": lambda runtime: runtime.containers.exec("none", ["true"], timeout=1),
    "content.info": lambda runtime: runtime.content.info(f"sha256:{'0' * 64}"),
    "content.list": lambda runtime: runtime.content.list(),
    "content.read": lambda runtime: runtime.content.read(f"sha256:{'0' * 64}"),
    "content.ingests": lambda runtime: runtime.content.ingests(),
    "content.abort": lambda runtime: runtime.content.abort("none"),
    "content.delete": lambda runtime: runtime.content.delete(f"sha256:{'0' * 64}"),
    "images.get": lambda runtime: runtime.images.get("none"),
    "images.list": lambda runtime: runtime.images.list(),
    "images.set_labels": lambda runtime: runtime.images.set_labels("none", {"a": "b"}),
    "images.delete": lambda runtime: runtime.images.delete("none"),
    "snapshots.stat": lambda runtime: runtime.snapshots.stat("none"),
    "snapshots.list": lambda runtime: runtime.snapshots.list(),
    "snapshots.usage": lambda runtime: runtime.snapshots.usage("none"),
    "leases.create": lambda runtime: runtime.leases.create("none", {}),
    "leases.list": lambda runtime: runtime.leases.list(),
    "leases.resources": lambda runtime: runtime.leases.resources("none"),
    "leases.delete": lambda runtime: runtime.leases.delete("none"),
    "events.images": lambda runtime: anext(runtime.events.images()),
    "events.containers": lambda runtime: anext(runtime.events.containers()),
    "probe": lambda runtime: runtime.probe(),
    "ping": lambda runtime: runtime.ping(),
}


class TestInfo:
    async def test_is_sane(self, subject: Subject) -> None:
        info = subject.runtime.info
        assert info.name == "containerd"
        assert info.version.startswith(f"{subject.generation}.")
        assert info.version_tuple() == tuple(int(part) for part in subject.generation.split("."))
        assert info.api_version == "v1"
        assert info.snapshotter == "overlayfs"
        assert info.root.startswith("/")
        assert info.pid > 0
        assert info.storage_fs
        assert info.runc_version
        assert info.criu_version
        assert info.registry_config_path.startswith("/")
        assert info.capability("pull").available
        assert info.capability("pull-progress").available
        assert info.capability("checkpoint").available
        assert not info.capability("levitation").available
        total, free = subject.free_bytes()
        assert 0 < free <= total

    async def test_can_be_found_out_afresh(self, subject: Subject) -> None:
        assert await subject.runtime.probe() == subject.runtime.info

    async def test_ping(self, subject: Subject) -> None:
        assert subject.runtime.ready
        await subject.runtime.wait_ready()
        await subject.runtime.ping()


class TestConnection:
    async def test_breaks_and_comes_back(self, subject: Subject) -> None:
        runtime = subject.runtime
        told: list[bool] = []
        runtime.on_change(lambda: told.append(runtime.ready))
        taken, pid = runtime.cri, runtime.info.pid
        await subject.crash()
        assert not runtime.ready
        assert told == [False]
        for name, call in CALLS.items():
            with pytest.raises(RuntimeUnavailable) as caught:
                await call(runtime)
            assert caught.value.retryable, name
        with pytest.raises(RuntimeUnavailable):
            await taken.list()
        with pytest.raises(RuntimeUnavailable):
            _ = runtime.info

        await subject.restart()
        await runtime.wait_ready()
        assert told == [False, True]
        assert runtime.info.pid != pid
        await runtime.ping()
        assert await runtime.images.get("none") is None
        # A service belongs to the connection that it was taken from; callers take it anew for each use.
        with pytest.raises(RuntimeUnavailable):
            await taken.list()
