"""What pages show of objects, and what the chronicle makes of changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from stoker.objects.cluster_clones import Clone, CloneSpec, CloneState, CloneStatus
from stoker.objects.cluster_images import ImagePullJob, ImagePullJobSpec, JobProgress, PullJobStatus
from stoker.objects.cluster_nodes import HyperNode, HyperNodeSpec, HyperNodeStatus, Node, NodeStatus, UnhealthyLink
from stoker.objects.cluster_requests import Checkpoint, CheckpointSpec, CheckpointStatus
from stoker.objects.meta import Condition, ObjectMeta
from stoker_coordinator.web import views
from stoker_coordinator.web.chronicle import Chronicle, entries

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def node(name: str, ready: bool = True, *, faults: bool = False) -> Node:
    conditions = [
        Condition(type="Ready", status="True" if ready else "False", message="" if ready else "silent for 35 s")
    ]
    if faults:
        conditions.append(Condition(type="TopologyHealthy", status="False", message="eth0 is down"))
    return Node(metadata=ObjectMeta(name=name), status=NodeStatus(conditions=tuple(conditions)))


def job(name: str = "j", **status: object) -> ImagePullJob:
    meta = ObjectMeta(name=name, namespace="ns")
    return ImagePullJob(metadata=meta, spec=ImagePullJobSpec(image="a:1"), status=PullJobStatus(**status))  # type: ignore[arg-type]


def test_ages() -> None:
    assert views.ago(NOW - timedelta(seconds=75), NOW) == "1m15s"
    assert views.ago(NOW + timedelta(seconds=5), NOW) == "0s"
    assert views.ago(None, NOW) == ""


@pytest.mark.parametrize(
    ("total", "wanted", "expected"),
    [
        (0, "", (0, 0, 1)),
        (450, "2", (200, 400, 2)),
        (450, "9", (400, 450, 3)),
        (450, "-1", (0, 200, 1)),
        (450, "١", (0, 200, 1)),
    ],
)
def test_pages_of_tables(total: int, wanted: str, expected: tuple[int, int, int]) -> None:
    found = views.page(total, wanted)
    assert (found.first, found.last, found.number) == expected


def test_nodes_in_trouble_come_first_and_can_be_searched() -> None:
    nodes = [node("a"), node("b", faults=True), node("c", ready=False), Node(metadata=ObjectMeta(name="d"))]
    rows = views.node_rows(nodes, {"a": "leaf-1"})
    assert [(row.name, row.state.word) for row in rows] == [
        ("c", "Not ready"),
        ("d", "Not ready"),
        ("b", "Faults"),
        ("a", "Ready"),
    ]
    assert [row.name for row in views.node_rows(nodes, {"a": "leaf-1"}, " LEAF-1 ")] == ["a"]
    assert [row.name for row in views.node_rows(nodes, {}, "faults")] == ["b"]


def test_jobs_at_work_come_first_then_the_newest() -> None:
    old = job("old", completion_time=NOW - timedelta(hours=2))
    new = job("new", completion_time=NOW)
    busy = job(
        "busy", start_time=NOW - timedelta(days=1), desired=4, succeeded=1, active=2, progress=JobProgress(bytes_done=3)
    )
    rows = views.job_rows([old, new, busy, job("fresh")])
    assert [row.name for row in rows] == ["busy", "fresh", "new", "old"]
    assert (rows[0].share, rows[0].state.word) == (0.25, "Pulling")


@pytest.mark.parametrize(
    ("conditions", "word", "mood"),
    [
        ({"Complete": "True"}, "Complete", "good"),
        ({"Complete": "True", "Degraded": "True"}, "Partly", "bad"),
        ({"Failed": "True"}, "Failed", "bad"),
    ],
)
def test_how_a_job_ended(conditions: dict[str, str], word: str, mood: str) -> None:
    made = tuple(Condition(type=name, status=status) for name, status in conditions.items())  # type: ignore[arg-type]
    state = views.job_state(job(completion_time=NOW, conditions=made))
    assert (state.word, state.mood) == (word, mood)


def domain(*links: UnhealthyLink, congested: bool = False) -> HyperNode:
    status = HyperNodeStatus(unhealthy_links=links, congested=congested, fabric="roce")
    return HyperNode(metadata=ObjectMeta(name="leaf"), spec=HyperNodeSpec(1), status=status)


DOWN = UnhealthyLink(a="n1 eth0/1", b="leaf-1", reason="down", message="no carrier", since=NOW)


def test_what_is_told_of_changes() -> None:
    def told(old: object, new: object) -> list[str]:
        return [f"{each.subject} {each.text}" for each in entries(old, new, NOW)]  # type: ignore[arg-type]

    assert told(None, node("a")) == ["Node a is ready"]
    assert told(node("a"), node("a", ready=False)) == ["Node a is not ready: silent for 35 s"]
    assert told(node("a"), replace(node("a"), metadata=ObjectMeta(name="a", labels={"x": "y"}))) == []
    assert told(node("a"), None) == ["Node a is no part of the cluster any more"]
    assert told(domain(), domain(DOWN)) == ["Link n1 eth0/1 – leaf-1 is down: no carrier"]
    assert told(domain(DOWN), domain()) == ["Link n1 eth0/1 – leaf-1 is well again"]
    assert told(domain(), domain(congested=True)) == ["HyperNode leaf is congested"]
    assert told(None, job()) == ["ImagePullJob ns/j was asked for"]
    assert told(job(), job(active=1, start_time=NOW)) == []
    over = job(completion_time=NOW, message="3 of 3 nodes have it")
    assert told(job(start_time=NOW), over) == ["ImagePullJob ns/j 3 of 3 nodes have it"]
    checkpoint = Checkpoint(metadata=ObjectMeta(name="c", namespace="ns"), spec=CheckpointSpec(pod_name="p"))
    made = replace(checkpoint, status=CheckpointStatus(phase="Succeeded", node_name="n1"))
    assert told(checkpoint, made) == ["Checkpoint ns/c Succeeded for pod p on n1"]
    assert told(clone(), clone(phase="Succeeded", node_name="n2")) == ["Clone ns/copies Succeeded of saved on n2"]


def clone(**status: Any) -> Clone:
    meta = ObjectMeta(name="copies", namespace="ns")
    return Clone(metadata=meta, spec=CloneSpec(checkpoint="saved", count=12), status=CloneStatus(**status))


def test_clones_are_shown_with_what_they_are_of_and_their_first_addresses() -> None:
    made = tuple(CloneState(id=f"c{n}", addresses=(f"10.0.0.{n}",)) for n in range(12))
    row = views.request_row(clone(phase="Succeeded", node_name="n2", ready=12, clones=made))
    assert (row.kind, row.subject, row.node, row.state.mood) == ("Clone", "saved", "n2", "good")
    assert row.detail.startswith("12 of 12: 10.0.0.0, ")
    assert row.detail.endswith("10.0.0.7 and 4 more")
    assert views.request_row(clone()).detail == "0 of 12"


def test_the_chronicle_is_quiet_at_first_and_forgets_the_oldest() -> None:
    chronicle = Chronicle(lambda: NOW)
    chronicle.hear(None, node("before"))
    chronicle.quiet = False
    for number in range(600):
        chronicle.hear(None, node(f"n{number}"))
    latest = chronicle.latest(3)
    assert [each.subject for each in latest] == ["Node n599", "Node n598", "Node n597"]
    assert len(chronicle.latest()) == 500
