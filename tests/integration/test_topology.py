"""Topology of a machine whose files are laid out, by a real stokerd: its links, one of them real, and who is told."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.objects.topology import TopologyReport
from tests.integration.conftest import MakeStokerd
from tests.rig.hardware import texts
from tests.rig.hardware.machines import Machine, cpu_node, h100
from tests.rig.hardware.tree import lay_out, set_link
from tests.rig.node import Node
from tests.rig.processes import run
from tests.rig.stokerd import Stokerd
from tests.unit.topology.test_room import told

NEVER = "1h"


def lay_out_with_tools(machine: Machine, root: Path) -> dict[str, str]:
    """Write the machine's files and what tools print on it; return the settings."""
    lay_out(machine, root)
    outputs = {
        "nvidia_file": texts.nvidia_smi(machine),
        "nvidia_matrix_file": texts.topo_m(machine).encode(),
        "lldp_file": texts.lldpcli(machine).encode(),
        "fabric_file": texts.ibnetdiscover(machine).encode(),
    }
    settings = {"root": str(root), "node": machine.name}
    for name, data in outputs.items():
        (root / name).write_bytes(data)
        settings[name] = str(root / name)
    return settings


@pytest.fixture
def veth() -> Iterator[tuple[str, str]]:
    """Two ends of a cable, both up."""
    ours, theirs = f"vt{os.getpid() % 10**6}a", f"vt{os.getpid() % 10**6}b"
    run(["ip", "link", "add", ours, "type", "veth", "peer", "name", theirs])
    try:
        for name in (ours, theirs):
            run(["ip", "link", "set", name, "up"])
        yield ours, theirs
    finally:
        run(["ip", "link", "del", ours])


def port_of(report: TopologyReport, name: str) -> tuple[str, str]:
    port = next(nic for nic in report.nics if nic.name == name).ports[0]
    return port.state, port.health.state


async def test_a_link_that_goes_down_is_told(node: Node, make_stokerd: MakeStokerd, tmp_path: Path) -> None:
    """No reading is due meanwhile, so that it is a look at the links that has seen it."""
    machine = h100()
    stokerd = make_stokerd(node, topology={**lay_out_with_tools(machine, tmp_path), "interval": NEVER})
    assert not any(each["event"] == "topology is known" for each in stokerd.events())  # nobody has asked
    async with stokerd.client() as client, aclosing(client.follow_topology()) as events:
        before = (await anext(events)).report
        assert before == await client.topology()
        assert before is not None
        assert (before.node, len(before.gpus), len(before.nics), before.findings) == ("h100-01", 8, 12, [])
        _see_what_is_on_the_node(before, node)
        set_link(tmp_path, machine.nics[2], up=False)
        await told(events, ("nic mlx5_2 port 1", "physical", "polling"))
        assert port_of(await client.topology(), "mlx5_2") == ("down", "down")
        _see_it_on_the_command_line(stokerd)
        set_link(tmp_path, machine.nics[2], up=True)
        await told(events, ("nic mlx5_2 port 1", "physical", "linkup"))
        after = await client.topology()
        assert port_of(after, "mlx5_2") == ("active", "healthy")
        assert {load.nic: load.losses for load in (await client.topology_load()).ports}["mlx5_2"] == 1
    _ask_with_a_tag(stokerd)
    _see_metrics_and_bundle(stokerd, tmp_path)


def _see_what_is_on_the_node(report: TopologyReport, node: Node) -> None:
    """The images and pods of the real containerd, and the disks, CPUs and memory of the machine."""
    assert report.images is not None
    assert report.pods is not None
    assert {item.name for item in report.images.items} >= {"stoker.test/pause:1"}
    assert all(item.digest.startswith("sha256:") and item.bytes > 0 for item in report.images.items)
    assert report.pods.total == len(report.pods.items)
    assert report.cpu is not None
    assert (report.cpu.sockets, report.cpu.threads, len(report.disks)) == (2, 224, 4)


