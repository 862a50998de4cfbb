"""Networks made ahead, so that a clone does not wait for one.

Each is written down before its first plugin runs, and has a name of its own: a clone that takes it keeps that name. One
that is no longer as it was made, or whose configuration the node no longer has, is taken down and made anew.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import msgspec
import structlog

from stokerd.checkpoints import networks
from stokerd.checkpoints.cni import NetworkList
from stokerd.checkpoints.ending import settled, to_the_end
from stokerd.checkpoints.errors import CheckpointError
from stokerd.checkpoints.networks import Attached
from stokerd.checkpoints.shelf import Shelf
from stokerd.runtime.protocol import NativeRuntime

_log = structlog.get_logger("checkpoints")
_PAUSE = 10.0
"""After a network that could not be made."""


class Ahead(msgspec.Struct, frozen=True):
    """A network that waits for a clone; without a ``result`` it was never finished."""

    name: str
    network: NetworkList
    result: dict[str, Any] | None = None


class Reserve:
    """Networks made ahead: ``size`` of them, which may change at any time."""

    def __init__(self, runtime: NativeRuntime, shelf: Shelf, size: int = 0) -> None:
        self._runtime, self._shelf, self._size = runtime, shelf, size
        self._ready: list[Ahead] = []
        self._adopted = False
        self._changed = asyncio.Event()
        self._filling = asyncio.Lock()

    @property
    def ready(self) -> int:
        return len(self._ready)

    async def connect(self, size: int) -> None:
        """Have so many networks from now on, no more and no fewer; on return they are there."""
        self._size = size
        await self._fill()

    async def take(self, wanted: NetworkList) -> Ahead | None:
        """Hand out a network of this configuration, None when there is none. It stays written down until `forget`."""
        while self._ready:
            found = self._ready.pop(0)
            self._changed.set()
            if found.network == wanted and await asyncio.to_thread(networks.is_there, self._runtime.info, found.name):
                return found
            await self._drop(found)
        return None

    async def forget(self, name: str) -> None:
        """A network belongs to a clone now, whose description says so."""
        await asyncio.to_thread(self._shelf.drop_network, name)

    async def run(self) -> None:
        """Keep as many as are wanted, until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self._fill()
            except (CheckpointError, OSError) as error:
                _log.warning("no network can be made ahead", why=str(error))
                await asyncio.sleep(_PAUSE)
                continue
            await self._changed.wait()

    async def _adopt(self) -> None:
        """Take over what an earlier stokerd made, and take down what is not as it was made."""
        held = {clone.netns for clone in await asyncio.to_thread(self._shelf.clones)}
        ours = {each.name for each in self._ready}
        for body in await asyncio.to_thread(self._shelf.networks):
            try:
                found = msgspec.json.decode(body, type=Ahead)
            except msgspec.MsgspecError as error:
                _log.warning("a network made ahead cannot be read", why=str(error))
                continue
            if found.name in ours:
                continue
            if found.name in held:
                await self.forget(found.name)
            elif await self._is_good(found):
                self._ready.append(found)
            else:
                await self._drop(found)
        self._adopted = True

    async def _is_good(self, found: Ahead) -> bool:
        info = self._runtime.info
        if found.result is None or not await asyncio.to_thread(networks.is_there, info, found.name):
            return False
        try:
            await networks.check(info, found.name, Attached(found.network, found.result))
        except CheckpointError as error:
            _log.info("a network made ahead is not as it was made", name=found.name, why=error.message)
            return False
        return found.network == await networks.configuration(info)

    async def _fill(self) -> None:
        async with self._filling:
            if not self._adopted:
                await self._adopt()
            while len(self._ready) > self._size:
                await self._drop(self._ready.pop())
            making = asyncio.gather(*(self._make() for _ in range(self._size - len(self._ready))))
            cancelled = await settled(making, making.cancel)
            if cancelled is not None:
                raise cancelled
            making.result()

    async def _make(self) -> None:
        info = self._runtime.info
        made = Ahead(f"ahead-{secrets.token_hex(8)}", await networks.configuration(info))
        await self._write(made)
        finished = False
        try:
            await networks.make_netns(info, made.name)
            made = msgspec.structs.replace(made, result=(await networks.attach(info, made.name, made.network)).result)
            await self._write(made)
            finished = True
        finally:
            if not finished:
                await to_the_end(self._drop(made), f"take down {made.name}")
        self._ready.append(made)

    async def _write(self, ahead: Ahead) -> None:
        await asyncio.to_thread(self._shelf.write_network, ahead.name, msgspec.json.encode(ahead))

    async def _drop(self, ahead: Ahead) -> None:
        """Take a network down. One that does not go is written down still, and tried again after the next start."""
        info = self._runtime.info
        try:
            await networks.detach(info, ahead.name, ahead.network, ahead.result)
            await networks.drop_netns(info, ahead.name)
        except CheckpointError as error:
            if ahead.result is not None:
                _log.warning("a network made ahead cannot be taken down", name=ahead.name, why=error.message)
                return
            await networks.drop_netns(info, ahead.name)
        await asyncio.to_thread(self._shelf.drop_network, ahead.name)
