"""What leaves the node and what enters it, as operations: pushes, pulls, archives."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from stoker.objects.archives import CheckpointPullRequest, CheckpointPushRequest, ImagePushRequest
from stoker.objects.checkpoints import CheckpointInfo, Operation, OperationKind, PushedTo
from stoker.objects.images import InlineAuth
from stokerd.checkpoints import operations, views
from stokerd.checkpoints.importing import ImportWish
from stokerd.checkpoints.ledger import Ledger
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.operations import OPERATION_LABEL
from stokerd.checkpoints.pushes import ImagePusher
from stokerd.checkpoints.service import Checkpoints
from stokerd.checkpoints.shipping import Shipper, Warmer, credential_of
from stokerd.checkpoints.targets import Target
from stokerd.errors import InvalidInput
from stokerd.registry.client import RegistryClient
from stokerd.registry.keyring import Keyring
from stokerd.registry.push_types import Moved, Pushed
from stokerd.registry.references import parse_reference
from stokerd.runtime.protocol import NativeRuntime

_TOLD_EVERY = 0.2
_LONGEST_NAME = 253
Work = Callable[[str], Coroutine[Any, Any, Operation]]


class Carriers(msgspec.Struct, frozen=True):
    """What reaches registries."""

    client: RegistryClient
    keyring: Keyring
    warmer: Warmer


class Accept(Protocol):
    """Writes an operation down and has it begun (`Desk`)."""

    def __call__(
        self,
        kind: OperationKind,
        request: msgspec.Struct,
        name: str,
        subject: str,
        work: Work,
        *,
        secrets_: tuple[str, ...] = (),
    ) -> Awaitable[Operation]: ...


class Gate:
    """*find* finds a checkpoint by its name, *targets* the containers that a name means."""

    def __init__(
        self,
        runtime: NativeRuntime,
        carriers: Carriers,
        room: Checkpoints,
        ledger: Ledger,
        accept: Accept,
        find: Callable[[str], Awaitable[Manifest]],
        targets: Callable[[str, Sequence[str]], Awaitable[tuple[Target, ...]]],
        clock: Callable[[], datetime],
    ) -> None:
        self._room, self._ledger, self._accept, self._clock = room, ledger, accept, clock
        self._find, self._targets = find, targets
        self._pusher = ImagePusher(runtime, carriers.client, carriers.keyring, room.holder)
        self._shipper = Shipper(runtime, carriers.client, carriers.keyring, carriers.warmer, room.holder)

    # ------------------------------------------------------------------------------------------ images

    async def push_image(self, request: ImagePushRequest) -> Operation:
        record = await self._pusher.record(request.image)
        target = str(parse_reference(request.to or record.name))

        async def work(identity: str) -> Operation:
            self._ledger.put(operations.begun(self._ledger.get(identity), self._clock()))
            return await self._push(identity, record.name, target, request.auths)

        return await self._accept("Push", request, request.request, target, work, secrets_=secrets_of(request.auths))

    async def after_commit(self, identity: str, made: Operation, image: str, auths: Sequence[InlineAuth]) -> Operation:
        """Push an image that was just made; it stays when that fails."""
        running = self._ledger.get(identity)
        self._ledger.put(replace(running, image=made.image))
        pushed = await self._push(identity, image, image, auths)
        return replace(pushed, image=made.image)

    async def _push(self, identity: str, image: str, target: str, auths: Sequence[InlineAuth]) -> Operation:
        meter = Meter(self._ledger, identity, self._clock, "pushing")
        done = await self._pusher.push(image, target, [credential_of(each) for each in auths], tell=meter.tell)
        meter.flush()
        pushed = _pushed(done.image, done.pushed, partial=done.partial)
        return replace(operations.succeeded(self._ledger.get(identity), self._clock()), pushed=pushed)

    # ------------------------------------------------------------------------------------------ checkpoints

    async def push_checkpoint(self, name: str, request: CheckpointPushRequest) -> Operation:
        manifest = await self._find(name)
        target = parse_reference(request.to)

        async def work(identity: str) -> Operation:
            self._ledger.put(operations.begun(self._ledger.get(identity), self._clock()))
            meter = Meter(self._ledger, identity, self._clock, "pushing")
            self._ledger.put(operations.at_step(self._ledger.get(identity), "packing", self._clock()))
            credentials = [credential_of(each) for each in request.auths]
            exporter = await self._room.exporter()
            done = await self._shipper.push(exporter, manifest, str(target), credentials, tell=meter.tell)
            meter.flush()
            ended = operations.succeeded(
                self._ledger.get(identity), self._clock(), checkpoints=[views.checkpoint(manifest)]
            )
            return replace(ended, pushed=_pushed(str(target), done))

        subject = f"{manifest.id} as {target}"
        return await self._accept("Push", request, request.request, subject, work, secrets_=secrets_of(request.auths))

    async def pull_checkpoint(self, request: CheckpointPullRequest) -> Operation:
        reference = str(parse_reference(request.reference))
        wish = await self._wish(request.like, request.name, trust=request.trust)

        async def work(identity: str) -> Operation:
            self._ledger.put(operations.begun(self._ledger.get(identity), self._clock()))
            meter = Meter(self._ledger, identity, self._clock, "pulling")
            mine = replace(wish, labels={OPERATION_LABEL: identity})
            importer = await self._room.importer()
            made = await self._shipper.pull(importer, reference, mine, request.auths, tell=meter.tell)
            meter.flush()
            return operations.succeeded(self._ledger.get(identity), self._clock(), checkpoints=[views.checkpoint(made)])

        return await self._accept("Pull", request, request.request, reference, work, secrets_=secrets_of(request.auths))

    async def export_checkpoint(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield a checkpoint as one archive; NotFound before the first piece."""
        manifest = await self._find(name)
        async with aclosing(self._room.archive(manifest.id)) as pieces:
            async for piece in pieces:
                yield piece

    async def import_checkpoint(
        self, pieces: AsyncIterator[bytes], like: str, name: str, *, trust: bool
    ) -> CheckpointInfo:
        wish = await self._wish(like, name, trust=trust)
        return views.checkpoint(await self._room.receive(pieces, wish))

    async def _wish(self, like: str, name: str, *, trust: bool) -> ImportWish:
        if len(name) > _LONGEST_NAME or not name.isprintable() or "/" in name:
            raise InvalidInput(f"name: {name[:80]!r} is not a name")
        ImportWish(like, trust=trust).check()
        if not like:
            return ImportWish(trust=trust, name=name)
        targets = await self._targets(like, ())
        if len(targets) != 1:
            names = ", ".join(each.name for each in targets)
            raise InvalidInput(f"{like} has several containers: {names}", hint="name one: POD/CONTAINER")
        return ImportWish(like=targets[0].id, name=name)


