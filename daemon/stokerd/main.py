"""Wiring and life cycle: settings, parts, run, stop in order. Nothing else."""

from __future__ import annotations

from stokerd.lean import lean_imports

with lean_imports():
    import argparse
    import asyncio
    import contextlib
    import os
    import signal
    import sys
    import uuid
    from collections.abc import Sequence
    from contextlib import AsyncExitStack
    from pathlib import Path

    import structlog
    from prometheus_client import CollectorRegistry

    from stokerd import VERSION, log, settings_file
    from stokerd.api.server import ApiServer
    from stokerd.errors import ConfigError, JournalError, StokerError
    from stokerd.images.budget import DiskBudget
    from stokerd.images.clock import SystemClock
    from stokerd.images.manifests import local_platform
    from stokerd.images.metrics import ImageMetrics
    from stokerd.images.planning import Planner
    from stokerd.images.presence import Presence
    from stokerd.images.pressure import PressureGauge, file_system
    from stokerd.images.pull import Puller
    from stokerd.images.service import ImageService, Parts
    from stokerd.images.space import FileSystem, Margins
    from stokerd.images.watch import Timing
    from stokerd.journal.database import Database
    from stokerd.journal.images import ImageJournal
    from stokerd.metrics import ProcessMetrics, RuntimeMetrics
    from stokerd.node.service import NodeParts, NodeService
    from stokerd.registry.client import RegistryClient
    from stokerd.registry.hosts import RegistryEndpoint, load_endpoints
    from stokerd.registry.keyring import Keyring
    from stokerd.runtime.containerd import Containerd
    from stokerd.settings import Settings

_log = structlog.get_logger("stokerd")
EXIT_FAILED, EXIT_CONFIG = 1, 2


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
    try:
        asyncio.run(_serve(settings))
    except StokerError as error:
        _log.error("stokerd cannot run", reason=error.reason, why=error.message, hint=error.hint)
        sys.exit(EXIT_FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stokerd",
        description="Stoker's node daemon: keeps images warm on this node's containerd.",
        epilog="Exit status: 0 stopped as asked, 1 cannot run, 2 errors in the configuration or the command line.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file; all settings have defaults")
    parser.add_argument("--check-config", action="store_true", help="print every error of the configuration and exit")
    parser.add_argument("--version", action="version", version=f"stokerd {VERSION}")
    return parser


async def _serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT, then stop in order."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        database = Database(settings.daemon.state_dir)
        await database.open()
        stack.push_async_callback(database.close)
        daemon = await asyncio.to_thread(_identity, settings.daemon.state_dir)
        await _compose(settings, database, daemon, stack, stop)
    _log.info("stopped")


async def _compose(
    settings: Settings, database: Database, daemon: str, stack: AsyncExitStack, stop: asyncio.Event
) -> None:
    registry = CollectorRegistry()
    runtime = Containerd(settings.runtime, RuntimeMetrics(registry).observe)
    keyring = Keyring(settings.credentials.docker_configs, helper_timeout=settings.credentials.helper_timeout)
    client = RegistryClient(hosts=lambda host: _endpoints(runtime, host), user_agent=f"stoker/{VERSION}")
    stack.push_async_callback(client.aclose)
    journal = ImageJournal(database)
    budget = DiskBudget(_margins(settings), journal, lambda: _disk(runtime))
    images = _images(settings, registry, runtime, journal, budget, keyring, client, daemon)
    node = NodeService(NodeParts(runtime, images, budget, keyring, settings.api.group))
    ProcessMetrics(registry)
    await images.load()
    api = ApiServer(settings.api, images, node, registry)
    await api.start()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(runtime.run(), name="runtime: stay connected"),
                group.create_task(images.run(), name="images"),
            ]
            _log.info("stokerd is up", version=VERSION, pid=os.getpid(), socket=str(settings.api.socket))
            await stop.wait()
            _log.info("stopping")
            await api.stop(settings.daemon.stop_timeout)
            for task in reversed(tasks):
                task.cancel()
    finally:
        await api.stop(0)


def _images(
    settings: Settings,
    registry: CollectorRegistry,
    runtime: Containerd,
    journal: ImageJournal,
    budget: DiskBudget,
    keyring: Keyring,
    client: RegistryClient,
    daemon: str,
) -> ImageService:
    platform = local_platform()
    presence = Presence(runtime)
    timing = Timing(settings.images.poll_interval, settings.images.stall_timeout)
    puller = Puller(runtime, presence, budget, keyring, daemon=daemon, platform=platform, timing=timing)
    parts = Parts(
        runtime=runtime,
        journal=journal,
        presence=presence,
        budget=budget,
        puller=puller,
        planner=Planner(runtime, presence, budget, keyring, client, platform),
        clock=SystemClock(),
        pressure=PressureGauge().read,
        metrics=ImageMetrics(registry),
        daemon=daemon,
    )
    return ImageService(parts, settings.images)


def _margins(settings: Settings) -> Margins:
    images = settings.images
    return Margins(images.disk_reserve, images.inode_reserve, images.disk_floor, images.inode_floor)


async def _disk(runtime: Containerd) -> FileSystem:
    info = runtime.info
    return await asyncio.to_thread(file_system, info.root, host_root=info.host_root)


def _endpoints(runtime: Containerd, host: str) -> tuple[RegistryEndpoint, ...]:
    info = runtime.info
    return load_endpoints(host, info.registry_config_path, Path(info.host_root) if info.host_root else None)


def _identity(state_dir: Path) -> str:
    """Return the name that marks what this daemon makes in containerd; made once, kept with the journal."""
    path = state_dir / "identity"
    with contextlib.suppress(FileNotFoundError):
        text = path.read_text(encoding="ascii").strip()
        if text:
            return text
    text = uuid.uuid4().hex
    fresh = path.with_name("identity.new")
    try:
        fresh.write_text(f"{text}\n", encoding="ascii")
        fresh.replace(path)
    except OSError as error:
        raise JournalError(f"{path} cannot be written: {error.strerror}") from error
    return text


if __name__ == "__main__":
    run()
