"""Leases, and pulls that work under one: what they hold, what survives, what resumes, what goes."""

from __future__ import annotations

import asyncio

import pytest

from stokerd.errors import RuntimeAlreadyExists, RuntimeFailure, RuntimeNotFound, RuntimeUnavailable
from tests.conformance.subject import (
    MIB,
    Made,
    Subject,
    blobs_of,
    cancelled,
    eventually,
    held,
    ingest_of,
    records_of,
    snapshots_of,
)

LEASE = "stoker.dev/conformance"
SIZES = (200_000, 3_000_000, 100_000)
"""The one in the middle is held after MIDDLE bytes; containerd writes what it gets MiB by MiB."""
MIDDLE = 1_500_000


class TestLeases:
    async def test_create_list_delete(self, subject: Subject) -> None:
        leases = subject.runtime.leases
        made = await leases.create(LEASE, {"stoker.dev/job": "7"})
        assert (made.id, made.labels) == (LEASE, {"stoker.dev/job": "7"})
        assert made.created_at is not None
        assert made in await leases.list()
        assert await leases.resources(LEASE) == ()
        with pytest.raises(RuntimeAlreadyExists):
            await leases.create(LEASE, {})
        await leases.delete(LEASE)
        assert LEASE not in {lease.id for lease in await leases.list()}
        await leases.delete(LEASE)

    async def test_resources_of_what_is_not_there(self, subject: Subject) -> None:
        with pytest.raises(RuntimeNotFound):
            await subject.runtime.leases.resources("stoker.dev/none")

    async def test_hold_what_no_image_needs_any_more(self, subject: Subject) -> None:
        made = await subject.make_image("leased", [100_000, 50_000])
        runtime = subject.runtime
        await runtime.leases.create(LEASE, {})
        await runtime.cri.pull(made.reference, lease=LEASE)
        await runtime.cri.remove(made.reference)
        subject.nudge()
        assert await blobs_of(subject) >= made.blobs
        assert await snapshots_of(subject) >= set(made.chain_ids)
        await runtime.leases.delete(LEASE, sync=True)
        assert made.blobs.isdisjoint(await blobs_of(subject))
        assert (await snapshots_of(subject)).isdisjoint(made.chain_ids)

    async def test_deleted_leave_what_images_need(self, subject: Subject) -> None:
        made = await subject.make_image("unleased", [100_000, 50_000])
        runtime = subject.runtime
        await runtime.leases.create(LEASE, {})
        await runtime.cri.pull(made.reference, lease=LEASE)
        await runtime.leases.delete(LEASE, sync=True)
        assert await blobs_of(subject) >= made.blobs
        assert await snapshots_of(subject) >= set(made.chain_ids)
        assert await runtime.cri.status(made.reference) is not None


async def _begun(subject: Subject, name: str) -> tuple[Made, asyncio.Task[str]]:
    """Begin a pull under LEASE that stands in the middle of its second layer, with all else that can be there."""
    made = await subject.make_image(name, SIZES)
    barrier = subject.hold(made, 1, MIDDLE)
    await subject.runtime.leases.create(LEASE, {})
    task = asyncio.create_task(subject.runtime.cri.pull(made.reference, lease=LEASE))
    await barrier.reached()
    _first, second, third = made.layers

    async def standing() -> bool:
        found = await held(subject, LEASE)
        snapshots = found.get("snapshots/overlayfs", set())
        return (
            made.chain_ids[0] in snapshots
            and any(name.endswith(f" {made.chain_ids[1]}") for name in snapshots)
            and third.digest in found.get("content", set())
            and (await ingest_of(subject, second.digest) or 0) >= MIB
        )

    await eventually("the pull to stand in its second layer", standing)
    return made, task


