"""What a clone is, and how one is asked for. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from stokerd.checkpoints.cni import NetworkList, addresses

Mode = Literal["eager", "lazy", "auto"]
"""How memory comes back: before the start, after it, or the second for large ones and the first when that fails."""
Memory = Literal["eager", "loading", "loaded", "lost"]


class CloneWish(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """How a container is to come back. ``env`` and ``files`` are what is to differ from the others; they may hold
    secrets, so the repr names them alone, and they are written into the clone's root and nowhere else."""

    hostname: str = ""
    mode: Mode = "auto"
    env: dict[str, str] = msgspec.field(default_factory=dict)
    files: dict[str, bytes] = msgspec.field(default_factory=dict)
    hook: tuple[str, ...] = ()
    labels: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"CloneWish({self.hostname!r}, {self.mode!r}, env={sorted(self.env)}, files={sorted(self.files)})"


class Clone(msgspec.Struct, frozen=True):
    """A container that goes on where a checkpoint was taken, and all that is needed to take it down again.

    ``making``: it is not finished, and what there is of it is removed when nobody works on it; ``restoring``: the same,
    but its network stays. ``network`` is known before the first plugin runs, ``result`` after the last; ``netns`` names
    the namespace. ``memory``: ``loading`` by the process ``helper``, ``lost`` when that died, and then ``why`` has the
    end of its log.

    One that was restored in place of CRI's container ``origin`` is in the namespaces of ``pod`` and ends with it.
    """

    id: str
    checkpoint: str
    created_at: datetime
    state: Literal["making", "restoring", "made"] = "making"
    network: NetworkList | None = None
    result: dict[str, Any] | None = None
    pid: int = 0
    memory: Memory = "eager"
    helper: int = 0
    why: str = ""
    netns: str = ""
    pod: str = ""
    origin: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def addresses(self) -> tuple[str, ...]:
        return addresses(self.result or {})
