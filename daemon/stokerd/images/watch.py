"""Watching one pull from outside: progress, disk and stalls, read from what the pull's lease holds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from stokerd.errors import RuntimeNotFound, RuntimeTimeout, RuntimeUnavailable, StokerError
from stokerd.images.budget import DiskBudget, DiskUnreadable
from stokerd.images.manifests import (
    BadManifest,
    ImageConfig,
    Index,
    Manifest,
    NoMatchingPlatform,
    Platform,
    compression_of,
    parse_config,
    parse_document,
    select_platform,
)
from stokerd.images.progress import Baseline, Observation, PullProgress, advance, measure, observe, signature
from stokerd.images.space import Presence
from stokerd.runtime.protocol import Runtime
from stokerd.runtime.types import Lease, Usage

_log = structlog.get_logger("images")
_DOCUMENT_LIMIT = 4 << 20
_PATIENCE_FOR_CONFIG = 3
"""Looks after which the disk is judged by the manifest alone, when the configuration does not come."""
_SLOWEST = 10
"""A long pull is looked at up to so many times less often than a young one."""


class Stalled(StokerError):
    """Nothing moved for longer than the stall timeout."""

    reason = "Stalled"
    retryable = True


class LeaseLost(StokerError):
    """Somebody removed the pull's lease: what it held may be gone."""

    reason = "LeaseLost"
    retryable = True


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    poll: float
    stall: float


@dataclass(frozen=True, slots=True)
class Subject:
    """What is watched: the pull's key, the image's name for messages, the lease, and this machine's platform."""

    key: str
    name: str
    lease: Lease
    platform: Platform


