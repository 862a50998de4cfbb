"""Staying connected, against a server of our own that dies, hangs, lacks things and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from stokerd.errors import (
    RuntimeFailure,
    RuntimeNotFound,
    RuntimeTimeout,
    RuntimeUnavailable,
    RuntimeUnsupported,
)
from stokerd.runtime import containerd as module
from stokerd.runtime import endpoint
from stokerd.runtime.containerd import Containerd
from stokerd.runtime.cri import CriImageService
from stokerd.runtime.types import ImageEvent, RegistryAuth
from stokerd.settings import RuntimeSettings
from tests.unit.runtime.fake_containerd import FakeContainerd, serving

Observed = list[tuple[str, str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Unix sockets have short names."""
    return tmp_path / "s"


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """No task and no socket is left behind."""
    tasks, sockets = asyncio.all_tasks(), _sockets()
    yield
    await _until("tasks to end", lambda: asyncio.all_tasks() <= tasks | {_current()})
    await _until("sockets to be closed", lambda: _sockets() <= sockets)


def _current() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _sockets() -> int:
    """Count open sockets. gRPC keeps one as long as a call over it is remembered, by an exception's frames perhaps."""
    gc.collect()
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            count += stat.S_ISSOCK(file.stat().st_mode)
    return count


async def _until(what: str, condition: Callable[[], bool], timeout: float = 10) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not condition():
        assert loop.time() < deadline, f"{what}: not within {timeout:g} s"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def running(path: Path | str, **settings: float) -> AsyncIterator[tuple[Containerd, Observed]]:
    """A supervised connection, whether it comes about or not."""
    observed: Observed = []
    options = RuntimeSettings(endpoint=str(path), connect_backoff_max=0.05, **settings)  # type: ignore[arg-type]
    runtime = Containerd(options, lambda call, status, _seconds: observed.append((call, status)))
    task = asyncio.create_task(runtime.run())
    try:
        yield runtime, observed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not runtime.ready


@asynccontextmanager
async def connected(path: Path, **settings: float) -> AsyncIterator[tuple[Containerd, FakeContainerd, Observed]]:
    async with serving(path) as fake, running(path, **settings) as (runtime, observed):
        await asyncio.wait_for(runtime.wait_ready(), 10)
        yield runtime, fake, observed


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.02)


