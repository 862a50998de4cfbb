"""What can be done for a request: the planner says what, the executor does it. Frozen values. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from stokerd.containers.model import Role

CountsAs = Literal["Succeeded", "Failed"]


class Observe(msgspec.Struct, frozen=True):
    """Look at the pod. ``full``: at its sandbox, and at the old containers' configurations, too."""

    full: bool = True


class Warm(msgspec.Struct, frozen=True):
    """Make an image present: the new one, or with ``restore`` the one that the old container was made from."""

    target: str
    image: str = ""
    restore: bool = False


class Create(msgspec.Struct, frozen=True):
    """Create a container beside the old one, without starting it. ``source``: it is what this one was to be, which
    could not be started through no fault of its own."""

    target: str
    role: Role
    attempt: int
    source: str = ""


class Commit(msgspec.Struct, frozen=True):
    """Write down that the old container is stopped now, and that the target is seen through from here on."""

    target: str


class Hook(msgspec.Struct, frozen=True):
    """Run the old container's preStop hook."""

    target: str
    container: str
    timeout: float


class Stop(msgspec.Struct, frozen=True):
    target: str
    container: str
    grace: float


class Start(msgspec.Struct, frozen=True):
    target: str
    container: str


class Examine(msgspec.Struct, frozen=True):
    """Look at one container alone: when it was started, or how it ended."""

    target: str
    container: str


class Check(msgspec.Struct, frozen=True):
    """Run the request's probe once."""

    target: str
    container: str


class Remove(msgspec.Struct, frozen=True):
    """Remove a container that does not run."""

    target: str
    container: str


class Blame(msgspec.Struct, frozen=True):
    """The new container will not do: write that down, and go back."""

    target: str
    verdict: str


class Retarget(msgspec.Struct, frozen=True):
    """The container to be recreated is another one now."""

    target: str
    container: str
    attempt: int
    forced: bool


class Settle(msgspec.Struct, frozen=True):
    """A target has come to its end."""

    target: str
    phase: CountsAs
    reason: str
    message: str
    hint: str = ""
    rolled_back: bool = False
    container: str = ""
    attempt: int = 0


Action = Observe | Warm | Create | Commit | Hook | Stop | Start | Examine | Check | Remove | Blame | Retarget | Settle
Instant = (Retarget, Settle)
"""Actions that change what is known, and nothing else."""
EVERYTHING = "*"
"""Who is busy while the whole pod is being looked at."""


def subject(action: Action) -> str:
    """Return the target that an action keeps busy."""
    return EVERYTHING if isinstance(action, Observe) else action.target


class Decision(msgspec.Struct, frozen=True):
    """What is to be done now, and when to decide again if nothing happens before."""

    actions: tuple[Action, ...] = ()
    wake_at: float | None = None
