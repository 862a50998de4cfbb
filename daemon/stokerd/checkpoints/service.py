"""The face of the room: checkpoints made, listed, verified and removed; containers paused and resumed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import datetime

import structlog

from stokerd.checkpoints.clone_types import Clone, CloneWish, Mode
from stokerd.checkpoints.clones import Clones
from stokerd.checkpoints.committing import Committed, Committer, CommitWish
from stokerd.checkpoints.converging import AtWork, Converged, converge
from stokerd.checkpoints.criu import NODE_CONFIG
from stokerd.checkpoints.ending import to_the_end
from stokerd.checkpoints.errors import CheckpointDamaged, CheckpointError
from stokerd.checkpoints.exporting import Exporter
from stokerd.checkpoints.freezing import Dumpers, Freeze, stand, thaw
from stokerd.checkpoints.holding import Holder
from stokerd.checkpoints.importing import Importer, ImportWish
from stokerd.checkpoints.manifest import Group, Manifest
from stokerd.checkpoints.model import Pause, Tell, Wish, root_name, untold
from stokerd.checkpoints.nodeconf import ensure_node_config
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.surveying import Survey, dumpers, survey
from stokerd.checkpoints.taking import Taker, remove, remove_group, utc_now
from stokerd.checkpoints.undoing import snapshot_of
from stokerd.checkpoints.verifying import Verifier
from stokerd.errors import Conflict, InvalidInput, NotFound, RuntimeFailure
from stokerd.runtime.protocol import NativeRuntime

_log = structlog.get_logger("checkpoints")
_CONVERGE_PAUSE = 5.0


class Checkpoints:
    """``directory`` is a path of the node; ``owner`` is this daemon's identity, which its snapshots are labelled with.
    ``manage_criu_config``: write the node's configuration of CRIU where nobody else has, which halves the freeze.

    `run` belongs to the daemon's task group: it clears up after a start and whenever containerd is back. `create` goes
    on when its caller goes away only as long as its task does: whoever answers requests runs it in a task of its own.
    """

    def __init__(
        self,
        runtime: NativeRuntime,
        directory: str,
        owner: str,
        *,
        survey: Survey = survey,
        dumpers: Dumpers = dumpers,
        clock: Callable[[], datetime] = utc_now,
        manage_criu_config: bool = False,
        networks_ahead: int = 0,
    ) -> None:
        self._runtime, self._directory, self._owner, self._clock = runtime, directory, owner, clock
        self._survey, self._dumpers, self._manage_criu_config = survey, dumpers, manage_criu_config
        self._networks_ahead = networks_ahead
        self.holder = Holder(runtime, owner, clock)
        """Leases of what is made in containerd beside checkpoints."""
        self._taker: Taker | None = None
        self._shelf: Shelf | None = None
        self._clones: Clones | None = None
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()
        self._views: set[str] = set()
        self._again = asyncio.Event()
        self._opening = asyncio.Lock()
        self.cleared = asyncio.Event()
        """What an earlier stokerd left has been gone through."""

    # ------------------------------------------------------------------------------------------ life

    async def open(self) -> None:
        """Make the directory, as the node sees it. RuntimeUnavailable before containerd has answered once."""
        async with self._opening:  # two of each would not know what the other one is at
            if self._shelf is None:
                shelf = Shelf(self._directory, lambda: self._runtime.info.host_root)
                await asyncio.to_thread(shelf.open)
                await self._tune()
                self._taker = Taker(self._runtime, shelf, self._owner, self._survey, self._dumpers, self._clock)
                self._clones = Clones(self._runtime, shelf, self._owner, self._clock, self._networks_ahead)
                self._taker.left = self._clones.left = self._again.set
                self._shelf = shelf

    async def _tune(self) -> None:
        info = self._runtime.info
        if not self._manage_criu_config or not info.criu_version:
            return
        try:
            state = await asyncio.to_thread(ensure_node_config, info.host_root, info.criu_version)
        except OSError as error:
            _log.warning("CRIU stays as it is: its configuration cannot be written", why=str(error))
        else:
            _log.info("CRIU's configuration on the node", file=NODE_CONFIG, state=state)

    async def run(self) -> None:
        """Clear up whenever containerd is there again, and watch over memory that still comes in, until cancelled."""
        self._runtime.on_change(self._again.set)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_clear(), name="checkpoints: clear up")
            group.create_task((await self._opened()).supervise(), name="checkpoints: clones")

    async def _opened(self) -> Clones:
        """Open as soon as that succeeds."""
        while True:
            await self._runtime.wait_ready()
            try:
                return await self._cloner()
            except (RuntimeFailure, OSError) as error:
                _log.warning("the directory of checkpoints cannot be opened yet", why=str(error))
            await asyncio.sleep(_CONVERGE_PAUSE)

    async def _keep_clear(self) -> None:
        while True:
            self._again.clear()
            await self._runtime.wait_ready()
            try:
                left = (await self.converge()).left
                self.cleared.set()
            except (RuntimeFailure, CheckpointError, OSError) as error:
                _log.warning("cannot clear up yet", why=str(error))
                left = [str(error)]
            if not left:
                await self._again.wait()
                continue
            try:
                async with asyncio.timeout(_CONVERGE_PAUSE):
                    await self._again.wait()
            except TimeoutError:
                continue

    async def converge(self) -> Converged:
        """Thaw what was left frozen, remove what was left incomplete."""
        taker, shelf = await self._parts()
        busy = AtWork(taker.under_way, self._views, self._users)
        done = await converge(self._runtime, shelf, self._owner, self._dumpers, busy)
        gone, left = await (await self._cloner()).converge()
        done.clones, done.left = [*done.clones, *gone], [*done.left, *left]
        done.left += await self.holder.clear()
        return done

    # ------------------------------------------------------------------------------------------ checkpoints

    async def create(self, container_id: str, wish: Wish | None = None, *, tell: Tell = untold) -> Manifest:
        """Checkpoint one container. *tell* is given the name of each step as it begins."""
        taker, _ = await self._parts()
        async with self._alone(container_id):
            await (await self._cloner()).must_be_whole(container_id)
            (made,) = await taker.take((container_id,), wish or Wish(), tell)
        return made

    async def create_group(
        self, container_ids: Sequence[str], wish: Wish | None = None, *, tell: Tell = untold
    ) -> Group:
        """Checkpoint several containers in one freeze: all stand before the first is dumped, and until the last is.
        Either all of them are complete, or there is nothing."""
        taker, _ = await self._parts()
        wanted = tuple(dict.fromkeys(container_ids))
        if not wanted:
            raise InvalidInput("no containers are named")
        async with AsyncExitStack() as stack:
            for each in sorted(wanted):
                await stack.enter_async_context(self._alone(each))
                await (await self._cloner()).must_be_whole(each)
            made = await taker.take(wanted, wish or Wish(), tell, grouped=True)
        return Group(made[0].group, (wish or Wish()).name or made[0].group, made)

    async def groups(self) -> tuple[Group, ...]:
        """Return all groups, the oldest first."""
        _, shelf = await self._parts()
        known = {each.id: each for each in await self.list()}
        found = await asyncio.to_thread(shelf.groups)
        return tuple(
            Group(each.id, each.name, tuple(known[member] for member in each.members if member in known))
            for each in sorted(found, key=lambda each: (each.created_at, each.id))
        )

    async def list(self) -> tuple[Manifest, ...]:
        """Return all complete checkpoints that can be read, the oldest first."""
        _, shelf = await self._parts()

        def read() -> list[Manifest]:
            found: list[Manifest] = []
            for name in shelf.names():
                try:
                    manifest = shelf.manifest(name)
                except CheckpointDamaged as error:
                    _log.warning("a checkpoint cannot be read", id=name, why=error.message)
                    continue
                if manifest is not None:
                    found.append(manifest)
            return found

        return tuple(sorted(await asyncio.to_thread(read), key=lambda each: (each.created_at, each.id)))

    async def users(self) -> Counter[str]:
        """Count, by checkpoint, what stands on it: with any it cannot be removed."""
        names = {root_name(each.id): each.id for each in await self.list()}
        found = await self._runtime.snapshots.list()
        return Counter(names[each.parent] for each in found if each.parent in names)

    async def inspect(self, checkpoint: str) -> Manifest:
        """Return one checkpoint, by id or by the name that only one has; NotFound, CheckpointDamaged."""
        _, shelf = await self._parts()
        manifest = await asyncio.to_thread(shelf.manifest, checkpoint)
        if manifest is not None:
            return manifest
        named = [each for each in await self.list() if each.name == checkpoint]
        if not named:
            raise NotFound(f"no checkpoint {checkpoint} is here", hint="stoker checkpoint ls")
        if len(named) > 1:
            raise InvalidInput(f"{len(named)} checkpoints have the name {checkpoint}", hint="name one by its id")
        return named[0]

    async def verify(self, checkpoint: str) -> Manifest:
        """Compare all that is there with the manifest; CheckpointDamaged names every difference."""
        _, shelf = await self._parts()
        manifest = await self.inspect(checkpoint)
        await Verifier(self._runtime, shelf, self._owner, self._clock, self._views).verify(manifest)
        return manifest

    async def remove(self, checkpoint: str) -> None:
        """Remove a checkpoint, or a whole group by its id or name; Conflict while clones are made on it."""
        _, shelf = await self._parts()
        groups = await asyncio.to_thread(shelf.groups)
        whole = [each for each in groups if checkpoint in {each.id, each.name}]
        if len(whole) > 1:
            raise InvalidInput(f"{len(whole)} groups have the name {checkpoint}", hint="name one by its id")
        for group in whole:
            await self._free(group.members)
            await to_the_end(remove_group(self._runtime, shelf, group), f"remove {group.id}")
            return
        names = await asyncio.to_thread(shelf.names)
        identity = checkpoint if checkpoint in names else (await self.inspect(checkpoint)).id
        for group in groups:
            if identity in group.members:
                raise Conflict(f"checkpoint {identity} was taken together with others", hint=f"remove all: {group.id}")
        await self._free((identity,))
        await to_the_end(remove(self._runtime, shelf, identity), f"remove {identity}")

    async def _free(self, checkpoints: Sequence[str]) -> None:
        """Conflict when anything is made on one of them, or a container has yet to be stopped."""
        _, shelf = await self._parts()
        for each in checkpoints:
            intent = await asyncio.to_thread(shelf.intent, each)
            if intent is not None and intent.stop and await asyncio.to_thread(shelf.manifest, each) is not None:
                raise Conflict(f"container {intent.container_id} is being stopped with checkpoint {each}")
        roots = {root_name(each): each for each in checkpoints}
        users = [each.name for each in await self._runtime.snapshots.list() if each.parent in roots]
        cloner = await self._cloner()
        for each in checkpoints:
            users += [name for name in await cloner.needing(each) if snapshot_of(name) not in users]
        if users:
            raise Conflict(
                f"checkpoint {', '.join(checkpoints)} is in use by {len(users)}: {', '.join(users[:3])}",
                hint="remove its clones first, and checkpoints of them",
            )

    async def commit(self, container_id: str, wish: CommitWish, *, tell: Tell = untold) -> Committed:
        """Make an image of a container's root filesystem; it is frozen only while its upper directory is copied."""
        _, shelf = await self._parts()
        async with self._alone(container_id):
            return await Committer(self._runtime, shelf, self.holder, self._clock).commit(container_id, wish, tell=tell)

    # ------------------------------------------------------------------------------------------ in and out

    async def archive(self, checkpoint: str) -> AsyncGenerator[bytes, None]:
        """Yield a checkpoint as one archive; it cannot be removed meanwhile."""
        manifest = await self.inspect(checkpoint)
        async with aclosing((await self.exporter()).archive(manifest)) as pieces:
            async for piece in pieces:
                yield piece

    async def receive(self, pieces: AsyncIterator[bytes], wish: ImportWish) -> Manifest:
        """Take in an archive that is trusted in nothing; ArchiveRefused, and nothing is left of it."""
        return await (await self.importer()).receive(pieces, wish)

    async def exporter(self) -> Exporter:
        _, shelf = await self._parts()
        return Exporter(self._runtime, shelf, self._owner, self._clock, self._views)

    async def importer(self) -> Importer:
        taker, shelf = await self._parts()
        return Importer(self._runtime, shelf, self._owner, self._clock, taker.under_way, self._again.set)

    # ------------------------------------------------------------------------------------------ clones

    async def clone(
        self,
        checkpoint: str,
        *,
        hostname: str = "",
        mode: Mode = "auto",
        env: Mapping[str, str] | None = None,
        files: Mapping[str, bytes] | None = None,
        hook: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        tell: Tell = untold,
    ) -> Clone:
        """Bring the container of a checkpoint back once more, with a network of its own; returns when it runs.

        *env* and *files* are what is to differ from the others: written into its root before it runs. *hook* is run in
        it afterwards.
        """
        manifest = await self.inspect(checkpoint)
        wish = CloneWish(hostname, mode, dict(env or {}), dict(files or {}), tuple(hook), dict(labels or {}))
        return await (await self._cloner()).make(manifest, wish, tell)

    async def restore(self, checkpoint: str, *, mode: Mode = "auto", tell: Tell = untold) -> Clone:
        """Bring a container that was stopped back to where it was, with the address that it had.

        Conflict while it runs; CheckpointRefused when its place, the pod or the network, is gone.
        """
        manifest = await self.inspect(checkpoint)
        async with self._alone(manifest.source.container_id):
            return await (await self._cloner()).restore(manifest, CloneWish(mode=mode), tell)

    async def connect(self, count: int) -> None:
        """Have networks for so many clones to come: each of them starts sooner by the making of its network."""
        self._networks_ahead = count
        await (await self._cloner()).reserve.connect(count)

    async def clones(self) -> tuple[Clone, ...]:
        return await (await self._cloner()).list()

    async def remove_clone(self, clone: str) -> None:
        """End a clone, give its address back, remove all that is its own."""
        await (await self._cloner()).remove(clone)

    async def _cloner(self) -> Clones:
        await self._parts()
        assert self._clones is not None
        return self._clones

    # ------------------------------------------------------------------------------------------ pausing

    async def pause(self, container_id: str) -> None:
        """Freeze a container until `resume`; one that is frozen is no error. It outlives stokerd."""
        _, shelf = await self._parts()
        async with self._alone(container_id):
            task = await self._runtime.tasks.get(container_id)
            if task is None or task.state not in {"running", "paused", "pausing"}:
                raise NotFound(f"no container {container_id} runs here")
            since = self._clock()
            if task.state == "running":
                await asyncio.to_thread(shelf.write_pause, Pause(container_id, "pausing", since))
                try:
                    await stand(Freeze(self._runtime, container_id, ours=True))
                except BaseException:
                    await to_the_end(self._unpause(shelf, container_id), f"undo the pause of {container_id}")
                    raise
            await asyncio.to_thread(shelf.write_pause, Pause(container_id, "paused", since))

    async def resume(self, container_id: str) -> None:
        """Thaw a container; one that runs is no error."""
        _, shelf = await self._parts()
        async with self._alone(container_id):
            task = await self._runtime.tasks.get(container_id)
            if task is None:
                raise NotFound(f"no container {container_id} runs here")
            if task.state in {"paused", "pausing"}:
                await self._runtime.tasks.resume(container_id)
            await asyncio.to_thread(shelf.drop_pause, container_id)

    async def _unpause(self, shelf: Shelf, container_id: str) -> None:
        if await thaw(self._runtime, container_id):
            await asyncio.to_thread(shelf.drop_pause, container_id)

    # ------------------------------------------------------------------------------------------ inside

    async def _parts(self) -> tuple[Taker, Shelf]:
        await self.open()
        assert self._taker is not None
        assert self._shelf is not None
        await asyncio.to_thread(self._shelf.must_be_there)
        return self._taker, self._shelf

    @asynccontextmanager
    async def _alone(self, container_id: str) -> AsyncIterator[None]:
        """One thing at a time with each container."""
        lock = self._locks.setdefault(container_id, asyncio.Lock())
        self._users[container_id] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[container_id] -= 1
            if not self._users[container_id]:
                del self._users[container_id], self._locks[container_id]
