"""Topology against real switches: lldpd behind veth cables, and a fabric of InfiniBand that ibsim and opensm play.

The machine is laid out in files; its network devices, what they hang on and the tools that ask for it are real.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.fabrics import dumps
from stoker.objects.topology import TopologyEvent, TopologyReport
from stokerd.settings import TopologySettings
from stokerd.topology import lldpcli
from stokerd.topology.room import TopologyRoom
from tests.rig.hardware import texts
from tests.rig.hardware.machines import Machine, Switch, gb200_rack, h100, h100_roce, renamed
from tests.rig.hardware.tree import lay_out, set_link, use_real_carriers
from tests.rig.ibsim import IbFabric
from tests.rig.lldp import LldpSwitches, lldpcli_script
from tests.rig.nvml import FakeNvml
from tests.rig.processes import run
from tests.unit.topology.test_room import running, told

DEADLINE = 60.0
MISSING = "port 1 of mlx5_4 shows no switch, while 7 of 8 compute ports do"
QUIET: dict[str, Any] = {"amd_smi": "", "nvidia_smi": "", "smpquery": "", "lldpcli": "", "nvidia_library": ""}


def name_of(what: str) -> str:
    return f"{what}-{os.getpid()}"


def neighbours(report: TopologyReport, *fields: str) -> dict[str, list[tuple[object, ...]]]:
    """Return who is at the other end of each NIC's port."""
    return {
        nic.name: [tuple(getattr(each, field) for field in fields) for port in nic.ports for each in port.neighbours]
        for nic in report.nics
    }


async def until_heard(switches: LldpSwitches, room: TopologyRoom, how_many: int) -> TopologyReport:
    """Have the switches speak until so many NICs have a neighbour; return the report in which they have."""
    while True:
        await asyncio.to_thread(switches.speak)
        report = await room.report()
        if sum(bool(found) for found in neighbours(report, "name").values()) >= how_many:
            return report


def on_the_rail() -> Machine:
    """Eight rails; the port for management hangs on another host, not on a switch."""
    machine = renamed(h100_roce(), f"t{os.getpid() % 10**4}")
    other = Switch("some-host", "0c:29:ef:00:00:99", "eth0", bridge=False)
    return replace(machine, nics=(*machine.nics[:-1], replace(machine.nics[-1], switch=other)))


async def test_a_node_whose_nics_hang_on_real_switches(rig: Path, tmp_path: Path) -> None:
    machine = on_the_rail()
    rails = [nic.netdev for nic in machine.nics]
    root = lay_out(machine, tmp_path / "root")
    fake = FakeNvml(machine, tmp_path / "driver")
    quick = {"interval": 0.5, "neighbour_patience": 2.0, "nvidia_library": str(fake.path)}
    settings = TopologySettings(root=root, node="roce", **QUIET | quick)
    with LldpSwitches(name_of("switches")) as switches:
        switches.plug_in(machine)
        switches.silence(rails[4])
        use_real_carriers(root, rails)
        async with running(settings, DEADLINE) as room, aclosing(room.follow()) as events:
            assert (await anext(events)).report is not None
            await until_heard(switches, room, 10)
            await told(events, ("finding NeighbourMissing mlx5_4", "", MISSING))
            report = await room.report()
            _see_the_switches(report, machine)
            await _pull_and_put_back(switches, events, machine)
            await until_heard(switches, room, 10)
            switches.rename("leaf-01", "leaf-01-new")
            await told(events, (f"nic mlx5_0 port 1 neighbour {_switch(machine, 0)}", "name", "leaf-01-new"))
        heard = await _ask_lldpd(switches, settings, machine, tmp_path)
    assert heard == neighbours(report, "kind", "chassis", "port", "name") | {
        "mlx5_0": [("switch", "0c:29:ef:00:00:01", "Ethernet17", "leaf-01-new")]
    }


def _switch(machine: Machine, place: int) -> str:
    switch = machine.nics[place].switch
    assert switch is not None
    return f"{switch.chassis} {switch.port}"


def _see_the_switches(report: TopologyReport, machine: Machine) -> None:
    """Each NIC shows what it hangs on; one port is silent, and is found to be; the driver has told of the GPUs."""
    expected = {
        nic.rdma or nic.netdev: [("switch" if nic.switch.bridge else "host", nic.switch.name, nic.switch.port)]
        for nic in machine.nics
        if nic.switch is not None
    }
    assert neighbours(report, "kind", "name", "port") == expected | {"mlx5_4": []}
    assert [(found.code, found.subjects) for found in report.findings] == [("NeighbourMissing", ["mlx5_4"])]
    assert [gpu.source for gpu in report.gpus] == ["nvml"] * 8
    assert report.matrix.rows[0].split()[1] == "NV18"


async def _pull_and_put_back(switches: LldpSwitches, events: AsyncIterator[TopologyEvent], machine: Machine) -> None:
    port, there = "nic mlx5_2 port 1", f"nic mlx5_2 port 1 neighbour {_switch(machine, 2)}"
    device = machine.nics[2].netdev
    switches.pull(device)
    await told(events, (f"{port} health", "state", "down"), (there, "", ""))
    switches.put_back(device)
    await told(events, (f"{port} health", "state", "healthy"))


