"""The room as the API sees it: requests, jobs, events, history, and what outlives a restart."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from stoker.objects.images import (
    Event,
    ImageChange,
    InlineAuth,
    ItemEvent,
    JobEvent,
    KeepRequest,
    PinRequest,
    Progress,
    WarmRequest,
)
from stokerd.errors import InvalidInput, JournalError, LimitExceeded, NotFound
from stokerd.registry.references import InvalidReference
from stokerd.runtime.memory_artifacts import Layer
from tests.unit.images.node import HOST, MIB, Node, full
from tests.unit.images.virtual import at_every_step, virtual, virtual_loop

SECRET = "s3cr3t-0f-s0m3b0dy"


def gauge(node: Node, name: str) -> float | None:
    return node.metrics.get_sample_value(f"stoker_image_{name}")


# ------------------------------------------------------------------------------------------------ requests


@virtual
async def test_images_are_warm_when_their_job_has_succeeded(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        images = [node.image(f"app:{n}", layers=[MIB, 2 * MIB]) for n in range(5)]
        job = await node.warmed(*(f"app:{n}" for n in range(5)), name="five")
        assert (job.name, job.state, job.counts.desired, job.counts.succeeded) == ("five", "Succeeded", 5, 5)
        for image, item in zip(images, job.items, strict=True):
            assert (item.reason, item.digest, item.attempt) == ("Pulled", image.digest, 1)
            assert item.pulled_bytes == image.compressed_size
            assert item.progress.percent == 100
            assert node.present(item.image)
        assert job.finished_at is not None
        await node.quiet()
        node.check()
        assert (
            node.metrics.get_sample_value("stoker_image_attempts_total", {"result": "succeeded", "reason": "Pulled"})
            == 5
        )
        assert gauge(node, "fetched_bytes_total") == 15 * MIB


@virtual
async def test_what_is_warm_is_answered_at_once_and_without_an_attempt(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        await node.warmed("app:v1")
        job = await node.service.warm(WarmRequest(images=[full("app:v1")]))
        assert (job.state, job.items[0].reason, job.items[0].attempt) == ("Succeeded", "AlreadyPresent", 0)
        assert job.items[0].progress.percent == 100
        assert len(await node.service.history()) == 1
        assert node.runtime.calls["cri.PullImage"] == 1


@virtual
async def test_names_that_lead_to_one_pull_are_one_image(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        job = node.service.job(await node.warm("docker.io/library/x", "docker.io/x:latest", "index.docker.io/x"))
        assert [item.image for item in job.items] == ["docker.io/library/x"]
        await node.service.cancel(job.id)


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"images": []}, InvalidInput),
        ({"images": ["Upper/Case"]}, InvalidReference),
        ({"images": ["Upper/Case", "fine", "a b"]}, InvalidInput),
        ({"images": ["x"] * 11}, LimitExceeded),
        ({"images": ["x"], "priority": 1001}, InvalidInput),
        ({"images": ["x"], "attempts": 0}, InvalidInput),
        ({"images": ["x"], "timeout_seconds": float("nan")}, InvalidInput),
        ({"images": ["x"], "timeout_seconds": -1.0}, InvalidInput),
        ({"images": ["x"], "pin_seconds": -1.0}, InvalidInput),
        ({"images": ["x"], "pin_seconds": float("inf")}, InvalidInput),
    ],
)
def test_a_request_that_is_wrong_does_nothing(tmp_path: Path, how: dict[str, object], error: type[Exception]) -> None:
    @virtual
    async def nothing() -> None:
        async with Node(tmp_path, max_images_per_request=10) as node:
            with pytest.raises(error) as caught:
                await node.service.warm(WarmRequest(**how))  # type: ignore[arg-type]
            if how["images"] == ["Upper/Case", "fine", "a b"]:
                assert "Upper" in str(caught.value)
                assert "a b" in str(caught.value)
            assert node.service.jobs() == []
            assert await node.journal.jobs() == []

    nothing()


@virtual
async def test_a_request_that_cannot_be_written_down_is_not_accepted(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        node.journal_writable(False)
        with pytest.raises(JournalError):
            await node.warm("app:v1")
        assert node.service.jobs() == []
        await asyncio.sleep(10)
        assert not node.present()


@virtual
async def test_a_tag_is_followed_with_always_only(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        old = node.image(seed="old")
        await node.warmed("app:v1")
        new = node.image(seed="new")
        assert (await node.warmed("app:v1")).items[0].digest == old.digest
        job = await node.warmed("app:v1", policy="Always")
        assert (job.items[0].reason, job.items[0].digest) == ("Moved", new.digest)
        assert job.items[0].previous_digest == old.digest
        await asyncio.sleep(1)
        again = await node.warmed("app:v1", policy="Always")
        assert (again.items[0].reason, again.items[0].pulled_bytes) == ("Pulled", 0)


@virtual
async def test_many_images_share_what_they_share(tmp_path: Path) -> None:
    async with Node(tmp_path, max_parallel=4, max_parallel_per_registry=4) as node:
        node.runtime.remote.rate = 1.0 * MIB
        base = Layer.of(5 * MIB, "base")
        for n in range(6):
            node.image(f"app:{n}", layers=[base, MIB])
        job = await node.warmed(*(f"app:{n}" for n in range(6)))
        assert job.state == "Succeeded"
        assert sum(item.pulled_bytes for item in job.items) == 5 * MIB + 6 * MIB
        assert node.runtime.remote.fetched[base.digest] == 5 * MIB


# ------------------------------------------------------------------------------------------------ failures


@virtual
async def test_a_job_that_fails_in_part_says_so(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image("good:v1")
        job = await node.warmed("good:v1", "missing:v1")
        assert (job.state, job.counts.succeeded, job.counts.failed) == ("Failed", 1, 1)
        assert [item.reason for item in job.items] == ["Pulled", "NotFound"]
        await node.quiet()
        node.check()


@virtual
async def test_every_attempt_is_in_the_history_with_its_reason(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image(layers=[8 * MIB])
        node.runtime.remote.answer(full("app:v1"), 503)
        node.runtime.remote.fail(full("app:v1"), "layer:0", "connection reset by peer", after=MIB)
        job = await node.warmed("app:v1")
        assert (job.items[0].reason, job.items[0].attempt, job.items[0].message) == ("Pulled", 3, "")
        await node.warmed("missing:v1")
        history = await node.service.history(full("app:v1"))
        assert [(line.attempt, line.result, line.reason) for line in history] == [
            (3, "Succeeded", "Pulled"),
            (2, "Failed", "ConnectionBroken"),
            (1, "Failed", "RegistryUnavailable"),
        ]
        assert history[0].pulled_bytes == 8 * MIB
        assert all(line.started_at and line.finished_at and line.started_at <= line.finished_at for line in history)
        starts = [line.started_at for line in reversed(history) if line.started_at]
        assert all(earlier < later for earlier, later in itertools.pairwise(starts))
        assert len(await node.service.history()) == 4
        assert len(await node.service.history(limit=2)) == 2


@virtual
async def test_a_deadline_is_told_and_is_in_the_history(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        node.runtime.remote.hold(full("app:v1"), "layer:0")
        job = await node.warmed("app:v1", timeout_seconds=30)
        assert job.items[0].reason == "DeadlineExceeded"
        assert "30 s" in job.items[0].message
        (line,) = await node.service.history()
        assert (line.result, line.reason) == ("Failed", "DeadlineExceeded")
        await node.quiet()
        node.check(collected=False)


@virtual
async def test_the_next_attempt_is_announced(tmp_path: Path) -> None:
    async with Node(tmp_path, backoff_initial=8, backoff_jitter=0) as node:
        node.image()
        node.runtime.remote.answer(full("app:v1"), 502)
        job = await node.warm("app:v1")
        item = await node.seen(job, lambda item: item.reason == "RegistryUnavailable")
        assert item.phase == "Waiting"
        assert item.next_attempt_at is not None
        assert round(item.next_attempt_at.timestamp() - node.clock.time()) == 8
        assert (await node.ended(job)).items[0].next_attempt_at is None


# ------------------------------------------------------------------------------------------------ credentials


@virtual
async def test_credentials_are_used_and_never_written_or_shown(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        node.runtime.remote.require_auth(HOST, "me", SECRET)
        assert (await node.warmed("app:v1")).items[0].reason == "Unauthorized"
        auths = [InlineAuth(registry=HOST, username="me", password=SECRET)]
        job = await node.warmed("app:v1", auths=auths)
        assert job.state == "Succeeded"
        wrong = await node.warmed("other:v1", auths=[InlineAuth(registry=HOST, username="x", password=SECRET)])
        assert wrong.items[0].reason == "Unauthorized"
        assert SECRET not in f"{job}{wrong}{await node.service.history()}"
    for path in tmp_path.iterdir():  # noqa: ASYNC240 - nothing else runs
        assert SECRET.encode() not in path.read_bytes()


@virtual
async def test_who_joins_with_the_right_credentials_is_served_and_the_other_is_refused(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        node.runtime.remote.require_auth(HOST, "me", SECRET)
        hold = node.runtime.remote.hold(full("app:v1"), "resolve")
        stranger = await node.warm("app:v1", attempts=1)
        await hold.reached.wait()
        auths = [InlineAuth(registry=HOST, username="me", password=SECRET)]
        friend = await node.warm("app:v1", attempts=1, auths=auths)
        hold.release()
        assert (await node.ended(friend)).state == "Succeeded"
        assert (await node.ended(stranger)).items[0].reason == "Unauthorized"


@virtual
async def test_credentials_that_a_restart_has_lost_are_asked_for(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.start()
    node.image(layers=[4 * MIB])
    node.runtime.remote.require_auth(HOST, "me", SECRET)
    node.runtime.remote.hold(full("app:v1"), "layer:0")
    auths = [InlineAuth(registry=HOST, username="me", password=SECRET)]
    job = await node.warm("app:v1", auths=auths)
    await node.seen(job, lambda item: item.progress.bytes_total > 0)
    await node.stop()
    node.runtime.clear_faults()
    await node.start()
    (item,) = (await node.ended(job)).items
    assert (item.reason, item.attempt) == ("Unauthorized", 2)
    assert "send the request again" in item.hint
    assert (await node.warmed("app:v1", auths=auths)).state == "Succeeded"
    await node.stop()


# ------------------------------------------------------------------------------------------------ cancelling


@virtual
async def test_cancelling_leaves_nothing_when_it_returns(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image(layers=[8 * MIB])
        hold = node.runtime.remote.hold(full("app:v1"), "layer:0", after=MIB)
        job = await node.warm("app:v1", "waits:v1", "never:v1")
        await hold.reached.wait()
        cancelled = await node.service.cancel(job)
        assert cancelled.state == "Cancelled"
        assert {item.phase for item in cancelled.items} <= {"Cancelled", "Failed"}
        node.check(collected=False)
        assert [line.result for line in await node.service.history(full("app:v1"))] == ["Cancelled"]
        again = await node.service.cancel(job)
        assert again == cancelled


@virtual
async def test_a_second_cancel_waits_for_the_same(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image(layers=[8 * MIB])
        hold = node.runtime.remote.hold(full("app:v1"), "layer:0", after=MIB)
        job = await node.warm("app:v1")
        await hold.reached.wait()
        slow = node.runtime.hold("leases.Delete")
        calls = [asyncio.create_task(node.service.cancel(job)) for _ in range(3)]
        await slow.reached.wait()
        await asyncio.sleep(30)
        assert not any(call.done() for call in calls)
        slow.release()
        assert {task.result().state for task in (await asyncio.wait(calls))[0]} == {"Cancelled"}
        node.check(collected=False)


@virtual
async def test_cancelling_does_not_wait_for_the_pull_of_another(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image(layers=[8 * MIB])
        hold = node.runtime.remote.hold(full("app:v1"), "layer:0", after=MIB)
        job = await node.warm("app:v1")
        await hold.reached.wait()
        slow = node.runtime.hold("leases.Delete")
        call = asyncio.create_task(node.service.cancel(job))
        await slow.reached.wait()
        other = await node.warm("app:v1")
        assert (await asyncio.wait_for(call, 1)).state == "Cancelled"
        slow.release()
        hold.release()
        assert (await node.ended(other)).state == "Succeeded"


def test_cancelled_while_it_is_looked_up_or_pinned_it_ends_once(tmp_path: Path) -> None:
    """What is warm is answered at once; even so, somebody may cancel it before that."""

    async def cancelled(step: int) -> bool:
        async with Node(tmp_path / str(step)) as node:
            node.image()
            await node.warmed("app:v1")
            calls: list[asyncio.Task[object]] = []

            def cancel() -> None:
                for job in node.service.jobs():
                    if job.state == "Active":
                        calls.append(asyncio.ensure_future(node.service.cancel(job.id)))

            virtual_loop().at_step(step, cancel)
            before = virtual_loop().steps
            job = await node.service.warm(WarmRequest(images=[full("app:v1")], pin_seconds=0))
            taken = virtual_loop().steps - before
            await asyncio.gather(*calls)
            done = await node.ended(job.id)
            assert done.state == done.items[0].phase
            assert (done.counts.succeeded, done.counts.cancelled) in {(1, 0), (0, 1)}
            assert calls or done.state == "Succeeded"
            return taken >= step

    at_every_step(cancelled, least=5)


@virtual
async def test_twenty_thousand_images_are_accepted_listed_and_cancelled(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        hold = node.runtime.hold("cri.PullImage")
        job = await node.warm(*(f"x.test/{n}:v1" for n in range(20_000)))
        await hold.reached.wait()
        await asyncio.sleep(1)
        assert node.service.jobs()[0].counts.desired == 20_000
        assert (gauge(node, "pulls_running"), gauge(node, "pulls_waiting")) == (2, 19_998)
        cancelled = await node.service.cancel(job)
        assert cancelled.state == "Cancelled"
        assert (gauge(node, "pulls_running"), gauge(node, "pulls_waiting")) == (0, 0)


# ------------------------------------------------------------------------------------------------ jobs


@virtual
async def test_a_job_is_found_by_what_its_id_begins_with(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        jobs = []
        for _ in range(3):
            jobs.append(await node.warm("missing:v1"))
            await asyncio.sleep(1)
        assert [job.id for job in node.service.jobs()] == jobs[::-1]
        assert node.service.job(jobs[0][:-2]).id == jobs[0]
        assert node.service.job(jobs[0].removeprefix("warm-")[:-2]).id == jobs[0]
        with pytest.raises(InvalidInput, match="3 jobs"):
            node.service.job("warm-")
        for unknown in ("", "nothing", f"{jobs[0]}0"):
            with pytest.raises(NotFound):
                node.service.job(unknown)
        with pytest.raises(NotFound):
            await node.service.cancel("nothing")
        with pytest.raises(NotFound):
            node.service.follow("nothing")


@virtual
async def test_finished_jobs_are_forgotten_in_time_and_the_history_stays(tmp_path: Path) -> None:
    async with Node(tmp_path, job_ttl=600) as node:
        node.image()
        node.image("held:v1")
        hold = node.runtime.remote.hold(full("held:v1"), "resolve")
        await node.warmed("app:v1")
        active = await node.warm("held:v1")
        await asyncio.sleep(500)
        assert len(node.service.jobs()) == 2
        await asyncio.sleep(200)
        assert [job.id for job in node.service.jobs()] == [active]
        assert [row.id for row, _ in await node.journal.jobs()] == [active]
        hold.release()
        await node.ended(active)
        assert len(await node.service.history()) > 1


@virtual
async def test_a_journal_that_cannot_be_written_keeps_jobs_until_it_can(tmp_path: Path) -> None:
    async with Node(tmp_path, job_ttl=60) as node:
        node.image()
        job = await node.warmed("app:v1")
        await asyncio.sleep(1)
        node.journal_writable(False)
        await asyncio.sleep(1000)
        assert node.service.job(job.id).state == "Succeeded"
        node.journal_writable(True)
        await asyncio.sleep(130)
        assert node.service.jobs() == []
        assert await node.journal.jobs() == []


# ------------------------------------------------------------------------------------------------ events


async def collect(node: Node, job: str) -> list[Event]:
    return [event async for event in node.service.follow(job)]


def only_forward(before: Progress, after: Progress) -> bool:
    """Say whether nothing that a user sees has gone backwards."""
    pairs = [
        (before.bytes_total, after.bytes_total),
        (before.bytes_done, after.bytes_done),
        (before.bytes_present, after.bytes_present),
        (before.layers_unpacked, after.layers_unpacked),
        (before.percent, after.percent),
        *((old.offset, new.offset) for old, new in zip(before.layers, after.layers, strict=False)),
    ]
    return all(old <= new for old, new in pairs)


@virtual
async def test_a_follower_sees_progress_that_only_goes_forward_over_every_kind_of_attempt(tmp_path: Path) -> None:
    async with Node(tmp_path, backoff_initial=5) as node:
        node.runtime.remote.rate = node.runtime.remote.unpack_rate = 2.0 * MIB
        node.image(layers=[20 * MIB, 10 * MIB])
        name = full("app:v1")
        node.runtime.remote.fail(name, "layer:0", "connection reset by peer", after=9 * MIB)
        node.runtime.remote.fail(name, "unpack:0", "failed to extract layer: odd", after=20 * MIB)
        job = await node.warm("app:v1", attempts=9)
        events = asyncio.create_task(collect(node, job))
        await node.seen(job, lambda item: item.progress.layers_unpacked > 0)
        node.runtime.restart()
        await asyncio.sleep(2)
        del node.runtime.store.leases[next(iter(node.runtime.store.leases))]  # everything begins again
        node.runtime.collect()
        late = await node.warm("app:v1")
        late_events = asyncio.create_task(collect(node, late))
        assert (await node.ended(job)).state == "Succeeded"
        for seen in (await events, await late_events):
            items = [event.item for event in seen if isinstance(event, ItemEvent)]
            assert len(items) > 10
            for before, after in itertools.pairwise(items):
                assert only_forward(before.progress, after.progress), (before.progress, after.progress)
                assert before.attempt <= after.attempt
            assert items[-1].progress.percent == 100
            assert isinstance(seen[0], JobEvent)
            assert isinstance(seen[-1], JobEvent)
            assert seen[-1].job.state == "Succeeded"


@virtual
async def test_progress_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.image(layers=[30 * MIB, MIB])
    await node.start()
    hold = node.runtime.remote.hold(full("app:v1"), "layer:0", after=20 * MIB)
    job = await node.warm("app:v1")
    await hold.reached.wait()
    before = await node.seen(job, lambda item: item.progress.bytes_done >= 20 * MIB)
    await node.kill()
    hold.release()
    await node.start()
    hold = node.runtime.remote.hold(full("app:v1"), "layer:0", after=25 * MIB)
    item = await node.seen(job, lambda item: item.progress.bytes_done > 0)
    assert only_forward(before.progress, item.progress)
    assert (item.attempt, item.phase) == (2, "Pulling")
    hold.release()
    done = await node.ended(job)
    assert done.items[0].attempt == 2
    assert [(line.attempt, line.result) for line in await node.service.history()] == [
        (2, "Succeeded"),
        (1, "Interrupted"),
    ]
    await node.stop()
    await node.start()
    assert node.service.job(job).items[0].progress.percent == 100
    await node.stop()


@virtual
async def test_following_a_job_that_has_ended_gives_it_once(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        job = await node.warmed("missing:v1")
        (event,) = await collect(node, job.id)
        assert isinstance(event, JobEvent)
        assert event.job.state == "Failed"


@virtual
async def test_a_job_that_ends_before_its_follower_reads_is_told_all_the_same(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        job = await node.warm("missing:v1")
        events = node.service.follow(job)
        await node.ended(job)
        async with asyncio.timeout(10):
            assert len([event async for event in events]) == 1


@virtual
async def test_who_does_not_read_gets_the_newest_of_each_image(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.runtime.remote.rate = 1.0 * MIB
        for n in range(3):
            node.image(f"app:{n}", layers=[20 * MIB])
        job = await node.warm(*(f"app:{n}" for n in range(3)))
        events = node.service.follow(job)
        await anext(events)
        await node.ended(job)
        rest = [event async for event in events]
        assert [type(event) for event in rest] == [ItemEvent, ItemEvent, ItemEvent, JobEvent]
        assert all(event.item.phase == "Succeeded" for event in rest if isinstance(event, ItemEvent))


@virtual
async def test_a_watcher_sees_jobs_and_what_happens_to_images(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        await node.quiet()
        node.image()
        kinds: list[str] = []

        async def watch() -> None:
            async for event in node.service.watch():
                kinds.append(f"image {event.kind}" if isinstance(event, ImageChange) else type(event).__name__)

        task = asyncio.create_task(watch())
        await asyncio.sleep(1)
        await node.warmed("app:v1", pin_seconds=0)
        await node.service.unpin(full("app:v1"))
        await node.service.keep(KeepRequest(image=full("app:v1")))
        await node.runtime.cri.remove(full("app:v1"))
        await asyncio.sleep(10)
        task.cancel()
        await asyncio.wait({task})
        assert {"ItemEvent", "JobEvent"} <= set(kinds)
        for kind in ("create", "pinned", "unpinned", "delete", "rewarm"):
            assert f"image {kind}" in kinds


# ------------------------------------------------------------------------------------------------ what is on the node


@virtual
async def test_images_are_listed_with_what_is_known_of_them(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        image = node.image(layers=[5 * MIB])
        node.image("other:v1")
        await node.runtime.cri.pull(full("other:v1"))
        await node.warmed("app:v1", pin_seconds=100)
        await node.service.keep(KeepRequest(image=full("app:v1")))
        await asyncio.sleep(1)
        mine, other = await node.service.list()
        assert (mine.references, mine.digests) == ([full("app:v1")], [image.by_digest])
        assert (mine.pinned, mine.kept, mine.id) == (True, True, image.id)
        assert mine.last_warmed_at is not None
        assert mine.pin_expires_at is not None
        assert (other.pinned, other.kept, other.last_warmed_at) == (False, False, None)
        await node.service.pin(PinRequest(image=image.by_digest))
        assert (await node.service.list())[0].pin_expires_at is None  # the longer one counts, and it has no end


@virtual
async def test_names_with_tag_and_digest_are_recognised(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        image = node.image()
        both = f"{full('app:v1')}@{image.digest}"
        await node.warmed(both, pin_seconds=100)
        await node.service.keep(KeepRequest(image=both))
        await asyncio.sleep(1)
        (listed,) = await node.service.list()
        assert listed.kept
        assert listed.pin_expires_at is not None
        assert listed.last_warmed_at is not None


@virtual
async def test_images_are_listed_without_a_journal(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        await node.warmed("app:v1")
        connection, node.database._connection = node.database._connection, None
        assert [image.references for image in await node.service.list()] == [[full("app:v1")]]
        assert node.service.problem == ""
        node.database._connection = connection


# ------------------------------------------------------------------------------------------------ trouble


@virtual
async def test_while_the_journal_cannot_be_written_work_goes_on_and_its_record_follows(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.start()
    node.image(layers=[8 * MIB])
    hold = node.runtime.remote.hold(full("app:v1"), "layer:0")
    job = await node.warm("app:v1")
    await hold.reached.wait()
    node.journal_writable(False)
    hold.release()
    assert (await node.ended(job)).state == "Succeeded"
    await asyncio.sleep(1)
    assert node.service.problem
    node.journal_writable(True)
    await asyncio.sleep(10)
    assert node.service.problem == ""
    await node.kill()
    await node.start()
    assert node.service.job(job).state == "Succeeded"
    assert [line.result for line in await node.service.history()] == ["Succeeded"]
    await node.stop()


@virtual
async def test_a_daemon_that_ends_with_a_full_journal_does_its_work_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.start()
    node.image()
    job = await node.warm("app:v1", pin_seconds=0)
    node.journal_writable(False)
    assert (await node.ended(job)).state == "Succeeded"
    await node.stop()
    await node.start()
    done = await node.ended(job)
    assert (done.state, done.items[0].reason) == ("Succeeded", "AlreadyPresent")
    assert (await node.service.pins()).pins
    await node.quiet()
    node.check()
    await node.stop()


@pytest.mark.parametrize("limit", [1, 5])
def test_containerd_may_go_as_often_as_it_likes(tmp_path: Path, limit: int) -> None:
    """It costs no attempt, however many were asked for."""

    @virtual
    async def going() -> None:
        async with Node(tmp_path) as node:
            node.runtime.remote.rate = 1.0 * MIB
            image = node.image(layers=[100 * MIB])
            job = await node.warm("app:v1", attempts=limit)
            for _ in range(9):
                await asyncio.sleep(8)
                node.runtime.crash()
                await asyncio.sleep(3)
                node.runtime.restart()
            done = await node.ended(job)
            assert done.state == "Succeeded"
            assert node.runtime.remote.fetched[image.layers[0].digest] < 110 * MIB
            history = await node.service.history()
            assert [line.reason for line in history[1:]] == ["RuntimeUnavailable"] * (done.items[0].attempt - 1)
            await node.quiet()
            node.check()

    going()


@virtual
async def test_requests_are_accepted_before_containerd_is_there(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.image()
    node.runtime.crash()
    await node.start()
    job = await node.warm("app:v1")
    await asyncio.sleep(100)
    waiting = node.service.job(job).items[0]
    assert (waiting.phase, waiting.reason) == ("Waiting", "RuntimeDown")
    assert not node.service.reconciled
    node.runtime.restart()
    assert (await node.ended(job)).state == "Succeeded"
    await node.stop()


@virtual
async def test_jobs_of_several_priorities_survive_a_kill_in_their_order(tmp_path: Path) -> None:
    node = Node(tmp_path, max_parallel=1)
    node.runtime.remote.rate = 1.0 * MIB
    node.runtime.crash()
    await node.start()
    for n in range(6):
        node.image(f"app:{n}")
        await node.warm(f"app:{n}", priority=n % 3)
        await asyncio.sleep(1)
    await node.kill()
    node.runtime.restart()
    await node.start()
    jobs = {job.id: await node.ended(job.id) for job in node.service.jobs()}
    started = sorted((item.started_at, item.image) for job in jobs.values() for item in job.items if item.started_at)
    assert [image for _, image in started] == [full(f"app:{n}") for n in (2, 5, 1, 4, 0, 3)]
    await node.stop()


# ------------------------------------------------------------------------------------------------ in real time


async def test_the_whole_in_real_time_with_a_journal_in_its_thread(tmp_path: Path) -> None:
    node = Node(tmp_path, threads=True, poll_interval=0.001)
    node.runtime.remote.rate = 2000.0 * MIB
    for n in range(3):
        node.image(f"app:{n}", layers=[4 * MIB])
    await node.start()
    hold = node.runtime.remote.hold(full("app:2"), "layer:0")
    both, third = await node.warm("app:0", "app:1", pin_seconds=0), await node.warm("app:2")
    assert (await node.ended(both)).state == "Succeeded"
    await hold.reached.wait()
    await node.stop()
    hold.release()
    await node.start()
    done = await node.ended(third)
    assert (done.state, done.items[0].attempt) == ("Succeeded", 2)
    assert len((await node.service.pins()).pins) == 2
    assert [line.result for line in await node.service.history(full("app:2"))] == ["Succeeded", "Interrupted"]
    await node.stop()
    node.check()
