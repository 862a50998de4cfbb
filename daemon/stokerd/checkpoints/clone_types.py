"""What a clone is. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from stokerd.checkpoints.cni import NetworkList, addresses

Mode = Literal["eager", "lazy", "auto"]
"""How memory comes back: before the start, after it, or the second for large ones and the first when that fails."""
Memory = Literal["eager", "loading", "loaded", "lost"]


class Clone(msgspec.Struct, frozen=True):
    """A container that goes on where a checkpoint was taken, and all that is needed to take it down again.

    ``making``: it is not finished, and what there is of it is removed when nobody works on it. ``network`` is known
    before the first plugin runs, ``result`` after the last. ``memory``: ``loading`` by the process ``helper``, ``lost``
    when that died, and then ``why`` has the end of its log.
    """

    id: str
    checkpoint: str
    created_at: datetime
    state: Literal["making", "made"] = "making"
    network: NetworkList | None = None
    result: dict[str, Any] | None = None
    pid: int = 0
    memory: Memory = "eager"
    helper: int = 0
    why: str = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        return addresses(self.result or {})