async def _ask_lldpd(
    switches: LldpSwitches, settings: TopologySettings, machine: Machine, folder: Path
) -> dict[str, list[tuple[object, ...]]]:
    """Return what a real lldpd of this machine knows, as lldpcli tells it to stokerd; both of its forms agree."""
    path = switches.start_on_the_host([nic.netdev for nic in machine.nics])
    script = lldpcli_script(folder / "lldpcli")
    asked = replace(settings, lldpcli=str(script), lldp_socket=str(path), source_interval=0.1)
    async with running(asked, DEADLINE) as room:
        report = await until_heard(switches, room, 10)
        await _see_two_on_one_port(switches, room)
    printed = {
        form: lldpcli.parse(run([script, "-u", path, "-f", form, "show", "neighbors"]).stdout)
        for form in ("json", "json0")
    }
    assert printed["json"] == printed["json0"]
    assert len(printed["json"].pairs) > 10
    assert printed["json"].unread.count == 0
    assert next(source.state for source in report.sources if source.name == "lldp") == "ok"
    return neighbours(report, "kind", "chassis", "port", "name")


async def _see_two_on_one_port(switches: LldpSwitches, room: TopologyRoom) -> None:
    """A switch that passes LLDP on: whoever is behind it is heard, too."""
    switches.pass_on("leaf-20", Switch("spine-01", "0c:29:ef:00:00:77", "Ethernet1"))
    expected = {("switch", "leaf-20", "Ethernet12"), ("switch", "spine-01", "Ethernet1")}
    while not expected <= set(neighbours(await room.report(), "kind", "name", "port")["mlx5_8"]):
        await asyncio.to_thread(switches.speak)


async def test_a_node_on_a_real_fabric_of_infiniband(rig: Path, tmp_path: Path) -> None:
    machine = h100()
    # ibsim gives ports GUIDs of their own.
    nics = tuple(replace(nic, port_guid=f"{int(nic.guid, 16) + 1:016x}") for nic in machine.nics)
    machine = replace(machine, nics=nics)
    root = lay_out(machine, tmp_path / "root")
    rails = [nic for nic in machine.nics if nic.layer == "InfiniBand"]
    expected = [("switch", nic.switch.chassis, nic.switch.port, nic.switch.name) for nic in rails if nic.switch]
    with IbFabric(name_of("fabric"), texts.ibnetdiscover(machine, spine=True)) as fabric:
        fabric.bring_up(rails[0].guid)
        assert "State: Active" in fabric.tool(rails[3].guid, "ibstat")
        smpquery = fabric.script(tmp_path / "smpquery", "smpquery", {nic.rdma: nic.guid for nic in rails})
        settings = TopologySettings(root=root, node="ib", **QUIET | {"smpquery": smpquery})
        async with running(settings) as room, aclosing(room.follow()) as events:
            report = (await anext(events)).report
            assert report is not None
            seen = neighbours(report, "kind", "chassis", "port", "name")
            assert [seen[nic.rdma] for nic in rails] == [[each] for each in expected]
            assert {each.source for nic in report.nics[:8] for each in nic.ports[0].neighbours} == {"smpquery"}
            await _pull_out_of_the_fabric(fabric, events, machine, root)
        for words in (("ibnetdiscover",), ("ibnetdiscover", "-p"), ("iblinkinfo",), ("iblinkinfo", "-l")):
            dump = tmp_path / "-".join(words)
            dump.write_text(fabric.tool(rails[5].guid, *words), encoding="utf-8")
            async with running(replace(settings, smpquery="", fabric_file=str(dump))) as room:
                seen = neighbours(await room.report(), "kind", "chassis", "port", "name")
            assert [seen[nic.rdma] for nic in rails] == [[each] for each in expected], words


async def _pull_out_of_the_fabric(
    fabric: IbFabric, events: AsyncIterator[TopologyEvent], machine: Machine, root: Path
) -> None:
    nic = machine.nics[5]
    assert nic.switch is not None
    there = f"nic mlx5_5 port 1 neighbour {nic.switch.chassis} {nic.switch.port}"
    fabric.pull(nic.guid)
    set_link(root, nic, up=False)
    await told(events, ("nic mlx5_5 port 1 health", "state", "down"), (there, "", ""))
    fabric.put_back(nic.guid)
    set_link(root, nic, up=True)
    await told(events, ("nic mlx5_5 port 1 health", "state", "healthy"), (there, "", nic.switch.name))


def test_a_rack_as_the_real_tools_see_it(rig: Path) -> None:
    """Every tool finds all of a rack's adapters, each with its name, and one cable that was pulled out is missed."""
    rack = gb200_rack()
    adapters = {nic.guid: tray.name for tray in rack for nic in tray.nics if nic.rdma}
    first, last = rack[0].nics[0].guid, rack[-1].nics[3].guid
    with IbFabric(name_of("rack"), texts.ibnetdiscover(*rack, spine=True)) as fabric:
        fabric.bring_up(first)
        found = dumps.parse(fabric.tool(first, "ibnetdiscover"))
        assert len(found.of_kind("switch")) == 5
        assert {node.guid: node.host for node in found.of_kind("adapter")} == adapters
        assert found.unread.count == 0
        for words in (("ibnetdiscover", "-p"), ("iblinkinfo",), ("iblinkinfo", "-l")):
            named = [node.host for node in dumps.parse(fabric.tool(first, *words)).of_kind("adapter")]
            assert sorted(named) == sorted(adapters.values()), words
        fabric.pull(last)
        left = dumps.parse(fabric.tool(first, "ibnetdiscover"))
        assert {node.guid for node in left.of_kind("adapter")} == adapters.keys() - {last}
