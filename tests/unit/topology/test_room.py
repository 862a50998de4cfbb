"""The topology as a room: what it costs while nobody asks, and what happens when somebody does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from stoker.objects.topology import TopologyEvent
from stokerd.settings import TopologySettings
from stokerd.topology.outcomes import Outcome
from stokerd.topology.room import SwitchedOff, TopologyRoom
from stokerd.topology.service import TopologyService
from stokerd.topology.sources import Sources
from tests.rig.hardware.machines import cpu_node, h100
from tests.rig.hardware.tree import lay_out, set_link

LATE = ("stokerd.topology.service", "stokerd.topology.report", "stokerd.topology.sources", "stoker.objects.topology")
DEADLINE = 20.0
PORT = "nic mlx5_2 port 1"
NO_TOOLS: dict[str, Any] = dict.fromkeys(("amd_smi", "nvidia_library", "nvidia_smi", "smpquery", "lldpcli"), "")


def settings_for(root: Path, **changes: object) -> TopologySettings:
    """Return settings by which nothing of this machine itself is read."""
    quiet = TopologySettings(root=root, link_interval=0.05, node="fake", lldp_listen="never", **NO_TOOLS)
    return replace(quiet, **changes)  # type: ignore[arg-type]


@asynccontextmanager
async def running(settings: TopologySettings, deadline: float = DEADLINE) -> AsyncIterator[TopologyRoom]:
    room = TopologyRoom(settings)
    await room.load()
    async with asyncio.timeout(deadline):
        task = asyncio.create_task(room.run())
        try:
            yield room
        finally:
            task.cancel()
            await asyncio.wait({task})
    assert task.cancelled()


async def told(events: AsyncIterator[TopologyEvent], *wanted: tuple[str, str, str]) -> None:
    """Wait until these changes were told, in one event or several: a reading may come between two of our writes."""
    left = set(wanted)
    async for event in events:
        left -= {(change.subject, change.field, change.after) for change in event.changes}
        if not left:
            return


def test_a_daemon_that_nobody_asks_pays_nothing() -> None:
    code = f"import sys, stokerd.main; print([name for name in {LATE!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


async def test_the_first_question_loads_it(tmp_path: Path) -> None:
    async with running(settings_for(lay_out(h100(), tmp_path))) as room:
        assert room.findings == ()
        first, second = await asyncio.gather(room.report(), room.report())
        assert first is second
        assert (len(first.gpus), len(first.nics), first.node) == (8, 12, "fake")
        load = await room.load_of_ports()
        assert sum(port.capacity_gbps for port in load.ports) == 8 * 400 + 2 * 200 + 2 * 25


async def test_always_begins_by_itself(tmp_path: Path) -> None:
    async with running(settings_for(lay_out(cpu_node(), tmp_path), mode="always")) as room:
        await room._loaded.wait()
        assert room._service is not None
        assert len((await room._service.report()).nics) == 2


async def test_off_refuses(tmp_path: Path) -> None:
    async with running(settings_for(tmp_path, mode="off")) as room:
        with pytest.raises(SwitchedOff):
            await room.report()
        with pytest.raises(SwitchedOff):
            async with aclosing(room.follow()) as events:
                await anext(events)
        assert room.findings == ()


async def test_a_link_that_goes_down_is_told_to_those_who_follow(tmp_path: Path) -> None:
    machine = h100()
    async with (
        running(settings_for(lay_out(machine, tmp_path))) as room,
        aclosing(room.follow()) as fast,
        aclosing(room.follow()) as slow,
    ):
        before = (await anext(fast)).report
        assert before is not None
        assert (await anext(slow)).report is before
        port = next(nic for nic in before.nics if nic.name == "mlx5_2").ports[0]
        set_link(tmp_path, machine.nics[2], up=False)
        # The files are written one after the other, and may be read in between.
        await told(fast, (PORT, "physical", "polling"), (PORT, "state", "down"))
        (finding,) = room.findings
        assert (finding.code, finding.subjects) == ("LinkDown", ["mlx5_2"])
        set_link(tmp_path, machine.nics[2], up=True)
        await told(fast, (PORT, "physical", "linkup"), (PORT, "state", "active"))
        again = next(nic for nic in (await room.report()).nics if nic.name == "mlx5_2").ports[0]
        assert (again.state, again.gbps, again.health.state) == (port.state, port.gbps, "healthy")
        # Down and up again: all that is left for who was not looking is that it happened.
        assert [(change.field, change.after) for change in (await anext(slow)).changes] == [("flaps", "1")]


async def test_nothing_new_is_the_same_report(tmp_path: Path) -> None:
    settings = settings_for(lay_out(h100(), tmp_path), interval=0.02, hardware_interval=0.02)
    async with running(settings) as room:
        report = await room.report()
        service = room._service
        assert service is not None
        readings = [service._known.ports]
        while len(readings) < 4:
            await asyncio.sleep(0.01)
            if service._known.ports is not readings[-1]:
                readings.append(service._known.ports)
        assert await room.report() is report


async def test_a_device_that_comes_and_one_that_goes(tmp_path: Path) -> None:
    settings = settings_for(lay_out(cpu_node(), tmp_path), interval=0.05, hardware_interval=0.05)
    async with running(settings) as room, aclosing(room.follow()) as events:
        assert (await anext(events)).report is not None
        (tmp_path / "sys/class/net/eth1").unlink()
        async for event in events:
            if any(change.kind == "removed" and change.subject == "nic eth1" for change in event.changes):
                break
        # Its function on PCIe is still there, with nothing on it.
        assert (await room.report()).nics[0].name == "eth0"


async def test_settings_that_change(tmp_path: Path) -> None:
    settings = settings_for(lay_out(cpu_node(), tmp_path))
    async with running(settings) as room, aclosing(room.follow()) as events:
        assert (await anext(events)).report is not None
        room.apply(replace(settings, labels=("rack=r12",), rules=("storage name=eth1",)))
        await told(events, ("node", "labels.rack", "r12"), ("nic eth1", "use", "storage"))


async def test_a_machine_without_files_is_a_report_that_says_so(tmp_path: Path) -> None:
    settings = settings_for(
        tmp_path / "none", lldp_file=str(tmp_path / "lldp"), fabric_file=str(tmp_path), placement_file="/dev/null"
    )
    async with running(settings) as room:
        report = await room.report()
        states = {source.name: (source.state, source.reason) for source in report.sources}
    assert states.pop("netlink")[0] in {"ok", "absent"}
    missing = ("failed", f"{tmp_path}/none/sys: there is no such directory")
    assert states == {
        "sysfs.machine": missing,
        "sysfs.net": missing,
        "sysfs.numa": missing,
        "sysfs.pci": missing,
        "sysfs.rdma": missing,
        "lldp": ("failed", f"{tmp_path}/lldp: No such file or directory"),
        "fabric": ("failed", f"{tmp_path}: it is no file"),
        "placement": ("failed", "/dev/null: it is no file"),
    }


class Paced:
    """Sources that events ask for after every *often*th reading; the others are due, half a second apart."""

    def __init__(self, often: int, readings: int) -> None:
        self.now, self.done = 0.0, asyncio.Event()
        self.pauses: list[float] = []
        self._often, self._left, self._quiet = often, readings, 0.0
        settings = TopologySettings(mode="always", node="fake", **NO_TOOLS)
        self.service = TopologyService(settings, "fake", clock=lambda: self.now)
        self.service._sources = cast(Sources, self)

    async def collect(self, name: str) -> Outcome:
        self._left -= 1
        if self._left < 0:
            self.done.set()
            await asyncio.Event().wait()
        event = self._left % self._often == 0
        self._quiet = 0.0 if event else 0.5
        if event:
            self.service._triggers[name].set()
        return Outcome("absent")

    def interval(self, _name: str) -> float:
        self.now += self._quiet
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 3))
        self.now += seconds


@pytest.mark.parametrize(
    ("often", "pauses"),
    [(1, [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]), (4, [0.05] * 7)],
    ids=["a storm costs little", "one now and then is told at once"],
)
async def test_how_long_events_wait(monkeypatch: pytest.MonkeyPatch, often: int, pauses: list[float]) -> None:
    paced = Paced(often, often * len(pauses))
    monkeypatch.setattr(paced.service, "_take", lambda *_: None)
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", paced.sleep)
        task = asyncio.create_task(paced.service._keep("ports"))
        async with asyncio.timeout(DEADLINE):
            await paced.done.wait()
    task.cancel()
    await asyncio.wait({task})
    assert paced.pauses == pauses


async def test_a_room_that_runs_again_goes_on_where_it_was(tmp_path: Path) -> None:
    room = TopologyRoom(settings_for(lay_out(cpu_node(), tmp_path)))
    reports = []
    for _ in range(2):
        task = asyncio.create_task(room.run())
        async with asyncio.timeout(DEADLINE):
            reports.append(await room.report())
        task.cancel()
        await asyncio.wait({task})
    assert reports[0] is reports[1]
