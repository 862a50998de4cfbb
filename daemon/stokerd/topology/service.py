"""The topology of this node, current: collectors with an interval each, one report, and those who follow it.

Loaded by `room` when it is wanted: what it is made of takes memory.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime

import msgspec
import structlog

from stoker.objects.topology import MachineLoad, TopologyEvent, TopologyFinding, TopologyLoad, TopologyReport
from stokerd.settings import TopologySettings
from stokerd.settings_rules import parse_label, parse_rule
from stokerd.topology.classes import UseRule
from stokerd.topology.contents import NodeContents
from stokerd.topology.facts import Ports
from stokerd.topology.kernel_log import KernelLog
from stokerd.topology.knowledge import SOURCES, Knowledge, essence, learn, note_health, note_report, observation
from stokerd.topology.link_messages import LinkMessage
from stokerd.topology.load import load_of
from stokerd.topology.netlink import LinkEvents, problem_of
from stokerd.topology.outcomes import Outcome
from stokerd.topology.settling import changes
from stokerd.topology.sources import Sources

_log = structlog.get_logger("topology")
_FIRST_PAUSE, _LONGEST_PAUSE, _CALM = 0.05, 1.0, 1.0
"""Seconds from one reading to the next that events ask for: it doubles with each, until none came for a while. So one
link that changes is told at once, and a storm of them costs little."""
_NVIDIA = 0x10DE
_TOLD_AT_ONCE = 20
"""Changes that are logged one by one; more of them are a number."""


class TopologyService:
    """`api.ports.TopologyPort`. What is known stays in it when `run` has to run again."""

    def __init__(
        self,
        settings: TopologySettings,
        node: str,
        *,
        contents: NodeContents | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """*node*: what the node is called where the settings do not say."""
        self._settings = settings
        self._clock = clock
        self._now = now
        self._sources = Sources(settings, clock, self._on_lldp, contents)
        self._events = LinkEvents(self._on_link, self._on_lost_events)
        self._log = KernelLog(self._on_kernel_log)
        self._log_was_tried = False
        self._known = _configured(Knowledge(settings.node or node), settings)
        self._waiting = set(self._sources.names)
        self._triggers = {name: asyncio.Event() for name in self._sources.names}
        self._ready = asyncio.Event()
        self._readers: set[asyncio.Event] = set()
        self._essence: tuple[object, ...] = ()

    # ------------------------------------------------------------------------------------------ asked

    async def report(self) -> TopologyReport:
        """Return the report; at the start, when every source has been read once."""
        await self._ready.wait()
        report = self._known.report
        assert report is not None
        return report

    async def load(self) -> TopologyLoad:
        """Return what the ports carry, and how busy GPUs and machine are."""
        report, machine = await self.report(), await self._sources.load()
        drivers = {gpu.address: gpu for gpu in observation(self._known).gpus}
        return load_of(report, self._known.health, self._now(), drivers, machine)

    def snapshot(self) -> tuple[TopologyReport, TopologyLoad] | None:
        """Return the report and what the ports carried when they were read last; None before there is a report."""
        report = self._known.report
        if report is None:
            return None
        return report, load_of(report, self._known.health, self._now(), {}, MachineLoad())

    async def follow(self) -> AsyncGenerator[TopologyEvent, None]:
        """Yield the report, then changes as they happen. A slow reader gets the difference to what it knows."""
        woken = asyncio.Event()
        self._readers.add(woken)
        try:
            told = await self.report()
            yield TopologyEvent(report=told)
            while True:
                await woken.wait()
                woken.clear()
                before, told = told, await self.report()
                news = changes(before, told)
                if news:
                    yield TopologyEvent(changes=news)
        finally:
            self._readers.discard(woken)

    @property
    def findings(self) -> Sequence[TopologyFinding]:
        """What is not as it should be, as of the last report."""
        return self._known.report.findings if self._known.report is not None else ()

    def apply(self, settings: TopologySettings) -> None:
        """Go by new settings."""
        self._settings = settings
        self._sources.apply(settings)
        self._known = _configured(self._known, settings)
        for trigger in self._triggers.values():
            trigger.set()

    # ------------------------------------------------------------------------------------------ at work

    async def run(self) -> None:
        """Read all sources over and over until cancelled."""
        try:
            self._listen()
            async with asyncio.TaskGroup() as group:
                for name in self._sources.names:
                    group.create_task(self._keep(name), name=f"topology: {name}")
                group.create_task(self._look_at_links(), name="topology: links")
        finally:
            self._events.stop()
            self._log.stop()
            self._log_was_tried = False
            self._sources.close()

    def _listen(self) -> None:
        try:
            self._events.start()
        except OSError as error:
            self._known = learn(self._known, "netlink", Outcome("absent", problem_of(error)))
        else:
            self._known = learn(self._known, "netlink", Outcome("ok"))

    async def _keep(self, name: str) -> None:
        trigger, pause = self._triggers[name], _FIRST_PAUSE
        asked = -math.inf  # when the last reading that events asked for began; those that were due are no storm
        while True:
            trigger.clear()
            began = self._clock()
            self._take(name, await self._sources.collect(name))
            try:
                async with asyncio.timeout(self._sources.interval(name)):
                    await trigger.wait()
            except TimeoutError:
                continue
            pause = _FIRST_PAUSE if self._clock() - asked > _CALM else min(2 * pause, _LONGEST_PAUSE)
            await asyncio.sleep(max(began + pause - self._clock(), 0.0))
            asked = self._clock()

    async def _look_at_links(self) -> None:
        """See a link that goes down or comes up where the kernel does not tell, as it does not of InfiniBand."""
        while True:
            await asyncio.sleep(self._settings.link_interval)
            if await self._sources.links_changed():
                self._triggers["ports"].set()

    def _on_link(self, message: LinkMessage) -> None:
        known = any(net.name == message.name for net in self._known.ports.nets)
        if known or not message.kind:
            self._triggers["ports"].set()
            if message.gone or not known:
                self._triggers["tree"].set()

    def _on_lost_events(self) -> None:
        self._triggers["ports"].set()

    def _on_lldp(self) -> None:
        self._triggers["lldp"].set()

    def _on_kernel_log(self) -> None:
        """What the driver logged is told at once, and it is asked what it says itself."""
        self._known = learn(self._known, "kernel", Outcome("ok", data=self._log.xids))
        self._triggers["nvml"].set()
        self._renew_if_complete()

    def _hear_the_kernel_log(self) -> None:
        """Where there are GPUs of NVIDIA, errors of theirs are heard; the log of any other machine is left alone."""
        ours = any(device.is_gpu and device.vendor == _NVIDIA for device in self._known.tree.pci)
        if not ours or self._log_was_tried:
            return
        self._log_was_tried = True
        try:
            self._log.start(self._settings.root)
        except OSError as error:
            self._known = learn(self._known, "kernel", Outcome("absent", f"/dev/kmsg: {error.strerror}"))
        else:
            self._known = learn(self._known, "kernel", Outcome("ok", data=()))

    def _take(self, name: str, outcome: Outcome) -> None:
        known = self._known
        links = _links(known.ports)
        before = known.sources.get(SOURCES[name][0])
        known = learn(known, name, outcome)
        after = known.sources.get(SOURCES[name][0])
        if after is not None and after.state == "failed" and (before is None or before.state != "failed"):
            _log.warning("a source of the topology failed", source=after.name, why=after.reason)
        self._waiting.discard(name)
        # What ports are for depends on the tree; at the start either may be there first.
        seen = name == "ports" or (name == "tree" and not known.health)
        if seen and outcome.state == "ok" and not self._waiting & {"tree", "ports"}:
            known = note_health(known, self._clock())
        self._known = known
        if name == "tree":
            self._hear_the_kernel_log()
        if _links(known.ports) != links:
            for who in ("smp", "lldp"):  # somebody else may be at the other end now
                self._triggers[who].set()
        self._renew_if_complete()

    def _renew_if_complete(self) -> None:
        if not self._waiting:
            self._renew()

    def _renew(self) -> None:
        """Make the report anew if what it is made of has changed, and tell those who follow it."""
        shape = essence(self._known)
        if shape == self._essence:
            return
        before = self._known.report
        self._known = note_report(self._known, self._now())
        self._essence = essence(self._known)
        report = self._known.report
        if report is before or report is None:
            return
        if before is None:
            _log.info("topology is known", gpus=len(report.gpus), nics=len(report.nics), findings=len(report.findings))
        else:
            news = changes(before, report)
            _log.info("topology changed", changes=[_line(each) for each in news[:_TOLD_AT_ONCE]], count=len(news))
        self._ready.set()
        for reader in self._readers:
            reader.set()


def _links(ports: Ports) -> tuple[object, ...]:
    """Return which links are up."""
    states = [(device.name, port.number, port.state) for device in ports.rdma for port in device.ports]
    return (*states, *((net.name, net.up) for net in ports.nets))


def _line(change: msgspec.Struct) -> str:
    parts = (getattr(change, name) for name in ("kind", "subject", "field", "before", "after"))
    return " ".join(filter(None, parts))


def _configured(known: Knowledge, settings: TopologySettings) -> Knowledge:
    return msgspec.structs.replace(
        known,
        serials=settings.serial_numbers == "told",
        patience=settings.neighbour_patience,
        labels=dict(parse_label(text) for text in settings.labels),
        rules=tuple(UseRule(**parse_rule(text)) for text in settings.rules),
    )
