"""Trees in the forms of others: Volcano's objects, Slurm, Topograph's labels, JSON, Graphviz, pictures."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.objects.cluster_nodes import HyperNode as HyperNodeObject
from stoker_coordinator.hypernodes import objects
from stoker_coordinator.hypernodes.exports import document, graphviz, labels, slurm
from stoker_coordinator.hypernodes.exports.svg import svg
from stoker_coordinator.hypernodes.live import Live, Options
from stoker_coordinator.hypernodes.model import HyperNode, Member, NodeFacts, Port, PortUse
from stoker_coordinator.hypernodes.rules import is_name, violations
from stoker_coordinator.hypernodes.sources import slurm as slurm_source
from tests.unit.coordinator.hypernodes.fabrics import THEN, Plan, all_facts, facts_of, source_of, spine, trunks_of

PLAN = Plan(racks=4, nodes_per_rack=3, rails=2, racks_per_pod=2)


def built(plan: Plan = PLAN, *more: NodeFacts) -> list[HyperNode]:
    live = Live()
    live.central((source_of(trunks_of(plan)),))
    for facts in [*all_facts(plan), *more]:
        live.put(facts)
    live.settle(THEN)
    return live.hypernodes()


def troubled() -> list[HyperNode]:
    """A fabric with a broken link, a node that is away, a rack that is congested, and one that is cut off."""
    live = Live()
    live.central((source_of(trunks_of(PLAN)),))
    for number, facts in enumerate(all_facts(PLAN)):
        ports = facts.ports
        if number == 1 or number >= 9:
            ports = tuple(
                replace(port, state="down", reasons=("polling",)) for port in ports[: None if number >= 9 else 1]
            )
            ports = (*ports, *facts.ports[len(ports) :])
        live.put(replace(facts, ports=ports, ready=number != 2, ready_reason="Unreachable"))
        if 3 <= number < 6:
            live.use(facts.name, [PortUse(port.nic, 1, 300, 300, 0.7) for port in facts.ports])
    live.settle(THEN)
    return live.hypernodes()


# ---------------------------------------------------------------------------------------------- Volcano


def test_objects_are_volcanos() -> None:
    written = objects.write(built())
    assert written.problems == ()
    rack, root = written.objects[0], written.objects[-1]
    plain = msgspec.json.decode(msgspec.json.encode(rack))
    assert plain["apiVersion"] == "topology.volcano.sh/v1alpha1"
    assert plain["kind"] == "HyperNode"
    assert plain["metadata"]["name"] == "ib-leaf-000-0"
    assert plain["spec"] == {
        "tier": 1,
        "members": [{"type": "Node", "selector": {"exactMatch": {"name": f"n{number:05d}"}}} for number in range(3)],
    }
    assert (rack.status.node_count, root.status.node_count) == (3, 12)
    assert rack.status.nodes == ("n00000", "n00001", "n00002")
    assert [each.type for each in root.status.conditions] == ["Healthy", "Congested", "Connected", "SourcesCurrent"]
    assert msgspec.json.decode(msgspec.json.encode(root), type=HyperNodeObject) == root


def test_children_are_written_before_their_parents() -> None:
    written = [each.metadata.name for each in objects.write(built()).objects]
    for each in built():
        for member in each.members:
            if member.type == "HyperNode":
                assert written.index(member.name) < written.index(each.name)


def test_health_is_beside_volcanos_status() -> None:
    found = {each.metadata.name: each.status for each in objects.write(troubled()).objects}
    assert [(each.name, each.reason) for each in found["ib-leaf-000-0"].unhealthy_nodes] == [("n00002", "Unreachable")]
    (link,) = found["ib-leaf-000-0"].unhealthy_links
    assert (link.a, link.b, link.reason, link.message) == ("n00001 mlx5_0/1", "leaf-000-0", "down", "polling")
    assert found["ib-leaf-001-0"].congested
    assert found["ib-leaf-001-0"].used_gbps == 3600
    assert not found["ib-leaf-002-0"].congested


def test_nodes_have_the_names_that_they_have_there() -> None:
    written = objects.write(built(), {"n00000": "worker-0.example.org"})
    names = [
        member.selector.exact_match.name for member in written.objects[0].spec.members if member.selector.exact_match
    ]
    assert "worker-0.example.org" in names


def test_what_kubernetes_would_not_take_is_left_out_and_told() -> None:
    port = Port("mlx5_0", 1, "infiniband", switch="s9")
    written = objects.write(built(PLAN, NodeFacts("Bad_Name!", ports=(port,))))
    assert "ib-s9: member Bad_Name! has no name of DNS" in written.problems
    assert "ib-s9: it has no member that can be written" in written.problems
    names = {each.metadata.name for each in written.objects}
    assert "ib-s9" not in names
    assert all("ib-s9" not in str(each.spec) for each in written.objects)


def domain(name: str, tier: int, *members: str, kind: str = "HyperNode") -> HyperNode:
    return HyperNode(name=name, fabric="f", tier=tier, members=tuple(Member(type=kind, name=m) for m in members))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("domains", "told"),
    [
        ([domain("a", 1, "n", kind="Node")], ""),
        ([domain("a", 1)], "no member"),
        ([domain("A", 1, "n", kind="Node")], "not a name of DNS"),
        ([domain("a", 1, "n", kind="Node"), domain("a", 1, "m", kind="Node")], "two of this name"),
        ([domain("a", 0, "n", kind="Node")], "tiers begin at 1"),
        ([domain("a", 1, "n", kind="Node"), domain("b", 1, "n", kind="Node")], "is in a and in b"),
        ([domain("a", 1, "n", kind="Node"), domain("b", 2, "a"), domain("c", 3, "a")], "is in b and in c"),
        ([domain("a", 2, "n", kind="Node"), domain("b", 2, "a")], "has tier 2"),
        ([domain("a", 2, "b"), domain("b", 3, "a")], "above itself"),
        ([domain("a", 1, "a")], "member of itself"),
        ([domain("a", 2, "gone")], "is not there"),
        ([domain("a", 1, "n", "n", kind="Node")], "there twice"),
    ],
)
def test_rules(domains: list[HyperNode], told: str) -> None:
    found = "; ".join(violations(domains))
    assert told in found
    assert bool(found) == bool(told)


# ---------------------------------------------------------------------------------------------- Slurm


def test_slurms_tree() -> None:
    assert slurm.tree(built()).splitlines() == [
        "# infiniband: 12 nodes, written by stoker",
        "SwitchName=ib-leaf-000-0 Nodes=n[00000-00002]",
        "SwitchName=ib-leaf-001-0 Nodes=n[00003-00005]",
        "SwitchName=ib-leaf-002-0 Nodes=n[00006-00008]",
        "SwitchName=ib-leaf-003-0 Nodes=n[00009-00011]",
        "SwitchName=ib-spine-00-0-0 Switches=ib-leaf-000-0,ib-leaf-001-0",
        "SwitchName=ib-spine-01-0-0 Switches=ib-leaf-002-0,ib-leaf-003-0",
        "SwitchName=infiniband Switches=ib-spine-[00-0-0],ib-spine-[01-0-0]".replace("[", "").replace("]", ""),
    ]


def test_slurms_tree_comes_back() -> None:
    port = Port("mlx5_0", 1, "infiniband", switch=spine(0, 0, 0), state="healthy")
    found = built(PLAN, NodeFacts("ufm", ports=(port,)))
    reading = slurm_source.read(slurm.tree(found))
    assert reading.unread.count == 0
    live = Live(Options(strangers=True))
    live.central((source_of(reading),))
    live.settle(THEN)
    mine = {frozenset(m.name for m in each.members if m.type == "Node") for each in found} - {frozenset()}
    theirs = {frozenset(m.name for m in each.members if m.type == "Node") for each in live.hypernodes()} - {frozenset()}
    assert theirs == mine
    assert live.hypernodes()[-1].node_count == 13


def test_slurms_blocks() -> None:
    lines = slurm.blocks(built()).splitlines()
    assert lines[1] == "BlockName=ib-leaf-000-0 Nodes=n[00000-00002]"
    assert lines[-1] == "BlockSizes=3,6,12"


def test_a_name_cannot_add_lines_to_slurms_file() -> None:
    port = Port("mlx5_0", 1, "infiniband", switch="s9")
    text = slurm.tree(built(PLAN, NodeFacts("evil Nodes=n1\nSwitchName=x", ports=(port,))))
    assert "evil" not in text


# ---------------------------------------------------------------------------------------------- Topograph


def test_labels_in_old_and_new_keys() -> None:
    nvlink = Port("nvlink", 0, "nvlink", switch="7e3a9c51-2f0d-4b6e-9a51-0c1d2e3f4a5b.2")
    live = Live()
    live.central((source_of(trunks_of(PLAN)),))
    for number in range(PLAN.nodes):
        live.put(facts_of(PLAN, number, more=(nvlink,) if number < 3 else ()))
    live.settle(THEN)
    found = labels.labels(live.hypernodes(), fabric="infiniband")
    assert found["n00000"] == {
        "fabric.topograph.run/tier-0": "ib-leaf-000-0",
        "fabric.topograph.run/tier-1": "ib-spine-00-0-0",
        "fabric.topograph.run/tier-2": "infiniband",
        "network.topology.nvidia.com/leaf": "ib-leaf-000-0",
        "network.topology.nvidia.com/spine": "ib-spine-00-0-0",
        "network.topology.nvidia.com/core": "infiniband",
        "accelerator.topograph.run/domain": "7e3a9c51-2f0d-4b6e-9a51-0c1d2e3f4a5b.2",
        "network.topology.nvidia.com/accelerator": "7e3a9c51-2f0d-4b6e-9a51-0c1d2e3f4a5b.2",
    }
    assert len(found["n00011"]) == 6
    assert all(
        "nvidia" not in key for key in labels.labels(live.hypernodes(), fabric="infiniband", old=False)["n00001"]
    )


@given(st.text(max_size=100))
def test_values_of_labels_are_valid(text: str) -> None:
    value = labels.value(text)
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", value)


# ---------------------------------------------------------------------------------------------- JSON and pictures


def test_json() -> None:
    found = msgspec.json.decode(document.encode(troubled()))
    (fabric,) = found["fabrics"]
    assert (fabric["name"], fabric["root"], fabric["tiers"], fabric["nodeCount"]) == ("infiniband", "infiniband", 3, 12)
    assert fabric["domains"][0]["name"] == "infiniband"
    assert msgspec.json.decode(document.encode(troubled()), type=document.TopologyDocument) == document.document(
        troubled()
    )


def test_graphviz() -> None:
    text = graphviz.dot(troubled())
    assert text.count("{") == text.count("}") == 1
    assert '"infiniband" -> "ib-spine-01-0-0";' in text
    assert '"ib-leaf-000-0" -> "infiniband/n00001" [color="#e53935" style=dashed];' in text
    assert '"ib-spine-00-0-0" -> "ib-leaf-001-0" [color="#fb8c00" penwidth=3];' in text


def words(picture: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]


def test_a_picture_shows_what_is_congested_and_what_is_broken() -> None:
    picture = svg(troubled())
    shown = words(picture)
    assert {"ib-leaf-000-0", "n00002: Unreachable", "n00001 mlx5_0: down"} <= set(shown)
    legend = 1
    assert picture.count('class="hn-line hn-congested"') == 2 + legend  # the rack, and its pod
    assert picture.count('class="hn-line hn-broken"') == 1 + legend
    assert picture.count("hn-n-down") > 3
    assert "polling" in picture
    healthy = svg(built())
    assert healthy.count('class="hn-line hn-congested"') == healthy.count('class="hn-line hn-broken"') == legend


def test_everything_in_a_picture_is_within_it() -> None:
    for domains in (built(), troubled(), built(Plan(racks=120, nodes_per_rack=4, rails=2, racks_per_pod=20))):
        root = ET.fromstring(svg(domains))
        width, height = float(root.get("width", 0)), float(root.get("height", 0))
        for each in root.iter():
            if each.get("x") is not None:
                assert 0 <= float(each.get("x", 0)) + float(each.get("width", 0)) <= width
                assert 0 <= float(each.get("y", 0)) + float(each.get("height", 0)) <= height
        assert width < 1500


def test_a_large_fabric_has_tiles_and_a_card_where_something_is_wrong() -> None:
    plan = Plan(racks=120, nodes_per_rack=4, rails=2, racks_per_pod=20)
    broken = facts_of(plan, 9)
    broken = replace(broken, ports=(replace(broken.ports[0], state="down"), *broken.ports[1:]))
    picture = svg(built(plan, broken))
    assert "n00009 mlx5_0: down" in words(picture)
    assert picture.count("hn-n hn-n-healthy") == 3 + 1  # the nodes of that rack alone, and the legend
    assert len(picture) < 120_000


def test_nothing_is_a_picture_too() -> None:
    assert "no fabric" in words(svg([]))


@given(st.text(max_size=40), st.text(max_size=40))
@settings(max_examples=60, deadline=None)
def test_no_name_breaks_a_picture(node: str, switch: str) -> None:
    """Names come from reports, where they have been made printable."""
    node, switch = ("".join(c for c in text if c.isprintable()) for text in (node, switch))
    live = Live()
    ports = (Port("mlx5_0", 1, "roce", switch="s", switch_name=switch, state="down"),)
    live.put(NodeFacts(node or "n", ports=ports))
    live.settle(THEN)
    ET.fromstring(svg(live.hypernodes(), title=node))
    assert graphviz.dot(live.hypernodes()).endswith("}\n")


def test_names_are_names() -> None:
    assert is_name("a.b-c")
    assert not is_name("a..b")
    assert not is_name("a" * 254)
