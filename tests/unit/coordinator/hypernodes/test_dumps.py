"""A fabric's dump alone: eight racks are eight domains, whatever is missing, odd, or in the way."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from stoker_coordinator.hypernodes.live import Live, Options
from stoker_coordinator.hypernodes.model import Attachment, HyperNode, NodeFacts, Port, Reading, Trunk
from stoker_coordinator.hypernodes.sources import fabric_dumps
from tests.unit.coordinator.hypernodes import dumps
from tests.unit.coordinator.hypernodes.dumps import Cabling, host, leaf_guid
from tests.unit.coordinator.hypernodes.fabrics import THEN, source_of
from tests.unit.topology.captures import capture


def built(reading: Reading) -> list[HyperNode]:
    live = Live(Options(strangers=True))
    live.central((source_of(reading),))
    live.settle(THEN)
    return live.hypernodes()


def racks(domains: Iterable[HyperNode]) -> dict[str, set[str]]:
    """Return the nodes of each domain of tier 1."""
    return {each.name: {m.name for m in each.members} for each in domains if each.tier == 1}


@pytest.fixture(scope="module")
def made() -> Reading:
    return fabric_dumps.read(Cabling().text())


@pytest.fixture(scope="module")
def real() -> Reading:
    return fabric_dumps.read(capture("ibnetdiscover/gb200-ndr.out"))


def expected(domains: Iterable[HyperNode]) -> None:
    """Assert that each rack is a domain: hosts of a rack have a name that says so."""
    found = racks(domains)
    assert len(found) == 8
    for nodes in found.values():
        assert (
            len({name[:12] if name.startswith(("a0", "b0")) else name[:3] for name in nodes if "cufm" not in name}) == 1
        )


def without_each_link(reading: Reading, step: int) -> Iterable[Reading]:
    """Yield a reading without one link: of an adapter (each, or each third), or between switches (some)."""
    for number in range(0, len(reading.attachments), step):
        yield replace(reading, attachments=reading.attachments[:number] + reading.attachments[number + 1 :])
    for number in range(0, len(reading.trunks), 9 * step):
        trunk = reading.trunks[number]
        less = (replace(trunk, links=trunk.links - 1),) if trunk.links > 1 else ()
        yield replace(reading, trunks=reading.trunks[:number] + less + reading.trunks[number + 1 :])


@pytest.mark.parametrize("which", ["made", "real"])
def test_racks_are_domains_under_one_root(which: str, request: pytest.FixtureRequest) -> None:
    reading: Reading = request.getfixturevalue(which)
    domains = built(reading)
    expected(domains)
    (root,) = [each for each in domains if not each.parent]
    assert (root.name, root.tier) == ("infiniband", 2)
    assert len(root.switches) == 9
    assert {len(each.switches) for each in domains if each.tier == 1} == {3, 4}
    assert root.node_count == sum(each.node_count for each in domains if each.tier == 1)


@pytest.mark.parametrize(("which", "step"), [("made", 3), ("real", 1)])
def test_any_one_link_may_be_missing(which: str, step: int, request: pytest.FixtureRequest) -> None:
    reading: Reading = request.getfixturevalue(which)
    whole = racks(built(reading))
    everyone = {name for nodes in whole.values() for name in nodes}
    count = 0
    for less in without_each_link(reading, step):
        count += 1
        domains = built(less)
        assert racks(domains) == whole
        assert max(each.tier for each in domains) == 2
    assert count >= 500 // step
    assert len(everyone) >= 120


def test_the_real_fabric_has_all_hosts_that_have_a_name(real: Reading) -> None:
    found = racks(built(real))
    assert sum(len(nodes) for nodes in found.values()) == 119 + 1  # and the fabric manager's
    assert real.unnamed == 114
    assert not {name for nodes in found.values() for name in nodes} & {"localhost", "ubuntu"}


def test_unnamed_adapters_merge_nobody() -> None:
    cabling = Cabling()
    for number, leaf in enumerate(dumps.LEAVES):
        for many, name in enumerate(
            ["localhost HCA-1", "ubuntu mlx5_0", "MT4129 ConnectX7   Mellanox Technologies", ""]
        ):
            cabling.attach(f"ff{many:02x}{number:012x}", name, leaf_guid(*leaf))
    expected(built(fabric_dumps.read(cabling.text())))


def test_an_unnamed_adapter_is_its_nodes_by_its_guid() -> None:
    """A node that reports knows its own GUIDs: it is in its rack, whatever the fabric calls it."""
    live = Live()
    live.central((source_of(fabric_dumps.read(Cabling().text())),))
    for rack in (0, 1):
        for number in range(3):
            guid = f"e09d{rack:04x}{dumps.HOSTS - 1 if number == 2 else number:04x}0000"
            port = Port("mlx5_0", 1, "infiniband", aliases=(guid,), state="healthy")
            live.put(NodeFacts(f"worker-{rack}{number}", ports=(port,)))
    live.settle(THEN)
    found = sorted(racks(live.hypernodes()).values(), key=sorted)
    assert found == [{"worker-00", "worker-01", "worker-02"}, {"worker-10", "worker-11", "worker-12"}]


def test_a_switch_that_touches_everything_joins_nothing(made: Reading) -> None:
    border = "bbbbbbbbbbbbbbbb"
    hosts = sorted({each.host for each in made.attachments if each.host})
    more = tuple(
        Attachment(switch=border, host=name, guid=f"b{n:015x}", device="stor0") for n, name in enumerate(hosts)
    )
    to_all = tuple(Trunk(leaf_guid(*leaf), border, 1, 400.0) for leaf in dumps.LEAVES)
    for trunks in ((), to_all):
        domains = built(replace(made, attachments=made.attachments + more, trunks=made.trunks + trunks))
        assert racks(domains) == racks(built(made))
        assert border not in {switch.id for each in domains if each.tier == 1 for switch in each.switches}


def test_a_host_that_is_cabled_to_two_racks_is_in_one(made: Reading) -> None:
    stray = tuple(
        Attachment(
            switch=leaf_guid(rack, rail), host="gateway", guid=f"9{rack:07x}{rail:08x}", device=f"mlx5_{rack}{rail}"
        )
        for rack in (3, 5)
        for rail in range(4)
    )
    found = racks(built(replace(made, attachments=made.attachments + stray)))
    assert len(found) == 8
    assert sum("gateway" in nodes for nodes in found.values()) == 1


def test_names_come_from_switches_and_do_not_depend_on_others(made: Reading) -> None:
    names = racks(built(made))
    assert names["ib-a-ibleaf-00-03"] == {host(3, number) for number in range(dumps.HOSTS - 1)}
    others = replace(made, attachments=tuple(each for each in made.attachments if each.switch != leaf_guid(0, 0)))
    assert set(racks(built(others))) - set(names) <= {"ib-a-ibleaf-01-00"}
