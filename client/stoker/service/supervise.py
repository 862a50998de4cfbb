"""The subsystems of the daemon: each runs in a task of its own, and one that fails takes no other with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import structlog

from stoker.redaction import redact

_log = structlog.get_logger("life")
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
HEALTHY_AFTER = 10.0
"""A subsystem that was started again and has run for so long has recovered."""


class Gauges(Protocol):
    """What is needed of `metrics.SubsystemMetrics`."""

    def up(self, name: str, *, up: bool) -> None: ...
    def failed(self, name: str) -> None: ...


class Subsystem:
    """One of them."""

    def __init__(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """*run* works until it is cancelled; it must be able to run again after it has failed."""
        self.name = name
        self.run = run
        self.problem = ""
        self.failures = 0
        self.why = ""
        self.task: asyncio.Task[None] | None = None


class Supervisor:
    """Starts subsystems in a task group, starts them again when they fail, and stops them in the reverse order."""

    def __init__(
        self,
        gauges: Gauges,
        changed: Callable[[], None] = lambda: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*changed* is called whenever a subsystem has failed or recovered."""
        self._gauges = gauges
        self._changed = changed
        self._clock = clock
        self._subsystems: list[Subsystem] = []

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong with each subsystem; empty texts for those that run."""
        return {each.name: each.problem for each in self._subsystems}

    def start(self, group: asyncio.TaskGroup, subsystem: Subsystem) -> None:
        """Run *subsystem* in a task of *group* until `stop`."""
        self._subsystems.append(subsystem)
        self._gauges.up(subsystem.name, up=True)
        subsystem.task = group.create_task(self._keep_up(subsystem), name=subsystem.name)

    async def stop(self, timeout: float) -> list[str]:
        """Cancel one after another, the last started first, and let each park its work.

        Returns the names of those that had not ended within *timeout* seconds in all.
        """
        deadline = self._clock() + timeout
        late: list[str] = []
        for subsystem in reversed(self._subsystems):
            task = subsystem.task
            if task is None or task.done():
                continue
            task.cancel()
            await asyncio.wait({task}, timeout=max(deadline - self._clock(), 0.0))
            if not task.done():
                late.append(subsystem.name)
        return late

    async def _keep_up(self, subsystem: Subsystem) -> None:
        pause = _FIRST_PAUSE
        while True:
            began = self._clock()
            error = await self._run_once(subsystem)
            if self._clock() - began >= HEALTHY_AFTER:
                pause = _FIRST_PAUSE
            self._note_failure(subsystem, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _run_once(self, subsystem: Subsystem) -> Exception | None:
        """Run until it fails; return why it did, None when it just ended."""
        async with asyncio.TaskGroup() as group:
            recovery = group.create_task(self._note_recovery(subsystem), name=f"{subsystem.name}: recovery")
            try:
                await subsystem.run()
            except Exception as error:  # noqa: BLE001 - the border: a fault of one room must not end the others
                return error
            finally:
                recovery.cancel()
        return None

    async def _note_recovery(self, subsystem: Subsystem) -> None:
        if not subsystem.problem:
            return
        await asyncio.sleep(HEALTHY_AFTER)
        _log.info("subsystem runs again", subsystem=subsystem.name, failures=subsystem.failures)
        subsystem.problem, subsystem.why, subsystem.failures = "", "", 0
        self._gauges.up(subsystem.name, up=True)
        self._changed()

    def _note_failure(self, subsystem: Subsystem, error: Exception | None) -> None:
        """Log it once with all that is known; the same failure again is no news."""
        why = "it ended, which it should not" if error is None else _words(error)
        if why != subsystem.why:
            _log.error("subsystem failed; it is started again", subsystem=subsystem.name, why=why, exc_info=error)
        subsystem.failures += 1
        subsystem.why = why
        subsystem.problem = f"failed and is started again: {why}"
        self._gauges.up(subsystem.name, up=False)
        self._gauges.failed(subsystem.name)
        self._changed()


def _words(error: BaseException) -> str:
    """Return an error in one line; of a group, its first."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return redact(f"{type(error).__name__}: {error}".splitlines()[0])
