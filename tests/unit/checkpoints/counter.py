"""A desk over a node in memory, with a journal: what a stokerd has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from stoker.objects.checkpoints import Operation
from stoker.objects.images import InlineAuth
from stokerd.checkpoints.clone_types import Clone
from stokerd.checkpoints.desk import Desk
from stokerd.checkpoints.gate import Carriers
from stokerd.checkpoints.metrics import CheckpointMetrics
from stokerd.checkpoints.operations import ended
from stokerd.checkpoints.service import Checkpoints
from stokerd.checkpoints.targets import Target
from stokerd.errors import NotFound, StokerError
from stokerd.journal.checkpoints import CheckpointJournal
from stokerd.journal.database import Database
from stokerd.registry.client import RegistryClient
from stokerd.registry.keyring import Keyring
from stokerd.settings import CheckpointSettings
from tests.unit.checkpoints.bench import Bench


class NoWarmer:
    """Has no image to warm."""

    async def warm(self, image: str, auths: Sequence[InlineAuth]) -> None:
        raise NotFound(f"{image} is nowhere")


def alone() -> Carriers:
    """What reaches no registry. Its client never opens a connection, so that nothing has to be closed."""
    return Carriers(RegistryClient(hosts=lambda _: ()), Keyring([]), NoWarmer())


SALT = b"salt" * 8


class Names:
    """The pods of the bench, by their names alone."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    async def targets(self, name: str, containers: Sequence[str], alive: Collection[str]) -> tuple[Target, ...]:
        everything = await self._bench.runtime.containers.list()
        found = [each for each in everything if each.state == "running" or each.id in alive]
        if name == "web":
            wanted = [each for each in found if not containers or each.name in containers]
        else:
            wanted = [each for each in found if f"web/{each.name}" == name]
        if not wanted:
            raise NotFound(f"there is no pod {name!r} on this node", hint="`stoker pods` lists them")
        return tuple(Target(each.id, each.name, "web", "default") for each in wanted)


class PlayedClones(Checkpoints):
    """The room, whose clones are played: nothing is restored. ``failing`` are the numbers of those that fail."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.asked: list[dict[str, Any]] = []
        self.failing: dict[int, StokerError] = {}
        self.gate: asyncio.Event | None = None
        self.at_once = self.most_at_once = 0
        self.played: dict[str, Clone] = {}

    async def clone(self, checkpoint: str, **more: Any) -> Clone:
        self.asked.append(more)
        number = len(self.asked)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            if self.gate is not None:
                await self.gate.wait()
            if number in self.failing:
                raise self.failing[number]
            made = Clone(f"clone-{number:016x}", checkpoint, datetime.now(UTC), state="made", pid=number)
            made = replace(made, result={"ips": [{"address": f"10.1.0.{number}/16"}]}, labels=more["labels"])
            self.played[made.id] = made
            return made
        finally:
            self.at_once -= 1

    async def clones(self) -> tuple[Clone, ...]:
        return tuple(self.played.values())

    async def remove_clone(self, clone: str) -> None:
        del self.played[clone]


class Counter:
    """One stokerd's desk. ``start`` runs it; ``stop`` cancels it as the daemon does."""

    def __init__(
        self,
        bench: Bench,
        database: Database,
        settings: CheckpointSettings,
        options: Mapping[str, Any],
        carriers: Carriers | None = None,
    ) -> None:
        self.bench = bench
        self.now = datetime(2026, 11, 30, 12, tzinfo=UTC)
        self.room = PlayedClones(
            bench.runtime,
            str(bench.directory),
            "stokerd-1",
            survey=bench.survey,
            dumpers=bench.dumpers,
            clock=self.clock,
            **options,
        )
        self.journal = CheckpointJournal(database)
        self.registry = CollectorRegistry()
        metrics = CheckpointMetrics(self.registry)
        carriers = carriers or alone()
        self.desk = Desk(
            bench.runtime, self.room, self.journal, Names(bench), settings, SALT, self.clock, metrics, carriers
        )
        self._task: asyncio.Task[None] | None = None

    def clock(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now

    async def start(self) -> None:
        await self.desk.load()
        self._task = asyncio.create_task(self.desk.run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def counted(self, name: str, **labels: str) -> float | None:
        """Return a value of the metrics."""
        return self.registry.get_sample_value(name, labels)

    async def ended(self, operation: Operation) -> Operation:
        """Follow an operation to its end."""
        async with asyncio.timeout(60):
            async for event in self.desk.follow_operation(operation.id):
                operation = event.operation
        assert ended(operation)
        return operation

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what has no event."""
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def counter(
    bench: Bench,
    tmp: Path,
    *,
    started: bool = True,
    settings: Mapping[str, Any] | None = None,
    carriers: Carriers | None = None,
    **options: Any,
) -> AsyncIterator[Counter]:
    """Another one on the same *tmp* is the successor of the one before."""
    database = Database(tmp / "state")
    await database.open()
    made = Counter(
        bench, database, CheckpointSettings(directory=bench.directory, **(settings or {})), options, carriers
    )
    try:
        if started:
            await made.start()
        yield made
    finally:
        await made.stop()
        await database.close()
