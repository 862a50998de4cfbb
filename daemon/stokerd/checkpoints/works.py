"""What is done for each kind of operation, with the room's own calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

from stoker.objects.checkpoints import (
    CheckpointRequest,
    CloneInfo,
    CloneRequest,
    CommitRequest,
    Operation,
    RestoreRequest,
)
from stokerd.checkpoints import operations, views
from stokerd.checkpoints.asking import hostname_of
from stokerd.checkpoints.clone_types import Clone, Mode
from stokerd.checkpoints.committing import CommitWish
from stokerd.checkpoints.imaging import parse_change
from stokerd.checkpoints.ledger import Ledger
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.model import Wish
from stokerd.checkpoints.operations import OPERATION_LABEL
from stokerd.checkpoints.service import Checkpoints
from stokerd.checkpoints.targets import Target
from stokerd.errors import InvalidInput, StokerError
from stokerd.registry.references import parse_reference
from stokerd.settings import CheckpointSettings


class Works:
    """Carries operations out. Each method returns the operation as it ended well, or raises.

    ``turns`` are for what freezes a container or reads much, ``clone_turns`` for clones.
    """

    def __init__(
        self, room: Checkpoints, ledger: Ledger, settings: CheckpointSettings, clock: Callable[[], datetime]
    ) -> None:
        self._room, self._ledger, self._clock = room, ledger, clock
        self.apply(settings)

    def apply(self, settings: CheckpointSettings) -> None:
        """Go by new settings; what waits for its turn waits by the old ones."""
        self._settings = settings
        self._turns = asyncio.Semaphore(settings.max_parallel)
        self._clone_turns = asyncio.Semaphore(settings.max_parallel_clones)

    # ------------------------------------------------------------------------------------------ steps

    def _begin(self, identity: str) -> None:
        self._ledger.put(operations.begun(self._ledger.get(identity), self._clock()))

    def _teller(self, identity: str) -> Callable[[str], None]:
        def tell(step: str) -> None:
            self._ledger.put(operations.at_step(self._ledger.get(identity), step, self._clock()))

        return tell

    # ------------------------------------------------------------------------------------------ kinds

    def wish(self, request: CheckpointRequest, identity: str) -> Wish:
        """Return how the checkpoints are to be made; their label says which operation made them."""
        settings = self._settings
        return Wish(
            name=request.name,
            leave_running=not request.stop,
            tcp=request.tcp or settings.tcp,
            file_locks=request.file_locks,
            external_unix_sockets=request.external_unix_sockets,
            timeout=request.timeout_seconds or settings.dump_timeout,
            labels={**request.labels, OPERATION_LABEL: identity},
        )

    async def checkpoint(self, identity: str, targets: Sequence[Target], wish: Wish) -> Operation:
        tell = self._teller(identity)
        async with self._turns:
            self._begin(identity)
            made: tuple[Manifest, ...]
            if len(targets) == 1:
                made = (await self._room.create(targets[0].id, wish, tell=tell),)
            else:
                made = (await self._room.create_group([each.id for each in targets], wish, tell=tell)).members
        return operations.succeeded(self._ledger.get(identity), self._clock(), checkpoints=map(views.checkpoint, made))

    async def verify(self, identity: str, checkpoints: Sequence[Manifest]) -> Operation:
        async with self._turns:
            self._begin(identity)
            self._teller(identity)("reading")
            for each in checkpoints:
                await self._room.verify(each.id)
        return operations.succeeded(
            self._ledger.get(identity), self._clock(), checkpoints=map(views.checkpoint, checkpoints)
        )

    async def commit(self, identity: str, target: Target, wish: CommitWish) -> Operation:
        async with self._turns:
            self._begin(identity)
            made = await self._room.commit(target.id, wish, tell=self._teller(identity))
        return operations.succeeded(self._ledger.get(identity), self._clock(), image=views.image(made))

    async def restore(self, identity: str, checkpoints: Sequence[Manifest], request: RestoreRequest) -> Operation:
        """Bring all back, one after another; the first that fails is the last."""
        async with self._clone_turns:
            self._begin(identity)
            for each in checkpoints:
                mode = self._mode(each, request.mode)
                made = await self._room.restore(each.id, mode=mode, tell=self._teller(identity))
                await self._ledger.record(operations.with_clone(self._ledger.get(identity), self._seen(made, each)))
        return operations.succeeded(self._ledger.get(identity), self._clock())

    async def clone(self, identity: str, manifest: Manifest, request: CloneRequest) -> Operation:
        """Make as many as are wanted, side by side. After the first that fails no further one is begun; those that run
        by then stay."""
        self._begin(identity)
        errors: list[StokerError] = []
        mode = self._mode(manifest, request.mode)

        async def one(number: int) -> None:
            async with self._clone_turns:
                if errors:
                    return
                try:
                    made = await self._one_clone(identity, manifest, request, mode, number)
                except StokerError as error:
                    errors.append(error)
                else:
                    await self._ledger.record(
                        operations.with_clone(self._ledger.get(identity), self._seen(made, manifest))
                    )

        async with asyncio.TaskGroup() as group:
            for number in range(1, request.count + 1):
                group.create_task(one(number), name=f"{identity}: clone {number}")
        if errors:
            raise errors[0]
        return operations.succeeded(self._ledger.get(identity), self._clock())

    async def _one_clone(
        self, identity: str, manifest: Manifest, request: CloneRequest, mode: Mode, number: int
    ) -> Clone:
        return await self._room.clone(
            manifest.id,
            hostname=hostname_of(request, number),
            mode=mode,
            env={each.name: each.value or "" for each in request.env},
            files={each.path: each.content for each in request.files},
            hook=request.hook,
            labels=request.labels,
            tell=self._teller(identity) if request.count == 1 else _unheard,
        )

    def _seen(self, made: Clone, manifest: Manifest) -> CloneInfo:
        return views.clone(made, "running", memory=views.memory_of(manifest))

    def _mode(self, manifest: Manifest, wanted: Mode) -> Mode:
        """Small ones are brought back eagerly where nobody says otherwise."""
        small = views.memory_of(manifest) < self._settings.lazy_from
        return "eager" if wanted == "auto" and small else wanted


def commit_wish(request: CommitRequest) -> CommitWish:
    """Return how the image is to be made. InvalidInput: a change or the name cannot be read."""
    reference = parse_reference(request.image)
    if reference.digest:
        raise InvalidInput(f"{request.image}: an image that is to be made has no digest yet", hint="give it a tag")
    return CommitWish(
        name=str(reference),
        changes=tuple(parse_change(each) for each in request.changes),
        author=request.author,
        message=request.message,
        squash=request.squash,
        compression=request.compression,
    )


def _unheard(_step: str) -> None:
    """Steps of several clones at once would tell nobody anything."""
