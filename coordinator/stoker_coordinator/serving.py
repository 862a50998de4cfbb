"""The order in which the coordinator starts and stops. `wiring` makes the parts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack

import structlog
from prometheus_client import CollectorRegistry

from stoker.service.notify import Notifier
from stoker.service.stopping import Stop, end_at_last
from stoker.service.supervise import Subsystem, Supervisor
from stoker_coordinator.api.server import ApiServer
from stoker_coordinator.configuration import Settings
from stoker_coordinator.metrics import PartMetrics
from stoker_coordinator.wiring import compose

_log = structlog.get_logger("coordinator")
_CLOSING_SECONDS = 2.0


async def serve(settings: Settings, version: str) -> None:
    """Run until SIGTERM or SIGINT, then stop in order."""
    stop = Stop()
    stop.listen()
    registry = CollectorRegistry()
    async with AsyncExitStack() as stack:
        notifier = Notifier.from_environment()
        stack.callback(notifier.close)
        supervisor = Supervisor(PartMetrics(registry), lambda: _tell(notifier, supervisor))

        def problems() -> Mapping[str, str]:
            return {name: problem for name, problem in supervisor.problems.items() if problem}

        coordinator = await compose(settings, registry, stack, problems, version=version)
        try:
            await coordinator.api.start()
            async with asyncio.TaskGroup() as group:
                beat = group.create_task(notifier.run(), name="notify")
                for name, part in coordinator.parts.items():
                    supervisor.start(group, Subsystem(name, part))
                _tell(notifier, supervisor)
                notifier.ready()
                _log.info(
                    "the coordinator is up", version=version, pid=os.getpid(), revision=coordinator.store.revision
                )
                await stop.asked.wait()
                await _stop(settings.coordinator.stop_timeout, coordinator.api, supervisor, notifier)
                beat.cancel()
        finally:
            await coordinator.api.stop(0)
    _log.info("stopped")


async def _stop(timeout: float, api: ApiServer, supervisor: Supervisor, notifier: Notifier) -> None:
    began = time.monotonic()
    _log.info("stopping", within_seconds=timeout)
    notifier.stopping(timeout + 2 * _CLOSING_SECONDS)
    end_at_last(timeout + _CLOSING_SECONDS)
    await api.stop(timeout / 2)
    late = await supervisor.stop(max(timeout - (time.monotonic() - began), 0.0))
    if late:
        _log.error("still at work", parts=late)


def _tell(notifier: Notifier, supervisor: Supervisor) -> None:
    said = [f"{name} {problem}" for name, problem in supervisor.problems.items() if problem]
    notifier.status("; ".join(said) or "serving")
