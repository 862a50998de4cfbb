"""What its owners leave behind goes after them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from stoker.objects.cluster_images import ImagePullJob
from stoker.objects.cluster_nodes import Node
from stoker.objects.kinds import find
from stoker.objects.meta import Object, OwnerReference
from stoker_coordinator.objects.selectors import parse_fields
from stoker_coordinator.store.base import Limits
from stoker_coordinator.store.collector import collect
from stoker_coordinator.store.memory import MemoryStore
from tests.unit.coordinator.store.things import job, node, owned_by, with_meta


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore(Limits(history_changes=100))
    task = asyncio.create_task(collect(store), name="collector")
    yield store
    task.cancel()
    await asyncio.wait({task})


async def gone(store: MemoryStore, obj: Object) -> None:
    """Wait until *obj* is gone."""
    kind = find(obj.kind)
    assert kind is not None
    since, meta = store.revision, obj.metadata
    if await store.find(kind.type, meta.name, meta.namespace) is None:
        return
    fields = parse_fields(f"metadata.name={meta.name}", kind)
    async with (
        asyncio.timeout(10),
        aclosing(store.watch([kind.type], since=since, fields=fields)) as events,
    ):
        async for event in events:
            if event.type == "DELETED":
                return


async def caught_up(store: MemoryStore) -> None:
    """Wait until the collector has seen everything that has happened: it removes this orphan last."""
    nobody = OwnerReference(api_version="stoker.dev/v1", kind="Node", name="nobody", uid="nobody")
    await gone(store, await store.create(job("orphan", owner_references=(nobody,))))


async def test_everything_beneath_an_object_goes_with_it(store: MemoryStore) -> None:
    root = await store.create(node("root"))
    child = await store.create(job("child", owner_references=owned_by(root)))
    grandchild = await store.create(job("grandchild", owner_references=owned_by(child)))
    other = await store.create(job("other"))

    await store.delete(Node, "root")

    await gone(store, grandchild)
    assert (await store.list(ImagePullJob)).items == (other,)


async def test_one_owner_is_enough_to_stay(store: MemoryStore) -> None:
    first, second = await store.create(node("first")), await store.create(node("second"))
    child = await store.create(job("child", owner_references=(*owned_by(first), *owned_by(second))))

    await store.delete(Node, "first")
    await caught_up(store)
    assert await store.find(ImagePullJob, "child", "default") is not None
    await store.delete(Node, "second")

    await gone(store, child)


async def test_a_disowned_object_stays(store: MemoryStore) -> None:
    root = await store.create(node("root"))
    child = await store.create(job("child", owner_references=owned_by(root)))
    await caught_up(store)
    await store.update(with_meta(child, owner_references=()))

    await store.delete(Node, "root")
    await caught_up(store)

    assert await store.find(ImagePullJob, "child", "default") is not None


async def test_an_owner_of_the_same_name_is_no_owner(store: MemoryStore) -> None:
    root = await store.create(node("root"))
    child = await store.create(job("child", owner_references=owned_by(root)))

    await store.delete(Node, "root")
    await store.create(node("root"))

    await gone(store, child)


async def test_what_was_left_behind_before_goes_at_the_start() -> None:
    store = MemoryStore()
    root = await store.create(node("root"))
    child = await store.create(job("child", owner_references=owned_by(root)))
    await store.delete(Node, "root")

    task = asyncio.create_task(collect(store), name="collector")
    await gone(store, child)
    task.cancel()
    await asyncio.wait({task})


async def test_more_at_once_than_the_history_holds(store: MemoryStore) -> None:
    root = await store.create(node("root"))
    children = [await store.create(job(f"child-{number}", owner_references=owned_by(root))) for number in range(300)]
    await store.delete(Node, "root")

    await caught_up(store)
    for child in children:
        assert await store.find(ImagePullJob, child.metadata.name, "default") is None
