"""Dumps of InfiniBand fabrics: complete, damaged, and hostile."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.fabrics import dumps, iblinkinfo, ibnetdiscover
from stoker.fabrics.fabric import Fabric, FabricLink, own_name
from tests.rig.hardware.fabrics import two_tiers
from tests.unit.topology.captures import capture

SWITCH = """\
vendid=0x2c9
devid=0xd2f2
sysimgguid=0x2c5eab0300b87b40
switchguid=0x2c5eab0300b87b40(2c5eab0300b87b40)
Switch\t65 "S-2c5eab0300b87b40"\t\t# "MF0;leaf-1:MQM9701/U1" enhanced port 0 lid 73 lmc 0
"""


@pytest.fixture(scope="module")
def gb200_text() -> str:
    return capture("ibnetdiscover/gb200-ndr.out").decode()


@pytest.fixture(scope="module")
def gb200(gb200_text: str) -> Fabric:
    return dumps.parse(gb200_text)


def links(fabric: Fabric) -> int:
    return sum(len(node.links) for node in fabric.nodes)


# ---------------------------------------------------------------------------------------------- a real fabric


def test_a_real_fabric_is_read_completely(gb200: Fabric, gb200_text: str) -> None:
    assert len(gb200.of_kind("switch")) == 40
    assert len(gb200.of_kind("adapter")) == 582
    assert gb200.unread.count == 0
    assert links(gb200) == sum(line.startswith("[") for line in gb200_text.split("\n"))


def test_every_adapter_has_a_name_of_its_own_or_its_guid(gb200: Fabric) -> None:
    labels = [node.label for node in gb200.of_kind("adapter")]
    assert len(set(labels)) == 582
    unnamed = [node for node in gb200.of_kind("adapter") if not node.host]
    assert len(unnamed) == 69 + 40 + 3 + 2  # vendor's names, the switches' own, localhost, ubuntu
    assert all(node.label == node.guid for node in unnamed)
    assert sum("aggregation node" in node.name.lower() for node in unnamed) == 40


def test_hosts_hang_on_four_rails(gb200: Fabric) -> None:
    switches = {node.guid: node for node in gb200.of_kind("switch")}
    mine = [node for node in gb200.of_kind("adapter") if node.host == "a08-p1-dgx-04-c01"]
    leaves = {switches[link.peer].name for node in mine for link in node.links}
    assert len(mine) == 4
    assert len(leaves) == 4
    assert all(link.gbps == 400 for node in mine for link in node.links)


def test_both_ends_of_every_link_agree(gb200: Fabric) -> None:
    by_guid = {node.guid: {link.port: link for link in node.links} for node in gb200.nodes}
    for guid, ports in by_guid.items():
        for port, link in ports.items():
            back = by_guid[link.peer][link.peer_port]
            assert (back.peer, back.peer_port) == (guid, port)


# ---------------------------------------------------------------------------------------------- as people hand them on


def wrapped(text: str, columns: int, *, trimmed: bool = False) -> str:
    lines = []
    for line in text.expandtabs().split("\n"):
        while len(line) > columns:
            lines.append(line[:columns])
            line = line[columns:]
        lines.append(line)
    return "\n".join(line.rstrip() if trimmed else line for line in lines)


@pytest.mark.parametrize("columns", [60, 80, 100, 132])
def test_a_terminal_has_broken_the_lines(gb200: Fabric, gb200_text: str, columns: int) -> None:
    assert dumps.parse(wrapped(gb200_text, columns)) == gb200


def test_a_terminal_has_broken_the_lines_and_lost_their_last_blanks(gb200: Fabric, gb200_text: str) -> None:
    assert dumps.parse(wrapped(gb200_text, 80, trimmed=True)) == gb200


def test_tabs_are_lost(gb200: Fabric, gb200_text: str) -> None:
    assert dumps.parse(gb200_text.replace("\t", "")) == gb200


def test_blank_lines_are_lost_or_doubled(gb200: Fabric, gb200_text: str) -> None:
    assert dumps.parse(gb200_text.replace("\n\n", "\n").rstrip("\n")) == gb200
    assert dumps.parse(gb200_text.replace("\n", "\r\n")) == gb200
    assert dumps.parse(gb200_text.replace("\n", "\n\n")) == gb200


def test_other_encodings(gb200: Fabric, gb200_text: str) -> None:
    assert dumps.parse(gb200_text.encode("utf-16")) == gb200
    assert dumps.parse(gb200_text.encode("utf-8-sig")) == gb200


def test_a_log_with_a_banner_is_read_and_the_banner_shown(gb200: Fabric, gb200_text: str) -> None:
    logged = "=~=~=~= PuTTY log 2021.06.15 =~=~=~=\nibwarn: [6931] sim_connect: attached\n" + gb200_text
    fabric = dumps.parse(logged)
    assert fabric.nodes == gb200.nodes
    assert fabric.unread.count == 2
    assert "PuTTY" in fabric.unread.samples[0]


def test_only_switches_were_dumped(gb200: Fabric, gb200_text: str) -> None:
    only = gb200_text[: gb200_text.index("\nCa\t")]
    fabric = dumps.parse(only)
    assert len(fabric.of_kind("switch")) == 40
    assert {node.guid for node in fabric.of_kind("adapter")} == {node.guid for node in gb200.of_kind("adapter")}
    assert {node.label for node in fabric.nodes} == {node.label for node in gb200.nodes}


def test_a_switch_without_a_blank_line_after_it_counts() -> None:
    fabric = dumps.parse(SWITCH + '[1]\t"H-e09d7303007a4bd8"[1](e09d7303007a4bd8) \t\t# "n1 mlx5_5" lid 647 4xNDR')
    assert [node.kind for node in fabric.nodes] == ["switch", "adapter"]
    assert fabric.nodes[1].links[0].peer == "2c5eab0300b87b40"


def test_a_damaged_name_does_not_give_the_links_to_the_node_before() -> None:
    other = SWITCH.replace("b87b40", "b87bc0").replace('Switch\t65 "S-', "Sw?tch 65 S-")
    fabric = dumps.parse(SWITCH + "\n" + other + '[7]\t"H-e09d7303007a4bd8"[1](e09d7303007a4bd8) # "n1" lid 1 4xNDR\n')
    first, second = fabric.of_kind("switch")
    assert first.links == ()
    assert second.guid == "2c5eab0300b87bc0"
    assert second.links[0].port == 7
    assert fabric.unread.count == 1


def test_one_adapter_alone() -> None:
    fabric = dumps.parse(capture("ibnetdiscover/no-switches.out"))
    assert [(node.kind, node.host, node.device, node.links) for node in fabric.nodes] == [
        ("adapter", "dgx-gb200-n01-c1", "HCA-1", ())
    ]


def test_old_and_new_details_of_the_format() -> None:
    text = SWITCH + (
        '[22][ext 3]\t"H-0008f10403961354"[1](8f10403961355) \t\t# "MT23108 InfiniHost Mellanox Technologies" lid 4\n'
        '[6]\t"S-0x8f10400410015"[3]\t\t# "SW-6IB4 Voltaire" lid 3 4xSDR s=1 w=2\n'
        '[7]\t"R-0008f10400410016"[3]\t\t# "a "router" of mine" lid 9 12xFDR10\n'
    )
    switch = next(node for node in dumps.parse(text).nodes if node.name.startswith("MF0"))
    assert switch.links == (
        FabricLink(6, "0008f10400410015", 3, "SW-6IB4 Voltaire", 4, "SDR", peer_lid=3),
        FabricLink(7, "0008f10400410016", 3, 'a "router" of mine', 12, "FDR10", peer_lid=9),
        FabricLink(22, "0008f10403961354", 1, "MT23108 InfiniHost Mellanox Technologies", peer_lid=4),
    )
    assert dumps.parse(text).unread.count == 0


def test_a_port_that_occurs_twice_is_told() -> None:
    line = '[1]\t"H-e09d7303007a4b{}"[1](e09d7303007a4bd8) # "n1 mlx5_5" lid 647 4xNDR\n'
    assert dumps.parse(SWITCH + line.format("d8") + line.format("d9")).unread.count == 1


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("node01", ("node01", "")),
        ("node01 HCA-1", ("node01", "HCA-1")),
        ("node01 mlx5_0", ("node01", "mlx5_0")),
        ("Hca0", ("Hca0", "")),
        ("'node01 mlx5_0'", ("node01", "mlx5_0")),
        ("localhost mlx5_0", ("", "")),
        ("ubuntu HCA-1", ("", "")),
        ("(none) HCA-1", ("", "")),
        ("MT4129 ConnectX7   Mellanox Technologies", ("", "")),
        ("Mellanox Technologies Aggregation Node", ("", "")),
        ("", ("", "")),
    ],
)
def test_what_a_description_names(description: str, expected: tuple[str, str]) -> None:
    assert own_name(description) == expected


# ---------------------------------------------------------------------------------------------- reports of ports


def test_a_report_of_ports_shows_those_in_unknown_states() -> None:
    fabric = dumps.parse(capture("ibnetdiscover/ports-with-unknowns.out"))
    assert fabric.form == "ibnetdiscover -p"
    assert fabric.unread.count == 0
    ports = {(node.name, link.port): link for node in fabric.nodes for link in node.links}
    assert ports["ib-i4l1s01", 37].state == "unknown"
    assert ports["ib-i7l2s01", 80].state == "down"
    assert ports["o0001 HCA-1", 1].gbps == 100
    assert ports["o0001 HCA-1", 1].peer == "7cfe9003009ce5b0"
    assert len(ports) == 9 + 1  # the last is only seen from its other end


LINK_INFO = """\
CA: MT25408 ConnectX Mellanox Technologies:
      0x0002c90300002779      4    1[  ] ==( 4X           5.0 Gbps Active/  LinkUp)==>       3    1[  ] "kvm mlx4_0" ( )