class Meter:
    """Tells the ledger how many bytes have moved, a few times a second."""

    def __init__(self, ledger: Ledger, identity: str, clock: Callable[[], datetime], step: str) -> None:
        self._ledger, self._identity, self._clock, self._step = ledger, identity, clock, step
        self._moved: dict[str, Moved] = {}
        self._told = 0.0

    def tell(self, moved: Moved) -> None:
        """Take note; whoever follows hears of it now or soon."""
        self._moved[moved.digest] = moved
        now = time.monotonic()
        if now - self._told >= _TOLD_EVERY:
            self._told = now
            self.flush()

    def flush(self) -> None:
        """Tell what is known now."""
        operation = operations.at_step(self._ledger.get(self._identity), self._step, self._clock())
        done = sum(each.sent for each in self._moved.values())
        total = sum(each.size for each in self._moved.values())
        self._ledger.put(replace(operation, done_bytes=done, total_bytes=total))


def secrets_of(auths: Sequence[InlineAuth]) -> tuple[str, ...]:
    """Return what is to be in no message."""
    texts = [text for each in auths for text in (each.password, each.identity_token, each.registry_token)]
    return tuple(filter(None, texts))


def _pushed(reference: str, done: Pushed, *, partial: bool = False) -> PushedTo:
    return PushedTo(
        reference=reference,
        digest=done.digest,
        server=done.endpoint,
        sent_bytes=done.sent,
        existing_bytes=done.existing,
        mounted_bytes=done.mounted,
        transferred_bytes=done.transferred,
        partial=partial,
    )
