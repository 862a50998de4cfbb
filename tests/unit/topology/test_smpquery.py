"""Who is at the other end of a port of InfiniBand, by asking it."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stokerd.settings import TopologySettings
from stokerd.topology.facts import AskedPeers, FabricPeer, Ports
from stokerd.topology.outcomes import Outcome
from stokerd.topology.report import build
from stokerd.topology.smpquery import parse
from stokerd.topology.sources import Sources
from tests.rig.hardware.machines import h100
from tests.rig.hardware.tree import lay_out
from tests.unit.topology.nodes import THEN, observe

NODEINFO = b"""# Node info: DR path slid 65535; dlid 65535; 0,1
BaseVers:........................1
NodeType:........................Switch
NumPorts:........................36
SystemGuid:......................0x2c5eab0300000000
Guid:............................0x2c5eab0300000003
PortGuid:........................0x2c5eab0300000003
LocalPort:.......................17
"""
NODEDESC = b"Node Description:...........MF0;leaf-3:MQM9701/U1\n"
LEAF = FabricPeer("switch", "2c5eab0300000003", 17, "MF0;leaf-3:MQM9701/U1")


def test_what_it_prints() -> None:
    assert parse(NODEINFO, NODEDESC) == LEAF
    assert parse(NODEINFO.replace(b"Switch", b"Channel Adapter")) == FabricPeer("adapter", LEAF.guid, 17)
    assert parse(NODEINFO.replace(b"Switch", b"?")) == FabricPeer("unknown", LEAF.guid, 17)
    assert parse(b"", NODEDESC) is None
    assert parse(NODEINFO, b"Node Description:..\x1b[31mred\n") == msgspec.structs.replace(LEAF, name="red")


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_bytes_make_it_raise(one: bytes, other: bytes) -> None:
    parse(one, other)
    parse(NODEINFO + one, NODEDESC + other)


def tool(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
    path.chmod(0o755)
    return str(path)


async def asked(root: Path, smpquery: str) -> Outcome:
    settings = TopologySettings(
        root=root, nvidia_library="", nvidia_smi="", lldpcli="", lldp_listen="never", smpquery=smpquery
    )
    sources = Sources(settings, time.monotonic)
    await sources.collect("ports")
    return await sources.collect("smp")


async def test_each_port_of_infiniband_is_asked(tmp_path: Path) -> None:
    (tmp_path / "nodeinfo").write_bytes(NODEINFO)
    (tmp_path / "nodedesc").write_bytes(NODEDESC)
    root = lay_out(h100(), tmp_path / "root")
    good = tool(tmp_path / "smp", f'echo "$@" >> {tmp_path}/calls; cat {tmp_path}/$8')
    outcome = await asked(root, good)
    assert outcome == Outcome("ok", data=AskedPeers({(f"mlx5_{n}", 1): LEAF for n in range(8)}))
    calls = (tmp_path / "calls").read_text(encoding="ascii").splitlines()
    assert calls[:2] == [f"-C mlx5_0 -P 1 -t 200 -D {what} 0,1" for what in ("nodeinfo", "nodedesc")]
    assert len(calls) == 16


async def test_ports_that_do_not_answer_are_counted_and_take_no_others_with_them(tmp_path: Path) -> None:
    (tmp_path / "nodeinfo").write_bytes(NODEINFO)
    (tmp_path / "nodedesc").write_bytes(NODEDESC)
    root = lay_out(h100(), tmp_path / "root")
    some = tool(tmp_path / "smp", f'[ "$2" = mlx5_3 ] && echo timed out >&2 && exit 1; cat {tmp_path}/$8')
    outcome = await asked(root, some)
    assert (outcome.state, len(outcome.data.peers), outcome.data.unread.count) == ("ok", 7, 1)
    assert outcome.data.unread.samples == ("mlx5_3 port 1: smp ended with 1: timed out",)
    none = await asked(root, tool(tmp_path / "smp", "echo no umad >&2; exit 1"))
    assert none == Outcome("failed", "smp ended with 1: no umad")
    assert await asked(root, "no-such-smpquery") == Outcome("absent", "smpquery is not installed (infiniband-diags)")
    assert await asked(root, "") == Outcome("absent")
    assert await asked(tmp_path / "nowhere", "smpquery") == Outcome("absent")  # there are no such ports


def test_what_the_neighbour_answers_comes_before_what_a_dump_says() -> None:
    seen = msgspec.structs.replace(observe(h100()), asked={("mlx5_2", 1): LEAF})
    report = build(seen, THEN)
    (neighbour,) = report.nics[2].ports[0].neighbours
    assert (neighbour.source, neighbour.kind, neighbour.name, neighbour.port) == ("smpquery", "switch", LEAF.name, "17")
    assert report.nics[3].ports[0].neighbours[0].source == "fabric"
    assert "smpquery" in {source.name for source in report.sources}
    assert seen.hardware.rdma == Ports(seen.hardware.rdma).rdma
