"""What central sources say, and what is made of answers that are broken, hostile, or nothing at all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker_coordinator.hypernodes import hostlist
from stoker_coordinator.hypernodes.explain import why
from stoker_coordinator.hypernodes.labels import LabelTopology
from stoker_coordinator.hypernodes.learning import failed, learn
from stoker_coordinator.hypernodes.live import Live, Options
from stoker_coordinator.hypernodes.model import Attachment, HyperNode, NodeFacts, Port, Reading, SourceState
from stoker_coordinator.hypernodes.sources import fabric_dumps, netq, slurm, static, ufm
from tests.unit.coordinator.hypernodes.fabrics import THEN, source_of
from tests.unit.topology.captures import capture


def shape(domains: list[HyperNode]) -> dict[str, set[str]]:
    return {each.name: {member.name for member in each.members} for each in domains}


def built(*readings: Reading, options: Options | None = None) -> list[HyperNode]:
    live = Live(options or Options(strangers=True))
    live.central(tuple(source_of(reading) for reading in readings))
    live.settle(THEN)
    return live.hypernodes()


# ---------------------------------------------------------------------------------------------- UFM


def ufm_port(name: str, peer: str, *, host: str = "", switch: str = "", up: bool = True, **more: Any) -> dict[str, Any]:
    own, _, number = name.partition("_")
    return {
        "description": "Computer IB Port" if host else "Switch IB Port",
        "number": int(number),
        "external_number": int(number),
        "physical_state": "Link Up" if up else "Polling",
        "logical_state": "Active" if up else "Down",
        "tier": 4 if host else 3,
        "active_speed": "NDR",
        "active_width": "4x",
        "systemID": own,
        "guid": own,
        "name": name,
        "peer": peer,
        "peer_guid": peer.partition("_")[0],
        "system_name": host or switch,
        "node_description": f"{host} mlx5_0" if host else f"MF0;{switch}:MQM9700/U1",
        "peer_node_name": switch if host else "",
        **more,
    }


LEAF_1, LEAF_2, SPINE = "2c5eab0300000001", "2c5eab0300000002", "2c5eab0300000099"
PORTS = [
    ufm_port("a088c20300000001_1", f"{LEAF_1}_1", host="n1", switch="leaf-1"),
    ufm_port("a088c20300000002_1", f"{LEAF_1}_2", host="n2", switch="leaf-1"),
    ufm_port("a088c20300000003_1", f"{LEAF_2}_1", host="N3", switch="leaf-2"),
    ufm_port(f"{LEAF_1}_1", "a088c20300000001_1", switch="leaf-1", peer_node_description="n1 mlx5_0"),
    ufm_port(f"{LEAF_1}_40", f"{SPINE}_1", switch="leaf-1"),
    ufm_port(f"{SPINE}_1", f"{LEAF_1}_40", switch="spine-1"),
    ufm_port(f"{SPINE}_2", f"{LEAF_2}_40", switch="spine-1"),
    ufm_port(f"{LEAF_2}_40", f"{SPINE}_2", switch="leaf-2"),
]


def test_ufm() -> None:
    reading = ufm.read(json.dumps(PORTS))
    assert reading.unread.count == 0
    assert [(each.host, each.switch, each.gbps) for each in reading.attachments] == [
        ("n1", LEAF_1, 400),
        ("n2", LEAF_1, 400),
        ("N3", LEAF_2, 400),
    ]
    assert [(each.one, each.other, each.links, each.gbps) for each in reading.trunks if each.other == SPINE] == [
        (LEAF_1, SPINE, 1, 400),
        (LEAF_2, SPINE, 1, 400),
    ]
    assert shape(built(reading)) == {
        "ib-leaf-1": {"n1", "n2"},
        "ib-leaf-2": {"n3"},
        "infiniband": {"ib-leaf-1", "ib-leaf-2"},
    }


@pytest.mark.parametrize("nothing", ["", "N/A", None, "NA", "0x0"])
def test_ports_without_a_peer_are_on_no_switch(nothing: str | None) -> None:
    """Else all hosts with a port that is down would be on one switch called N/A, and one domain."""
    down = [
        ufm_port(f"a088c203000000{number:02x}_2", "", host=f"n{number}", up=False)
        | {"peer_node_name": nothing, "peer": nothing, "peer_guid": nothing, "peer_node_guid": nothing}
        for number in range(1, 4)
    ]
    assert ufm.read(json.dumps([*PORTS, *down])).attachments == ufm.read(json.dumps(PORTS)).attachments


def test_a_host_that_ufm_has_no_name_for_is_known_by_its_guid() -> None:
    nameless = ufm_port("a088c20300000009_1", f"{LEAF_2}_9", host="localhost", switch="leaf-2")
    reading = ufm.read(json.dumps([*PORTS, nameless]))
    assert reading.unnamed == 1
    live = Live()
    live.central((source_of(reading),))
    live.put(NodeFacts("n9", ports=(Port("mlx5_0", 1, "infiniband", aliases=("a088c20300000009",)),)))
    live.settle(THEN)
    assert shape(live.hypernodes())["ib-leaf-2"] == {"n9"}


@pytest.mark.parametrize("answer", [{"ports": PORTS}, {"data": PORTS}])
def test_ufm_in_pages(answer: object) -> None:
    assert len(ufm.read(json.dumps(answer)).attachments) == 3


# ---------------------------------------------------------------------------------------------- NetQ


def test_netq() -> None:
    reading = netq.read(capture("netq/topologyGraph.json"))
    assert reading.unread.count == 0
    assert shape(built(reading)) == {
        "roce-net-unit-l1": {"dgx-01", "dgx-02", "dgx-03", "dgx-04"},
        "roce-net-unit-l2": {"dgx-05", "dgx-06", "dgx-07", "dgx-08"},
        "roce": {"roce-net-unit-l1", "roce-net-unit-l2"},
    }


def graph(*links: str) -> str:
    nodes = [("s1", "spine", 2), ("l1", "leaf-1", 1), ("l2", "leaf-2", 1), ("h1", "n1", -1), ("h2", "n2", -1)]
    return json.dumps(
        {
            "nodes": [
                {"compounded_nodes": [{"id": i, "name": name, "tier": tier} for i, name, tier in nodes], "tier": 1}
            ],
            "links": [{"id": link} for link in links],
        }
    )


def test_netqs_switches_are_those_that_lldp_knows_by_their_chassis() -> None:
    reading = netq.read(graph("l1-*-s1", "s1-*-l2", "l1-*-l2", "h1-*-l1"))
    assert [each.one for each in reading.trunks] == ["name:leaf-1", "name:leaf-2"]
    live = Live()
    live.central((source_of(reading),))
    for number, name in enumerate(["leaf-1", "leaf-2"], start=1):
        port = Port("mlx5_0", 1, "roce", switch=f"0c:29:ef:00:00:0{number}", switch_name=name, state="healthy")
        live.put(NodeFacts(f"n{number}", ports=(port,)))
    live.settle(THEN)
    found = live.hypernodes()
    assert shape(found) == {"roce-leaf-1": {"n1"}, "roce-leaf-2": {"n2"}, "roce": {"roce-leaf-1", "roce-leaf-2"}}
    assert [switch.name for switch in found[-1].switches] == ["spine"]


def test_a_link_to_what_is_not_there_is_counted() -> None:
    reading = netq.read(graph("l1-*-gone", "nonsense", "h1-*-l1"))
    assert (reading.unread.count, len(reading.attachments)) == (2, 1)


def test_nvlink_domains_of_nmx() -> None:
    reading = netq.read_domains(capture("netq/computeNodes.json"))
    assert reading.unread.count == 0
    assert {each.host for each in reading.attachments} == {"node1", "node2"}
    assert all(each.fabric == "nvlink" for each in built(reading))


# ---------------------------------------------------------------------------------------------- Slurm, files, labels

TOPOLOGY_CONF = """\
# written by hand
SwitchName=core Switches=pod[1-2]
SwitchName=pod1 Switches=leaf1,leaf2 LinkSpeed=100
switchname=pod2 switches=leaf3
SwitchName=leaf1 Nodes=n[01-03]
SwitchName=leaf2 \\
  Nodes=n04,n05
