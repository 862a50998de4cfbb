"""The smaller decisions: whose turn it is, what an event means, what can be removed, what a dry run says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.objects.containers import Owner, Probe
from stokerd.containers import preview
from stokerd.containers.actions import Examine
from stokerd.containers.line import Waiting, ahead, startable
from stokerd.containers.model import Seen, Sight, Spec, Target, TargetSpec
from stokerd.containers.outcomes import Result, carried_out, looked, pause
from stokerd.containers.preview import Subject
from stokerd.containers.sweeping import leftovers, strays
from stokerd.containers.tidings import judge
from stokerd.errors import RuntimeFailure
from stokerd.journal.rows import TargetRow
from stokerd.runtime.pod_types import ContainerEvent, ContainerEventKind

REQUEST = "recreate-1"


def seen(identity: str, attempt: int, state: str, **more: str) -> Seen:
    return Seen(identity, "app", attempt, state, **more)  # type: ignore[arg-type]


class TestLine:
    @given(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=12, unique_by=lambda each: each[0]),
        st.frozensets(st.integers(0, 3), max_size=3),
        st.integers(1, 4),
    )
    def test_one_a_pod_in_order_and_no_more_than_allowed(
        self, entries: list[tuple[int, int]], running: frozenset[int], limit: int
    ) -> None:
        waiting = [Waiting(f"r{request}", f"p{pod}") for request, pod in entries]
        busy = {f"p{pod}" for pod in running}
        started = startable(waiting, busy, limit)
        pods = [each.pod for each in waiting if each.request in started]
        assert len(set(pods)) == len(pods)
        assert not busy & set(pods)
        assert len(busy) + len(started) <= max(limit, len(busy))
        for each in waiting:
            first = next(other for other in waiting if other.pod == each.pod)
            assert each.request not in started or first is each
        free = {each.pod for each in waiting} - busy
        assert len(started) == min(len(free), max(0, limit - len(busy)))

    def test_who_goes_before(self) -> None:
        waiting = [Waiting("r1", "a"), Waiting("r2", "b"), Waiting("r3", "a")]
        assert ahead(waiting, {"a": "r0"}, "r1") == "r0"
        assert ahead(waiting, {"a": "r0"}, "r3") == "r1"
        assert ahead(waiting, {"a": "r0"}, "r2") == ""
        assert ahead(waiting, {}, "r9") == ""


class TestTidings:
    SIGHT = Sight(containers=(seen("runs", 1, "running"), seen("ended", 0, "exited"), seen("made", 2, "created")))

    @pytest.mark.parametrize(
        ("kind", "identity", "verdict"),
        [
            ("started", "runs", "known"),
            ("stopped", "runs", "news"),
            ("deleted", "runs", "news"),
            ("stopped", "ended", "known"),
            ("started", "ended", "known"),
            ("created", "made", "known"),
            ("started", "made", "news"),
            ("created", "other", "news"),
            ("deleted", "other", "known"),
            ("started", "pod", "known"),
            ("stopped", "pod", "news"),
            ("deleted", "pod", "news"),
        ],
    )
    def test_what_is_news(self, kind: ContainerEventKind, identity: str, verdict: str) -> None:
        event = ContainerEvent(kind, identity, "pod")
        assert judge(event, self.SIGHT, frozenset(), creating=False) == verdict

    def test_what_a_call_is_under_way_for_is_understood_later(self) -> None:
        assert judge(ContainerEvent("stopped", "runs", "pod"), self.SIGHT, {"runs"}, creating=False) == "later"
        assert judge(ContainerEvent("created", "new", "pod"), self.SIGHT, frozenset(), creating=True) == "later"
        assert judge(ContainerEvent("stopped", "runs", "pod"), self.SIGHT, frozenset(), creating=True) == "news"


class TestLooking:
    def test_of_what_was_changed_meanwhile_more_is_known_than_was_seen(self) -> None:
        known = Sight(containers=(seen("old", 0, "exited"), seen("new", 1, "running", request=REQUEST)), at=1.0)
        fresh = Sight(containers=(seen("old", 0, "running"), seen("gone", 5, "exited")), at=2.0)
        result = looked(known, Result(sight=fresh), {"old", "new", "gone"}, now=3.0)
        assert {each.id: each.state for each in result.containers} == {"old": "exited", "new": "running"}
        assert result.at == 2.0

    def test_details_stay_as_long_as_the_state_does(self) -> None:
        known = Sight(containers=(Seen("c", "app", 0, "exited", started_at=5.0, exit_code=3, reason="Error"),))
        same = looked(known, Result(sight=Sight(containers=(seen("c", 0, "exited"),), at=1.0)), (), 2.0)
        assert (same.containers[0].started_at, same.containers[0].exit_code) == (5.0, 3)

    def test_a_look_that_fails_is_taken_again_later_and_later(self) -> None:
        sight = Sight()
        for tries in range(10):
            sight = looked(sight, Result(error=RuntimeFailure("odd")), (), 100.0)
            assert sight.not_before == 100.0 + pause(tries)
        assert pause(1000) == 5.0


class TestSweeping:
    def target(self, **row: object) -> Target:
        base = {"phase": "Succeeded", "reason": "Recreated", "new_id": "new", "committed_at": 1.0, **row}
        return Target(TargetRow(REQUEST, 0, "app", "old", 0, **base), TargetSpec("app"))  # type: ignore[arg-type]

    SIGHT = Sight(
        containers=(
            seen("old", 0, "exited"),
            seen("bad", 1, "exited", request=REQUEST, role="new"),
            seen("spare", 2, "created", request=REQUEST, role="new"),
            seen("new", 3, "running", request=REQUEST, role="back"),
            seen("theirs", 4, "created"),
            seen("others", 5, "exited", request="recreate-2"),
        )
    )

    def test_what_is_proven_lets_the_rest_go(self) -> None:
        assert set(leftovers(self.target(), self.SIGHT, kubelet=False)) == {"old", "bad", "spare"}
        back = self.target(phase="Failed", reason="RolledBack", rolled_back=True)
        assert set(leftovers(back, self.SIGHT, kubelet=False)) == {"old", "bad", "spare"}

    @pytest.mark.parametrize("reason", ["RollbackFailed", "SandboxGone", "Cancelled", "StopFailed"])
    def test_what_is_not_keeps_them(self, reason: str) -> None:
        target = self.target(phase="Failed", reason=reason)
        assert leftovers(target, self.SIGHT, kubelet=False) == ("spare",)

    def test_a_kubelets_containers_are_its_own(self) -> None:
        assert leftovers(self.target(), Sight(containers=(seen("old", 0, "exited"),)), kubelet=True) == ()

    def test_a_request_under_way_has_no_leftovers(self) -> None:
        assert leftovers(self.target(phase="Recreating"), self.SIGHT, kubelet=False) == ()

    def test_strays(self) -> None:
        def made(identity: str, request: str, state: str = "created", name: str = "app") -> tuple[str, Seen]:
            return "pod", Seen(identity, name, 1, state, request=request)  # type: ignore[arg-type]

        found = [
            made("going", "r-going"),
            made("over", "r-over"),
            made("over-runs", "r-over", "running"),
            made("unknown", "r-unknown"),
            made("last-hope", "r-unknown", name="side"),
            ("pod", Seen("theirs", "app", 2, "created")),
        ]
        assert strays(found, {"r-going"}, {"r-over"}) == ["over", "unknown"]


class TestPreview:
    def subject(self, name: str, state: str = "running", **how: object) -> Subject:
        spec = TargetSpec(name, **{key: how.pop(key) for key in ("image", "env_set", "probe") if key in how})  # type: ignore[arg-type]
        return Subject(spec, seen("c", 2, state), 10.0, **how)  # type: ignore[arg-type]

    def actions(self, spec: Spec, owner: Owner, *subjects: Subject) -> list[str]:
        return [f"{step.container}:{step.action}" for step in preview.steps(spec, owner, subjects)]

    def test_one_after_another_and_side_by_side(self) -> None:
        pair = (self.subject("a"), self.subject("b", image="next:1"))
        ordered = self.actions(Spec((), ordered=True), "other", *pair)
        assert ordered[:3] == ["b:warm", "a:create", "a:stop"]
        assert ordered[-1] == "b:remove"
        beside = self.actions(Spec((), unready_grace=5), "other", *pair)
        assert beside[:6] == ["b:warm", ":wait", "a:create", "b:create", "a:stop", "b:stop"]

    def test_under_a_kubelet(self) -> None:
        one = self.subject("a", hook="exec")
        assert self.actions(Spec(()), "kubelet", one) == ["a:prestop", "a:stop", "a:wait", "a:verify"]

    def test_what_does_not_run_is_not_stopped(self) -> None:
        one = self.subject("a", "exited", hook="exec")
        assert self.actions(Spec(()), "other", one) == ["a:create", "a:start", "a:verify", "a:remove"]

    def test_details_name_variables_and_never_their_values(self) -> None:
        one = self.subject("a", image="next:1", env_set=("A", "B"), probe=Probe(exec=["ready", "--token", "x"]))
        details = {step.action: step.detail for step in preview.steps(Spec((), min_started=5), "other", [one])}
        assert details["create"] == "beside the old one; image next:1; sets A, B"
        assert details["verify"] == "stays up for 5 s; probe: command ready, up to 30 times"

    def test_warnings(self) -> None:
        one = self.subject("a", "exited", hook_problem="it is no JSON")
        found = preview.warnings("kubelet", False, "recreate-9", [one])
        assert len(found) == 5
        assert preview.warnings("other", True, "", [self.subject("a")]) == []


class TestClocks:
    def test_a_clock_that_was_set_back_does_not_make_anybody_wait(self) -> None:
        target = Target(TargetRow(REQUEST, 0, "app", "old", 0, committed_at=1.0), TargetSpec("app"))
        sight = Sight(containers=(seen("new", 1, "running"),), at=100.0)
        found = Result(seen=Seen("new", "app", 1, "running", started_at=5000.0))
        _, after = carried_out(target, sight, Examine("app", "new"), found, 100.0)
        assert after.containers[0].started_at == 100.0
