"""A node for tests: containerd in memory, a real journal in a directory, and the images room between them.

    async with Node(tmp_path) as node:
        node.image("registry.test/app:v1")
        job = await node.warm("registry.test/app:v1")
        assert (await node.ended(job)).state == "Succeeded"
        node.check()

stokerd can be stopped, killed and started again on it as often as a test likes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prometheus_client import CollectorRegistry

from stoker.objects import images as api
from stokerd.errors import NotFound
from stokerd.images.budget import DiskBudget
from stokerd.images.leases import PREFIX
from stokerd.images.manifests import Platform
from stokerd.images.metrics import ImageMetrics
from stokerd.images.planning import Planner
from stokerd.images.presence import Presence
from stokerd.images.pull import Puller
from stokerd.images.service import ImageService, Parts
from stokerd.images.space import FileSystem, Margins
from stokerd.images.watch import Timing
from stokerd.journal.database import Database
from stokerd.journal.images import ImageJournal
from stokerd.registry.client import Resolved
from stokerd.registry.content import Descriptor
from stokerd.registry.credentials import Credential
from stokerd.registry.keyring import Keyring
from stokerd.registry.references import Reference
from stokerd.runtime import memory_artifacts as artifacts
from stokerd.runtime.memory import MemoryOptions, MemoryRuntime
from stokerd.settings import ImageSettings
from tests.unit.images.virtual import virtual_loop
from tests.unit.mortal import Link, Mortal

HOST = "registry.test"
MIB = 1 << 20
DAEMON = "this-daemon"


class TestClock:
    """`images.clock.Clock` on the loop's time, beginning now, with chance that repeats itself."""

    __test__ = False

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._epoch = time.time() - asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def time(self) -> float:
        return self._epoch + self.monotonic()

    def draw(self) -> float:
        return self._random.random()


class RemoteManifests:
    """`planning.ManifestSource` on the memory runtime's registries."""

    def __init__(self, runtime: MemoryRuntime) -> None:
        self._remote = runtime.remote

    async def resolve(self, reference: Reference, credentials: Sequence[Credential] = ()) -> Resolved:
        name = artifacts.Reference.parse(reference.pull_spec)
        found = self._remote.find(name) if name is not None else None
        if found is None:
            raise NotFound(f"{reference}: the registry has no such image")
        return Resolved(Descriptor(found.media_type, found.digest, len(found.body)), found.body, "memory")

    async def fetch_manifest(
        self, reference: Reference, digest: str, credentials: Sequence[Credential] = ()
    ) -> Resolved:
        found = self._remote.document(digest)
        return Resolved(Descriptor(found.media_type, found.digest, len(found.body)), found.body, "memory")

    async def fetch_blob(
        self, reference: Reference, digest: str, size_limit: int, credentials: Sequence[Credential] = ()
    ) -> bytes:
        return self._remote.document(digest).body