class TestConnecting:
    async def test_finds_out_what_is_there(self, path: Path) -> None:
        async with connected(path) as (runtime, fake, observed):
            info = runtime.info
            assert (info.endpoint, info.name, info.version, info.api_version) == (
                str(path),
                "containerd",
                "2.1.9",
                "v1",
            )
            assert (info.pid, info.host_root) == (os.getpid(), "")
            assert (info.root, info.state, info.sandbox_image) == ("/srv/containerd", "/run/x", "pause:1")
            assert info.snapshotter == "overlayfs"
            assert info.storage_fs
            assert info.capability("pin").available
            assert info == await runtime.probe()
            assert [found.problem for found in runtime.tried] == [""]
            assert runtime.problem == ""
            assert observed[:3] == [("cri.Version", "OK"), ("cri.Status", "OK"), ("cri.ImageFsInfo", "OK")]
            await runtime.ping()
            assert fake.began.count("Version") == 3

    @pytest.mark.parametrize(
        ("version", "numbers", "pins"),
        [
            ("1.6.20~ds1", (1, 6), False),
            ("v1.7.24", (1, 7), True),
            ("2.1.9+unknown", (2, 1), True),
            ("dev", (0, 0), False),
        ],
    )
    async def test_knows_versions(self, path: Path, version: str, numbers: tuple[int, int], pins: bool) -> None:
        async with serving(path) as fake:
            fake.version = version
            async with running(path) as (runtime, _):
                await asyncio.wait_for(runtime.wait_ready(), 10)
                assert runtime.info.version_tuple() == numbers
                pin = runtime.info.capability("pin")
                assert pin.available == pins
                assert (version in pin.detail) == (not pins)

    async def test_knows_other_snapshotters(self, path: Path) -> None:
        async with serving(path) as fake:
            fake.mountpoint = "/var/lib/containerd-stargz-grpc/snapshotter/stargz"
            async with running(path) as (runtime, _):
                await asyncio.wait_for(runtime.wait_ready(), 10)
                assert runtime.info.snapshotter == "stargz"
                assert not runtime.info.capability("pull-progress").available

    async def test_nothing_is_there(self, path: Path) -> None:
        async with running(path) as (runtime, _):
            await _until("it to look", lambda: "does not exist" in runtime.problem)
            assert not runtime.ready
            with pytest.raises(RuntimeUnavailable, match=r"no containerd answers: tried .*: does not exist") as caught:
                _ = runtime.cri
            assert caught.value.hint is not None
            with pytest.raises(RuntimeUnavailable):
                _ = runtime.info
            with pytest.raises(RuntimeUnavailable):
                await runtime.ping()

    async def test_before_it_has_begun(self, path: Path) -> None:
        runtime = Containerd(RuntimeSettings(endpoint=str(path)), lambda *_: None)
        with pytest.raises(RuntimeUnavailable, match="not connected yet"):
            _ = runtime.leases
        await runtime.close()

    async def test_comes_when_containerd_does(self, path: Path) -> None:
        async with running(path) as (runtime, _):
            waiting = asyncio.create_task(runtime.wait_ready())
            await _until("it to look", lambda: bool(runtime.tried))
            assert not waiting.done()
            async with serving(path):
                await asyncio.wait_for(waiting, 10)
                assert runtime.ready

    async def test_takes_the_first_that_answers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("missing", "dead", "empty", "good"):
            monkeypatch.setattr(endpoint, "USUAL_SOCKETS", (*endpoint.USUAL_SOCKETS[-3:], str(tmp_path / name)))
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / "dead"))
        monkeypatch.setattr(
            endpoint, "USUAL_SOCKETS", tuple(str(tmp_path / name) for name in ("missing", "dead", "empty", "good"))
        )
        async with serving(tmp_path / "empty", cri=False), serving(tmp_path / "good"), running("") as (runtime, _):
            await asyncio.wait_for(runtime.wait_ready(), 10)
            assert runtime.info.endpoint == str(tmp_path / "good")
            problems = [found.problem for found in runtime.tried]
            assert problems == ["does not exist", "nobody listens (refused)", "", ""]

    @pytest.mark.parametrize("said", ["", "no CNI plugin: invalid plugin config"])
    async def test_says_that_cri_is_off(self, path: Path, said: str) -> None:
        async with serving(path, cri=False) as fake:
            fake.plugin_problem = said
            async with running(path) as (runtime, observed):
                await _until("it to ask", lambda: "without a CRI service" in runtime.problem)
                assert runtime.problem.startswith(f"{path} is a containerd without a CRI service: ")
                assert runtime.problem.endswith(said or "the plugin is disabled")
                assert not runtime.ready
                assert ("cri.Version", "UNIMPLEMENTED") in observed

    async def test_says_that_cri_is_off_even_without_introspection(self, path: Path) -> None:
        async with serving(path, cri=False) as fake:
            fake.failing["Plugins"] = (grpc.StatusCode.INTERNAL, "no introspection")
            async with running(path) as (runtime, _):
                await _until("it to ask", lambda: "no introspection" in runtime.problem)