SwitchName=leaf3 Nodes=n06
"""


def test_topology_conf() -> None:
    reading = slurm.read(TOPOLOGY_CONF)
    assert reading.unread.count == 0
    assert shape(built(reading)) == {
        "slurm-leaf1": {"n01", "n02", "n03"},
        "slurm-leaf2": {"n04", "n05"},
        "slurm-leaf3": {"n06"},
        "slurm-pod1": {"slurm-leaf1", "slurm-leaf2"},
        "slurm-pod2": {"slurm-leaf3"},
        "slurm": {"slurm-pod1", "slurm-pod2"},
    }


def test_blocks() -> None:
    reading = slurm.read("BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n3\nBlockSizes=2,4\n")
    assert reading.unread.count == 0
    assert shape(built(reading)) == {"slurm-b1": {"n1", "n2"}, "slurm-b2": {"n3"}, "slurm": {"slurm-b1", "slurm-b2"}}


@pytest.mark.parametrize(
    ("line", "unread"),
    [
        ("what is this", 1),
        ("SwitchName=a Nodes=n[1-", 1),
        ("SwitchName=a Nodes=n[1-999999999]", 1),
        ("SwitchName=a Switches=a", 1),
        ("SwitchName=leaf9 Nodes=n01", 1),  # it is on leaf1
        ("SwitchName=pod9 Switches=leaf1", 1),
    ],
)
def test_what_is_wrong_in_topology_conf_is_counted(line: str, unread: int) -> None:
    reading = slurm.read(TOPOLOGY_CONF + line + "\n")
    assert reading.unread.count == unread
    assert len(reading.attachments) == 6


STATIC = """\
fabric: InfiniBand
switches:
  - {name: leaf-1, id: "0x2c5eab0300000001", nodes: "n[1-2]", links: [spine-1, spine-2]}
  - {name: leaf-2, nodes: [n3], links: spine-1}
