"""A pod without a runtime, and a stokerd without an event loop: for tests of the planner alone, at any interleaving."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from stoker.objects.containers import Owner
from stokerd.containers import actions as act
from stokerd.containers.actions import EVERYTHING, Action, Instant, subject
from stokerd.containers.model import NEVER, Ask, Effort, Seen, Sight, Spec, Target, TargetSpec
from stokerd.containers.outcomes import Learned, Result, carried_out, learned, looked, settled
from stokerd.containers.planner import decide
from stokerd.errors import RuntimeFailure, RuntimeInvalid, RuntimeNotFound, RuntimeUnavailable, StokerError
from stokerd.journal.rows import TargetRow

REQUEST = "recreate-1"


@dataclass
class Body:
    """A container as it really is."""

    id: str
    name: str
    attempt: int
    state: str
    request: str = ""
    role: str = ""
    born: float = 0.0
    started_at: float | None = None
    dies: bool = False
    """It ends as soon as it has been started."""


@dataclass
class World:
    """The pod. ``unseen``: something has happened that stokerd has not been told of."""

    owner: Owner = "other"
    bodies: dict[str, Body] = field(default_factory=dict)
    ready: bool = True
    now: float = 100.0
    unseen: bool = False
    serial: int = 0
    wrongs: list[str] = field(default_factory=list)
    returned: int = 0
    """How often an old one was made anew."""
    bad_new: bool = False
    """New containers end as soon as they have been started."""

    def add(self, name: str, attempt: int, state: str, **more: str) -> Body:
        self.serial += 1
        body = Body(f"c{self.serial}", name, attempt, state, born=self.now, **more)  # type: ignore[arg-type]
        body.started_at = self.now if state == "running" else None
        self.bodies[body.id] = body
        return body

    def named(self, name: str) -> list[Body]:
        return sorted((each for each in self.bodies.values() if each.name == name), key=lambda each: each.attempt)

    def running(self, name: str) -> list[Body]:
        return [each for each in self.named(name) if each.state == "running"]

    def happens(self) -> None:
        self.unseen = True

    def end(self, body: Body) -> None:
        body.state = "exited"
        self.happens()

    def restart_by_others(self, name: str) -> None:
        """Whoever looks after the pod starts the next attempt of what does not run."""
        named = self.named(name)
        if self.ready and not self.running(name) and not any(each.state == "created" for each in named):
            self.add(name, named[-1].attempt + 1 if named else 0, "running")
            self.happens()

    # ------------------------------------------------------------------------------------------ calls

    def call(self, action: Action, targets: tuple[Target, ...], full_known: Sight) -> Result:
        match action:
            case act.Observe():
                sandbox = "ready" if self.ready else "notready"
                found = {each.name: Learned(5.0, hook=False) for each in targets if each.row.old_id in self.bodies}
                self.unseen = False
                return Result(sight=Sight(sandbox, self._listed(), self.now), learned=found)  # type: ignore[arg-type]
            case act.Create(target=name, role=role, attempt=attempt):
                if not self.ready:
                    return Result(error=RuntimeNotFound("no sandbox"))
                if any(each.attempt == attempt for each in self.named(name)):
                    return Result(error=RuntimeFailure("reserved"))
                body = self.add(name, attempt, "created", request=REQUEST, role=role)
                self.returned += role == "back"
                body.dies = self.bad_new and role == "new"
                return Result(container=body.id)
            case act.Stop(container=container):
                stopped = self.bodies.get(container)
                if stopped is not None and stopped.state == "running":
                    stopped.state = "exited"
            case act.Start(container=container):
                return self._start(container)
            case act.Examine(container=container):
                return Result(seen=self._detailed(container))
            case act.Check():
                return Result(ready=True)
            case act.Remove(container=container):
                self._remove(container)
            case _:
                pass
        return Result()

    def _listed(self) -> tuple[Seen, ...]:
        return tuple(
            Seen(each.id, each.name, each.attempt, each.state, each.born, each.request, each.role)  # type: ignore[arg-type]
            for each in self.bodies.values()
        )

    def _detailed(self, container: str) -> Seen | None:
        body = self.bodies.get(container)
        if body is None:
            return None
        plain = next(each for each in self._listed() if each.id == container)
        return replace(plain, started_at=body.started_at, exit_code=1 if body.state == "exited" else None)

    def _start(self, container: str) -> Result:
        body = self.bodies.get(container)
        if body is None:
            return Result(error=RuntimeNotFound("gone"))
        if body.state != "created" or not self.ready:
            return Result(error=RuntimeInvalid(f"it is {body.state}"))
        if self.owner == "kubelet":
            self.wrongs.append("a container of the kubelet's was started")
        beside = [each for each in self.running(body.name) if each.started_at is None or each.started_at < self.now]
        if beside and not self.unseen:
            self.wrongs.append(f"{body.id} was started beside {[each.id for each in beside]}")
        body.state, body.started_at = "running", self.now
        if body.dies:
            self.end(body)
        return Result()

    def _remove(self, container: str) -> None:
        body = self.bodies.get(container)
        if body is None:
            return
        if body.state == "running" or body.request != REQUEST:
            self.wrongs.append(f"{container} ({body.state}) was removed")
        del self.bodies[container]


@dataclass
class Daemon:
    """stokerd's part: what it knows, what is in its journal, and which calls are under way."""

    world: World
    spec: Spec
    deadline_at: float
    targets: tuple[Target, ...]
    sight: Sight = field(default_factory=Sight)
    journal: dict[str, TargetRow] = field(default_factory=dict)
    calls: list[Action] = field(default_factory=list)
    cancelled: bool = False
    up: bool = True
    newer: set[str] = field(default_factory=set)
    suspicious: bool = False
    stopped: list[str] = field(default_factory=list)

    @classmethod
    def take(cls, world: World, spec: Spec, *, deadline: float) -> Daemon:
        rows = []
        for position, each in enumerate(spec.targets):
            old = world.named(each.name)[-1]
            rows.append(TargetRow(REQUEST, position, each.name, old.id, old.attempt))
        targets = tuple(Target(row, each) for row, each in zip(rows, spec.targets, strict=True))
        return cls(world, spec, world.now + deadline, targets, journal={row.name: row for row in rows})

    @property
    def done(self) -> bool:
        return all(each.final for each in self.targets)

    def target(self, name: str) -> Target:
        return next(each for each in self.targets if each.name == name)

    def put(self, target: Target) -> None:
        self.targets = tuple(target if each.name == target.name else each for each in self.targets)

    def told(self) -> None:
        """An event arrives."""
        if self.world.unseen:
            self.suspicious = True
            self.sight = replace(self.sight, at=NEVER)

    def think(self) -> float | None:
        """Decide, and begin what is to be done; return when to think again."""
        while True:
            busy = {subject(each) for each in self.calls}
            decision = decide(self._ask(), self.targets, self.sight, busy, self.world.now)
            decided = False
            for action in decision.actions:
                if isinstance(action, Instant):
                    target = settled(self.target(action.target), self.sight, action, self.world.now)
                    self.put(target)
                    self.journal[target.name] = target.row
                    decided = True
                    continue
                assert subject(action) not in busy, f"{action} was asked for twice"
                busy.add(subject(action))
                self.calls.append(action)
                if isinstance(action, act.Observe):
                    self.newer, self.suspicious = set(), False
                if isinstance(action, act.Stop):
                    self._check_stop(action)
            if not decided:
                return decision.wake_at

    def _check_stop(self, action: act.Stop) -> None:
        body = self.world.bodies.get(action.container)
        row = self.target(action.target).row
        if body is not None and body.request != REQUEST and body.id != row.old_id:
            self.world.wrongs.append(f"{body.id} was stopped, and is not what is to be recreated")
        if self.journal[action.target].committed_at is None and action.container == row.old_id:
            self.world.wrongs.append(f"{body} was stopped, and the journal does not know")
        self.stopped.append(action.container)

    def _ask(self) -> Ask:
        return Ask(REQUEST, "pod", self.world.owner, self.spec, 0.0, self.deadline_at, self.cancelled, self.up)

    def finish(self, action: Action, fault: str = "") -> None:
        """Let a call that is under way come back: well, or failed before or after it took effect."""
        self.calls.remove(action)
        result = Result()
        if isinstance(action, act.Commit | act.Blame):
            target, _ = carried_out(self.target(action.target), self.sight, action, result, self.world.now)
            self.put(target)
            self.journal[target.name] = target.row
            return
        seen_before = self.sight
        if fault != "before":
            result = self.world.call(action, self.targets, self.sight)
        if fault:
            error: StokerError = RuntimeUnavailable("away")
            result = Result(error=error)
        if isinstance(action, act.Observe):
            sight = looked(self.sight, result, self.newer, self.world.now)
            self.sight = replace(sight, at=NEVER) if self.suspicious else sight
            self.targets = tuple(learned(each, result) for each in self.targets)
            return
        target, self.sight = carried_out(self.target(action.target), seen_before, action, result, self.world.now)
        self.put(target)
        self.suspicious = self.suspicious or self.sight.at == NEVER
        before = {each.id: each for each in seen_before.containers}
        after = {each.id: each for each in self.sight.containers}
        self.newer |= {each for each in {*before, *after} if before.get(each) != after.get(each)}

    def die(self, effects: list[bool]) -> None:
        """Be killed, and started again: what was under way has taken effect, or has not."""
        calls, self.calls = self.calls, []
        for action, effect in zip(calls, effects + [False] * len(calls), strict=False):
            if effect and not isinstance(action, act.Commit | act.Blame | act.Observe):
                self.world.call(action, self.targets, self.sight)
        self.sight, self.newer, self.suspicious = Sight(), set(), False
        self.targets = tuple(
            Target(self.journal[each.name], each.spec, Effort(lost=bool(each.spec.env_set))) for each in self.targets
        )


def spec_of(*names: str, ordered: bool = False, policy: str = "Fail", force: bool = False, **how: float) -> Spec:
    image = "registry.test/app:v2" if how.pop("changed", 0) else ""
    return Spec(
        targets=tuple(TargetSpec(name, image) for name in names),
        failure_policy=policy,  # type: ignore[arg-type]
        ordered=ordered,
        force=force,
        unready_grace=how.get("unready_grace", 0.0),
        min_started=how.get("min_started", 0.0),
    )


__all__ = ["EVERYTHING", "REQUEST", "Body", "Daemon", "World", "spec_of"]
