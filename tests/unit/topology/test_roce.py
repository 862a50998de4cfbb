"""RDMA over Ethernet: flow control as the kernel tells it, congestion control as drivers show it, and bonds."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.objects.topology import TopologyReport
from stokerd.topology.dcb_messages import answer, question
from stokerd.topology.facts import Observation
from stokerd.topology.flow_control import read_pfc
from stokerd.topology.report import build
from tests.rig.hardware.machines import h100_roce
from tests.unit.topology.nodes import THEN, observe


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def told(pfc: bytes, *, sequence: int = 7, kind: int = 78) -> bytes:
    """Return what the kernel answers: the device's name, and what IEEE 802.1Qaz calls its settings."""
    ieee = attribute(1, b"\0" * 59) + attribute(2, pfc)
    body = struct.pack("=BBH", 0, 21, 0) + attribute(1, b"eth0\0") + attribute(13 | 1 << 15, ieee)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, sequence, 0) + body


def test_priorities_with_flow_control() -> None:
    assert answer(told(b"\x08\x0a" + b"\0" * 134), 7) == (1, 3)
    assert answer(told(b"\x08\x00"), 7) == ()
    assert answer(told(b"\x08"), 7) is None
    assert answer(told(b"\x08\x0a", sequence=6), 7) is None
    assert answer(told(b"\x08\x0a", kind=2), 7) is None
    assert question("eth0", 7)[:12] == struct.pack("=IHHI", 32, 78, 1, 7)


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    answer(data, 7)
    answer(told(data), 7)


def test_the_real_kernel_is_asked_and_says_no_of_devices_without() -> None:
    assert read_pfc(["lo", "no-such-device"]) == {}
    assert read_pfc([]) == {}


def with_pfc(seen: Observation, priorities: Mapping[str, tuple[int, ...]]) -> Observation:
    nets = tuple(msgspec.structs.replace(net, pfc=priorities.get(net.name)) for net in seen.hardware.nets)
    return msgspec.structs.replace(seen, hardware=msgspec.structs.replace(seen.hardware, nets=nets))


def test_a_port_whose_flow_control_is_not_that_of_its_siblings() -> None:
    usual = {f"rail{number}": (3,) for number in range(8)}
    assert build(with_pfc(observe(h100_roce()), usual), THEN).findings == []
    report = build(with_pfc(observe(h100_roce()), usual | {"rail5": ()}), THEN)
    (finding,) = report.findings
    assert (finding.code, finding.subjects) == ("FlowControlDiffers", ["mlx5_5"])
    assert finding.message == "port 1 of mlx5_5 has flow control (PFC) off, its siblings on for 3"
    ports = {nic.name: nic.ports[0] for nic in report.nics}
    assert (ports["mlx5_4"].pfc, ports["mlx5_5"].pfc, ports["manage0"].pfc) == ([3], [], None)
    assert (ports["mlx5_4"].ecn, ports["mlx5_8"].ecn) == ([3], None)
    assert ports["mlx5_4"].roce == ["v2"]


def test_no_two_of_few_are_the_usual_ones() -> None:
    assert build(with_pfc(observe(h100_roce()), {"rail1": (3,), "rail2": ()}), THEN).findings == []


def bonded() -> TopologyReport:
    """Both storage ports on one card, in one bond that RDMA goes over, as mlx5 does it."""
    machine = h100_roce()
    first, second = machine.nics[8:10]
    second = replace(second, rdma="", path=(*first.path[:-1], first.path[-1][:-1] + "1"), numa=first.numa)
    seen = observe(replace(machine, nics=(*machine.nics[:8], first, second, *machine.nics[10:])))
    nets = tuple(
        msgspec.structs.replace(net, bond="bond0") if net.name.startswith("store") else net
        for net in seen.hardware.nets
    )
    rdma = tuple(
        msgspec.structs.replace(
            device, name="mlx5_bond_0", ports=(msgspec.structs.replace(device.ports[0], netdev="bond0"),)
        )
        if device.name == "mlx5_8"
        else device
        for device in seen.hardware.rdma
    )
    return build(
        msgspec.structs.replace(seen, hardware=msgspec.structs.replace(seen.hardware, nets=nets, rdma=rdma)), THEN
    )


def test_a_bond_is_one_interface_with_two_cables() -> None:
    nics = {nic.name: nic for nic in bonded().nics}
    first, second = nics["mlx5_bond_0"], nics["store1"]
    assert (first.ports[0].netdev, first.ports[0].bond, first.use) == ("store0", "bond0", "storage")
    assert (second.ports[0].bond, second.use, second.use_reason) == (
        "bond0", "storage", "one of bond0, over which mlx5_bond_0 has RDMA",
    )  # fmt: skip
    assert [nic.ports[0].neighbours[0].name for nic in (first, second)] == ["leaf-20", "leaf-20"]
    assert "store0" not in nics


@pytest.mark.parametrize("rails", [8])
def test_a_bond_moves_no_rail(rails: int) -> None:
    assert [nic.rail for nic in bonded().nics if nic.use == "compute"] == list(range(rails))


def test_a_port_whose_network_device_lost_its_carrier_is_down_whatever_its_driver_says() -> None:
    seen = observe(h100_roce())
    nets = tuple(
        msgspec.structs.replace(net, up=net.name != "rail2", gbps=0.0 if net.name == "rail2" else net.gbps)
        for net in seen.hardware.nets
    )
    report = build(msgspec.structs.replace(seen, hardware=msgspec.structs.replace(seen.hardware, nets=nets)), THEN)
    port = report.nics[2].ports[0]
    assert (port.state, port.physical, port.health.state, port.gbps) == ("down", "no carrier", "down", 0)
    assert [(found.code, found.message) for found in report.findings] == [
        ("LinkDown", "port 1 of mlx5_2 (compute) is down: no carrier")
    ]
