"""What comes next, by what is there: the tables of the planner."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stoker.objects.containers import Owner, Probe
from stokerd.containers import actions as act
from stokerd.containers.model import NEVER, Ask, Effort, Seen, Sight, Spec, Target, TargetSpec
from stokerd.containers.planner import LOOK_AGAIN, decide
from stokerd.journal.rows import TargetRow

R = "recreate-1"
NOW = 1000.0
OLD, DEAD = Seen("old", "app", 0, "running"), Seen("old", "app", 0, "exited")
LOST = Seen("old", "app", 0, "unknown")
MADE = Seen("new", "app", 1, "created", 900.0, R, "new")
RUNS = replace(MADE, state="running", started_at=900.0)
FELL = replace(MADE, state="exited", exit_code=1, started_at=900.0)
BACK = Seen("back", "app", 2, "created", 900.0, R, "back")
THEIRS = Seen("theirs", "app", 5, "running")
HEIR = Seen("heir", "app", 5, "running", 900.0, "recreate-0", "new")
COMMITTED: dict[str, Any] = {"committed_at": 950.0, "phase": "Recreating"}
BLAMED = {**COMMITTED, "verdict": "it fell"}


def target(row: dict[str, Any] | None = None, effort: Effort | None = None, **spec: Any) -> Target:
    return Target(
        TargetRow(R, 0, "app", "old", 0, **(row or {})),
        TargetSpec("app", **spec),
        effort or Effort(known=True, grace=10.0),
    )


def ask(owner: Owner = "other", deadline: float = 2000.0, **how: Any) -> Ask:
    spec = {key: how.pop(key) for key in list(how) if key in Spec.__struct_fields__}
    return Ask(R, "pod", owner, Spec((TargetSpec("app"),), **spec), 900.0, deadline, **how)


def next_step(request: Ask, one: Target, *containers: Seen, at: float = NOW, sandbox: str = "ready") -> Any:
    """Return the one thing that is to be done, or when to look again."""
    sight = Sight(sandbox, containers, at)  # type: ignore[arg-type]
    decision = decide(request, (one,), sight, frozenset(), NOW)
    assert len(decision.actions) <= 1
    return decision.actions[0] if decision.actions else decision.wake_at


@pytest.mark.parametrize(
    ("row", "containers", "step"),
    [
        ({}, [OLD], act.Create("app", "new", 1)),
        ({}, [OLD, replace(DEAD, id="x", attempt=7)], act.Create("app", "new", 8)),
        ({}, [OLD, MADE], act.Commit("app")),
        (COMMITTED, [OLD, MADE], act.Stop("app", "old", 10.0)),
        (COMMITTED, [LOST, MADE], act.Stop("app", "old", 10.0)),
        (COMMITTED, [DEAD, MADE], act.Start("app", "new")),
        (COMMITTED, [MADE], act.Start("app", "new")),
        (COMMITTED, [DEAD], act.Create("app", "new", 1)),
        (COMMITTED, [OLD, RUNS], act.Stop("app", "old", 10.0)),
        (COMMITTED, [DEAD, replace(RUNS, started_at=None)], act.Examine("app", "new")),
        (COMMITTED, [DEAD, replace(FELL, exit_code=None)], act.Examine("app", "new")),
        (COMMITTED, [DEAD, FELL], act.Blame("app", "the new container exited with status 1")),
        (COMMITTED, [DEAD, replace(RUNS, state="unknown")], act.Stop("app", "new", 10.0)),
        ({}, [DEAD], act.Create("app", "new", 1)),
        ({}, [DEAD, MADE], act.Commit("app")),
        (BLAMED, [DEAD, RUNS], act.Create("app", "back", 2)),
        (BLAMED, [DEAD, RUNS, BACK], act.Stop("app", "new", 10.0)),
        (BLAMED, [DEAD, FELL, BACK], act.Start("app", "back")),
        (BLAMED, [DEAD, FELL, replace(BACK, state="running")], act.Examine("app", "back")),
        (BLAMED, [DEAD, FELL, replace(BACK, state="exited")], act.Create("app", "back", 3)),
        ({}, [DEAD, HEIR], act.Retarget("app", "heir", 5, False)),
        ({}, [DEAD, replace(HEIR, state="exited")], act.Retarget("app", "heir", 5, False)),
        ({}, [DEAD, HEIR, MADE], act.Remove("app", "new")),
        ({}, [DEAD, THEIRS, MADE], act.Remove("app", "new")),
        (COMMITTED, [DEAD, THEIRS, RUNS], act.Stop("app", "new", 10.0)),
    ],
)
def test_without_a_kubelet(row: dict[str, Any], containers: list[Seen], step: act.Action) -> None:
    assert next_step(ask(), target(row), *containers) == step


@pytest.mark.parametrize(
    ("request_", "row", "containers", "phase", "reason"),
    [
        (ask(), COMMITTED, [DEAD, RUNS], "Succeeded", "Recreated"),
        (ask(), {}, [], "Failed", "ContainerGone"),
        (ask(), {}, [DEAD, THEIRS], "Succeeded", "RestartedBySomethingElse"),
        (ask(cancelled=True), {}, [OLD], "Failed", "Cancelled"),
        (ask(deadline=NOW), {}, [OLD], "Failed", "DeadlineExceeded"),
        (ask(deadline=NOW, min_started=500.0), COMMITTED, [DEAD, RUNS], "Failed", "DeadlineExceeded"),
        (ask(), BLAMED, [DEAD, FELL, replace(BACK, state="running", started_at=990.0)], "Failed", "RolledBack"),
        (ask(), BLAMED, [OLD], "Failed", "CreateFailed"),
        (ask("kubelet"), {}, [DEAD, THEIRS], "Succeeded", "RestartedBySomethingElse"),
        (ask("kubelet"), {}, [], "Failed", "ContainerGone"),
        (ask("kubelet"), COMMITTED, [DEAD, replace(THEIRS, started_at=980.0)], "Succeeded", "Recreated"),
        (ask("kubelet", deadline=NOW), COMMITTED, [DEAD], "Failed", "DeadlineExceeded"),
    ],
)
def test_how_it_ends(request_: Ask, row: dict[str, Any], containers: list[Seen], phase: str, reason: str) -> None:
    end = next_step(request_, target(row), *containers)
    assert isinstance(end, act.Settle)
    assert (end.phase, end.reason) == (phase, reason)


@pytest.mark.parametrize("owner", ["other", "kubelet"])
@pytest.mark.parametrize("halt", [{"cancelled": True}, {"deadline": NOW}])
@pytest.mark.parametrize("row", [COMMITTED, BLAMED])
def test_what_was_stopped_is_seen_through_whatever_ends_the_request(
    owner: Owner, halt: dict[str, Any], row: dict[str, Any]
) -> None:
    if owner == "other":
        assert next_step(ask(owner, **halt), target(row), DEAD, MADE) in (
            act.Start("app", "new"),
            act.Create("app", "back", 2),
        )
    else:
        assert next_step(ask(owner, **halt), target(row), OLD) == act.Stop("app", "old", 10.0)


@pytest.mark.parametrize(
    ("row", "containers", "step"),
    [
        ({}, [OLD], act.Commit("app")),
        (COMMITTED, [OLD], act.Stop("app", "old", 10.0)),
        (COMMITTED, [DEAD], NOW + LOOK_AGAIN),
        (COMMITTED, [DEAD, replace(THEIRS, state="created")], NOW + LOOK_AGAIN),
        (COMMITTED, [DEAD, replace(THEIRS, state="exited")], act.Examine("app", "theirs")),
        (COMMITTED, [DEAD, replace(THEIRS, state="exited", exit_code=1)], NOW + LOOK_AGAIN),
        (COMMITTED, [DEAD, THEIRS], act.Examine("app", "theirs")),
    ],
)
def test_under_a_kubelet(row: dict[str, Any], containers: list[Seen], step: act.Action | float) -> None:
    assert next_step(ask("kubelet"), target(row), *containers) == step


def test_force_recreates_what_is_there_once() -> None:
    for owner in ("other", "kubelet"):
        request = ask(owner, force=True)
        assert next_step(request, target(), DEAD, THEIRS) == act.Retarget("app", "theirs", 5, True)
        assert isinstance(next_step(request, target({"forced": True}), DEAD, THEIRS), act.Settle)


def test_a_change_that_was_not_made_is_no_success() -> None:
    end = next_step(ask(), target(image="app:v2", effort=Effort(known=True, warmed=True)), DEAD, THEIRS)
    assert (end.phase, end.reason) == ("Failed", "RestartedBySomethingElse")


def test_images_come_first() -> None:
    assert next_step(ask(), target(image="app:v2"), OLD) == act.Warm("app", "app:v2")
    missing = Effort(known=True, image_missing=True)
    assert next_step(ask(), target(effort=missing), OLD) == act.Warm("app", restore=True)


def test_the_grace() -> None:
    hook = Effort(known=True, grace=10.0, hook=True)
    assert next_step(ask(), target(COMMITTED, hook), OLD, MADE) == act.Hook("app", "old", 8.0)
    short = replace(hook, grace=1.5)
    assert next_step(ask(), target(COMMITTED, short), OLD, MADE) == act.Hook("app", "old", 1.5)
    none = replace(hook, grace=0.0)
    assert next_step(ask(), target(COMMITTED, none), OLD, MADE) == act.Stop("app", "old", 0.0)
    spent = replace(hook, hook=False, spent=True, grace=60.0)  # 50 s ago
    assert next_step(ask(), target(COMMITTED, spent), OLD, MADE) == act.Stop("app", "old", 10.0)
    late = replace(spent, grace=20.0)
    assert next_step(ask(), target(COMMITTED, late), OLD, MADE) == act.Stop("app", "old", 2.0)


def test_proving() -> None:
    assert next_step(ask(min_started=150.0), target(COMMITTED), DEAD, RUNS) == NOW + LOOK_AGAIN
    assert next_step(ask(min_started=102.0), target(COMMITTED), DEAD, RUNS) == 1002.0
    assert next_step(ask(min_started=99.5), target(COMMITTED), DEAD, RUNS, at=999.0) == act.Observe(full=False)
    probe = Probe(tcp_port=80, failure_threshold=3)
    assert next_step(ask(), target(COMMITTED, probe=probe), DEAD, RUNS) == act.Check("app", "new")
    later = Effort(known=True, probe_at=1003.0)
    assert next_step(ask(), target(COMMITTED, later, probe=probe), DEAD, RUNS) == 1003.0
    failing = Effort(known=True, probe_failures=3, remark="port 80 is shut")
    assert next_step(ask(), target(COMMITTED, failing, probe=probe), DEAD, RUNS) == act.Blame(
        "app", "the probe failed 3 times in a row: port 80 is shut"
    )
    good = Effort(known=True, probed=True)
    assert next_step(ask(), target(COMMITTED, good, probe=probe), DEAD, RUNS).reason == "Recreated"


def test_the_sandbox_decides_over_everything() -> None:
    for state in ("gone", "notready"):
        assert next_step(ask(), target(COMMITTED), DEAD, sandbox=state).reason == "SandboxGone"
        assert next_step(ask(), target(), OLD, MADE, sandbox=state) == act.Remove("app", "new")


def test_nothing_is_decided_blindly() -> None:
    assert next_step(ask(), target(), OLD, at=NEVER) == act.Observe()
    assert next_step(ask(up=False), target(), OLD) == 2000.0
    assert next_step(ask(up=False, deadline=NOW), target(), OLD).reason == "DeadlineExceeded"
    assert next_step(ask(up=False, deadline=NOW), target(COMMITTED), OLD) is None
    assert next_step(ask(), target(effort=Effort()), OLD) == act.Observe()


def test_parking_begins_nothing_and_ends_what_is_between_two() -> None:
    parked = ask(parking=True)
    assert next_step(parked, target(), OLD) == 2000.0
    assert next_step(parked, target(), OLD, MADE) == 2000.0
    assert next_step(parked, target(COMMITTED), DEAD, MADE) == act.Start("app", "new")
    assert next_step(parked, target(BLAMED), DEAD, FELL, BACK) == act.Start("app", "back")


def test_after_a_failure_there_is_a_pause() -> None:
    paused = Effort(known=True, not_before=1004.0)
    assert next_step(ask(), target(effort=paused), OLD) == 1004.0
    assert next_step(ask(cancelled=True), target(effort=paused), OLD).reason == "Cancelled"


class TestSeveral:
    def targets(self, *rows: dict[str, Any]) -> tuple[Target, ...]:
        return tuple(
            Target(
                TargetRow(R, number, f"c{number}", f"old{number}", 0, **row),
                TargetSpec(f"c{number}"),
                Effort(known=True),
            )
            for number, row in enumerate(rows)
        )

    def sight(self, *states: str) -> Sight:
        olds = [Seen(f"old{number}", f"c{number}", 0, "running") for number, _ in enumerate(states)]
        news = [
            Seen(f"new{number}", f"c{number}", 1, state, 900.0, R, "new")  # type: ignore[arg-type]
            for number, state in enumerate(states)
            if state
        ]
        return Sight("ready", (*olds, *news), NOW)

    def test_side_by_side_the_first_stop_waits_for_the_last_creation(self) -> None:
        targets = self.targets({}, {})
        first = decide(ask(), targets, self.sight("created", ""), {"c1"}, NOW)
        assert first.actions == ()
        both = decide(ask(), targets, self.sight("created", "created"), frozenset(), NOW)
        assert both.actions == (act.Commit("c0"), act.Commit("c1"))
        alone = decide(ask(failure_policy="Ignore"), targets, self.sight("created", ""), {"c1"}, NOW)
        assert alone.actions == (act.Commit("c0"),)

    def test_in_order_the_next_waits_for_its_turn(self) -> None:
        targets = self.targets({}, {})
        assert decide(ask(ordered=True), targets, self.sight("", ""), frozenset(), NOW).actions == (
            act.Create("c0", "new", 1),
        )
        done = self.targets({"phase": "Succeeded"}, {})
        assert decide(ask(ordered=True), done, self.sight("", ""), frozenset(), NOW).actions == (
            act.Create("c1", "new", 1),
        )

    def test_after_a_failure_the_rest_is_left_alone_or_goes_on(self) -> None:
        targets = self.targets({"phase": "Failed"}, {})
        (end,) = decide(ask(ordered=True), targets, self.sight("", ""), frozenset(), NOW).actions
        assert isinstance(end, act.Settle)
        assert end.reason == "Skipped"
        onward = decide(ask(ordered=True, failure_policy="Ignore"), targets, self.sight("", ""), frozenset(), NOW)
        assert onward.actions == (act.Create("c1", "new", 1),)

    def test_nobody_is_asked_twice(self) -> None:
        targets = self.targets({}, {})
        assert decide(ask(), targets, self.sight("", ""), {"c0", "c1"}, NOW).actions == ()
        assert decide(ask(), targets, Sight(), {act.EVERYTHING}, NOW).actions == ()
