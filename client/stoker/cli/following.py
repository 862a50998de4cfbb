"""Follows jobs and requests to recreate to their end, and minds signals on the way."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from stoker.cli import exits
from stoker.cli.reporters import Reporter, Teller
from stoker.client import Client
from stoker.errors import ClientError
from stoker.objects.checkpoints import Operation
from stoker.objects.containers import RecreateStatus
from stoker.objects.images import JobEvent, JobStatus

if TYPE_CHECKING:
    from stoker.cli.checkpoint_reporters import OperationReporter
    from stoker.cli.recreate_reporters import RecreateReporter

TICK_SECONDS = 0.1

T = TypeVar("T")


class Left(Exception):
    """A signal ended the command while the work goes on in stokerd; ``code`` is what to exit with."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Signals:
    """Ctrl-C sets ``pressed``; a second one, and a signal to end, cancel the task that entered."""

    def __init__(self) -> None:
        self.pressed = asyncio.Event()
        self._code = 0
        self._task: asyncio.Task[object] | None = None

    @contextlib.asynccontextmanager
    async def handled(self) -> AsyncIterator[None]:
        """Handle signals inside; Left when one of them ends it."""
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        loop.add_signal_handler(signal.SIGINT, self._press)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._leave, 128 + number)
        try:
            yield
        except asyncio.CancelledError:
            if self._code:
                raise Left(self._code) from None
            raise
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _press(self) -> None:
        if self.pressed.is_set():
            self._leave(exits.INTERRUPTED)
        self.pressed.set()

    def _leave(self, code: int) -> None:
        self._code = code
        if self._task is not None:
            self._task.cancel()


async def unless_pressed(work: Coroutine[Any, Any, T], signals: Signals) -> T:
    """Return what *work* returns; Left, with *work* cancelled, when Ctrl-C is pressed before that."""
    working = asyncio.create_task(work)
    pressed = asyncio.create_task(signals.pressed.wait())
    try:
        await asyncio.wait({working, pressed}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Left(exits.INTERRUPTED)
        return await working
    finally:
        await end_all(working, pressed)


async def end_all(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def together(reporter: Teller, works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return what *works* return, while *reporter* ticks; the first failure ends the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(_tick(reporter))
            working = [group.create_task(work) for work in works]
            ended = [await task for task in working]
            ticking.cancel()
    except BaseExceptionGroup as several:
        raise _first(several) from None
    return ended


def _first(several: BaseExceptionGroup[BaseException]) -> BaseException:
    error = several.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def _tick(reporter: Teller) -> None:
    while True:
        reporter.tick()
        await asyncio.sleep(TICK_SECONDS)


def _retrying(reporter: Teller) -> Callable[[ClientError, float], None]:
    return lambda error, _delay: reporter.trouble(error.message)


# ---------------------------------------------------------------------------------------------- jobs


async def follow(client: Client, jobs: list[JobStatus], reporter: Reporter) -> list[JobStatus]:
    """Tell *reporter* about *jobs* until all have ended; return them as they ended.

    ClientError: stokerd cannot be reached any more, or does not know a job.
    """
    return await together(reporter, [follow_job(client, job, reporter) for job in jobs])


async def follow_job(client: Client, job: JobStatus, reporter: Reporter) -> JobStatus:
    """Tell *reporter* about one job until it has ended; return it as it ended."""
    async with contextlib.aclosing(client.follow(job.id, on_retry=_retrying(reporter))) as events:
        async for event in events:
            reporter.event(event)
            if isinstance(event, JobEvent):
                job = event.job
    return job


async def until_over_or_pressed(
    client: Client, jobs: list[JobStatus], reporter: Reporter, signals: Signals, *, cancel: bool
) -> tuple[list[JobStatus], bool]:
    """Follow *jobs*; on Ctrl-C either cancel them in stokerd and see them end, or leave them.

    Return the jobs as they ended, and whether Ctrl-C was pressed. Left: they go on without us.
    """
    if not cancel:
        return await unless_pressed(follow(client, jobs, reporter), signals), False
    following = asyncio.create_task(follow(client, jobs, reporter))
    pressed = asyncio.create_task(signals.pressed.wait())
    try:
        await asyncio.wait({following, pressed}, return_when=asyncio.FIRST_COMPLETED)
        interrupted = not following.done()
        if interrupted:
            reporter.note("cancelling: stokerd stops what only this job wanted (Ctrl-C again to leave at once)")
            for job in jobs:
                await _cancel(client, job.id)
        return await following, interrupted
    finally:
        await end_all(following, pressed)


async def _cancel(client: Client, job_id: str) -> None:
    try:
        await client.cancel(job_id)
    except ClientError as error:
        if error.reason != "Conflict":  # it has just ended by itself
            raise


# ---------------------------------------------------------------------------------------------- recreates


async def follow_recreate(client: Client, status: RecreateStatus, reporter: RecreateReporter) -> RecreateStatus:
    """Tell *reporter* about a request until it has ended; return it as it ended."""
    async with contextlib.aclosing(client.follow_recreate(status.id, on_retry=_retrying(reporter))) as events:
        async for event in events:
            reporter.event(event)
            status = event.recreate
    return status


# ---------------------------------------------------------------------------------------------- operations


async def follow_operation(client: Client, operation: Operation, reporter: OperationReporter) -> Operation:
    """Tell *reporter* about an operation until it has ended; return it as it ended."""
    async with contextlib.aclosing(client.follow_operation(operation.id, on_retry=_retrying(reporter))) as events:
        async for event in events:
            reporter.event(event)
            operation = event.operation
    return operation
