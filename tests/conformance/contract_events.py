"""The event stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial

import pytest

from stokerd.errors import RuntimeUnavailable
from stokerd.runtime.types import ImageEvent
from tests.conformance.subject import Made, Subject, eventually


class _Listener:
    """Collects events until it is told to stop, or the stream ends."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.seen: list[ImageEvent] = []
        self.task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async with aclosing(self._subject.runtime.events.images()) as events:
            async for event in events:
                self.seen.append(event)

    async def has(self, kind: str, name: str) -> bool:
        return any((event.kind, event.name) == (kind, name) for event in self.seen)


@asynccontextmanager
async def _listening(subject: Subject, known: Made, count: int = 1) -> AsyncIterator[list[_Listener]]:
    """Subscribe; a stream says nothing when it begins, so labels are set until each listener has heard of it."""
    listeners = [_Listener(subject) for _ in range(count)]

    async def heard() -> bool:
        await subject.runtime.images.set_labels(known.by_digest, {"stoker.dev/knock": "1"})
        return all(listener.seen for listener in listeners)

    try:
        await eventually("the subscriptions to begin", heard)
        yield listeners
    finally:
        for listener in listeners:
            listener.task.cancel()
        await asyncio.gather(*(listener.task for listener in listeners), return_exceptions=True)


class TestEvents:
    async def test_tell_every_subscriber_what_happens_to_images(self, subject: Subject) -> None:
        known = await subject.make_image("known")
        await subject.runtime.cri.pull(known.reference)
        made = await subject.make_image("told")
        async with _listening(subject, known, count=2) as listeners:
            await subject.runtime.cri.pull(made.reference)
            await subject.runtime.images.set_labels(made.reference, {"stoker.dev/a": "1"})
            await subject.runtime.cri.remove(made.reference)
            for listener in listeners:
                for name in made.names:
                    await eventually(f"the creation of {name}", partial(listener.has, "create", name))
                    await eventually(f"the deletion of {name}", partial(listener.has, "delete", name))
                await eventually("the update", partial(listener.has, "update", made.reference))
                of_tag = [event.kind for event in listener.seen if event.name == made.reference]
                assert (of_tag[0], of_tag[-1]) == ("create", "delete")

    async def test_tell_of_pulls_of_what_is_there(self, subject: Subject) -> None:
        made = await subject.make_image("told-again")
        await subject.runtime.cri.pull(made.reference)
        async with _listening(subject, made) as (listener,):
            await subject.runtime.cri.pull(made.reference)
            await eventually("the update", partial(listener.has, "update", made.reference))
            assert not await listener.has("create", made.reference)

    async def test_end_when_the_runtime_does(self, subject: Subject) -> None:
        made = await subject.make_image("ending")
        await subject.runtime.cri.pull(made.reference)
        async with _listening(subject, made) as (listener,):
            await subject.crash()
            with pytest.raises(RuntimeUnavailable):
                await asyncio.wait_for(listener.task, 20)
        await subject.restart()
        await subject.runtime.wait_ready()
        async with _listening(subject, made) as (listener,):
            assert listener.seen
