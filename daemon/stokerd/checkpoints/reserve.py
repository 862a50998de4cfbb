"""Networks made ahead, so that a clone does not wait for one.

Each is written down before its first plugin runs, and has a name of its own: a clone that takes it keeps that name. One
that is no longer as it was made, or whose configuration the node no longer has, is taken down and made anew.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from functools import partial
from typing import Any

import msgspec
import structlog

from stokerd.checkpoints import networks
from stokerd.checkpoints.cni import NetworkList
from stokerd.checkpoints.ending import in_thread, settled, to_the_end
from stokerd.checkpoints.errors import CheckpointError
from stokerd.checkpoints.networks import Attached
from stokerd.checkpoints.shelf import Shelf
from stokerd.errors import StokerError
from stokerd.runtime.protocol import NativeRuntime

_log = structlog.get_logger("checkpoints")
_PAUSE = 10.0
"""After a network that could not be made, or not be taken down."""


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
        self._lent: set[str] = set()
        """Handed out, and written down still: not to be adopted."""
        self._adopted = False
        """All that is written down is known: ready, or lent."""
        self._changed = asyncio.Event()
        self._filling = asyncio.Lock()

    @property
    def ready(self) -> int:
        return len(self._ready)

    async def connect(self, size: int) -> None:
        """Have so many networks from now on, no more and no fewer; on return they are there."""
        self._size = size
        self._changed.set()  # should it fail now, `run` goes on with it
        await self._fill()

    async def take(self, wanted: NetworkList) -> Ahead | None:
        """Hand out a network of this configuration, None when there is none. It stays written down until `forget`, and
        is looked at again after `put_back`: whoever takes it calls one of them."""
        while self._ready:
            found = self._ready.pop(0)
            self._lent.add(found.name)
            self._changed.set()
            try:
                info = self._runtime.info
                if found.network == wanted and await asyncio.to_thread(networks.is_there, info, found.name):
                    return found
                await self._drop(found)
            except BaseException:
                self.put_back(found.name)
                raise
            self._changed.set()  # it may not have gone
        return None

    async def forget(self, name: str) -> None:
        """A network belongs to a clone now, whose description says so."""
        await asyncio.to_thread(self._shelf.drop_network, name)
        self._lent.discard(name)

    def put_back(self, name: str) -> None:
        """One that was handed out was not forgotten: whether it is a clone's, or nobody's, is seen by what is written
        down."""
        self._lent.discard(name)
        self._adopted = False
        self._changed.set()

    async def run(self) -> None:
        """Keep as many as are wanted, until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self._fill()
            except (StokerError, OSError) as error:
                _log.warning("no network can be made ahead", why=str(error))
            else:
                if self._adopted or self._changed.is_set():
                    await self._changed.wait()
                    continue
            await self._runtime.wait_ready()
            await asyncio.sleep(_PAUSE)

    async def _adopt(self) -> None:
        """Take over what is written down and not known, as an earlier stokerd's is, and take down what is not as it was
        made."""
        ours = {each.name for each in self._ready} | self._lent
        held = {clone.netns for clone in await asyncio.to_thread(self._shelf.clones)}
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
                await self._know_all()
            while len(self._ready) > self._size:
                await self._drop(self._ready.pop())
            making = [asyncio.create_task(self._make()) for _ in range(self._size - len(self._ready))]
            together = asyncio.gather(*making, return_exceptions=True)
            cancelled = await settled(together, lambda: [each.cancel() for each in making])
            failed = cancelled or next((each for each in together.result() if each is not None), None)
            if failed is not None:
                raise failed

    async def _know_all(self) -> None:
        """Adopt. What happens meanwhile may be a reason to do it once more."""
        self._adopted, done = True, False
        try:
            await self._adopt()
            done = True
        finally:
            self._adopted = self._adopted and done

    async def _make(self) -> None:
        info = self._runtime.info
        made = Ahead(f"ahead-{secrets.token_hex(8)}", await networks.configuration(info))
        finished = False
        try:
            await self._write(made)
            await networks.make_netns(info, made.name)
            made = msgspec.structs.replace(made, result=(await networks.attach(info, made.name, made.network)).result)
            await self._write(made)
            finished = True
        finally:
            if not finished:
                await to_the_end(self._drop(made), f"take down {made.name}")
        self._ready.append(made)

    async def _write(self, ahead: Ahead) -> None:
        content = msgspec.json.encode(ahead)
        await in_thread(threading.Event(), partial(self._shelf.write_network, ahead.name, content))

    async def _drop(self, ahead: Ahead) -> None:
        """Take a network down. One that does not go is written down still, and is tried again."""
        gone = False
        try:
            gone = await self._taken_down(ahead)
        finally:
            self._lent.discard(ahead.name)
            self._adopted = self._adopted and gone

    async def _taken_down(self, ahead: Ahead) -> bool:
        info = self._runtime.info
        try:
            await networks.detach(info, ahead.name, ahead.network, ahead.result)
            await networks.drop_netns(info, ahead.name)
        except CheckpointError as error:
            if ahead.result is not None:
                _log.warning("a network made ahead cannot be taken down", name=ahead.name, why=error.message)
                return False
            await networks.drop_netns(info, ahead.name)
        await asyncio.to_thread(self._shelf.drop_network, ahead.name)
        return True
