"""Asks CRIU whether it works on this kernel. Loaded when somebody asks for the node's state."""

from __future__ import annotations

from stokerd.checkpoints.capabilities import Checked, problem_of
from stokerd.checkpoints.errors import CheckpointError
from stokerd.checkpoints.nodes import Ended, run_on_node
from stokerd.runtime.types import RuntimeInfo

_TIMEOUT = 10.0


async def check(info: RuntimeInfo) -> Checked:
    """Run ``criu check`` on the node, and ask it for lazy memory."""
    if not info.criu_version:
        return Checked()
    try:
        whole = await run_on_node(info, ("criu", "check"), timeout=_TIMEOUT)
        if whole.status:
            return Checked(problem_of(whole.status, _text(whole)))  # lazy memory cannot be asked for then
        lazy = await run_on_node(info, ("criu", "check", "--feature", "uffd-noncoop"), timeout=_TIMEOUT)
    except CheckpointError as error:
        return Checked(error.message)
    return Checked(lazy=lazy.status == 0)


def _text(ended: Ended) -> str:
    return (ended.errors + b"\n" + ended.output).decode("utf-8", "replace")
