"""Making the in-memory runtime fail, wait and crash."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from stokerd.errors import RuntimeFailure, RuntimeTimeout, RuntimeUnavailable
from stokerd.images.failures import classify
from stokerd.runtime.memory import MemoryRuntime
from stokerd.runtime.memory_artifacts import Layer
from stokerd.runtime.types import GC_EXPIRE_LABEL, ImageEvent, RegistryAuth

MIB = 1 << 20
APP = "registry.test/app:v1"


@pytest.fixture
async def memory() -> MemoryRuntime:
    return MemoryRuntime()


async def failure(memory: MemoryRuntime, reference: str, auth: RegistryAuth | None = None) -> RuntimeFailure:
    with pytest.raises(RuntimeFailure) as caught:
        await memory.cri.pull(reference, auth=auth)
    return caught.value


async def settled() -> None:
    """Let everything run that can run without waiting."""
    for _ in range(200):
        await asyncio.sleep(0)


class TestFaults:
    @pytest.mark.parametrize(
        "stage", ["resolve", "manifest", "config", "layer", "layer:1", "unpack", "unpack:1", "record"]
    )
    async def test_at_every_stage(self, memory: MemoryRuntime, stage: str) -> None:
        image = memory.remote.add_image(APP, layers=[MIB, MIB])
        memory.remote.fail(APP, stage, "read tcp: connection reset by peer", times=2)
        for _ in range(2):
            error = await failure(memory, APP)
            assert error.message.startswith(f'failed to pull and unpack image "{APP}": ')
            assert classify(error, APP).reason == "ConnectionBroken"
        assert await memory.cri.pull(APP) == image.id

    async def test_of_an_index(self, memory: MemoryRuntime) -> None:
        memory.remote.add_image(APP, index=True)
        memory.remote.fail(APP, "index", RuntimeTimeout("too late"))
        assert isinstance(await failure(memory, APP), RuntimeTimeout)

    async def test_of_one_layer_after_some_bytes(self, memory: MemoryRuntime) -> None:
        image = memory.remote.add_image(APP, layers=[3 * MIB])
        memory.remote.fail(APP, image.layers[0].digest, "unexpected EOF", after=MIB + 7)
        await memory.leases.create("lease", {})
        with pytest.raises(RuntimeFailure, match="failed to copy: unexpected EOF"):
            await memory.cri.pull(APP, lease="lease")
        (ingest,) = await memory.content.ingests()
        assert ingest.offset == MIB + 7
        await memory.cri.pull(APP, lease="lease")
        assert memory.remote.fetched[image.layers[0].digest] == 3 * MIB
        assert memory.remote.requests[image.layers[0].digest] == 2

    async def test_concern_one_image(self, memory: MemoryRuntime) -> None:
        memory.remote.add_image(APP)
        memory.remote.add_image("registry.test/other:v1")
        memory.remote.fail(APP, "resolve", "no")
        await memory.cri.pull("registry.test/other:v1")
        await failure(memory, APP)

    @pytest.mark.parametrize(
        ("status", "reason"),
        [(401, "Unauthorized"), (403, "Denied"), (429, "RateLimited"), (500, "RegistryUnavailable")],
    )
    @pytest.mark.parametrize("generation", ["1.6", "2.1"])
    async def test_answers(self, generation: str, status: int, reason: str) -> None:
        memory = MemoryRuntime(pinning=generation != "1.6")
        memory.remote.add_image(APP)
        memory.remote.answer(APP, status)
        assert classify(await failure(memory, APP), APP).reason == reason
        await memory.cri.pull(APP)

    async def test_missing_and_unreachable(self, memory: MemoryRuntime) -> None:
        memory.remote.add_image(APP)
        memory.remote.remove(APP)
        assert classify(await failure(memory, APP), APP).reason == "NotFound"
        memory.remote.unreachable["registry.test"] = "dial tcp: lookup registry.test: no such host"
        assert classify(await failure(memory, APP), APP).reason == "UnknownHost"

    async def test_accounts_of_a_registry_and_of_a_repository(self, memory: MemoryRuntime) -> None:
        memory.remote.add_image(APP)
        memory.remote.add_image("registry.test/other:v1")
        memory.remote.require_auth("registry.test", "all", "secret")
        memory.remote.require_auth("registry.test/app", "robot", "word")
        assert classify(await failure(memory, APP), APP).auth
        assert classify(await failure(memory, APP, RegistryAuth("all", "secret")), APP).auth
        await memory.cri.pull(APP, auth=RegistryAuth("robot", "word"))
        await memory.cri.pull("registry.test/other:v1", auth=RegistryAuth("all", "secret"))

    async def test_of_any_call(self, memory: MemoryRuntime) -> None:
        memory.fail("leases.Create", RuntimeTimeout("too late"))
        with pytest.raises(RuntimeTimeout):
            await memory.leases.create("lease", {})
        memory.fail("images.List", "confused", times=1)
        with pytest.raises(RuntimeFailure, match="confused"):
            await memory.images.list()
        await memory.leases.create("lease", {})
        assert memory.calls == {"leases.Create": 2, "images.List": 1}

    async def test_can_be_forgotten(self, memory: MemoryRuntime) -> None:
        memory.remote.add_image(APP)
        memory.remote.fail(APP, "resolve", "no")
        hold = memory.remote.hold(APP, "manifest")
        memory.fail("cri.PullImage", "no")
        memory.clear_faults()
        assert hold.released.is_set()
        await memory.cri.pull(APP)


class TestBarriers:
    async def test_hold_a_pull(self, memory: MemoryRuntime) -> None:
        image = memory.remote.add_image(APP, layers=[3 * MIB, MIB])
        hold = memory.remote.hold(APP, "layer:0", after=MIB + 1)
        task = asyncio.create_task(memory.cri.pull(APP))
        await hold.reached.wait()
        await settled()
        assert not task.done()
        assert hold.waiting == 1
        assert memory.remote.fetched[image.layers[0].digest] == MIB + 1
        assert memory.remote.fetched[image.layers[1].digest] == MIB
        hold.release()
        assert await task == image.id

    async def test_hold_unpacking(self, memory: MemoryRuntime) -> None:
        image = memory.remote.add_image(APP, layers=[Layer.of(MIB, unpacked=8 * MIB, inodes=80)])
        hold = memory.remote.hold(APP, "unpack:0", after=4 * MIB)
        task = asyncio.create_task(memory.cri.pull(APP))
        await hold.reached.wait()
        (active,) = await memory.snapshots.list()
        assert active.kind == "active"
        usage = await memory.snapshots.usage(active.name)
        assert usage is not None
        assert (usage.bytes, usage.inodes) == (4096 + 4 * MIB, 1 + 40)
        hold.release()
        await task
        usage = await memory.snapshots.usage(image.first.chain_ids[0])
        assert usage is not None
        assert usage.bytes == 4096 + 8 * MIB

    async def test_hold_a_call(self, memory: MemoryRuntime) -> None:
        hold = memory.hold("leases.Create", times=1)
        task = asyncio.create_task(memory.leases.create("lease", {}))
        await hold.reached.wait()
        assert await memory.leases.list() == ()
        hold.release()
        assert (await task).id == "lease"

    async def test_let_cancelled_pulls_go(self, memory: MemoryRuntime) -> None:
        memory.remote.add_image(APP)
        hold = memory.remote.hold(APP, "layer")
        task = asyncio.create_task(memory.cri.pull(APP))
        await hold.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert hold.waiting == 0
        assert await memory.content.list() == ()
        assert await memory.leases.list() == ()


class TestPace:
    async def test_of_fetching_and_unpacking(self, memory: MemoryRuntime) -> None:
        memory.remote.add_image(APP, layers=[Layer.of(MIB, unpacked=MIB)])
        memory.remote.chunk = MIB // 4
        memory.remote.rate = 20.0 * MIB
        memory.remote.unpack_rate = 10.0 * MIB
        loop = asyncio.get_running_loop()
        began = loop.time()
        await memory.cri.pull(APP)
        assert loop.time() - began >= 0.14

    async def test_tells_of_every_chunk(self, memory: MemoryRuntime) -> None:
        image = memory.remote.add_image(APP, layers=[MIB])
        chunks: list[tuple[str, int]] = []

        async def note(digest: str, offset: int) -> None:
            chunks.append((digest, offset))

        memory.remote.chunk = MIB // 2
        memory.remote.on_chunk = note
        await memory.cri.pull(APP)
        layer = image.layers[0].digest
        assert [offset for digest, offset in chunks if digest == layer] == [0, MIB // 2]

    async def test_latency(self, memory: MemoryRuntime) -> None:
        memory.latency = 0.05
        loop = asyncio.get_running_loop()
        began = loop.time()
        await memory.ping()
        assert loop.time() - began >= 0.045

    async def test_every_call_lets_the_loop_turn(self, memory: MemoryRuntime) -> None:
        order: list[str] = []

        async def other() -> None:
            order.append("other")

        task = asyncio.create_task(other())
        await memory.images.list()
        order.append("call")
        await task
        assert order == ["other", "call"]


class TestCrashes:
    @pytest.mark.parametrize("stage", ["resolve", "manifest", "config", "layer:1", "unpack:0", "unpack:1", "record"])
    async def test_at_every_stage(self, memory: MemoryRuntime, stage: str) -> None:
        image = memory.remote.add_image(APP, layers=[2 * MIB, MIB])
        hold = memory.remote.hold(APP, stage)
        await memory.leases.create("lease", {})
        task = asyncio.create_task(memory.cri.pull(APP, lease="lease"))
        await hold.reached.wait()
        memory.crash()
        with pytest.raises(RuntimeUnavailable):
            await task
        assert not memory.ready
        hold.release()
        memory.restart()
        assert await memory.cri.pull(APP, lease="lease") == image.id
        assert all(memory.remote.fetched[layer.digest] == layer.size for layer in image.layers)
        await memory.leases.delete("lease")
        assert {info.name for info in await memory.snapshots.list()} == set(image.first.chain_ids)

    async def test_fail_every_call_in_flight_but_no_task(self, memory: MemoryRuntime) -> None:
        memory.hold("images.List")
        memory.hold("leases.List")
        waiting = [asyncio.create_task(memory.images.list()), asyncio.create_task(memory.leases.list())]
        cancelled = asyncio.create_task(memory.images.list())
        await settled()
        cancelled.cancel()
        memory.crash()
        results = await asyncio.gather(*waiting, cancelled, return_exceptions=True)
        assert [type(result) for result in results] == [
            RuntimeUnavailable,
            RuntimeUnavailable,
            asyncio.CancelledError,
        ]

    async def test_end_event_streams(self, memory: MemoryRuntime) -> None:
        memory.remote.add_image(APP)
        seen: list[ImageEvent] = []

        async def listen() -> None:
            async for event in memory.events.images():
                seen.append(event)

        task = asyncio.create_task(listen())
        await settled()
        await memory.cri.pull(APP)
        memory.crash()
        with pytest.raises(RuntimeUnavailable):
            await task
        assert [event.kind for event in seen] == ["create"] * 3

    async def test_tell_listeners(self, memory: MemoryRuntime) -> None:
        told: list[bool] = []
        memory.on_change(lambda: told.append(memory.ready))
        memory.crash()
        memory.crash()
        waiting = asyncio.create_task(memory.wait_ready())
        await settled()
        assert not waiting.done()
        memory.restart()
        await waiting
        memory.restart()
        assert told == [False, True, False, True]

    async def test_keep_the_lease_of_a_pull_without_one(self) -> None:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        memory = MemoryRuntime(clock=lambda: now)
        memory.remote.add_image(APP, layers=[2 * MIB])
        hold = memory.remote.hold(APP, "layer", after=MIB)
        task = asyncio.create_task(memory.cri.pull(APP))
        await hold.reached.wait()
        memory.crash()
        with pytest.raises(RuntimeUnavailable):
            await task
        memory.restart()
        (lease,) = await memory.leases.list()
        assert lease.labels[GC_EXPIRE_LABEL] == "2026-01-02T00:00:00Z"
        memory.collect()
        assert len(await memory.content.ingests()) == 1
        now += timedelta(days=1)
        memory.collect()
        assert await memory.leases.list() == ()
        assert await memory.content.ingests() == ()
        assert memory.disk.used_bytes == 0
