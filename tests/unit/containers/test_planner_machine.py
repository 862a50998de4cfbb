"""Any interleaving of what can happen: in the end desired equals observed, and nothing forbidden was done."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stokerd.containers import actions as act
from tests.unit.containers.world import Daemon, World, spec_of

NAMES = ("app", "side")


class Recreation(RuleBasedStateMachine):
    """A request on a pod; the rules are all that the world can do to it."""

    world: World
    daemon: Daemon

    @initialize(
        kubelet=st.booleans(),
        both=st.booleans(),
        ordered=st.booleans(),
        policy=st.sampled_from(["Fail", "Ignore"]),
        force=st.booleans(),
        changed=st.booleans(),
        bad=st.booleans(),
        crashed=st.booleans(),
        min_started=st.sampled_from([0.0, 2.0]),
        unready_grace=st.sampled_from([0.0, 3.0]),
    )
    def begin(
        self,
        kubelet: bool,
        both: bool,
        ordered: bool,
        policy: str,
        force: bool,
        changed: bool,
        bad: bool,
        crashed: bool,
        min_started: float,
        unready_grace: float,
    ) -> None:
        self.world = World("kubelet" if kubelet else "other")
        for name in NAMES:
            self.world.add(name, 0, "exited" if crashed and name == "app" else "running")
        self.world.now += 1
        self.world.bad_new = bad
        self.bystander = self.world.add("bystander", 0, "running")
        spec = spec_of(
            *NAMES[: 2 if both else 1],
            ordered=ordered,
            policy=policy,
            force=force,
            changed=changed and not kubelet,
            min_started=min_started,
            unready_grace=unready_grace,
        )
        self.daemon = Daemon.take(self.world, spec, deadline=60)
        self.daemon.think()

    # ---------------------------------------------------------------------------------------- what happens

    @precondition(lambda self: self.daemon.calls)
    @rule(data=st.data(), fault=st.sampled_from(["", "", "", "", "before", "after"]))
    def a_call_returns(self, data: st.DataObject, fault: str) -> None:
        action = data.draw(st.sampled_from(self.daemon.calls))
        self.daemon.finish(action, fault if not isinstance(action, act.Warm) else "")
        self.daemon.think()

    @rule(seconds=st.sampled_from([0.01, 0.2, 1.0, 6.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        self.daemon.think()

    @rule(name=st.sampled_from(NAMES))
    def something_else_restarts(self, name: str) -> None:
        self.world.restart_by_others(name)
        self.world.now += 0.001

    @rule(name=st.sampled_from(NAMES), told=st.booleans())
    def it_falls_and_something_else_restarts_it(self, name: str, told: bool) -> None:
        for each in self.world.running(name):
            self.world.end(each)
        self.something_else_restarts(name)
        if told:
            self.an_event_arrives()

    @rule(data=st.data())
    def a_container_falls(self, data: st.DataObject) -> None:
        running = [each for name in NAMES for each in self.world.running(name)]
        if running:
            self.world.end(data.draw(st.sampled_from(running)))

    @rule()
    def an_event_arrives(self) -> None:
        self.daemon.told()
        self.daemon.think()

    @rule(up=st.booleans())
    def containerd_comes_or_goes(self, up: bool) -> None:
        self.daemon.up = up
        self.daemon.think()

    @rule(effects=st.lists(st.booleans(), max_size=3))
    def stokerd_is_killed(self, effects: list[bool]) -> None:
        self.daemon.die(effects)
        self.daemon.think()

    @rule()
    def it_is_cancelled(self) -> None:
        self.daemon.cancelled = True
        self.daemon.think()

    # ---------------------------------------------------------------------------------------- what holds

    @invariant()
    def nothing_forbidden_was_done(self) -> None:
        if hasattr(self, "world"):
            assert not self.world.wrongs, self.world.wrongs
            assert self.bystander.state == "running"

    def teardown(self) -> None:
        """Nothing more goes wrong: the request comes to its end, and each name has what it should."""
        if not hasattr(self, "world"):
            return
        self.daemon.up = True
        for _ in range(400):
            self.daemon.told()
            wake = self.daemon.think()
            if self.daemon.done and not self.daemon.calls:
                break
            if self.daemon.calls:
                self.daemon.finish(self.daemon.calls[0])
            elif wake is not None:
                self.world.now = max(wake, self.world.now + 0.001)
            if self.world.owner == "kubelet":
                for name in NAMES:
                    self.world.restart_by_others(name)
        assert self.daemon.done, (self.daemon.targets, self.daemon.calls, self.daemon.sight)
        self.nothing_forbidden_was_done()
        for target in self.daemon.targets:
            self._check(target.row.name)

    def _check(self, name: str) -> None:
        row = self.daemon.target(name).row
        running = self.world.running(name)
        assert len(running) <= 1, (row, self.world.named(name))
        if row.reason in {"Recreated", "RolledBack"}:
            placed = self.world.bodies[row.new_id]
            newest = self.world.named(name)[-1]
            assert placed.request or self.world.owner == "kubelet"
            assert placed.state == "running" or self.world.unseen or newest.attempt >= placed.attempt
        if row.reason == "RollbackFailed":
            assert self.world.returned, "nobody has tried"
        if row.killed and self.world.owner != "kubelet" and row.reason not in {"RollbackFailed", "StopFailed"}:
            later = [each for each in self.world.named(name) if each.attempt > row.old_attempt]
            assert later, "it was stopped, and nothing came after it"
        if row.committed_at is None and row.phase == "Failed" and row.reason != "ContainerGone":
            assert row.old_id not in self.daemon.stopped


Recreation.TestCase.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
TestRecreation = Recreation.TestCase
