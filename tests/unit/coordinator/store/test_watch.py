"""Watching: nothing is missed, nothing comes twice, and who is too late is told."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from stoker.objects.cluster_images import ImagePullJob
from stoker.objects.cluster_nodes import Node
from stoker.objects.kinds import find
from stoker_coordinator.errors import Expired, StoreClosed
from stoker_coordinator.objects.selectors import parse_fields, parse_labels
from stoker_coordinator.store.base import Limits
from stoker_coordinator.store.memory import MemoryStore
from stoker_coordinator.store.sqlite import SqliteStore
from tests.unit.coordinator.store.conftest import AnyStore
from tests.unit.coordinator.store.things import job, node, take, told, with_image, with_meta


async def test_every_change_is_told_in_order(store: AnyStore) -> None:
    page = await store.list(ImagePullJob)
    async with aclosing(store.watch([ImagePullJob], since=page.revision)) as events:
        made = await store.create(job("a"))
        changed = await store.update(with_image(made, "new"))
        await store.create(node("n"))
        await store.delete(ImagePullJob, "a", "default")

        seen = await take(events, 3)

    assert told(seen) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert [event.object for event in seen[:2]] == [made, changed]
    assert [event.old for event in seen] == [None, made, changed]
    assert seen[2].object is not None
    assert seen[2].object.revision == seen[2].revision == store.revision


async def test_a_watch_begins_where_it_is_told(store: AnyStore) -> None:
    revisions = [(await store.create(job(f"j{number}"))).revision for number in range(5)]

    async with aclosing(store.watch([], since=revisions[2])) as events:
        assert told(await take(events, 2)) == [("ADDED", "j3"), ("ADDED", "j4")]


async def test_a_watch_waits_for_what_is_to_come(store: AnyStore) -> None:
    async with aclosing(store.watch([], since=store.revision)) as events:
        waiting = asyncio.create_task(take(events, 1))
        await asyncio.sleep(0)
        await store.create(job("a"))

        assert told(await waiting) == [("ADDED", "a")]


async def test_what_begins_to_match_is_added_and_what_ceases_is_deleted(store: AnyStore) -> None:
    selector = parse_labels("on=yes")
    async with aclosing(store.watch([Node], since=0, labels=selector)) as events:
        made = await store.create(node("n"))
        on = await store.update(with_meta(made, labels={"on": "yes"}))
        more = await store.update(with_meta(on, labels={"on": "yes", "more": "1"}))
        off = await store.update(with_meta(more, labels={}))
        await store.update(with_meta(off, labels={"more": "1"}))
        await store.create(node("m", labels={"on": "yes"}))

        seen = await take(events, 4)

    assert told(seen) == [("ADDED", "n"), ("MODIFIED", "n"), ("DELETED", "n"), ("ADDED", "m")]


async def test_a_watch_selects_by_namespace_and_field(store: AnyStore) -> None:
    kind = find("imagepulljob")
    assert kind is not None
    fields = parse_fields("spec.image=wanted", kind)
    async with aclosing(store.watch([ImagePullJob], since=0, namespace="here", fields=fields)) as events:
        await store.create(job("a", "wanted", namespace="there"))
        await store.create(job("b", "other", namespace="here"))
        await store.create(job("c", "wanted", namespace="here"))

        assert told(await take(events, 1)) == [("ADDED", "c")]


async def test_an_object_with_finalizers_is_told_as_modified_until_it_goes(store: AnyStore) -> None:
    async with aclosing(store.watch([], since=0)) as events:
        await store.create(job("a", finalizers=("x/y",)))
        going = await store.delete(ImagePullJob, "a", "default")
        await store.update(with_meta(going, finalizers=()))

        assert told(await take(events, 3)) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_silence_is_told_with_the_revision(store: AnyStore) -> None:
    await store.create(node("n"))

    async with aclosing(store.watch([ImagePullJob], since=0, bookmarks=0.01)) as events:
        (event,) = await take(events, 1)

    assert (event.type, event.revision, event.object) == ("BOOKMARK", store.revision, None)


async def test_silence_is_told_however_much_else_happens(store: AnyStore) -> None:
    async def chatter() -> None:
        while True:
            await store.create(job("", generate_name="j"))
            await asyncio.sleep(0)

    talking = asyncio.create_task(chatter())
    async with aclosing(store.watch([Node], since=0, bookmarks=0.02)) as events:
        seen = await take(events, 2)
    talking.cancel()
    await asyncio.wait({talking})

    assert [event.type for event in seen] == ["BOOKMARK", "BOOKMARK"]
    assert 0 < seen[0].revision < seen[1].revision


async def test_a_closing_store_ends_its_watches(store: AnyStore) -> None:
    async with aclosing(store.watch([], since=0)) as events:
        waiting = asyncio.create_task(take(events, 1))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(StoreClosed):
            await waiting


async def test_a_cancelled_watch_leaves_nothing_behind(store: AnyStore) -> None:
    events = store.watch([], since=0)
    waiting = asyncio.create_task(take(events, 1))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})

    assert not store._history._waiting


@pytest.mark.parametrize("since", [0, 10**9])
async def test_a_watch_from_an_unknown_revision_has_expired(since: int, tmp_path: Path) -> None:
    limits = Limits(history_changes=5)
    for store in (MemoryStore(limits), SqliteStore(tmp_path, limits)):
        await store.open()
        for number in range(10):
            await store.create(node(f"n{number}"))
        with pytest.raises(Expired, match="too old" if since == 0 else "unknown"):
            await take(store.watch([], since=since), 1)
        async with aclosing(store.watch([], since=store.revision - 5)) as events:
            assert len(await take(events, 5)) == 5
        await store.close()


async def test_who_reads_too_slowly_is_told_instead_of_filling_the_memory() -> None:
    # In memory: what is looked at is the same for both stores, and thousands of changes on a disk take their time.
    store = MemoryStore(Limits(history_changes=10))
    await store.open()
    async with aclosing(store.watch([], since=0)) as events:
        await store.create(node("first"))
        assert told(await take(events, 1)) == [("ADDED", "first")]
        for number in range(2000):
            await store.patch(Node, "first", patch={"metadata": {"labels": {"n": str(number)}}})
            if number == 1000:
                assert len(store._history._changes) < 2200
        with pytest.raises(Expired):
            await take(events, 1)
    await store.close()


async def test_old_changes_are_forgotten_by_age() -> None:
    now = 0.0
    store = MemoryStore(Limits(history_seconds=60), clock=lambda: now)
    await store.create(node("a"))
    now = 100.0
    await store.create(node("b"))

    with pytest.raises(Expired):
        await take(store.watch([], since=0), 1)
    assert told(await take(store.watch([], since=1), 1)) == [("ADDED", "b")]
