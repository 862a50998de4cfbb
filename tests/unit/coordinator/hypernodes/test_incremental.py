"""One change at a time is the same as all at once: for any fabric, any order, any change."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker_coordinator.hypernodes.labels import LabelTopology
from stoker_coordinator.hypernodes.live import Live, Options
from stoker_coordinator.hypernodes.model import (
    Attachment,
    HyperNode,
    LinkHealth,
    NodeFacts,
    Port,
    PortUse,
    Reading,
    SourceState,
    Trunk,
)
from stoker_coordinator.hypernodes.sources.trunks import Trunks
from tests.unit.coordinator.hypernodes.fabrics import THEN, Plan, all_facts, facts_of, source_of, spine, trunks_of

NODES = [f"n{number}" for number in range(9)]
SWITCHES = [f"s{number}" for number in range(9)]
OPTIONS = Options(strangers=True, labels=(LabelTopology("places", ("block", "rack")),))

STATES: list[LinkHealth] = ["healthy", "healthy", "degraded", "down", "unknown"]


@st.composite
def ports(draw: st.DrawFn, node: str) -> tuple[Port, ...]:
    found = []
    for number in range(draw(st.integers(0, 4))):
        state = draw(st.sampled_from(STATES))
        found.append(
            Port(
                nic=f"mlx5_{number}",
                number=1,
                fabric=draw(st.sampled_from(["infiniband", "infiniband", "infiniband", "roce"])),
                switch=draw(st.sampled_from(["", *SWITCHES[:6]])),
                switch_name=draw(st.sampled_from(["", "leaf", "leaf-1"])),
                gbps=draw(st.sampled_from([0.0, 100.0, 400.0])),
                state=state,
                since=THEN,
                aliases=(f"{node}-{number}",) if draw(st.booleans()) else (),
                lost=draw(st.sampled_from([None, None, THEN])),
            )
        )
    return tuple(found)


@st.composite
def nodes(draw: st.DrawFn) -> NodeFacts:
    name = draw(st.sampled_from(NODES))
    return NodeFacts(
        draw(st.sampled_from([name, name, f"{name}.example"])),
        ready=draw(st.sampled_from([True, True, None, False])),
        ready_since=THEN,
        labels=draw(st.dictionaries(st.sampled_from(["block", "rack"]), st.sampled_from(["a", "b", "c"]), max_size=2)),
        ports=draw(ports(name)),
    )


@st.composite
def sources(draw: st.DrawFn) -> SourceState:
    reading = Reading(
        source=draw(st.sampled_from(["ufm", "dump"])),
        fabric="infiniband",
        attachments=tuple(
            Attachment(
                switch=draw(st.sampled_from(SWITCHES)),
                host=draw(st.sampled_from(["", *NODES, "stranger", "N3"])),
                guid=draw(st.sampled_from(["", "n1-0", "n2-1", "n3-0", "x"])),
                device=draw(st.sampled_from(["", "mlx5_0", "mlx5_9"])),
                up=draw(st.booleans()),
            )
            for _ in range(draw(st.integers(0, 6)))
        ),
        trunks=draw(trunks()),
        names={"s1": "MF0;leaf:MQM/U1"} if draw(st.booleans()) else {},
    )
    return SourceState("central", reading, THEN, draw(st.sampled_from(["ok", "failed"])), THEN, "it did not answer")


@st.composite
def trunks(draw: st.DrawFn) -> tuple[Trunk, ...]:
    found = Trunks()
    for _ in range(draw(st.integers(0, 14))):
        found.add(draw(st.sampled_from(SWITCHES)), draw(st.sampled_from(SWITCHES)), 400.0)
    return found.all()


CHANGES = st.one_of(
    nodes(),
    nodes(),
    nodes(),
    st.sampled_from(NODES),
    sources(),
    st.tuples(st.sampled_from(NODES), st.floats(0, 1)),
)


def apply(live: Live, change: object) -> None:
    match change:
        case NodeFacts():
            live.put(change)
        case str():
            live.remove(change)
        case SourceState():
            live.central((change,))
        case (str(node), float(congestion)):
            live.use(node, (PortUse("mlx5_0", 1, 10.0, 20.0, congestion),))
        case _:
            raise AssertionError(change)


def whole(live: Live, uses: Mapping[str, float], now: datetime) -> Live:
    """Return all that *live* knows, put into a new one at once."""
    fresh = Live(OPTIONS, live.memory())
    fresh.central(live.sources.sources)
    for name in reversed(list(live.nodes())):
        facts = live.facts(name)
        if facts is not None and not live.is_stranger(name):
            fresh.put(facts)
    for node, congestion in uses.items():
        apply(fresh, (node, congestion))
    fresh.settle(now)
    return fresh


@given(st.lists(st.lists(CHANGES, min_size=1, max_size=3), min_size=1, max_size=12))
@settings(max_examples=100, deadline=None)
def test_changes_give_what_a_build_gives(batches: list[list[object]]) -> None:
    live = Live(OPTIONS)
    shown: dict[str, HyperNode] = {}
    uses: dict[str, float] = {}
    now = THEN
    for batch in batches:
        now += timedelta(seconds=1)
        for change in batch:
            apply(live, change)
            if isinstance(change, tuple):
                uses[change[0]] = change[1]
            elif isinstance(change, str):
                uses.pop(change, None)
        delta = live.settle(now)
        shown.update((each.name, each) for each in delta.changed)
        for name in delta.removed:
            del shown[name]
        assert shown == {each.name: each for each in live.hypernodes()}
        assert live.settle(now + timedelta(seconds=1)).changed == ()
    fresh = whole(live, uses, now)
    assert fresh.hypernodes() == live.hypernodes()
    assert fresh.memory() == live.memory()


PLAN = Plan(racks=6, nodes_per_rack=3, rails=2, racks_per_pod=2)
ON_SPINE = NodeFacts("n00099", ports=(Port("mlx5_0", 1, "infiniband", switch=spine(0, 0, 0), state="healthy"),))


@st.composite
def happenings(draw: st.DrawFn) -> NodeFacts | str:
    """Draw what happens to a node of a fabric of three tiers: it goes, comes, moves, loses a link, is cabled oddly."""
    number, other = draw(st.integers(0, PLAN.nodes - 1)), draw(st.integers(0, PLAN.nodes - 1))
    here, there = facts_of(PLAN, number), facts_of(PLAN, other)
    match draw(st.integers(0, 7)):
        case 0 | 1:
            return here.name
        case 2 | 3:
            return here
        case 4:
            return replace(there, name=here.name)
        case 5:
            return replace(here, ports=(here.ports[0], there.ports[1]))
        case 6:
            return replace(here, ports=here.ports[:1], ready=False)
        case _:
            return ON_SPINE if draw(st.booleans()) else ON_SPINE.name


@given(st.lists(happenings(), min_size=1, max_size=25), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_changes_of_a_fabric_of_three_tiers_give_what_a_build_gives(changes: list[NodeFacts | str], batch: int) -> None:
    live = Live(OPTIONS)
    live.central((source_of(trunks_of(PLAN)),))
    for facts in all_facts(PLAN):
        live.put(facts)
    live.settle(THEN)
    now = THEN
    for number, change in enumerate(changes):
        apply(live, change)
        if number % batch == 0:
            now += timedelta(seconds=1)
            live.settle(now)
    live.settle(now)
    fresh = whole(live, {}, now)
    assert fresh.hypernodes() == live.hypernodes()
    assert fresh.memory() == live.memory()


@given(st.lists(nodes(), max_size=12), sources(), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_the_order_does_not_count(facts: list[NodeFacts], source: SourceState, random: object) -> None:
    last = {each.name: each for each in facts}
    one, other = Live(OPTIONS), Live(OPTIONS)
    one.central((source,))
    for each in last.values():
        one.put(each)
    shuffled = list(last.values())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for each in shuffled:
        other.put(each)
    other.central((source,))
    one.settle(THEN)
    other.settle(THEN)
    assert one.hypernodes() == other.hypernodes()


@given(st.lists(CHANGES, max_size=20))
@settings(max_examples=60, deadline=None)
def test_each_node_has_one_place_in_a_fabric(changes: list[object]) -> None:
    live = Live(OPTIONS)
    for change in changes:
        apply(live, change)
    live.settle(THEN)
    for fabric, tree in live.trees.items():
        found = live.hypernodes(fabric)
        names = [each.name for each in found]
        members = [member.name for each in found for member in each.members]
        assert len(set(names)) == len(names)
        assert len(set(members)) == len(members)
        assert sum(not each.parent for each in found) == (1 if found else 0)
        by_name = {each.name: each for each in found}
        assert all(each.tier < by_name[each.parent].tier for each in found if each.parent)
        placed = {m.name for each in found for m in each.members if m.type == "Node"}
        assert placed == set(tree.leaves.home_of)
        assert placed | set(live.unplaced(fabric)) == set(tree.facts)


def test_the_same_again_changes_nothing() -> None:
    live = Live()
    facts = NodeFacts("n1", ports=(Port("mlx5_0", 1, "roce", "s1"),))
    live.put(facts)
    assert len(live.settle(THEN).changed) == 2
    live.put(replace(facts))
    assert live.settle(THEN).changed == ()
