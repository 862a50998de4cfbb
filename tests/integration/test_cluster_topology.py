"""A coordinator and three real nodes whose NICs hang on real switches: HyperNodes, whatever is pulled out or killed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.rig.cluster import Cluster
from tests.rig.node import Node
from tests.rig.rack import Rack, server
from tests.rig.waiting import until

SPINES = """\
fabric: roce
switches:
  - {name: leaf-01, id: "0c:29:ef:00:00:01", links: [spine-1, spine-2], gbps: 400}
  - {name: leaf-02, id: "0c:29:ef:00:00:02", links: [spine-1, spine-2], gbps: 400}
  - {name: leaf-03, links: [spine-1, spine-2], gbps: 400}
  - {name: leaf-04, links: [spine-1, spine-2], gbps: 400}
"""
PAIR, SINGLE = frozenset(("node1", "node2")), frozenset(("node3",))


class Scene:
    """The cluster and what its machines hang on.

    A domain is called after the switch that was heard first: once all is known, that is ``pair`` and ``single``.
    """

    def __init__(self, cluster: Cluster, rack: Rack) -> None:
        self.cluster, self.rack, self.coordinator = cluster, rack, cluster.coordinator
        self.pair = self.single = ""

    def domains(self) -> dict[str, dict[str, Any]]:
        return {each["metadata"]["name"]: each for each in self.coordinator.all("hypernodes")}

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.coordinator.get("hypernodes", name)["status"]
        return found

    def stoker(self, *arguments: str, expected: int = 0) -> str:
        done = self.coordinator.cli("topology", *arguments)
        assert done.returncode == expected, done.stderr
        return done.stdout

    def heard(self) -> bool:
        """Have all switches speak; say whether each is known, and all is well."""
        self.rack.speak()
        found = self.domains()
        named = {members(each): name for name, each in found.items()}
        if not {PAIR, SINGLE} <= named.keys() or any(unwell(each) for each in found.values()):
            return False
        self.pair, self.single = named[PAIR], named[SINGLE]
        switches = [found[name]["status"]["switches"] for name in (self.pair, self.single)]
        return switches == [["leaf-01", "leaf-02"], ["leaf-03", "leaf-04"]]

    def all_as_it_was(self, before: Mapping[str, Mapping[str, Any]]) -> bool:
        """Say whether the objects are those of before, with the same members; how these are doing is another matter."""
        return identity(self.domains()) == identity(before)


def identity(domains: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, frozenset[str]]]:
    return {name: (each["metadata"]["uid"], members(each)) for name, each in domains.items()}


def members(domain: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(each["selector"]["exactMatch"]["name"] for each in domain["spec"]["members"])


def condition(status: Mapping[str, Any], kind: str) -> str:
    return next((each["status"] for each in status.get("conditions", ()) if each["type"] == kind), "")


def unwell(domain: Mapping[str, Any]) -> bool:
    return condition(domain.get("status", {}), "Healthy") != "True"


@pytest.fixture(scope="module")
def scene(rig: Path, suite: str) -> Iterator[Scene]:
    """node1 and node2 on the same two leaves, node3 on two others; a file tells of the spines above."""
    machines = (server("node1", 1, 2), server("node2", 1, 2), server("node3", 3, 4))
    directory = rig / f"topology-{suite}"
    directory.mkdir()
    spines = directory / "spines.yaml"
    spines.write_text(SPINES, encoding="ascii")
    rack = Rack(f"{suite}-rack", machines, directory / "machines")
    nodes = [Node(f"{suite}-topology{number}", suite, workdir=rig) for number in (1, 2, 3)]
    settings = [{"topology": {**rack.settings(index), "interval": "1s"}} for index in range(3)]
    fabric = {"fabric": {"static": str(spines), "interval": "1s"}}
    cluster = Cluster(directory, nodes, settings=settings, coordinator=fabric)
    try:
        rack.start()
        for node in nodes:
            node.start()
        cluster.start()
        made = Scene(cluster, rack)
        until("all links are known", made.heard, timeout=60, interval=0.2)
        yield made
    finally:
        cluster.stop()
        rack.stop()
        for node in nodes:
            node.stop()


def test_the_tree_as_objects_and_as_people_and_schedulers_see_it(scene: Scene) -> None:
    domains, pair, single = scene.domains(), scene.pair, scene.single
    assert {name: each["spec"]["tier"] for name, each in domains.items()} == {"roce": 2, pair: 1, single: 1}
    assert members(domains["roce"]) == {pair, single}
    assert pair in {"roce-leaf-01", "roce-leaf-02"}
    near, root = domains[pair]["status"], domains["roce"]["status"]
    assert (near["nodeCount"], near["capacityGbps"], near["oversubscription"]) == (2, 1600, 1)
    assert (root["nodeCount"], root["switches"]) == (3, ["spine-1", "spine-2"])
    assert (condition(root, "Connected"), condition(root, "SourcesCurrent")) == ("True", "True")

    assert set(scene.stoker().splitlines()) == {
        "roce  3 nodes · 2400 Gb/s",
        f"├─ {pair}  2 nodes · 1600 Gb/s · 1:1 up  node1, node2",
        f"└─ {single}  1 node · 800 Gb/s · 0.5:1 up  node3",
    }
    written = scene.stoker("--format", "slurm-tree")
    assert f"SwitchName={pair} Nodes=node[1-2]\nSwitchName={single} Nodes=node3\n" in written
    assert f"SwitchName=roce Switches=roce-leaf-[{pair[-2:]},{single[-2:]}]\n" in written

    edge = scene.stoker("why", "node2", "leaf-02").splitlines()[0]
    assert edge.startswith("node2 mlx5_1/1 - leaf-02: ")
    assert "its port Ethernet2 since " in edge
    assert edge.endswith("[report/lldp]")
    far = scene.stoker("why", "node3", "spine-2")
    assert "leaf-03 - spine-2: 1 link, 400 Gb/s [static]" in far
    assert f"the node is in {single} by 2 of its 2 links" in far
    assert "no way to that switch is known" in scene.stoker("why", "node1", "leaf-99", expected=1)


def test_a_pulled_cable_is_marked_and_moves_nobody(scene: Scene) -> None:
    before, pair = scene.domains(), scene.pair
    scene.rack.pull("node2", "mlx5_1")
    until("the link is marked", lambda: scene.status(pair).get("unhealthyLinks"))
    status = scene.status(pair)
    (link,) = status["unhealthyLinks"]
    assert (link["a"], link["b"], link["reason"]) == ("node2 mlx5_1/1", "leaf-02", "down")
    assert (condition(status, "Healthy"), status["nodes"]) == ("False", ["node1", "node2"])
    until("the root says so, too", lambda: unwell(scene.domains()["roce"]))
    shown = scene.stoker()
    assert f"{pair}  2 nodes · 1600 Gb/s · 1:1 up · 1 bad link  node1, node2" in shown
    assert "node2 mlx5_1/1 - leaf-02: down" in shown
    assert "mlx5_1/1 is down" in scene.stoker("why", "node2", "leaf-02")
    assert not unwell(scene.domains()[scene.single])

    scene.rack.put_back("node2", "mlx5_1")
    until("the link is well", lambda: not unwell(scene.domains()[pair]))
    assert scene.all_as_it_was(before)


def test_a_switch_that_calls_itself_otherwise_is_the_same_switch(scene: Scene) -> None:
    """leaf-04 is known to the file by its name alone, leaf-02 by its address."""
    before = scene.domains()
    scene.rack.switches.rename("leaf-02", "row-b-7")
    until("the node tells of it", lambda: "row-b-7" in scene.cluster.members[1].stokerd.cli("topology").stdout)
    scene.rack.pull("node2", "mlx5_1")
    until("it is called so", lambda: "row-b-7" in {each["b"] for each in unhealthy_links(scene)})
    scene.rack.put_back("node2", "mlx5_1")
    until("all is well", lambda: not unwell(scene.domains()["roce"]))
    assert scene.all_as_it_was(before)
    assert scene.coordinator.ask("/topology/why?node=node1&switch=leaf-02")["found"]


def unhealthy_links(scene: Scene) -> list[dict[str, str]]:
    found: list[dict[str, str]] = scene.status(scene.pair).get("unhealthyLinks", [])
    return found


def test_a_node_that_is_down_keeps_its_place_also_when_the_coordinator_starts_anew(scene: Scene) -> None:
    before, single = scene.domains(), scene.single
    lost = scene.cluster.members[2].stokerd
    lost.kill()
    until("the node is marked", lambda: scene.status(single).get("unhealthyNodes"), timeout=30)
    scene.coordinator.kill()
    scene.coordinator.start()
    assert ready(scene).keys() == before.keys()  # at once: nobody is ever told of an empty fabric
    until("the others are back", lambda: scene.cluster.is_ready("node1") and scene.cluster.is_ready("node2"))
    until("they alone are ready", lambda: ready(scene) == {"roce": 2, scene.pair: 2, single: 0})
    assert scene.all_as_it_was(before)
    until("its object says so", lambda: scene.status(single).get("unhealthyNodes"))
    (gone,) = scene.status(single)["unhealthyNodes"]
    assert (gone["name"], gone["message"]) == ("node3", "the node does not report")
    assert f"{single}  1 node, 0 ready · 800 Gb/s · 0.5:1 up  node3" in scene.stoker()
    assert scene.coordinator.ask("/topology/why?node=node3&switch=spine-1")["found"]
    lost.start()
    until("all is well", scene.heard, timeout=30, interval=0.2)
    assert scene.all_as_it_was(before)


def ready(scene: Scene) -> dict[str, int]:
    fabrics = scene.coordinator.ask("/topology")["fabrics"]
    return {each["name"]: each.get("readyNodes", 0) for fabric in fabrics for each in fabric["domains"]}
