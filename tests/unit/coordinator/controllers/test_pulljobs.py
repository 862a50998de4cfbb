"""What a pull job means, when it is over, and what its status says of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from stoker.objects.cluster_images import (
    CompletionPolicy,
    ImageListPullJob,
    ImageListPullJobSpec,
    ImagePullJob,
    ImagePullJobSpec,
    ListPullJobStatus,
    NodeSelector,
    NodeTrouble,
    PullJobStatus,
)
from stoker.objects.cluster_nodes import Node, NodeSpec, NodeStatus
from stoker.objects.meta import ObjectMeta, Requirement
from stoker_coordinator.controllers import pulljobs
from stoker_coordinator.controllers.pulljobs import Clockwork
from stoker_coordinator.controllers.rollout import Place, Rollout
from stoker_coordinator.controllers.tags import Found

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def job(**spec: Any) -> ImagePullJob:
    meta = ObjectMeta(name="job", namespace="ns", uid="u1", generation=3)
    return ImagePullJob(metadata=meta, spec=ImagePullJobSpec(image="a:1", **spec))


def node(
    name: str = "n1", *, seen: datetime | None = NOW, connected: bool = True, paused: bool = False, **labels: str
) -> Node:
    status = NodeStatus(connected=connected, last_seen=seen)
    return Node(metadata=ObjectMeta(name=name, labels=labels), spec=NodeSpec(paused=paused), status=status)


@pytest.mark.parametrize(
    ("selector", "meant"),
    [
        (None, True),
        (NodeSelector(names=("n1",)), True),
        (NodeSelector(names=("n2",)), False),
        (NodeSelector(match_labels={"gpu": "h100"}), True),
        (NodeSelector(match_labels={"gpu": "a100"}), False),
        (NodeSelector(match_expressions=(Requirement("gpu", "Exists"),)), True),
    ],
)
def test_which_nodes_are_meant(selector: NodeSelector | None, meant: bool) -> None:
    assert pulljobs.is_meant(job(selector=selector).spec, node(gpu="h100"), None) is meant


def test_nodes_of_pods_are_meant_and_nodes_that_leave_are_not() -> None:
    assert pulljobs.is_meant(job().spec, node(), frozenset({"n1"}))
    assert not pulljobs.is_meant(job().spec, node(), frozenset())
    leaving = replace(node(), metadata=ObjectMeta(name="n1", deletion_timestamp=NOW))
    assert not pulljobs.is_meant(job().spec, leaving, None)


@pytest.mark.parametrize(
    ("seen", "began", "silent"),
    [(0, 0, False), (-59, -100, False), (-60, -100, True), (-500, -10, False), (-500, -60, True)],
)
def test_a_node_is_silent_a_minute_after_both_its_last_word_and_the_jobs_begin(
    seen: int, began: int, silent: bool
) -> None:
    gone = node(seen=NOW + timedelta(seconds=seen), connected=False)
    placed = pulljobs.place(gone, "leaf", NOW + timedelta(seconds=began), NOW)
    assert (placed.silent, placed.open) == (silent, False)


def test_a_paused_node_gets_nothing_new() -> None:
    assert pulljobs.place(node(), "", NOW, NOW) == Place("n1", "", silent=False, open=True)
    assert not pulljobs.place(node(paused=True), "", NOW, NOW).open


def test_a_deadline_counts_work_and_not_waiting() -> None:
    limited = job(completion_policy=CompletionPolicy(active_deadline_seconds=60))
    made = Rollout()
    made.place(Place("n1"))
    clock = pulljobs.wind(Clockwork(until=0), 32_400, busy=False)
    assert (clock.worked, pulljobs.verdict(limited, made, clock)) == (0, "")
    made.take(1)
    clock = pulljobs.wind(clock, 32_459, busy=True)
    assert pulljobs.verdict(limited, made, clock) == ""
    assert pulljobs.overdue_in(limited, clock) == 1
    late = pulljobs.wind(clock, 32_461, busy=True)
    assert pulljobs.verdict(limited, made, late) == "Failed"
    status = pulljobs.status(limited, made, late, "Failed", NOW, NOW)
    assert status.message == "not complete within 60 s of work: 0 of 1 nodes have it"
    assert status.worked_seconds == 61


def test_a_job_that_lasts_is_never_over_and_looks_again_each_day() -> None:
    lasting = job(completion_policy=CompletionPolicy(type="Never"))
    assert pulljobs.verdict(lasting, Rollout(), Clockwork()) == ""
    assert pulljobs.next_round(lasting, NOW, NOW + timedelta(hours=23))[0] == 0
    number, then = pulljobs.next_round(lasting, NOW, NOW + timedelta(hours=25))
    assert number == 1
    assert timedelta(hours=47) < then - NOW < timedelta(hours=49)
    assert pulljobs.next_round(lasting, NOW, NOW - timedelta(days=1))[0] == 0


def test_partial_success_is_told_and_ends_the_job() -> None:
    made = Rollout()
    for name in ("n1", "n2", "n3"):
        made.place(Place(name))
    made.take(3)
    made.tell("n1", Found("succeeded", ("a:1",), (), 10, 10))
    made.tell("n2", Found("failed", (), (NodeTrouble("n2", "a:1", "NotFound", "no such tag"),)))
    assert pulljobs.verdict(job(), made, Clockwork()) == ""
    made.place(Place("n3", silent=True))
    end = pulljobs.verdict(job(), made, Clockwork())
    assert end == "Complete"
    status = pulljobs.status(job(), made, Clockwork(), end, NOW, NOW)
    assert isinstance(status, PullJobStatus)
    assert (status.desired, status.active, status.succeeded, status.failed) == (3, 0, 1, 2)
    assert status.failed_nodes == ("n2", "n3")
    assert status.message == "1 of 3 nodes have it, 1 failed, 1 silent"
    assert {each.type: each.status for each in status.conditions} == {
        "Complete": "True",
        "Failed": "False",
        "Degraded": "True",
    }


def test_a_list_job_counts_images() -> None:
    listed = ImageListPullJob(
        metadata=ObjectMeta(name="list", uid="u2"), spec=ImageListPullJobSpec(images=("a:1", "b:1", "a:1"))
    )
    assert pulljobs.images(listed) == ("a:1", "b:1")
    made = Rollout()
    for name in ("n1", "n2"):
        made.place(Place(name))
    made.take(2)
    made.tell("n1", Found("failed", ("a:1",), (NodeTrouble("n1", "b:1", "NotFound", ""),)))
    made.tell("n2", Found("active", ("a:1",)))
    status = pulljobs.status(listed, made, Clockwork(), "", NOW, NOW)
    assert isinstance(status, ListPullJobStatus)
    assert (status.desired, status.active, status.completed, status.succeeded) == (2, 1, 1, 1)
    made.tell("n2", Found("succeeded", ("a:1", "b:1")))
    status = pulljobs.status(listed, made, Clockwork(), "Complete", NOW, NOW)
    assert isinstance(status, ListPullJobStatus)
    assert [(each.name, each.message) for each in status.failed_image_statuses] == [("b:1", "not on 1 of 2 nodes")]


def test_conditions_keep_the_time_since_when_they_are_so() -> None:
    first = pulljobs.status(job(), Rollout(), Clockwork(), "", NOW, NOW)
    later = pulljobs.status(
        replace(job(), status=first), Rollout(), Clockwork(), "Complete", NOW, NOW + timedelta(hours=1)
    )
    times = {each.type: each.last_transition_time for each in later.conditions}
    assert times == {"Complete": NOW + timedelta(hours=1), "Failed": NOW, "Degraded": NOW}


def test_a_paused_job_says_so() -> None:
    made = Rollout()
    made.place(Place("n1"))
    assert "paused" in pulljobs.status(job(parallelism=0), made, Clockwork(), "", NOW, NOW).message


def test_when_a_job_is_removed() -> None:
    over = replace(
        job(completion_policy=CompletionPolicy(ttl_seconds_after_finished=60)),
        status=PullJobStatus(completion_time=NOW),
    )
    assert pulljobs.expires_at(over) == NOW + timedelta(seconds=60)
    assert pulljobs.expires_at(job()) is None