class PullWatch:
    """Looks at one pull until it is cancelled, or until the pull must be broken off (`run` returns why)."""

    def __init__(
        self,
        runtime: Runtime,
        subject: Subject,
        budget: DiskBudget,
        timing: Timing,
        report: Callable[[PullProgress], None],
    ) -> None:
        self._runtime = runtime
        self.subject = subject
        self._budget = budget
        self._timing = timing
        self._report = report
        self._examined: set[str] = set()
        self._chosen = ""
        self._admitted = False
        self._blind = False
        self._looks_with_manifest = 0
        self._known: Mapping[str, Usage] = {}
        self._expected: Mapping[str, int] = {}
        self._growth: dict[str, int] = {}
        self._next_growth = 0.0
        self.manifest: Manifest | None = None
        self.config: ImageConfig | None = None
        self.baseline = Baseline()
        self.progress = PullProgress()

    async def run(self) -> StokerError:
        """Watch. Returns the error for which the pull has to be broken off."""
        clock = asyncio.get_running_loop().time
        started = moved = clock()
        before: tuple[object, ...] = ()
        self._next_growth = started + 2.0
        while True:
            try:
                seen = await self._look()
                now = signature(seen)
                await self._check_disk(seen)
            except (RuntimeUnavailable, RuntimeTimeout):
                now = before  # the pull itself will say what is wrong
            except StokerError as error:
                return error
            if now != before:
                before, moved = now, clock()
            if clock() - moved > self._timing.stall:
                return self._stalled(clock() - moved)
            elapsed = clock() - started
            await asyncio.sleep(min(max(self._timing.poll, elapsed / 10), self._timing.poll * _SLOWEST))

    def _stalled(self, seconds: float) -> Stalled:
        where = "while it was resolved" if self.manifest is None else f"at {self.progress.percent:g} %"
        return Stalled(
            f"{self.subject.name}: no byte arrived and nothing was unpacked for {seconds:.0f} s, {where}",
            hint="look at the registry's load and at the network between it and this node",
        )

    async def last_look(self) -> None:
        """See what a pull that has succeeded left: a quick one is over before anything was seen of it."""
        try:
            seen = await self._observe()
            if self.manifest is None:
                await self._find_manifest(seen)
            if self.manifest is not None:
                await self._find_config(self.manifest, seen)
                now = measure(self.manifest, self.config, self.baseline, seen, self._expected)
                self.progress = advance(self.progress, now)
        except StokerError as error:
            _log.debug("progress could not be completed", image=self.subject.name, why=error.message)

    async def platforms_problem(self) -> NoMatchingPlatform | None:
        """Return what is wrong with the platforms of the index that the lease holds: containerd does not list them."""
        try:
            await self._find_manifest(await self._observe())
        except NoMatchingPlatform as error:
            return error
        except StokerError:
            return None
        return None

    async def _look(self) -> Observation:
        seen = await self._observe()
        if self.manifest is None:
            await self._find_manifest(seen)
        if self.manifest is not None:
            await self._find_config(self.manifest, seen)
            seen = await self._measure_growth(seen)
            now = measure(self.manifest, self.config, self.baseline, seen, self._expected)
            self.progress = advance(self.progress, now)
            self._report(self.progress)
        return seen

    async def _observe(self) -> Observation:
        lease = self.subject.lease.id
        try:
            resources, ingests = await asyncio.gather(
                self._runtime.leases.resources(lease), self._runtime.content.ingests()
            )
        except RuntimeNotFound:
            raise LeaseLost(
                f"{self.subject.name}: lease {lease} of the pull was removed by somebody else",
                hint="does something on this node delete leases that it did not make?",
            ) from None
        return observe(resources, ingests)

    # ------------------------------------------------------------------------------------------ what is pulled

    async def _find_manifest(self, seen: Observation) -> None:
        """Look through the blobs that came first: an index, then the manifest that it names for this machine."""
        for digest in sorted(seen.blobs - self._examined):
            if self._chosen:
                break
            await self._examine(digest)
            if self.manifest is not None:
                return
        if self._chosen and self._chosen in seen.blobs:
            await self._examine(self._chosen)

    async def _examine(self, digest: str) -> None:
        info = await self._runtime.content.info(digest)
        document: Index | Manifest | None = None
        if info is not None and info.size <= _DOCUMENT_LIMIT:
            # A layer or a configuration is no manifest; what is wrong with one that is, containerd itself will say.
            with contextlib.suppress(BadManifest, RuntimeNotFound):
                document = parse_document(await self._runtime.content.read(digest, limit=_DOCUMENT_LIMIT))
        if isinstance(document, Manifest):
            await self._take(document)
        self._examined.add(digest)  # only now: a look that broke off is made again
        if isinstance(document, Index):
            self._chosen = select_platform(document, self.subject.platform, self.subject.name).descriptor.digest

    async def _take(self, manifest: Manifest) -> None:
        self._known = await self._budget.known(manifest)
        self._expected = {
            layer.digest: (
                self._known.get(layer.digest)
                or self._budget.ratios[compression_of(layer.media_type)].unpacked(layer.size)
            ).bytes
            for layer in manifest.layers
        }
        digests = {layer.digest for layer in manifest.layers}
        infos = await asyncio.gather(*(self._runtime.content.info(digest) for digest in digests))
        started = self.subject.lease.created_at
        self.baseline = Baseline(
            frozenset(
                info.digest
                for info in infos
                if info is not None and started and info.created_at and info.created_at < started
            )
        )
        self.manifest = manifest

    async def _find_config(self, manifest: Manifest, seen: Observation) -> None:
        if self.config is not None or manifest.config.digest not in seen.blobs:
            return
        try:
            config = parse_config(await self._runtime.content.read(manifest.config.digest))
        except (BadManifest, RuntimeNotFound):
            return
        started, unpacked = self.subject.lease.created_at, 0
        for chain in config.chain_ids:
            info = await self._runtime.snapshots.stat(chain)
            if info is None or not (started and info.created_at and info.created_at < started):
                break
            unpacked += 1
        self.baseline = replace(self.baseline, unpacked=unpacked)
        self.config = config

    # ------------------------------------------------------------------------------------------ disk and growth

    async def _check_disk(self, seen: Observation) -> None:
        """Hold the pull against the disk. A disk that cannot be asked stops nothing: containerd notices a full one."""
        try:
            if self.manifest is None:
                await self._budget.watch(self.subject.key, self.subject.name, None)
            else:
                await self._check_need(self.manifest, seen)
        except DiskUnreadable as error:
            if not self._blind:
                _log.warning("pulling without an eye on the disk", image=self.subject.name, why=error.message)
            self._blind = True

    async def _check_need(self, manifest: Manifest, seen: Observation) -> None:
        self._looks_with_manifest += 1
        if self.config is None and self._looks_with_manifest < _PATIENCE_FOR_CONFIG:
            return
        unpacked = self.baseline.unpacked
        if self.config is not None:
            chains = self.config.chain_ids
            unpacked = max((n for n, chain in enumerate(chains, 1) if chain in seen.committed), default=unpacked)
            unpacked = max(unpacked, self.baseline.unpacked)
        growing = sum(seen.growth.values())
        presence = Presence(seen.blobs | self.baseline.blobs, seen.ingests, unpacked, growing)
        need = self._budget.need(manifest, presence, self._known)
        if not self._admitted:
            await self._budget.admit(self.subject.key, self.subject.name, need)
            self._admitted = True
        await self._budget.watch(self.subject.key, self.subject.name, need)

    async def _measure_growth(self, seen: Observation) -> Observation:
        """Measure snapshots that are being unpacked, seldom: containerd walks their files for it."""
        clock = asyncio.get_running_loop().time
        if seen.extracting and clock() >= self._next_growth:
            before = clock()
            for chain, key in seen.extracting.items():
                usage = await self._runtime.snapshots.usage(key)
                if usage is not None:
                    self._growth[chain] = max(usage.bytes, self._growth.get(chain, 0))
            spent = clock() - before
            self._next_growth = clock() + max(2.0, 30 * spent)
        growth = {chain: size for chain, size in self._growth.items() if chain in seen.extracting}
        return replace(seen, growth=growth)
