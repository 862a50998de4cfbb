"""When a node's object is worth a write, what it says then, and how fast a node is read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.objects.cluster_nodes import Node, NodeStatus
from stoker.objects.link import Heartbeat, Hello
from stoker.objects.meta import Condition, ObjectMeta
from stoker_coordinator.nodes.admission import Peer, Seen, meet
from stoker_coordinator.nodes.pacing import BURST_SECONDS, Pace
from stoker_coordinator.nodes.ports import Presence
from stoker_coordinator.nodes.roster import Record, Roster, Session
from stoker_coordinator.nodes.upkeep import REWRITE_SECONDS, essence, is_due, recall, status_of
from stoker_coordinator.store.memory import MemoryStore
from tests.unit.coordinator.nodes.bench import object_of, serving

HELLO = Hello(node="n1", boot_id="b", machine_id="m", instance="i", version="1", capabilities={"criu": ""})


def connected() -> Record:
    record = Record("n1", 0.0, Presence(True, True, 100.0, "Connected"))
    wire: Any = None
    record.session = Session(wire, Peer(None), HELLO, 1, 0.0)
    record.hello = HELLO
    record.written, record.written_at = essence(record), 0.0
    return record


def seen(status: NodeStatus) -> float:
    assert status.last_seen is not None
    return status.last_seen.timestamp()


def test_a_heartbeat_alone_is_worth_no_write() -> None:
    record = connected()
    assert record.session is not None
    record.session.beat = (True, "", 123)
    assert not is_due(record, REWRITE_SECONDS - 1)
    assert is_due(record, REWRITE_SECONDS)
    record.session = None
    record.written = essence(record)
    assert not is_due(record, 10 * REWRITE_SECONDS)  # nothing is heard of it: there is nothing to write


@pytest.mark.parametrize(
    "change",
    [
        lambda record: setattr(record, "presence", replace(record.presence, ready=False)),
        lambda record: setattr(record, "presence", replace(record.presence, connected=False)),
        lambda record: setattr(record, "runtime_ready", (False, "containerd is away")),
        lambda record: setattr(record, "conflict", (1.0, "another machine")),
        lambda record: setattr(record, "counts", (1, 0, 0)),
        lambda record: setattr(record, "hello", replace(HELLO, version="2")),
        lambda record: setattr(record, "hello", replace(HELLO, runtime="containerd 2.9.9")),
        lambda record: setattr(record, "hello", replace(HELLO, capabilities={"clone": "no CRIU"})),
    ],
)
def test_what_has_changed_is_written_at_once(change: Any) -> None:
    record = connected()
    change(record)
    assert is_due(record, 1.0)


def test_conditions_keep_since_when_they_are_so_and_those_of_others_stay() -> None:
    record = connected()
    theirs = Condition(type="TopologyHealthy", status="True")
    first = status_of(record, NodeStatus(conditions=(theirs,)), 1000.0, 0.0)
    second = status_of(record, first, 2000.0, 0.0)
    assert theirs in second.conditions
    times = {each.type: each.last_transition_time for each in second.conditions}
    assert times["Ready"] is not None
    assert times["Ready"].timestamp() == 1000.0
    record.presence = Presence(True, False, 3000.0, "Silent")
    third = {each.type: each for each in status_of(record, second, 3000.0, 0.0).conditions}
    assert (third["Ready"].status, third["Ready"].reason) == ("False", "Silent")
    assert third["Ready"].last_transition_time is not None
    assert third["Ready"].last_transition_time.timestamp() == 3000.0


def test_a_conflict_is_shown_and_later_shown_as_over() -> None:
    record = connected()
    record.conflict = (1.0, "another machine")
    held = status_of(record, NodeStatus(), 1000.0, 0.0)
    record.conflict = None
    over = status_of(record, held, 2000.0, 0.0)
    states = [{each.type: each.status for each in status.conditions} for status in (held, over)]
    assert [each["IdentityConflict"] for each in states] == ["True", "False"]
    assert not any(
        each.type == "IdentityConflict" for each in status_of(connected(), NodeStatus(), 1.0, 0.0).conditions
    )


def test_a_node_is_last_seen_when_it_was_heard_and_not_when_that_was_written() -> None:
    record, roster = connected(), Roster()
    assert record.session is not None
    stale = NodeStatus(connected=True, last_seen=datetime.fromtimestamp(5000.0, UTC))
    record.session.heard = 280.0
    assert seen(status_of(record, stale, 5300.0, 300.0)) == 5280.0  # it is connected, and silent for a while
    assert roster.detach(record, record.session)
    record.presence = Presence(False, True, 100.0, "Connected")
    assert seen(status_of(record, stale, 5300.0, 300.0)) == 5280.0
    assert seen(status_of(record, stale, 6300.0, 1300.0)) == 5280.0


@pytest.mark.parametrize("there", [True, False])
def test_a_node_that_was_not_heard_since_the_start_keeps_when_it_was_seen(there: bool) -> None:
    record = Record("n1", 0.0, Presence(False, False, 100.0, "NeverConnected"))
    kept = NodeStatus(connected=there, last_seen=datetime.fromtimestamp(5000.0, UTC))
    recall(record, kept, 6000.0, 10.0)
    record.presence = Presence(False, False, 6050.0, "Silent")
    assert seen(status_of(record, kept, 6050.0, 60.0)) == 5000.0


async def test_nodes_are_given_time_to_come_back_to_a_coordinator_that_has_just_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker_coordinator.nodes.service._LOOK_EVERY", 0.05)
    store = MemoryStore()
    there = NodeStatus(connected=True, last_seen=datetime.fromtimestamp(5000.0, UTC))
    away = replace(there, connected=False, conditions=(Condition(type="Ready", status="True", reason="Connected"),))
    for name, status in (("a-comes", there), ("away", away)):
        await store.create(Node(metadata=ObjectMeta(name=name), status=status))
    async with serving(tmp_path, store=store, silent_after=0.1, returning=60.0) as bench:
        # When one that was away already is silent, one that may be on its way is not: they are looked at together.
        await bench.ear.until(lambda: ("away", "Silent") in {(name, it.reason) for name, it in bench.ear.presences})
        assert bench.nodes.state("a-comes").presence.connected
        assert not [name for name, _ in bench.ear.presences if name == "a-comes"]
        async with bench.node("a-comes"):
            await bench.ear.until(lambda: ("a-comes", "Connected") in {(n, it.reason) for n, it in bench.ear.presences})


async def test_ten_thousand_heartbeats_are_not_ten_thousand_writes(tmp_path: Path) -> None:
    store = MemoryStore()
    async with serving(tmp_path, store=store, messages_per_second=100_000) as bench, bench.node() as node:
        await bench.ear.until(lambda: bench.ear.presences)
        for number in range(1000):
            await node.say(Heartbeat(free_bytes=number))
        await node.say(Heartbeat(ready=False, problem="x"))
        await bench.ear.until(lambda: not bench.ear.presences[-1][1].ready)
        await object_of(bench, "n1", lambda node: any(each.status == "False" for each in node.status.conditions))
        assert bench.count("stoker_node_writes_total") < 10


async def test_an_object_that_people_removed_comes_back_with_the_node(tmp_path: Path) -> None:
    store = MemoryStore()
    async with serving(tmp_path, store=store) as bench, bench.node() as node:
        await object_of(bench, "n1")
        await store.delete(Node, "n1")
        await node.say(Heartbeat(ready=False))
        await object_of(bench, "n1")


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 1 << 20)), max_size=300))
def test_nobody_is_heard_faster_than_agreed_for_longer_than_a_moment(messages: list[tuple[float, int]]) -> None:
    pace, now, count, size = Pace(), 1000.0, 0, 0
    began = now
    for wait, length in messages:
        now += wait
        pause = pace.take(now, length, messages=10.0, size_rate=100_000.0)
        assert pause >= 0
        now += pause
        count, size = count + 1, size + length
        spent = now - began + BURST_SECONDS
        assert count <= 10.0 * spent + 1
        assert size <= 100_000.0 * spent + (1 << 20)


def test_a_quiet_node_is_never_held_up() -> None:
    pace = Pace()
    assert all(pace.take(now, 500, messages=10.0, size_rate=1e6) == 0 for now in range(0, 10_000, 10))


@given(
    st.builds(Seen, *[st.sampled_from("ab")] * 3, st.floats(0, 100)),
    st.builds(
        lambda boot, machine, run: replace(HELLO, boot_id=boot, machine_id=machine, instance=run),
        *[st.sampled_from("ab")] * 3,
    ),
    st.lists(st.sampled_from("ab"), unique=True),
)
def test_a_stream_that_is_alive_is_never_taken_by_another_machine(old: Seen, hello: Hello, former: list[str]) -> None:
    step = meet(old, hello, tuple(former), 35.0)
    same_run = old.instance == hello.instance
    same_boot = (old.machine_id, old.boot_id) == (hello.machine_id, hello.boot_id)
    if old.heard_seconds_ago > 35.0 or same_run:
        assert step == "replace"
    elif hello.instance in former:
        assert step == "conflict"
    else:
        assert step == ("replace" if same_boot else "probe")
    assert meet(None, hello, tuple(former), 35.0) == "accept"
