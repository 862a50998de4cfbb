"""The few threads of the daemon are free for what goes on, whoever waits for a network or for a slow reader."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import pytest

from stokerd.checkpoints.ending import in_own_thread, in_thread
from stokerd.checkpoints.errors import Stopped
from stokerd.checkpoints.pressing import pressed
from stokerd.checkpoints.shipping import _through
from stokerd.checkpoints.streaming import Source
from stokerd.checkpoints.trees import Stop

MANY = 5
BLOCK = os.urandom(1 << 20)


@pytest.fixture
async def one_thread() -> None:
    """The daemon has a single one, where it really has six."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))


async def is_free() -> bool:
    return await asyncio.wait_for(asyncio.to_thread(lambda: True), 10)


def endless(write: Callable[[bytes], object], stop: Stop) -> None:
    while not stop():
        write(BLOCK)


@pytest.mark.usefixtures("one_thread")
async def test_streams_that_nobody_reads_on() -> None:
    """As of clients that have stalled in the middle of an export."""
    streams = [pressed(endless, 1, []) for _ in range(MANY)]
    for stream in streams:
        assert await anext(stream)
    assert await is_free()
    for stream in streams:
        await stream.aclose()


@pytest.mark.usefixtures("one_thread")
async def test_streams_that_need_a_thread_to_come_in() -> None:
    """As those of registries do, whose names are looked up in one."""

    async def pieces(number: int) -> AsyncGenerator[bytes, None]:
        for _ in range(3):
            await asyncio.to_thread(lambda: None)
            yield bytes([number])

    found: list[bytes] = []

    def read(source: Source, _stop: Stop) -> None:
        found.append(b"".join(iter(lambda: source.read(10), b"")))

    async with asyncio.timeout(20):
        await asyncio.gather(*(_through(pieces(number), read) for number in range(MANY)))
    assert sorted(found) == [bytes([number]) * 3 for number in range(MANY)]


@pytest.mark.usefixtures("one_thread")
async def test_a_stream_that_stalls_can_be_given_up() -> None:
    never = asyncio.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"x"
        await never.wait()

    stopped: list[Exception] = []

    def read(source: Source, _stop: Stop) -> None:
        try:
            while source.read(10):
                pass
        except Stopped as error:
            stopped.append(error)
            raise

    async with aclosing(pieces()) as stalled:
        work = asyncio.create_task(_through(stalled, read))
        assert await is_free()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert len(stopped) == 1


@pytest.mark.parametrize("run", [in_thread, lambda stop, work: in_own_thread(stop, work, "own")])
async def test_a_thread_that_is_told_to_stop_is_waited_for(run: Callable[..., asyncio.Future[None]]) -> None:
    stop, began, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        stop.wait(20)
        ended.set()

    task = asyncio.ensure_future(run(stop, work))
    assert await asyncio.to_thread(began.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert not [each.name for each in threading.enumerate() if each.name.startswith("own")]