class TestPullsUnderALease:
    async def test_show_what_they_do(self, subject: Subject) -> None:
        made, task = await _begun(subject, "shown")
        first, second, third = made.layers
        found = await held(subject, LEASE)
        assert found["content"] == {made.id, made.digest, first.digest, third.digest}
        assert found["ingests"] == {f"layer-{second.digest}"}
        snapshots = found["snapshots/overlayfs"]
        (active,) = snapshots - {made.chain_ids[0]}
        kind, _, chain = active.partition(" ")
        assert kind.startswith("extract-")
        assert chain == made.chain_ids[1]
        info = await subject.runtime.snapshots.stat(active)
        assert info is not None
        assert (info.kind, info.parent) == ("active", made.chain_ids[0])
        usage = await subject.runtime.snapshots.usage(active)
        assert usage is not None
        (ingest,) = await subject.runtime.content.ingests()
        assert (ingest.ref, ingest.total) == (f"layer-{second.digest}", second.size)
        assert MIB <= ingest.offset <= MIDDLE
        assert ingest.started_at is not None
        assert made.names.isdisjoint(await records_of(subject))
        assert await subject.runtime.cri.status(made.reference) is None
        await cancelled(subject, task)

    async def test_hold_the_whole_image_in_the_end(self, subject: Subject) -> None:
        made = await subject.make_image("whole", SIZES, index=True)
        await subject.runtime.leases.create(LEASE, {})
        await subject.runtime.cri.pull(made.reference, lease=LEASE)
        assert await held(subject, LEASE) == {"content": made.blobs, "snapshots/overlayfs": set(made.chain_ids)}
        assert await subject.runtime.content.ingests() == ()

    async def test_of_what_is_there_hold_the_documents(self, subject: Subject) -> None:
        """Layers that need no fetching are not taken into the lease, snapshots since 1.7."""
        made = await subject.make_image("present", [100_000, 50_000])
        await subject.runtime.cri.pull(made.reference)
        await subject.runtime.leases.create(LEASE, {})
        await subject.runtime.cri.pull(made.reference, lease=LEASE)
        found = await held(subject, LEASE)
        assert found["content"] == {made.digest, made.id}
        snapshots = set() if subject.generation == "1.6" else set(made.chain_ids)
        assert found.get("snapshots/overlayfs", set()) == snapshots

    async def test_broken_off_keep_what_they_have(self, subject: Subject) -> None:
        made, task = await _begun(subject, "kept")
        await cancelled(subject, task)
        second = made.layers[1]
        # A garbage collection must not take what the lease holds.
        await subject.runtime.images.delete("stoker.test/none:v1", sync=True)
        found = await held(subject, LEASE)
        assert found["content"] == made.blobs - {second.digest}
        assert made.chain_ids[0] in found["snapshots/overlayfs"]
        assert f"layer-{second.digest}" in found["ingests"]
        assert MIB <= (await ingest_of(subject, second.digest) or 0) <= MIDDLE
        assert await blobs_of(subject) >= found["content"]

    async def test_resume(self, subject: Subject) -> None:
        made, task = await _begun(subject, "resumed")
        await cancelled(subject, task)
        second = made.layers[1]
        subject.clear()
        subject.forget()
        assert await subject.runtime.cri.pull(made.reference, lease=LEASE) == made.id
        # What was on its way when the pull was broken off may be lost; what was written is not.
        assert second.size - MIDDLE <= subject.fetched(second.digest) <= second.size - MIB
        assert subject.fetched(made.layers[0].digest) == 0
        assert subject.fetched(made.layers[2].digest) == 0
        found = await held(subject, LEASE)
        assert found["content"] == made.blobs
        assert "ingests" not in found
        left = found["snapshots/overlayfs"] - set(made.chain_ids)
        # 1.6 leaves the active snapshot of the broken pull behind; it goes with the lease.
        assert len(left) == (1 if subject.generation == "1.6" else 0)
        await subject.runtime.leases.delete(LEASE)
        assert await snapshots_of(subject) >= set(made.chain_ids)
        assert (await snapshots_of(subject)).isdisjoint(left)

    async def test_broken_off_leave_nothing_without_their_lease(self, subject: Subject) -> None:
        blobs, snapshots = await blobs_of(subject), await snapshots_of(subject)
        _made, task = await _begun(subject, "dropped")
        await cancelled(subject, task)

        async def unlocked() -> bool:
            """The pull ends on the other side a moment after it has been broken off here."""
            await subject.runtime.leases.delete(LEASE, sync=True)
            now = await blobs_of(subject), await snapshots_of(subject), await subject.runtime.content.ingests()
            return now == (blobs, snapshots, ())

        await eventually("the store to be as before", unlocked)

    async def test_fail_when_there_is_no_such_lease(self, subject: Subject) -> None:
        made = await subject.make_image("no-lease")
        with pytest.raises(RuntimeNotFound, match="lease does not exist"):
            await subject.runtime.cri.pull(made.reference, lease="stoker.dev/none")
        assert await subject.runtime.cri.status(made.reference) is None

    async def test_fail_when_their_lease_is_deleted(self, subject: Subject) -> None:
        made, task = await _begun(subject, "lease-gone")
        await subject.runtime.leases.delete(LEASE, sync=True)
        assert await ingest_of(subject, made.layers[1].digest) is None
        subject.clear()
        with pytest.raises(RuntimeFailure):
            await task
        assert made.names.isdisjoint(await records_of(subject))
        subject.forget()
        assert await subject.runtime.cri.pull(made.reference) == made.id

    async def test_survive_a_crash(self, subject: Subject) -> None:
        made, task = await _begun(subject, "crashed")
        second = made.layers[1]
        await subject.crash()
        with pytest.raises(RuntimeUnavailable):
            await task
        await subject.quiet()
        subject.clear()
        await subject.restart()
        await subject.runtime.wait_ready()
        assert (await held(subject, LEASE))["content"] == made.blobs - {second.digest}
        offset = await ingest_of(subject, second.digest)
        assert offset is not None
        assert offset >= MIB
        subject.forget()
        assert await subject.runtime.cri.pull(made.reference, lease=LEASE) == made.id
        assert subject.fetched(second.digest) == second.size - offset


class TestPullsWithoutALease:
    async def test_take_one_of_their_own_meanwhile(self, subject: Subject) -> None:
        made = await subject.make_image("own-lease", SIZES)
        barrier = subject.hold(made, 1, MIDDLE)
        task = asyncio.create_task(subject.runtime.cri.pull(made.reference))
        await barrier.reached()
        (lease,) = await subject.runtime.leases.list()
        assert set(lease.labels) == {"containerd.io/gc.expire"}

        async def seen() -> bool:
            return f"layer-{made.layers[1].digest}" in (await held(subject, lease.id)).get("ingests", set())

        await eventually("the lease to hold the ingest", seen)
        barrier.release()
        assert await task == made.id

        async def gone() -> bool:
            return await subject.runtime.leases.list() == ()

        await eventually("the lease to be gone", gone)

    async def test_broken_off_leave_nothing(self, subject: Subject) -> None:
        blobs, snapshots = await blobs_of(subject), await snapshots_of(subject)
        made = await subject.make_image("no-trace", SIZES)
        barrier = subject.hold(made, 1, MIDDLE)
        task = asyncio.create_task(subject.runtime.cri.pull(made.reference))
        await barrier.reached()
        await cancelled(subject, task)

        async def as_before() -> bool:
            now = await blobs_of(subject), await snapshots_of(subject), await subject.runtime.content.ingests()
            return now == (blobs, snapshots, ())

        await eventually("the store to be as before", as_before)
