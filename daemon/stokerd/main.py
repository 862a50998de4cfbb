"""The program: its command line, and the order in which the daemon starts and stops. `wiring` makes the parts."""

from __future__ import annotations

from stokerd.lean import lean_imports

with lean_imports():
    import argparse
    import asyncio
    import contextlib
    import faulthandler
    import os
    import signal
    import sys
    import time
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AsyncExitStack
    from pathlib import Path

    import structlog
    from prometheus_client import CollectorRegistry

    from stoker.service.notify import Notifier
    from stoker.service.stopping import Stop, end_at_last
    from stoker.service.supervise import Subsystem, Supervisor
    from stokerd import VERSION, log, settings_file
    from stokerd.errors import ConfigError, StokerError
    from stokerd.life.activation import passed_api_socket
    from stokerd.life.reload import Reloader
    from stokerd.metrics import SubsystemMetrics
    from stokerd.settings import Settings
    from stokerd.wiring import Daemon, compose

_log = structlog.get_logger("stokerd")
EXIT_FAILED, EXIT_CONFIG = 1, 2
_FINISH_SHARE = 0.75
"""Of the time to stop, how much requests and work under way may take to finish; the rest is for parking."""
_CLOSING_SECONDS = 2.0
"""For closing the journal and the interpreter, beyond the time to stop."""


def run(argv: Sequence[str] | None = None) -> None:
    """Entry point of ``stokerd``."""
    arguments = _parser().parse_args(argv)
    try:
        settings = settings_file.load(arguments.config)
    except ConfigError as error:
        print(f"stokerd: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_CONFIG)
    if arguments.check_config:
        print(f"stokerd: {arguments.config or 'the defaults'}: no errors")  # noqa: T201
        return
    log.configure(settings.daemon)
    faulthandler.enable()  # what hung, when the watchdog ends it
    try:
        asyncio.run(_serve(settings, arguments.config))
    except StokerError as error:
        _log.error("stokerd cannot run", reason=error.reason, why=error.message, hint=error.hint)
        sys.exit(EXIT_FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stokerd",
        description="Stoker's node daemon: keeps images warm and containers running on this node's containerd.",
        epilog="Exit status: 0 stopped as asked, 1 cannot run, 2 errors in the configuration or the command line, "
        "3 stopped, but something hung.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file; all settings have defaults")
    parser.add_argument("--check-config", action="store_true", help="print every error of the configuration and exit")
    parser.add_argument("--version", action="version", version=f"stokerd {VERSION}")
    return parser


async def _serve(settings: Settings, path: Path | None) -> None:
    """Run until SIGTERM or SIGINT, then stop in order."""
    stop, reload = Stop(), asyncio.Event()
    stop.listen()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.set)
    async with AsyncExitStack() as stack:
        notifier = Notifier.from_environment()
        stack.callback(notifier.close)
        reloader = Reloader(path, settings, notifier)
        told = Told(notifier, reloader)
        passed = passed_api_socket()
        registry = CollectorRegistry()
        supervisor = Supervisor(SubsystemMetrics(registry), told.tell)
        daemon = await compose(reloader, supervisor, registry, stack, passed, stop.asked.is_set)
        told.watch(daemon, supervisor)
        for room in daemon.rooms.values():
            await room.load()
        try:
            await daemon.api.start()
            async with asyncio.TaskGroup() as group:
                beat = group.create_task(notifier.run(), name="notify")
                again = group.create_task(_reload_when_told(reload, reloader), name="reload")
                supervisor.start(group, Subsystem("runtime", daemon.runtime.run))
                for name, room in daemon.rooms.items():
                    supervisor.start(group, Subsystem(name, room.run))
                told.tell()
                notifier.ready()
                _log.info("stokerd is up", version=VERSION, pid=os.getpid())
                await stop.asked.wait()
                again.cancel()
                await _park(daemon, supervisor, notifier, reloader.settings.daemon.stop_timeout, stop)
                beat.cancel()
        finally:
            await daemon.api.stop(0)
    _log.info("stopped")


async def _reload_when_told(asked: asyncio.Event, reloader: Reloader) -> None:
    while True:
        await asked.wait()
        asked.clear()
        with contextlib.suppress(ConfigError):  # all of it was logged, and the status says so
            await reloader.reload()


async def _park(daemon: Daemon, supervisor: Supervisor, notifier: Notifier, timeout: float, stop: Stop) -> None:
    """Take no more requests, finish what should not be left as it is, and have each room park the rest, all within
    *timeout*."""
    began = time.monotonic()
    _log.info("stopping", within_seconds=timeout)
    notifier.stopping(timeout + 2 * _CLOSING_SECONDS)
    notifier.status("stopping")
    end_at_last(timeout + _CLOSING_SECONDS)
    limit = timeout * _FINISH_SHARE
    async with asyncio.TaskGroup() as group:
        parking = [group.create_task(_park_one(park, limit), name="park") for park in daemon.parks]
        hurried = group.create_task(_hurry(stop.hurry, parking), name="hurry")
        await daemon.api.stop(limit, hurry=stop.hurry)
        if parking:
            await asyncio.wait(parking)
        hurried.cancel()
    late = await supervisor.stop(max(timeout - (time.monotonic() - began), 0.0))
    if late:
        _log.error("still at work", subsystems=late)


async def _park_one(park: Callable[[float], Awaitable[None]], limit: float) -> None:
    try:
        await park(limit)
    except Exception as error:  # noqa: BLE001 - the others are parked all the same
        _log.error("work could not be parked; the next start takes it up as it is", exc_info=error)


async def _hurry(told: asyncio.Event, parking: Sequence[asyncio.Task[None]]) -> None:
    await told.wait()
    for task in parking:
        task.cancel()


class Told:
    """What the service manager shows as the state of the daemon, in one line."""

    def __init__(self, notifier: Notifier, reloader: Reloader) -> None:
        self._notifier = notifier
        self._reloader = reloader
        self._daemon: Daemon | None = None
        self._supervisor: Supervisor | None = None

    def watch(self, daemon: Daemon, supervisor: Supervisor) -> None:
        self._daemon, self._supervisor = daemon, supervisor
        daemon.runtime.on_change(self.tell)
        self._reloader.changed = self.tell

    def tell(self) -> None:
        if self._daemon is None or self._supervisor is None:
            return
        runtime = self._daemon.runtime
        said = [f"{name} {problem}" for name, problem in self._supervisor.problems.items() if problem]
        if self._reloader.problem:
            said.append(self._reloader.problem)
        if runtime.ready:
            said.append(f"containerd {runtime.info.version} at {runtime.info.endpoint}")
        else:
            said.append(f"waiting for containerd: {runtime.problem}")
        self._notifier.status("; ".join(said))


if __name__ == "__main__":
    run()
