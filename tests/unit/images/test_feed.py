from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Callable

from stoker.objects.images import Event, ImageChange
from stokerd.images.feed import Feed, Hub
from tests.unit.images.virtual import virtual


def change(text: str) -> ImageChange:
    return ImageChange(kind="update", reference=text)


def build(text: str) -> Callable[[], Event]:
    return lambda: change(text)


async def read(feed: Feed) -> list[str]:
    return [text(event) async for event in feed.read()]


def text(event: Event) -> str:
    assert isinstance(event, ImageChange)
    return event.reference


async def some(events: AsyncGenerator[Event, None], count: int) -> list[str]:
    return [text(await anext(events)) for _ in range(count)]


def never() -> bool:
    return False


# ------------------------------------------------------------------------------------------------ one reader


@virtual
async def test_a_slow_reader_gets_the_newest_of_each_thing_once() -> None:
    feed = Feed()
    for number in range(1000):
        feed.put(number % 3, build(str(number)))
    feed.end()
    assert await read(feed) == ["999", "997", "998"]


@virtual
async def test_events_are_built_when_they_are_read() -> None:
    feed, state, built = Feed(), ["early"], []

    def late() -> Event:
        built.append(state[0])
        return change(state[0])

    feed.put("key", late)
    feed.put("key", late)
    state[0] = "late"
    feed.end()
    assert built == []
    assert await read(feed) == ["late"]
    assert built == ["late"]


@virtual
async def test_what_is_told_while_the_reader_is_busy_comes_afterwards() -> None:
    feed = Feed()
    feed.put(1, build("one"))
    events = feed.read()
    assert await some(events, 1) == ["one"]
    feed.put(1, build("one again"))
    feed.put(2, build("two"))
    feed.end()
    assert [text(event) async for event in events] == ["one again", "two"]


@virtual
async def test_a_reader_waits_for_what_comes() -> None:
    feed = Feed()
    task = asyncio.create_task(read(feed))
    for number in range(3):
        await asyncio.sleep(1)
        feed.put("same", build(str(number)))
    await asyncio.sleep(1)
    feed.end()
    assert await task == ["0", "1", "2"]


@virtual
async def test_the_oldest_goes_when_too_much_waits() -> None:
    feed = Feed(limit=3)
    for number in range(10):
        feed.put(number, build(str(number)))
    feed.put(7, build("seven again"))
    feed.end()
    assert await read(feed) == ["seven again", "8", "9"]


@virtual
async def test_very_much_that_waits_is_read_quickly() -> None:
    feed, count = Feed(), 50_000
    for number in range(count):
        feed.put(number, build(str(number)))
    feed.end()
    assert len(await read(feed)) == count


# ------------------------------------------------------------------------------------------------ the hub


@virtual
async def test_a_follower_sees_the_job_its_items_and_its_end() -> None:
    hub = Hub()
    events = hub.follow("job", build("first"), never)
    assert await some(events, 1) == ["first"]
    hub.tell_job("job", 0, build("item 0"))
    hub.tell_job("other", 0, build("not mine"))
    hub.tell_job("job", 1, build("item 1"))
    hub.end_job("job", build("last"))
    assert [text(event) async for event in events] == ["item 0", "item 1", "last"]
    assert not hub._jobs


@virtual
async def test_nothing_that_happens_while_the_first_event_is_on_its_way_is_missed() -> None:
    hub = Hub()
    events = hub.follow("job", build("first"), never)
    assert await some(events, 1) == ["first"]  # and the reader writes it to a slow client
    hub.end_job("job", build("last"))
    assert [text(event) async for event in events] == ["last"]


@virtual
async def test_who_follows_what_ends_before_he_reads_does_not_wait_for_ever() -> None:
    """The generator only begins when it is read for the first time."""
    hub, over = Hub(), [False]
    events = hub.follow("job", build("the end"), lambda: over[0])
    hub.end_job("job", build("last"))
    over[0] = True
    async with asyncio.timeout(1):
        assert [text(event) async for event in events] == ["the end"]
    assert not hub._jobs


@virtual
async def test_who_goes_away_is_forgotten() -> None:
    hub = Hub()
    followers = [hub.follow("job", build("first"), never) for _ in range(3)]
    watchers = [hub.watch() for _ in range(3)]
    for events in followers:
        await anext(events)
    tasks = [asyncio.create_task(some(events, 1)) for events in watchers]
    await asyncio.sleep(0)
    assert len(hub._node) == 3
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for events in followers:
        await events.aclose()
    assert not hub._jobs
    assert not hub._node


@virtual
async def test_one_who_goes_away_takes_nothing_from_the_others() -> None:
    hub = Hub()
    stays, goes = (hub.follow("job", build("first"), never) for _ in range(2))
    await anext(stays)
    await anext(goes)
    hub.tell_job("job", 0, build("item"))
    await goes.aclose()
    hub.end_job("job", build("last"))
    assert [text(event) async for event in stays] == ["item", "last"]


@virtual
async def test_watchers_see_jobs_merged_and_single_events_one_by_one() -> None:
    hub = Hub()
    events = hub.watch()
    task = asyncio.create_task(some(events, 4))
    await asyncio.sleep(0)
    hub.tell_job("job", 0, build("old"))
    hub.tell_job("job", 0, build("new"))
    hub.tell_node(build("deleted"))
    hub.tell_node(build("deleted"))
    hub.end_job("job", build("last"))
    assert await task == ["new", "deleted", "deleted", "last"]
    await events.aclose()


@virtual
async def test_a_watcher_that_does_not_read_holds_no_more_than_so_much() -> None:
    hub = Hub()
    events = hub.watch()
    task = asyncio.create_task(some(events, 1))
    await asyncio.sleep(0)
    for number in range(3 * Hub.MAX_WATCHED):
        hub.tell_node(build(str(number)))
    (feed,) = hub._node
    assert len(feed._pending) == Hub.MAX_WATCHED
    assert await task == [str(2 * Hub.MAX_WATCHED)]
    await events.aclose()


@virtual
async def test_what_nobody_reads_is_not_kept_alive() -> None:
    hub = Hub()

    class State:
        pass

    state = State()
    alive = weakref.ref(state)

    def about(state: State) -> Event:
        return change(repr(state))

    hub.tell_job("job", 0, lambda state=state: about(state))  # type: ignore[misc]
    hub.tell_node(lambda state=state: about(state))  # type: ignore[misc]
    del state
    gc.collect()
    assert alive() is None