CA: cu07 HCA-1:
      0x043f720300f744e2     20    1[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>       9    1[  ] "Quantum" ( )
Switch: 0x0c42a103008982a4 Quantum Mellanox Technologies:
           9    1[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>      20    1[  ] "cu07 HCA-1" ( )
           9    2[  ] ==( 4X       106.25 Gbps Active/  LinkUp)==>      44    1[  ] "" (Could be 12X)
           9    5[  ] ==(                Down/ Polling)==>             [  ] "" ( )
"""


def test_link_information_in_blocks_finds_peers_by_their_lids() -> None:
    fabric = dumps.parse(LINK_INFO)
    nodes = {node.guid: node for node in fabric.nodes}
    switch = nodes["0c42a103008982a4"]
    assert fabric.form == "iblinkinfo"
    assert fabric.unread.count == 0
    assert [(link.port, link.peer, link.state, link.gbps) for link in switch.links] == [
        (1, "043f720300f744e2", "up", 200),
        (2, "", "up", 400),
        (5, "", "down", 0),
    ]
    assert nodes["043f720300f744e2"].links[0].peer == switch.guid
    assert nodes["0002c90300002779"].label == "0002c90300002779"


def test_link_information_in_lines() -> None:
    fabric = iblinkinfo.parse_link_info(
        '0xf452140300f55051 "              ib-test-7 mlx4_0"     37    1[  ] ==( 4X       14.0625 Gbps '
        "Active/  LinkUp)==>"
        '  0xf45214030067c630      5   16[  ] "MF0;switch-e1be74:SX6036/U1" ( )\n'
        '0xf45214030067c630 "MF0;switch-e1be74:SX6036/U1"      5   18[  ] ==(                Down/ Polling)==>'
        '             [  ] "" ( )\n'
    )
    assert fabric.unread.count == 0
    adapter, switch = sorted(fabric.nodes, key=lambda node: node.kind)
    assert (adapter.kind, adapter.host, adapter.links[0].speed) == ("adapter", "ib-test-7", "FDR")
    assert [(link.port, link.state) for link in switch.links] == [(18, "down")]


# ---------------------------------------------------------------------------------------------- of the real tools


IBSIM = Path(__file__).parents[2] / "data/topology/ibsim"
TOOLS = sorted(path.stem for path in IBSIM.glob("*.txt"))


def cables(fabric: Fabric) -> set[tuple[str, int, str, int]]:
    """Return all links that are up, from both ends, by names."""
    names = {node.guid: node.name for node in fabric.nodes}
    return {
        (node.name, link.port, names[link.peer], link.peer_port)
        for node in fabric.nodes
        for link in node.links
        if link.state == "up"
    }


@pytest.mark.parametrize("tool", TOOLS)
def test_what_the_real_tools_print_of_a_fabric(tool: str) -> None:
    built = dumps.parse((IBSIM / "net").read_bytes())
    printed = dumps.parse((IBSIM / f"{tool}.txt").read_bytes())
    assert printed.unread.count == 0
    assert (len(printed.of_kind("switch")), len(printed.of_kind("adapter"))) == (4, 6)
    assert cables(printed) == cables(built)
    assert len(cables(built)) == 2 * (6 + 3 * 2)
    assert {link.gbps for node in printed.nodes for link in node.links if link.state == "up"} == {200}
    assert {node.label for node in printed.of_kind("adapter")} == {f"node-0 mlx5_{index}" for index in range(6)}


def test_all_tools_are_there() -> None:
    assert TOOLS == [
        "iblinkinfo",
        "iblinkinfo-l",
        "iblinkinfo-p",
        "ibnetdiscover",
        "ibnetdiscover-f",
        "ibnetdiscover-g",
        "ibnetdiscover-p",
    ]


# ---------------------------------------------------------------------------------------------- hostile, large


PARSERS = (dumps.parse, ibnetdiscover.parse, iblinkinfo.parse_ports, iblinkinfo.parse_link_info)


@pytest.mark.parametrize("parse", PARSERS)
@given(data=st.binary(max_size=400))
@settings(max_examples=60)
def test_no_bytes_make_a_parser_raise(parse: object, data: bytes) -> None:
    assert callable(parse)
    fabric = parse(data)
    assert isinstance(fabric, Fabric)


SAMPLE = SWITCH + '[1]\t"H-e09d7303007a4bd8"[1](e09d7303007a4bd8) \t\t# "n1 mlx5_5" lid 647 4xNDR\n' + LINK_INFO


@given(st.data())
@settings(max_examples=200)
def test_no_damage_makes_a_parser_raise(data: st.DataObject) -> None:
    text = list(SAMPLE)
    for _ in range(data.draw(st.integers(1, 12))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place] = data.draw(st.sampled_from(["", "\n", '"', "[", "]", "#", "(", "0", "x", " ", "\x00", "é"]))
    for parse in PARSERS:
        parse("".join(text))


@given(st.data())
@settings(max_examples=150)
def test_no_port_is_lost_silently(gb200_text: str, data: st.DataObject) -> None:
    """Whatever happens to one line of a port: the link is still there, or the line is counted."""
    block = gb200_text[gb200_text.index("vendid") :].split("\n\n", 1)[0].split("\n")
    whole = dumps.parse("\n".join(block))
    victim = data.draw(st.integers(5, len(block) - 1))
    start = data.draw(st.integers(0, len(block[victim]) - 1))
    end = data.draw(st.integers(start + 1, len(block[victim])))
    block[victim] = block[victim][:start] + block[victim][end:]
    found = dumps.parse("\n".join(block))
    lost = links(whole) - links(found)
    # Cut to nothing, it is no line; a cut number may make it another port's.
    assert lost <= 2 * found.unread.count or not block[victim].strip()


@pytest.mark.parametrize("filler", ['"', "[1]", "(", " ", '[1]"H-1"[1]#"', "==(", "0", "\t"])
def test_a_very_long_line_takes_no_time(filler: str) -> None:
    hostile = SAMPLE + (filler * (500_000 // len(filler)))
    begun = time.process_time()
    for parse in PARSERS:
        parse(hostile)
    assert time.process_time() - begun < 2


def test_a_large_fabric_is_read_in_time() -> None:
    text = two_tiers(400, 2300)
    fabric = dumps.parse(text)
    took = []
    for _ in range(2):
        begun = time.process_time()
        dumps.parse(text)
        took.append(time.process_time() - begun)
    assert len(fabric.of_kind("adapter")) == 2300
    assert fabric.unread.count == 0
    assert min(took) <= 0.3
