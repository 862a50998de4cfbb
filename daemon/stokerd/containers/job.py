"""A request while the daemon lives: changed on the event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from stoker.objects import containers as api
from stoker.objects.images import InlineAuth
from stokerd.containers import views
from stokerd.containers.hooks import Hook
from stokerd.containers.model import Effort, Sight, Spec, Target
from stokerd.journal.rows import RecreateRow, TargetRow
from stokerd.runtime.pod_types import ContainerStatus, PodStatus

Environment = Mapping[str, Mapping[str, str | None]]
"""Changes to variables by container; None takes one away."""


class Material(msgspec.Struct, frozen=True):
    """What a new container is made from: the old one, looked at alone. Holds secrets; kept in memory only."""

    status: ContainerStatus
    grace: float
    hook: Hook | None = None
    hook_problem: str = ""

    def __repr__(self) -> str:
        return f"Material({self.status!r})"


class Job:
    """A request to recreate. ``env``, ``auths`` and ``materials`` are forgotten when it ends, or with this process."""

    def __init__(
        self,
        row: RecreateRow,
        spec: Spec,
        rows: list[TargetRow],
        *,
        env: Environment | None = None,
        auths: tuple[InlineAuth, ...] = (),
    ) -> None:
        self.row = row
        self.spec = spec
        self.env = dict(env or {})
        self.auths = auths
        specs = {each.name: each for each in spec.targets}
        self.targets = tuple(
            Target(each, specs[each.name], Effort(lost=bool(specs[each.name].env_set) and each.name not in self.env))
            for each in rows
        )
        self.sight = Sight()
        self.pod: PodStatus | None = None
        self.materials: dict[str, Material] = {}
        self.steps: dict[str, api.Step] = {}
        self.turn = asyncio.Event()
        """Set when it is this request's turn, or when it has been cancelled."""
        self.serial = 0
        """The last event before the pod was seen as it is in ``sight``."""
        self.accepted = asyncio.Event()
        """Set when the journal has it, or could not take it."""

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def finished(self) -> bool:
        return self.row.phase == "Completed"

    @property
    def clean(self) -> bool:
        """Nothing that the request made or replaced is left to be removed."""
        return all(each.row.clean for each in self.targets)

    def put(self, target: Target) -> None:
        self.targets = tuple(target if each.name == target.name else each for each in self.targets)

    def target(self, name: str) -> Target:
        return next(each for each in self.targets if each.name == name)

    def equip(self, sight: Sight, pod: PodStatus, materials: dict[str, Material], serial: int) -> None:
        """Take over what was found out when the request was made."""
        self.serial = serial
        self.sight, self.pod, self.materials = sight, pod, materials
        for name, each in materials.items():
            target = self.target(name)
            hook = each.hook is not None or bool(each.hook_problem)
            self.put(replace(target, effort=replace(target.effort, known=True, grace=each.grace, hook=hook)))

    def begin(self, now: float) -> None:
        """It is this request's turn."""
        started = self.row.started_at if self.row.started_at is not None else now
        self.row = replace(self.row, phase="Recreating", started_at=started)

    def mark_clean(self) -> None:
        for each in self.targets:
            self.put(replace(each, row=replace(each.row, clean=True)))

    def forget_secrets(self) -> None:
        self.env, self.auths, self.materials, self.pod = {}, (), {}, None

    def status(self, *, waiting_for: str = "") -> api.RecreateStatus:
        return views.recreate(
            self.row,
            [
                views.target(each.row, step="" if each.final else self.steps.get(each.name, ""), image=each.spec.image)
                for each in self.targets
            ],
            waiting_for=waiting_for,
        )
