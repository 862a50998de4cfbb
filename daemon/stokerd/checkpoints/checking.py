"""Asks CRIU whether it works on this kernel. Loaded when somebody asks for the node's state."""

from __future__ import annotations

import asyncio
import contextlib

from stokerd.checkpoints.capabilities import Checked, problem_of
from stokerd.checkpoints.errors import CheckpointError
from stokerd.checkpoints.nodes import Ended, run_on_node
from stokerd.runtime.types import RuntimeInfo

_TIMEOUT = 10.0
_PATIENCE = 3.0
"""Less than the uplink waits for all that is asked of the node: what it says at its beginning is said once."""
_AGAIN = 60.0
_NOT_CRIU = b"nsenter:"
"""What begins with this was said on the way to CRIU."""


class Asker:
    """Asks CRIU once for each start of containerd, however many want to know: its answer may take longer than any of
    them waits. Where it gave none, it is asked again, not before a minute has passed.

    `run` does the asking; while it does not run, nothing new comes to be known.
    """

    def __init__(self) -> None:
        self._wanted: RuntimeInfo | None = None
        self._of: tuple[int, str] | None = None
        self._answer = Checked()
        self._again = 0.0
        self._ask, self._told = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Ask whenever somebody wants to know what is not known, until cancelled."""
        while True:
            await self._ask.wait()
            self._ask.clear()
            wanted = self._wanted
            if wanted is not None and self._lacks(wanted):
                self._answer, self._of = await check(wanted), _key(wanted)
                self._again = asyncio.get_running_loop().time() + _AGAIN
            self._told.set()

    async def answer(self, info: RuntimeInfo) -> Checked:
        """Return what is known; of what is not, a moment is waited for."""
        if self._lacks(info):
            self._wanted = info
            self._told.clear()
            self._ask.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await self._told.wait()
        return self._answer if self._of == _key(info) else Checked(known=False)

    def _lacks(self, info: RuntimeInfo) -> bool:
        late = asyncio.get_running_loop().time() >= self._again
        return self._of != _key(info) or (not self._answer.known and late)


async def check(info: RuntimeInfo) -> Checked:
    """Run ``criu check`` on the node, and ask it for lazy memory."""
    if not info.criu_version:
        return Checked()
    try:
        whole = await _ask(info)
        if whole.status:
            return Checked(problem_of(whole.status, _text(whole)))  # lazy memory cannot be asked for then
        lazy = await _ask(info, "--feature", "uffd-noncoop")
    except CheckpointError as error:
        return Checked(error.message, known=False)
    return Checked(lazy=lazy.status == 0)


async def _ask(info: RuntimeInfo, *options: str) -> Ended:
    """Return what CRIU says; CheckpointError when it did not come to say anything."""
    ended = await run_on_node(info, ("criu", "check", *options), timeout=_TIMEOUT)
    if ended.status < 0:
        raise CheckpointError(f"criu was killed by signal {-ended.status}")
    if ended.status and ended.errors.startswith(_NOT_CRIU):
        raise CheckpointError(_text(ended).splitlines()[0][:200])
    return ended


def _key(info: RuntimeInfo) -> tuple[int, str]:
    return info.pid, info.criu_version


def _text(ended: Ended) -> str:
    return (ended.errors + b"\n" + ended.output).decode("utf-8", "replace")