def _see_metrics_and_bundle(stokerd: Stokerd, folder: Path) -> None:
    curl = ["curl", "-s", "--unix-socket", str(stokerd.socket), "http://x/metrics"]
    metrics = subprocess.run(curl, capture_output=True, text=True, check=True, timeout=20).stdout
    assert 'stoker_topology_port_up{nic="mlx5_2",port="1",use="compute"} 1.0' in metrics
    assert 'stoker_topology_port_losses_total{nic="mlx5_2",port="1",use="compute"} 1.0' in metrics
    bundle = folder / "bundle.tar.gz"
    assert stokerd.cli("support-bundle", "-o", str(bundle)).returncode == 0
    with tarfile.open(bundle) as archive:
        member = next(each for each in archive.getmembers() if each.name.endswith("/topology.json"))
        file = archive.extractfile(member)
        assert file is not None
        assert json.load(file)["node"] == "h100-01"
        assert any(each.name.endswith("/topology-load.json") for each in archive.getmembers())


def _see_it_on_the_command_line(stokerd: Stokerd) -> None:
    done = stokerd.cli("doctor")
    assert "✗ topology, mlx5_2: port 1 of mlx5_2 (compute) is down: polling" in done.stdout
    assert done.returncode == 1
    lines = stokerd.cli("topology").stdout.splitlines()
    assert "│  │  └─ PIX mlx5_2  compute rail 2 · ibp2 down → MF0;ibleaf-03:MQM9700/U1 17" in lines
    assert stokerd.cli("topology", "explain", "GPU3", "mlx5_3").stdout.startswith("GPU3 - mlx5_3: PIX\n")


def _ask_with_a_tag(stokerd: Stokerd) -> None:
    curl = ["curl", "-s", "-i", "--unix-socket", str(stokerd.socket), "http://x/v1/topology"]
    first = subprocess.run(curl, capture_output=True, text=True, check=True, timeout=20).stdout
    tag = next(line.partition(": ")[2] for line in first.splitlines() if line.lower().startswith("etag: "))
    again = subprocess.run(
        [*curl, "-H", f"If-None-Match: {tag}"], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    assert again.startswith("HTTP/1.1 304 ")
    assert json.loads(first.partition("\n\n")[2])["node"] == "h100-01"


def _say(interface: str, frame: bytes) -> None:
    """Send a frame, as the switch at that end of the cable would."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sending:
        sending.bind((interface, 0))
        sending.send(frame)


async def test_the_kernel_tells_of_a_real_carrier(
    node: Node, make_stokerd: MakeStokerd, tmp_path: Path, veth: tuple[str, str]
) -> None:
    """One network device of the machine is real. Nothing looks at it, so that it can only have been told."""
    ours, theirs = veth
    machine = cpu_node()
    machine = replace(machine, nics=(machine.nics[0], replace(machine.nics[1], netdev=ours)))
    lay_out(machine, tmp_path)
    for name in ("carrier", "operstate"):
        path = tmp_path / "sys/class/net" / ours / name
        path.unlink()
        path.symlink_to(f"/sys/class/net/{ours}/{name}")
    topology = dict.fromkeys(("interval", "link_interval", "hardware_interval", "source_interval"), NEVER)
    stokerd = make_stokerd(node, topology={**topology, "root": str(tmp_path), "lldpcli": ""})
    async with stokerd.client() as client, aclosing(client.follow_topology()) as events:
        report = (await anext(events)).report
        assert report is not None
        assert ("netlink", "ok") in [(source.name, source.state) for source in report.sources]
        assert port_of(report, ours) == ("active", "healthy")
        for state, health in (("down", "down"), ("up", "healthy")):
            run(["ip", "link", "set", theirs, state])
            await told(events, (f"nic {ours} port 1 health", "state", health))
        frame = texts.lldp_frames(machine)[ours]
        chance = random.Random(7)
        for _ in range(40):  # hostile ones before it, none of which tells of anybody
            _say(theirs, frame[:14] + chance.randbytes(chance.randrange(60)))
        _say(theirs, frame)
        switch = f"nic {ours} port 1 neighbour 0c:29:ef:00:00:33 Ethernet21"
        await told(events, (switch, "", "leaf-51"))
        run(["ip", "link", "set", theirs, "down"])
        await told(events, (f"nic {ours} port 1 health", "state", "down"), (switch, "", ""))
        nic = next(nic for nic in (await client.topology()).nics if nic.name == ours)
        assert nic.ports[0].neighbours == []
    assert stokerd.stop() == 0