"""


def test_a_file_with_links() -> None:
    reading = static.read(STATIC)
    assert reading.unread.count == 0
    assert shape(built(reading)) == {
        "ib-leaf-1": {"n1", "n2"},
        "ib-leaf-2": {"n3"},
        "infiniband": {"ib-leaf-1", "ib-leaf-2"},
    }


@pytest.mark.parametrize("known_by", ['id: "0C-29-EF-00-00-0{}", ', ""], ids=["by MAC address", "by name"])
def test_a_file_with_switches_of_ethernet_as_nodes_know_them(known_by: str) -> None:
    """Nodes know a switch by the MAC address that it tells by LLDP, people by its name; both are understood."""
    lines = [f"  - {{name: leaf-{n}, {known_by.format(n)}links: [spine-1, spine-2]}}" for n in (1, 2)]
    reading = static.read("\n".join(["fabric: roce", "switches:", *lines]))
    assert reading.unread.count == 0
    live = Live()
    live.central((source_of(reading),))
    for n in (1, 2):
        seen = Port("mlx5_0", 1, "roce", switch=f"0c:29:ef:00:00:0{n}", switch_name=f"leaf-{n}", state="healthy")
        live.put(NodeFacts(f"n{n}", ports=(seen,)))
    live.settle(THEN)
    assert shape(live.hypernodes()) == {
        "roce-leaf-1": {"n1"},
        "roce-leaf-2": {"n2"},
        "roce": {"roce-leaf-1", "roce-leaf-2"},
    }
    (root,) = (each for each in live.hypernodes() if each.tier == 2)
    assert [each.name for each in root.switches] == ["spine-1", "spine-2"]
    assert why(live, "n1", "spine-2").found


def test_a_file_with_a_tree() -> None:
    text = 'fabric = "rooms"\n[[switches]]\nname = "rack-1"\nnodes = "n1"\nparent = "row-1"\n'
    reading = static.read(text, toml=True)
    assert reading.unread.count == 0
    assert shape(built(reading)) == {"rooms-rack-1": {"n1"}, "rooms": {"rooms-rack-1"}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        "switches: 7",
        "a: &a [x]\nb: *a",
        "switches: [{nodes: n1}, 7]",
        "switches: [{name: a, nodes: 'n['}]",
        "switches: [{name: a, colour: red}]",
        "!!python/object/apply:os.system [ls]",
        "{" * 1000,
    ],
)
def test_files_that_are_wrong(text: str) -> None:
    reading = static.read(text)
    assert reading.unread.count >= 1
    assert reading.attachments == ()


def test_labels() -> None:
    """The same rack in two blocks is two racks, and a node without a rack hangs on its block."""
    live = Live(Options(labels=(LabelTopology("places", ("block", "rack", "kubernetes.io/hostname")),)))
    for name, labels in {
        "n1": {"block": "b1", "rack": "r1", "kubernetes.io/hostname": "n1"},
        "n2": {"block": "b2", "rack": "r1", "kubernetes.io/hostname": "n2"},
        "n3": {"block": "b2"},
        "n4": {"rack": "r1"},
    }.items():
        live.put(NodeFacts(name, labels=labels))
    live.settle(THEN)
    assert shape(live.hypernodes()) == {
        "places-b1-r1": {"n1"},
        "places-b2-r1": {"n2"},
        "places-b1": {"places-b1-r1"},
        "places-b2": {"places-b2-r1", "n3"},
        "places": {"places-b1", "places-b2"},
    }


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10],m", ["n08", "n09", "n10", "m"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("n[3-1]", None),
        ("n[a]", None),
        ("n]", None),
        ("n[1-99999999]", None),
        ("a[1-9][1-9][1-9][1-9][1-9][1-9][1-9][1-9][1-9]", None),
    ],
)
def test_host_lists(text: str, names: list[str] | None) -> None:
    assert hostlist.expand(text) == names


@given(st.sets(st.from_regex(r"[a-c]{1,2}-?[0-9]{0,4}", fullmatch=True), max_size=40))
def test_host_lists_come_back(names: set[str]) -> None:
    assert set(hostlist.expand(hostlist.fold(names)) or []) == names


# ---------------------------------------------------------------------------------------------- two sources, no source


def test_a_report_counts_before_a_central_source_and_the_difference_is_told() -> None:
    reading = Reading(
        source="ufm", fabric="infiniband", attachments=(Attachment("s2", "n1", "g1"), Attachment("s2", "n2", "g2"))
    )
    live = Live()
    live.central((source_of(reading),))
    live.put(NodeFacts("n1", ports=(Port("mlx5_0", 1, "infiniband", switch="s1", aliases=("g1",)),)))
    live.put(NodeFacts("n2", ports=(Port("mlx5_0", 1, "infiniband", aliases=("g2",)),)))
    live.settle(THEN)
    assert shape(live.hypernodes())["ib-s1"] == {"n1"}
    assert live.ports("n1")[0].disputed == "ufm says s2"
    assert shape(live.hypernodes())["ib-s2"] == {"n2"}


def test_a_cable_that_moved_while_the_node_did_not_see_it() -> None:
    reading = Reading(source="ufm", fabric="infiniband", attachments=(Attachment("s2", "n1", "g1"),))
    live = Live()
    live.central((source_of(reading),))
    live.put(NodeFacts("n1", ports=(Port("mlx5_0", 1, "infiniband", switch="s1", aliases=("g1",), lost=THEN),)))
    live.settle(THEN)
    assert shape(live.hypernodes())["ib-s2"] == {"n1"}


def test_hosts_that_are_no_nodes_are_no_members_unless_wanted() -> None:
    reading = Reading(
        source="ufm", fabric="infiniband", attachments=(Attachment("s1", "n1", "g1"), Attachment("s1", "ufm"))
    )
    live = Live()
    live.central((source_of(reading),))
    live.put(NodeFacts("n1.example.org"))
    live.settle(THEN)
    assert shape(live.hypernodes())["ib-s1"] == {"n1.example.org"}
    assert shape(built(reading))["ib-s1"] == {"n1", "ufm"}


def test_a_source_that_fails_or_says_nothing_deletes_nothing() -> None:
    full = ufm.read(json.dumps(PORTS))
    state = learn(SourceState("ufm"), full, THEN)
    live = Live(Options(strangers=True))
    live.central((state,))
    live.settle(THEN)
    before = shape(live.hypernodes())
    later = THEN + timedelta(minutes=10)
    for bad in (
        learn(state, ufm.read("[]"), later),
        failed(state, "no route", later),
        learn(state, ufm.read("<html>"), later),
    ):
        assert bad.state == "failed"
        assert bad.reading is full
        live.central((bad,))
        delta = live.settle(later)
        assert shape(live.hypernodes()) == before
        assert delta.removed == ()
        root = live.hypernodes()[-1]
        (current,) = [each for each in root.conditions if each.type == "SourcesCurrent"]
        assert current.status == "False"
        assert bad.reason in current.message
        assert current.last_transition_time == later
    live.central((learn(bad, full, later),))
    live.settle(later)
    assert live.hypernodes()[-1].conditions[-1].status == "True"


def test_half_a_fabric_is_believed_when_it_is_said_three_times() -> None:
    full, less = ufm.read(json.dumps(PORTS)), ufm.read(json.dumps(PORTS[:1]))
    state = learn(SourceState("ufm"), full, THEN)
    for number in range(1, 3):
        state = learn(state, less, THEN + timedelta(minutes=number))
        assert (state.state, state.reading, state.held) == ("held", full, number)
        assert state.since == THEN + timedelta(minutes=1)
    assert learn(state, full, THEN).held == 0
    assert learn(state, less, THEN + timedelta(minutes=3)).reading == less


def test_the_same_answer_again_changes_nothing() -> None:
    state = learn(SourceState("ufm"), ufm.read(json.dumps(PORTS)), THEN)
    live = Live(Options(strangers=True))
    live.central((state,))
    live.settle(THEN)
    again = learn(state, ufm.read(json.dumps(PORTS)), THEN + timedelta(minutes=1))
    assert again.reading is state.reading
    live.central((again,))
    assert live.settle(THEN + timedelta(minutes=1)).changed == ()


# ---------------------------------------------------------------------------------------------- hostile

READERS: list[Callable[[Any], Reading]] = [
    ufm.read,
    netq.read,
    netq.read_domains,
    slurm.read,
    static.read,
    fabric_dumps.read,
]
FIELDS = (
    "nodes links id name tier compounded_nodes compounded_links ports guid description peer switches fabric parent Name"
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS.split()), inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.parametrize("read", READERS)
@given(data=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=80, deadline=None)
def test_no_answer_makes_a_reader_raise(read: Callable[[Any], Reading], data: bytes) -> None:
    reading = read(data)
    built(reading)


@given(st.lists(st.sampled_from(PORTS), max_size=6), JSON, st.sampled_from(sorted(PORTS[0])))
@settings(max_examples=150, deadline=None)
def test_no_value_makes_ufms_reader_raise(ports: list[dict[str, Any]], value: object, name: str) -> None:
    ufm.read(json.dumps([{**port, name: value} for port in ports]))


@pytest.mark.parametrize("read", READERS)
def test_large_answers_take_no_time(read: Callable[[Any], Reading]) -> None:
    begun = time.process_time()
    for data in (
        "[" * 200_000,
        "SwitchName=a Nodes=" + "n[1-9]," * 20_000,
        '{"a":' * 50_000,
        "x" * 1_000_000,
        "=" * 500_000,
        "\t" * 900_000 + "=",
    ):
        read(data)
    assert time.process_time() - begun < 10


def test_names_with_control_characters_stay_out_of_names() -> None:
    evil = ufm_port("a088c20300000001_1", f"{LEAF_1}_1", host="n1\x1b[2J\n\u202e", switch="leaf\x00\n<script>")
    (domain, root) = built(ufm.read(json.dumps([evil])))
    assert domain.name == "ib-leaf-script"
    assert root.name == "infiniband"
    assert all(char.isprintable() for member in domain.members for char in member.name)


def test_a_reading_without_a_weight_is_worth_nothing() -> None:
    assert Reading(source="x", fabric="y").weight == 0
    assert replace(ufm.read(json.dumps(PORTS)), trunks=()).weight == 3
