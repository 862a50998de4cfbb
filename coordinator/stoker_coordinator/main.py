"""The program: its command line, and the order in which the coordinator starts and stops. `wiring` makes the parts."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from stoker import logs
from stoker.service.notify import Notifier
from stoker.service.stopping import Stop, end_at_last
from stoker.service.supervise import Subsystem, Supervisor
from stoker_coordinator import commands, configuration
from stoker_coordinator.api.server import ApiServer
from stoker_coordinator.configuration import Settings
from stoker_coordinator.errors import ConfigError, CoordinatorError
from stoker_coordinator.metrics import PartMetrics
from stoker_coordinator.wiring import compose

_log = structlog.get_logger("coordinator")
EXIT_FAILED, EXIT_CONFIG = 1, 2
_CLOSING_SECONDS = 2.0


def run(argv: Sequence[str] | None = None) -> None:
    """Entry point of ``stoker-coordinator``."""
    arguments = _parser().parse_args(argv)
    try:
        settings = configuration.load(arguments.config)
        if arguments.check_config:
            print(f"stoker-coordinator: {arguments.config or 'the defaults'}: no errors")  # noqa: T201
            return
        if arguments.command is not None:
            arguments.run(settings, arguments)
            return
        logs.configure(settings.coordinator)
        faulthandler.enable()
        asyncio.run(_serve(settings))
    except ConfigError as error:
        print(f"stoker-coordinator: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_CONFIG)
    except CoordinatorError as error:
        if arguments.command is not None:
            print(f"stoker-coordinator: {error.message}", file=sys.stderr)  # noqa: T201
            if error.hint:
                print(f"  {error.hint}", file=sys.stderr)  # noqa: T201
        else:
            _log.error("the coordinator cannot run", reason=error.reason, why=error.message, hint=error.hint)
        sys.exit(EXIT_FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stoker-coordinator",
        description="Stoker's centre: keeps what people wish for, gives nodes their work, gathers what they report.",
        epilog="Without a command it serves. Exit status: 0 done, 1 failed, 2 errors in the configuration or the"
        " command line, 3 stopped, but something hung.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file; all settings have defaults")
    parser.add_argument("--check-config", action="store_true", help="print every error of the configuration and exit")
    parser.add_argument("--version", action="version", version=f"stoker-coordinator {_version()}")
    commands.add(parser)
    return parser


def _version() -> str:
    try:
        return installed_version("stoker")
    except PackageNotFoundError:
        return "0"


async def _serve(settings: Settings) -> None:
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

        coordinator = await compose(settings, registry, stack, problems, version=_version())
        try:
            await coordinator.api.start()
            async with asyncio.TaskGroup() as group:
                beat = group.create_task(notifier.run(), name="notify")
                for name, part in coordinator.parts.items():
                    supervisor.start(group, Subsystem(name, part))
                _tell(notifier, supervisor)
                notifier.ready()
                _log.info(
                    "the coordinator is up", version=_version(), pid=os.getpid(), revision=coordinator.store.revision
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


if __name__ == "__main__":
    run()