class Node(Mortal):
    """The node. ``service`` is the daemon that runs on it now."""

    def __init__(
        self,
        directory: Path,
        *,
        options: MemoryOptions | None = None,
        seed: int = 0,
        threads: bool = False,
        **settings: Any,
    ) -> None:
        """*threads*: the journal has its thread, for a loop in real time; *settings* are those of ``[images]``."""
        self.directory = directory
        self.settings = ImageSettings(**settings)
        self.clock = TestClock(seed)
        self.runtime = MemoryRuntime(options, clock=lambda: datetime.fromtimestamp(self.clock.time(), UTC))
        self.pressure: float | None = None
        self.disk_error: OSError | None = None
        self.credentials: list[Path] = []
        self._threads = threads

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ------------------------------------------------------------------------------------------ life

    async def start(self, *, run: bool = True) -> ImageService:
        """Start a daemon on what the last one left."""
        self.compose()
        await self.database.open()
        await self.service.load()
        if run:
            self.run()
        return self.service

    def compose(self) -> None:
        self.link = Link(self.runtime)
        self.journal = ImageJournal(self.open_journal(Database(self.directory), threads=self._threads))
        settings, runtime = self.settings, self.link
        self.metrics = CollectorRegistry()
        margins = Margins(settings.disk_reserve, settings.inode_reserve, settings.disk_floor, settings.inode_floor)
        self.budget = DiskBudget(margins, self.journal, self._read_disk)
        self.presence = Presence(runtime)
        keyring = Keyring(self.credentials)
        platform = platform_of(self.runtime.options.platform)
        self.puller = Puller(
            runtime,
            self.presence,
            self.budget,
            keyring,
            daemon=DAEMON,
            platform=platform,
            timing=Timing(settings.poll_interval, settings.stall_timeout),
        )
        parts = Parts(
            runtime=runtime,
            journal=self.journal,
            presence=self.presence,
            budget=self.budget,
            puller=self.puller,
            planner=Planner(runtime, self.presence, self.budget, keyring, RemoteManifests(self.runtime), platform),
            clock=self.clock,
            pressure=self._read_pressure,
            metrics=ImageMetrics(self.metrics),
            daemon=DAEMON,
        )
        self.service = ImageService(parts, settings)

    @property
    def room(self) -> ImageService:
        return self.service

    async def _read_disk(self) -> FileSystem:
        await asyncio.sleep(0)
        if self.disk_error is not None:
            raise self.disk_error
        return FileSystem(*self.runtime.disk.state())

    async def _read_pressure(self) -> float | None:
        await asyncio.sleep(0)
        return self.pressure

    # ------------------------------------------------------------------------------------------ what tests do

    def image(self, name: str = "app:v1", **how: Any) -> artifacts.RemoteImage:
        """Put an image into the registry."""
        return self.runtime.remote.add_image(full(name), **how)

    async def warm(self, *names: str, **how: Any) -> str:
        """Send a request; return the job's id."""
        return (await self.service.warm(api.WarmRequest(images=[full(name) for name in names], **how))).id

    async def warmed(self, *names: str, **how: Any) -> api.JobStatus:
        return await self.ended(await self.warm(*names, **how))

    async def ended(self, job: str, limit: float = 100_000.0) -> api.JobStatus:
        """Return the job once it has ended; the limit is in seconds of the loop's time."""
        async with asyncio.timeout(limit):
            async for _ in self.service.follow(job):
                pass
        return self.service.job(job)

    async def seen(self, job: str, test: Callable[[api.ItemStatus], bool], limit: float = 1000.0) -> api.ItemStatus:
        """Return the first item of a job that is as wanted, as soon as it is."""
        events = self.service.follow(job)
        try:
            async with asyncio.timeout(limit):
                async for event in events:
                    items = [event.item] if isinstance(event, api.ItemEvent) else []
                    items = event.job.items if isinstance(event, api.JobEvent) else items
                    for item in items:
                        if test(item):
                            return item
        finally:
            await events.aclose()
        raise AssertionError("the job ended first")

    async def quiet(self, limit: float = 100_000.0) -> None:
        """Return once no pull runs or waits, and what earlier ones left has been gone through."""
        async with asyncio.timeout(limit):
            while self.service._scheduler.keys or not self.service.reconciled:  # noqa: ASYNC110 - costs no real time
                await asyncio.sleep(1.0)

    # ------------------------------------------------------------------------------------------ what must hold

    def present(self, name: str = "app:v1") -> bool:
        """Say whether the image is whole: record, manifest, configuration and all snapshots."""
        record = self.runtime.store.records.get(full(name))
        return record is not None and self._whole(record.target.digest)

    def _whole(self, target: str) -> bool:
        store = self.runtime.store
        manifest = self.runtime._machine.manifest_of(target)
        if manifest is None or manifest["config"]["digest"] not in store.blobs:
            return False
        layers = [self.runtime.remote.layer(layer["digest"]) for layer in manifest["layers"]]
        return all(chain in store.snapshots for chain in artifacts.chain_ids([layer.diff_id for layer in layers]))

    def leftovers(self, *, collected: bool) -> list[str]:
        """Return everything that no image needs, by name; with *collected*, what containerd's collector leaves."""
        store = self.runtime.store
        found = [f"lease {name}" for name in store.leases if name.startswith(PREFIX)]
        found += [f"record {name}" for name, record in store.records.items() if not self._whole(record.target.digest)]
        before = {*store.blobs, *store.snapshots, *store.ingests}
        store.collect()
        after = {*store.blobs, *store.snapshots, *store.ingests}
        found += [f"ingest {name}" for name in store.ingests]
        found += [f"snapshot {name}" for name in store.snapshots if name.startswith("extract-")]
        return found if collected else found + [f"garbage {name}" for name in before - after]

    def check(self, *, collected: bool = True) -> None:
        """Nothing of any pull is left. Without *collected*, this must hold before the collector runs by itself."""
        found = self.leftovers(collected=collected)
        assert not found, found

    @property
    def loop_time(self) -> float:
        return virtual_loop().time()


def full(name: str) -> str:
    """``app:v1`` → ``registry.test/app:v1``."""
    return name if "/" in name else f"{HOST}/{name}"


def platform_of(text: str) -> Platform:
    os, _, rest = text.partition("/")
    architecture, _, variant = rest.partition("/")
    return Platform(os, architecture, variant)