class TestBreaking:
    async def test_notices_a_death_and_a_return(self, path: Path) -> None:
        told: list[bool] = []
        async with connected(path) as (runtime, fake, _):
            runtime.on_change(lambda: told.append(runtime.ready))
            taken = runtime.cri
            await fake.stop()
            await _until("the loss to be noticed", lambda: told == [False])
            with pytest.raises(RuntimeUnavailable):
                await runtime.ping()
            with pytest.raises(RuntimeUnavailable):
                await taken.list()
            await fake.start()
            await asyncio.wait_for(runtime.wait_ready(), 10)
            assert told == [False, True]
            await runtime.ping()
            assert await runtime.cri.list() == ()
            with pytest.raises(RuntimeUnavailable):
                await taken.list()

    async def test_fails_the_calls_in_flight(self, path: Path) -> None:
        async with connected(path) as (runtime, fake, _):
            fake.slow = {"PullImage", "Subscribed"}
            pull = asyncio.create_task(runtime.cri.pull("app:v1"))
            events = asyncio.create_task(_collect(runtime))
            await fake.wait_for(fake.began, "PullImage")
            await fake.wait_for(fake.began, "Subscribed")
            await fake.stop()
            for task in (pull, events):
                with pytest.raises(RuntimeFailure):
                    await asyncio.wait_for(task, 10)

    async def test_gives_up_a_server_that_hangs(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Calls over the channel that is given up fail as calls, and are not taken for cancelled tasks."""
        monkeypatch.setattr(module, "_PING_TIMEOUT", 0.1)
        async with connected(path) as (runtime, fake, _):
            fake.slow = {"PullImage", "Subscribed"}
            pull = asyncio.create_task(runtime.cri.pull("app:v1"))
            events = asyncio.create_task(_collect(runtime))
            await fake.wait_for(fake.began, "PullImage")
            await fake.wait_for(fake.began, "Subscribed")
            runtime._broken.set()
            for task in (pull, events):
                with pytest.raises(RuntimeUnavailable, match="was closed"):
                    await asyncio.wait_for(task, 10)
                assert not task.cancelled()
            await fake.wait_for(fake.cancelled, "PullImage")
            await fake.wait_for(fake.cancelled, "Subscribed")
            await asyncio.wait_for(runtime.wait_ready(), 10)

    async def test_a_ping_that_fails_breaks_the_connection(self, path: Path) -> None:
        told: list[bool] = []
        async with connected(path) as (runtime, fake, _):
            runtime.on_change(lambda: told.append(runtime.ready))
            fake.failing["Version"] = (grpc.StatusCode.UNAVAILABLE, "Socket closed")
            with pytest.raises(RuntimeUnavailable):
                await runtime.ping()
            await _until("the loss to be noticed", lambda: told == [False])
            fake.failing.clear()
            await asyncio.wait_for(runtime.wait_ready(), 10)
            assert told == [False, True]

    async def test_an_error_of_containerd_breaks_nothing(self, path: Path) -> None:
        async with connected(path) as (runtime, fake, _):
            fake.failing["ListImages"] = (grpc.StatusCode.UNAVAILABLE, "ref abc locked for 2s: unavailable")
            with pytest.raises(RuntimeFailure, match="locked"):
                await runtime.cri.list()
            fake.failing["Version"] = (grpc.StatusCode.INTERNAL, "confused")
            with pytest.raises(RuntimeFailure, match="confused"):
                await runtime.ping()
            assert runtime.ready


async def _collect(runtime: Containerd) -> list[ImageEvent]:
    return [event async for event in runtime.events.images()]


def impatient(runtime: Containerd) -> CriImageService:
    """Return the service of images with a short deadline, which what connects and looks after that does not have."""
    assert runtime._session is not None
    return CriImageService(replace(runtime._session.wire, timeout=0.2))


class TestCalls:
    async def test_carry_namespace_lease_and_credentials(self, path: Path) -> None:
        async with connected(path) as (runtime, fake, observed):
            auth = RegistryAuth(username="robot", password="s3cret")
            assert await runtime.cri.pull("app:v1", auth=auth, lease="mine") == "sha256:robot"
            assert fake.metadata["PullImage"]["containerd-namespace"] == "k8s.io"
            assert fake.metadata["PullImage"]["containerd-lease"] == "mine"
            await runtime.cri.pull("app:v1")
            assert "containerd-lease" not in fake.metadata["PullImage"]
            assert observed[-1] == ("cri.PullImage", "OK")

    async def test_tell_what_is_in_use(self, path: Path) -> None:
        async with connected(path) as (runtime, _fake, _observed):
            assert await runtime.cri.in_use() == {"app:v1", "sha256:1"}

    async def test_take_long_lists(self, path: Path) -> None:
        async with connected(path) as (runtime, fake, _):
            fake.images = 100  # 5 MB, beyond gRPC's own limit of 4 MiB
            assert len(await runtime.cri.list()) == fake.images

    async def test_have_deadlines(self, path: Path) -> None:
        async with connected(path) as (runtime, fake, observed):
            fake.slow = {"ListImages"}
            with pytest.raises(RuntimeTimeout, match=r"did not answer cri\.ListImages in time"):
                await impatient(runtime).list()
            await fake.wait_for(fake.cancelled, "ListImages")
            assert observed[-1] == ("cri.ListImages", "DEADLINE_EXCEEDED")
            assert runtime.ready

    async def test_pull_without_a_deadline(self, path: Path) -> None:
        async with connected(path) as (runtime, fake, _):
            fake.slow = {"PullImage", "ListImages"}
            images = impatient(runtime)
            pull = asyncio.create_task(images.pull("app:v1"))
            await fake.wait_for(fake.began, "PullImage")
            with pytest.raises(RuntimeTimeout):
                await images.list()
            assert not pull.done()
            pull.cancel()
            await asyncio.gather(pull, return_exceptions=True)

    async def test_cancelled_are_cancelled_on_the_other_side(self, path: Path) -> None:
        async with connected(path) as (runtime, fake, observed):
            fake.slow = {"PullImage"}
            pull = asyncio.create_task(runtime.cri.pull("app:v1"))
            await fake.wait_for(fake.began, "PullImage")
            pull.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pull
            await fake.wait_for(fake.cancelled, "PullImage")
            assert observed[-1] == ("cri.PullImage", "CANCELLED")
            await runtime.ping()

    async def test_say_what_went_wrong(self, path: Path) -> None:
        async with connected(path) as (runtime, fake, _):
            fake.failing["PullImage"] = (grpc.StatusCode.NOT_FOUND, "registry.test/app:v1: not found")
            with pytest.raises(RuntimeNotFound, match="not found") as caught:
                await runtime.cri.pull("app:v1")
            assert (caught.value.call, caught.value.status) == ("cri.PullImage", "NOT_FOUND")
            fake.failing["ListImages"] = (grpc.StatusCode.UNIMPLEMENTED, "unknown method")
            with pytest.raises(RuntimeUnsupported):
                await runtime.cri.list()


class TestStreams:
    async def test_that_the_server_ends(self, path: Path) -> None:
        async with connected(path) as (runtime, _fake, _):
            stream = runtime.events.images()
            assert await anext(stream) == ImageEvent("create", "app:v1")
            assert await anext(stream) == ImageEvent("delete", "app:v1")
            with pytest.raises(RuntimeUnavailable, match="ended the event stream"):
                await anext(stream)

    async def test_that_are_left_end_on_the_other_side(self, path: Path) -> None:
        async with connected(path) as (runtime, fake, observed):
            fake.slow = {"Subscribed"}
            async with aclosing(runtime.events.images()) as events:
                await anext(events)
            await fake.wait_for(fake.cancelled, "Subscribed")
            assert ("events.Subscribe", "OK") in observed

    async def test_that_are_cancelled(self, path: Path) -> None:
        async with connected(path) as (runtime, fake, _):
            fake.slow = {"Subscribed"}
            task = asyncio.create_task(_collect(runtime))
            await fake.wait_for(fake.began, "Subscribed")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await fake.wait_for(fake.cancelled, "Subscribed")


class TestStopping:
    async def test_while_nothing_is_there(self, path: Path) -> None:
        async with running(path) as (runtime, _):
            await _until("it to look", lambda: bool(runtime.tried))

    async def test_while_it_connects(self, path: Path) -> None:
        async with serving(path) as fake:
            fake.slow = {"Status"}
            async with running(path):
                await fake.wait_for(fake.began, "Status")
            await fake.wait_for(fake.cancelled, "Status")

    async def test_while_calls_run(self, path: Path) -> None:
        async with connected(path) as (runtime, fake, _):
            fake.slow = {"PullImage"}
            pull = asyncio.create_task(runtime.cri.pull("app:v1"))
            await fake.wait_for(fake.began, "PullImage")
            await runtime.close()
            with pytest.raises(RuntimeUnavailable, match="was closed"):
                await pull
