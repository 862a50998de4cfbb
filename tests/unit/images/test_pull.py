"""One attempt after the other, without anybody who decides about them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stokerd.errors import RuntimeAlreadyExists, RuntimeFailure, RuntimeTimeout
from stokerd.images.failures import Failure
from stokerd.images.leases import DAEMON_LABEL, IMAGE_LABEL, LIFETIME, lease_id
from stokerd.images.presence import Present
from stokerd.images.progress import PullProgress
from stokerd.images.pull import Pulled, PullOrder
from stokerd.registry.credentials import Credential
from stokerd.registry.references import parse_reference
from stokerd.runtime.memory import MemoryOptions
from stokerd.runtime.memory_artifacts import Layer
from stokerd.runtime.types import GC_EXPIRE_LABEL, Descriptor, RegistryAuth
from tests.unit.images.node import DAEMON, HOST, MIB, Node, full
from tests.unit.images.virtual import at_every_step, virtual, virtual_loop


@asynccontextmanager
async def parts(directory: Path, **how: Any) -> AsyncIterator[Node]:
    """A node on which no service runs: the tests use its puller."""
    node = Node(directory, **how)
    await node.start(run=False)
    try:
        yield node
    finally:
        await node.stop()


def order(
    name: str = "app:v1", *auths: Credential, report: Callable[[PullProgress], None] = lambda _progress: None
) -> PullOrder:
    return PullOrder(parse_reference(full(name)), auths, report)


async def pulled(node: Node, name: str = "app:v1", *auths: Credential) -> Pulled:
    outcome = await node.puller.attempt(order(name, *auths))
    assert isinstance(outcome, Pulled), outcome
    return outcome


async def failed(node: Node, name: str = "app:v1", *auths: Credential) -> Failure:
    outcome = await node.puller.attempt(order(name, *auths))
    assert isinstance(outcome, Failure), outcome
    return outcome


def lease_of(name: str = "app:v1") -> str:
    return lease_id(DAEMON, full(name))


def login(name: str, password: str = "secret", server: str = HOST) -> Credential:
    return Credential(name, password, server=server)


# ------------------------------------------------------------------------------------------------ the lease


@virtual
async def test_a_pull_runs_under_a_lease_that_tells_whose_it_is_and_lets_go_of_what_is_whole(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        image = node.image(layers=[3 * MIB, MIB])
        hold = node.runtime.remote.hold(full("app:v1"), "layer:1")
        task = asyncio.create_task(pulled(node))
        await hold.reached.wait()
        (lease,) = (state.lease for state in node.runtime.store.leases.values())
        assert lease.id == lease_of()
        assert lease.labels[DAEMON_LABEL] == DAEMON
        assert lease.labels[IMAGE_LABEL] == full("app:v1")
        assert lease.created_at is not None
        expires = (lease.created_at + LIFETIME).date().isoformat()
        assert lease.labels[GC_EXPIRE_LABEL].startswith(expires)
        hold.release()
        outcome = await task
        assert outcome.present == Present(image.id, image.digest, outcome.present.size, pinned=False)
        assert outcome.fetched == image.compressed_size
        assert outcome.progress.percent == 100
        assert outcome.remark == ""
        assert node.present()
        node.check()


@virtual
async def test_a_broken_attempt_keeps_what_it_has_and_the_next_goes_on(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        image = node.image(layers=[8 * MIB])
        node.runtime.remote.fail(full("app:v1"), "layer:0", "connection reset by peer", after=5 * MIB)
        failure = await failed(node)
        assert (failure.reason, failure.retryable) == ("ConnectionBroken", True)
        assert list(node.runtime.store.leases) == [lease_of()]
        outcome = await pulled(node)
        assert node.runtime.remote.fetched[image.layers[0].digest] == 8 * MIB
        assert outcome.fetched == 8 * MIB
        node.check()


@virtual
async def test_discarding_leaves_nothing_when_it_returns(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        node.image(layers=[8 * MIB, MIB])
        node.image("whole:v1")
        await pulled(node, "whole:v1")
        node.runtime.remote.fail(full("app:v1"), "unpack:1", "no such device")
        await failed(node)
        await node.puller.discard(parse_reference(full("app:v1")))
        node.check(collected=False)
        assert node.present("whole:v1")
        await node.puller.discard(parse_reference(full("app:v1")))  # nothing is there: no error


@virtual
async def test_names_of_an_image_that_is_not_whole_go_with_it_and_older_ones_stay(tmp_path: Path) -> None:
    async with parts(tmp_path, options=MemoryOptions("2.1", "linux/amd64")) as node:
        node.image(platforms=["linux/s390x"], index=True)
        node.runtime.store.put_record("older", Descriptor("x", "sha256:0", 1), {})
        await asyncio.sleep(5)
        failure = await failed(node)
        assert failure.reason == "NoMatchingPlatform"
        assert "linux/s390x" in failure.message
        assert full("app:v1") in node.runtime.store.records
        await node.puller.discard(parse_reference(full("app:v1")))
        assert set(node.runtime.store.records) == {"older"}


@virtual
async def test_a_lease_that_comes_to_its_end_in_between_is_made_anew(tmp_path: Path) -> None:
    """Another call of ours lets it go just when it was found to exist."""
    async with parts(tmp_path) as node:
        node.image()
        node.runtime.fail("leases.Create", RuntimeAlreadyExists("it is there"), times=3)
        await pulled(node)
        assert node.runtime.calls["leases.Create"] == 4
        node.check()


@virtual
async def test_leases_of_others_stay(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        node.image()
        node.runtime.store.create_lease("kubelet", {})
        await pulled(node)
        await node.puller.discard(parse_reference(full("app:v1")))
        assert list(node.runtime.store.leases) == ["kubelet"]


@virtual
async def test_a_lease_that_somebody_removes_breaks_the_pull(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        node.image(layers=[8 * MIB])
        hold = node.runtime.remote.hold(full("app:v1"), "layer:0", after=MIB)
        task = asyncio.create_task(failed(node))
        await hold.reached.wait()
        await asyncio.sleep(1)
        del node.runtime.store.leases[lease_of()]
        failure = await task
        assert (failure.reason, failure.retryable) == ("LeaseLost", True)
        hold.release()
        await pulled(node)
        node.check()


@virtual
async def test_an_image_that_cannot_let_go_of_its_lease_is_tried_again(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        node.image()
        node.runtime.fail("leases.Delete", RuntimeTimeout("slow"))
        assert (await failed(node)).reason == "RuntimeTimeout"
        await node.puller.release(full("app:v1"))
        node.check()


# ------------------------------------------------------------------------------------------------ credentials


@virtual
async def test_all_credentials_are_tried_in_turn_then_none(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        node.image()
        node.runtime.remote.require_auth(HOST, "right", "secret")
        seen: list[str] = []
        admits = node.runtime.remote.admits

        def watching(name: Any, auth: RegistryAuth | None) -> bool:
            seen.append(auth.username if auth else "")
            return admits(name, auth)

        node.runtime.remote.admits = watching  # type: ignore[method-assign]
        failure = await failed(node, "app:v1", login("wrong"), login("elsewhere", server="other.test"))
        assert seen == ["wrong", ""]
        assert (failure.reason, failure.auth, failure.retryable) == ("Unauthorized", True, False)
        assert "request, anonymous" in failure.message
        assert "secret" not in f"{failure}"
        seen.clear()
        await pulled(node, "app:v1", login("wrong"), login("right"), login("never asked"))
        assert seen == ["wrong", "right"]
        node.check()


@virtual
async def test_what_is_no_matter_of_credentials_is_not_tried_with_others(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        failure = await failed(node, "app:v1", login("a"), login("b"))
        assert failure.reason == "NotFound"
        assert node.runtime.calls["cri.PullImage"] == 1


# ------------------------------------------------------------------------------------------------ what came of it


@virtual
async def test_an_image_for_another_kind_of_machine_comes_with_a_remark(tmp_path: Path) -> None:
    async with parts(tmp_path, options=MemoryOptions("2.1", "linux/amd64")) as node:
        node.image(platforms=["linux/arm64"], index=False)
        assert "linux/arm64" in (await pulled(node)).remark


@virtual
async def test_layers_that_cannot_be_unpacked_are_told(tmp_path: Path) -> None:
    """containerd 2.1 says that the pull was a success."""
    async with parts(tmp_path, options=MemoryOptions("2.1")) as node:
        node.image(layers=[Layer.of(MIB, compression="unknown")])
        failure = await failed(node)
        assert (failure.reason, failure.retryable) == ("UnsupportedMediaType", False)
        await node.puller.discard(parse_reference(full("app:v1")))
        node.check()


@virtual
async def test_an_image_that_vanishes_at_once_is_incomplete(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        node.image()
        node.runtime.store.on_event = lambda event: node.runtime.store.delete_record(event.name)
        failure = await failed(node)
        assert (failure.reason, failure.retryable) == ("Incomplete", True)


@virtual
async def test_what_layers_grew_to_is_learned(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        image = node.image(layers=[Layer.of(MIB, "a", unpacked=7 * MIB, inodes=77), Layer.of(MIB, "b", unpacked=MIB)])
        await pulled(node)
        known = await node.journal.layers(layer.digest for layer in image.layers)
        assert [(row.unpacked - 4096, row.inodes - 1) for row in known.values()] == [(7 * MIB, 77), (MIB, 10)]
        assert node.budget.ratios["gzip"].unpacked_bytes > 128 * MIB


@virtual
async def test_what_cannot_be_learned_fails_nothing(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        node.image("one:v1")
        node.journal_writable(False)
        await pulled(node, "one:v1")
        node.image("two:v1")
        node.runtime.fail("snapshots.Usage", RuntimeFailure("no"), times=9)
        await pulled(node, "two:v1")
        node.check()


@virtual
async def test_a_layer_that_two_pulls_wanted_at_once_is_counted_for_one(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        base = Layer.of(4 * MIB, "base")
        for name in ("one:v1", "two:v1"):
            node.image(name, layers=[base, MIB])
        outcomes = await asyncio.gather(pulled(node, "one:v1"), pulled(node, "two:v1"))
        assert (
            sum(outcome.fetched for outcome in outcomes)
            == 6 * MIB
            == node.runtime.remote.fetched.total() - _documents(node)
        )
        await asyncio.sleep(1)  # what is older than the lease was there before
        node.image("three:v1", layers=[base, 2 * MIB])
        assert (await pulled(node, "three:v1")).fetched == 2 * MIB
        node.check()


def _documents(node: Node) -> int:
    """Return the bytes of manifests and configurations that were fetched."""
    store = node.runtime.store
    return sum(blob.size for blob in store.blobs.values() if blob.body is not None)


@virtual
async def test_promised_space_is_given_back_however_it_ends(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        node.image(layers=[8 * MIB])
        for ending in ("success", "failure", "cancelled"):
            hold = node.runtime.remote.hold(full("app:v1"), "layer:0", after=MIB, times=1)
            task = asyncio.create_task(node.puller.attempt(order()))
            await hold.reached.wait()
            await asyncio.sleep(1)
            assert node.budget.promised.bytes > 8 * MIB, ending
            if ending == "cancelled":
                task.cancel()
            elif ending == "failure":
                node.runtime.remote.fail(full("app:v1"), "layer:0", "connection reset by peer")
            hold.release()
            await asyncio.wait({task})
            assert node.budget.promised.bytes == 0
            await node.puller.discard(parse_reference(full("app:v1")))
            await node.runtime.cri.remove(full("app:v1"))


def test_cancelled_at_any_step_discarding_leaves_nothing(tmp_path: Path) -> None:
    async def cancelled(step: int) -> bool:
        async with parts(tmp_path / str(step)) as node:
            node.image(layers=[2 * MIB, MIB])
            task = asyncio.create_task(node.puller.attempt(order()))
            virtual_loop().at_step(step, task.cancel)
            await asyncio.wait({task})
            whole = not task.cancelled()
            assert node.budget.promised.bytes == 0
            await node.puller.discard(parse_reference(full("app:v1")))
            node.check(collected=whole)
            return not whole

    at_every_step(cancelled)


@pytest.mark.parametrize("generation", ["1.6", "1.7", "2.1"])
def test_containerd_gone_at_any_step_costs_nothing(tmp_path: Path, generation: Any) -> None:
    """The attempt says that containerd was away, and nothing else; the next one succeeds with what is there."""

    async def gone(step: int) -> bool:
        async with parts(tmp_path / str(step), options=MemoryOptions(generation)) as node:
            node.image(layers=[2 * MIB, MIB])
            task = asyncio.create_task(node.puller.attempt(order()))
            virtual_loop().at_step(step, node.runtime.restart)
            outcome = await task
            disturbed = node.runtime.restarts > 0
            if isinstance(outcome, Failure):
                assert outcome.reason == "RuntimeUnavailable", outcome
                await pulled(node)
            node.check()
            return disturbed

    at_every_step(gone)
