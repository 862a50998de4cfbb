"""A container's root filesystem made into an image: frozen only while its upper directory is copied.

The copy becomes the snapshot that the new layer unpacks to, so the image can be run at once. The layer is packed and
compressed from it afterwards, while the container runs on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
import structlog

from stokerd.checkpoints.copying import copy_tree
from stokerd.checkpoints.ending import in_thread, to_the_end
from stokerd.checkpoints.errors import CheckpointError, OverlayUnsupported, Stopped
from stokerd.checkpoints.exporting import of_checkpoints
from stokerd.checkpoints.freezing import Freeze, held
from stokerd.checkpoints.holding import Holder
from stokerd.checkpoints.image_plan import base_annotations
from stokerd.checkpoints.imaging import LAYER, About, Built, Change, NewLayer, build
from stokerd.checkpoints.layers import Packed, pack_layer
from stokerd.checkpoints.model import Pause, Tell, untold
from stokerd.checkpoints.overlay import root_of
from stokerd.checkpoints.pressing import Compression, Produce, pressed
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.taking import no_space
from stokerd.checkpoints.trees import Stop
from stokerd.errors import NotFound, RuntimeAlreadyExists
from stokerd.runtime.protocol import NativeRuntime
from stokerd.runtime.task_types import ContainerRecord, Mount
from stokerd.runtime.types import UNCOMPRESSED_LABEL, Descriptor, ImageRecord

_log = structlog.get_logger("checkpoints")
_MANAGED = {"io.cri-containerd.image": "managed"}
_DOCUMENT_LIMIT = 4 << 20
_STEP = 1 << 20


class CommitWish(msgspec.Struct, frozen=True):
    """How an image is to be made."""

    name: str
    changes: tuple[Change, ...] = ()
    author: str = ""
    message: str = ""
    squash: bool = False
    compression: Compression = "gzip"
    level: int = 1


class Committed(msgspec.Struct, frozen=True):
    """The image that was made: ``id`` is the digest of its configuration, ``frozen_ms`` how long the container stood,
    ``skipped`` names sockets, which no layer can hold. ``walked``: containerd had to compare all of the root with its
    base, because what overlay keeps of it means nothing elsewhere."""

    name: str
    id: str
    target: Descriptor
    layer: Descriptor
    frozen_ms: float
    skipped: tuple[str, ...] = ()
    walked: bool = False


class Base(msgspec.Struct, frozen=True):
    """The image that the container was made from, and how it can be found elsewhere."""

    config: dict[str, Any]
    manifest: dict[str, Any]
    annotations: dict[str, str]


class Taken(msgspec.Struct, frozen=True):
    """A container's root as it was at one instant: the snapshot ``key``, and ``upper`` where that has its files.

    ``diff`` is the layer of it where containerd made that, not compressed yet. ``beneath`` are the files of checkpoints
    that it stands on, the topmost first, over the image's snapshot ``parent``: a clone's image has them in its layer.
    """

    key: str
    upper: str
    frozen_ms: float
    diff: Descriptor | None = None
    beneath: tuple[str, ...] = ()
    parent: str = ""


class Committer:
    """Makes images of containers."""

    def __init__(self, runtime: NativeRuntime, shelf: Shelf, holder: Holder, clock: Callable[[], datetime]) -> None:
        self._runtime, self._shelf, self._holder, self._clock = runtime, shelf, holder, clock

    async def commit(self, container_id: str, wish: CommitWish, *, tell: Tell = untold) -> Committed:
        """Make the image, and return when CRI can use it. The base's layers must be known by name, not be here."""
        record, task = await self._runtime.records.get(container_id), await self._runtime.tasks.get(container_id)
        if record is None:
            raise NotFound(f"no container {container_id} is here")
        tell("reading")
        base = await self._base(record)
        running = task is not None and task.state == "running"
        try:
            async with self._holder.lease("commit") as lease:
                return await self._commit(record, base, wish, lease, tell, running=running)
        except OSError as error:
            raise no_space(error) or CheckpointError(f"{error.filename or container_id}: {error.strerror}") from None

    async def _commit(
        self, record: ContainerRecord, base: Base, wish: CommitWish, lease: str, tell: Tell, *, running: bool
    ) -> Committed:
        tell("copying")
        taken = await self._take(record, lease, running=running)
        if wish.squash:
            taken = await self._squash(taken, lease)
        tell("packing")
        layer, packed = await self._layer(taken, wish, lease)
        built = build(
            base.config,
            base.manifest,
            NewLayer(layer, packed.diff_id),
            About(self._clock(), wish.author, wish.message),
            changes=wish.changes,
            snapshotter=record.snapshotter,
            squash=wish.squash,
            annotations=base.annotations,
        )
        if taken.beneath:
            taken = await self._unpack(taken, layer, lease)
        await self._name_snapshot(taken.key, built, lease)
        image = await self._store(built, wish.name, lease)
        _log.info("image is made", name=wish.name, container=record.id, frozen_ms=round(taken.frozen_ms, 1))
        return Committed(
            wish.name,
            built.config_digest,
            image.target,
            layer,
            round(taken.frozen_ms, 3),
            tuple(packed.skipped),
            walked=taken.diff is not None,
        )

    async def _take(self, record: ContainerRecord, lease: str, *, running: bool) -> Taken:
        """Copy what the container has written; where that cannot be copied, let containerd compare all of it."""
        snapshots = self._runtime.snapshots
        mounts = await snapshots.mounts(record.snapshot_key)
        info = await snapshots.stat(record.snapshot_key)
        if info is None:
            raise NotFound(f"the root filesystem of container {record.id} is not here")
        count, parent = await of_checkpoints(self._runtime, info.parent) if info.parent else (0, "")
        source, key = root_of(mounts), f"{lease}-active"
        target = root_of(await snapshots.prepare(key, info.parent, lease=lease))
        if source is not None and source.upper and target is not None and source.lowers:
            try:
                frozen_ms = await self._capture(record.id, source.upper, target.upper, running=running)
                return Taken(key, target.upper, frozen_ms, beneath=source.lowers[:count], parent=parent)
            except OverlayUnsupported as error:
                _log.warning("a root is compared as a whole", container=record.id, why=error.message)
                await snapshots.remove(key)
        return await self._walk(record, mounts, parent, lease, running=running)

    async def _walk(
        self, record: ContainerRecord, mounts: Sequence[Mount], parent: str, lease: str, *, running: bool
    ) -> Taken:
        """Let containerd make the layer, while the container stands, and unpack it for the image that is to come."""
        snapshots, diffs = self._runtime.snapshots, self._runtime.diffs
        key, view = f"{lease}-walked", f"{lease}-view"
        lower = await snapshots.view(view, parent, lease=lease)
        made: list[Descriptor] = []

        async def compare() -> None:
            made.append(await diffs.create(lower, mounts, media_type=LAYER, ref=f"{lease}-diff", lease=lease))

        frozen_ms = await self._standing(record.id, compare, running=running)
        await snapshots.remove(view)
        target = await snapshots.prepare(key, parent, lease=lease)
        await diffs.apply(made[0], target)
        root = root_of(target)
        return Taken(key, root.upper if root is not None else "", frozen_ms, made[0])

    async def _squash(self, taken: Taken, lease: str) -> Taken:
        """Copy all that is in the root into a snapshot that stands on nothing."""
        root = root_of(await self._runtime.snapshots.mounts(taken.key))
        key = f"{lease}-squashed"
        target = root_of(await self._runtime.snapshots.prepare(key, "", lease=lease))
        if root is None or target is None or not root.upper:
            raise CheckpointError("only images on containerd's overlayfs can be squashed")
        stop = threading.Event()
        lowers, upper = [self._here(each) for each in root.lowers], self._here(root.upper)
        await in_thread(stop, lambda: copy_tree(upper, self._here(target.upper), stop.is_set, lowers))
        await self._runtime.snapshots.remove(taken.key)
        return Taken(key, target.upper, taken.frozen_ms)

    async def _unpack(self, taken: Taken, layer: Descriptor, lease: str) -> Taken:
        """Have a snapshot that stands on the image's, as the layer does, and not on checkpoints: these may go."""
        key = f"{lease}-unpacked"
        target = await self._runtime.snapshots.prepare(key, taken.parent, lease=lease)
        await self._runtime.diffs.apply(layer, target)
        await self._runtime.snapshots.remove(taken.key)
        return msgspec.structs.replace(taken, key=key, upper="", beneath=())

    async def _capture(self, container_id: str, upper: str, target: str, *, running: bool) -> float:
        """Copy the upper directory while the container stands; return for how long, in milliseconds."""
        stop = threading.Event()

        async def copy() -> None:
            await in_thread(stop, lambda: copy_tree(self._here(upper), self._here(target), stop.is_set))

        return await self._standing(container_id, copy, running=running)

    async def _standing(self, container_id: str, work: Callable[[], Awaitable[None]], *, running: bool) -> float:
        """Do something while the container stands; return for how long, in milliseconds."""
        loop = asyncio.get_running_loop()
        if running:  # should stokerd die now, its successor thaws the container
            mark = Pause(container_id, "pausing", self._clock())
            await asyncio.to_thread(self._shelf.write_pause, mark)
        began = loop.time()
        freeze = Freeze(self._runtime, container_id, ours=running)
        try:
            async with held(freeze):
                await work()
            return (loop.time() - began) * 1000 if running else 0.0
        finally:
            if running and freeze.thawed:
                await to_the_end(asyncio.to_thread(self._shelf.drop_pause, container_id), f"thawed {container_id}")

    async def _layer(self, taken: Taken, wish: CommitWish, lease: str) -> tuple[Descriptor, Packed]:
        """Pack and compress the copy into the content store."""
        packed: list[Packed] = []
        chunks = pressed(self._packer(taken), wish.level, packed, wish.compression)
        content = self._runtime.content
        ref = f"{lease}-layer"
        try:
            info = await content.write(ref, chunks, lease=lease)
        except BaseException:
            await chunks.aclose()
            await to_the_end(content.abort(ref), f"abort {ref}")
            raise
        labels = {UNCOMPRESSED_LABEL: packed[0].diff_id}
        await content.write(ref, _nothing(), digest=info.digest, labels=labels, lease=lease)
        return Descriptor(f"{LAYER}+{wish.compression}", info.digest, info.size), packed[0]

    def _packer(self, taken: Taken) -> Produce[Packed]:
        """Return what writes the layer: packed from the copy, or read as containerd has packed it."""
        diff = taken.diff
        if diff is None:
            place, beneath = self._here(taken.upper), [self._here(each) for each in taken.beneath]
            return lambda write, stop: pack_layer(place, write, stop, beneath)
        loop = asyncio.get_running_loop()

        def read(write: Callable[[bytes], object], stop: Stop) -> Packed:
            for offset in range(0, diff.size, _STEP):
                if stop():
                    raise Stopped("the packing was told to stop")
                part = self._runtime.content.read_at(diff.digest, offset, min(_STEP, diff.size - offset))
                write(asyncio.run_coroutine_threadsafe(part, loop).result())
            return Packed(diff.digest, diff.size)

        return read

    async def _name_snapshot(self, key: str, built: Built, lease: str) -> None:
        """Give the copy the name under which CRI looks for the image's topmost layer."""
        (name,) = built.config_labels.values()
        try:
            await self._runtime.snapshots.commit(key, name, lease=lease)
        except RuntimeAlreadyExists:  # the same layer on the same base was committed before
            await self._runtime.snapshots.remove(key)

    async def _store(self, built: Built, name: str, lease: str) -> ImageRecord:
        content = self._runtime.content
        for body, labels in ((built.config, built.config_labels), (built.manifest, built.manifest_labels)):
            digest = built.config_digest if body is built.config else built.target.digest
            await content.write(f"{lease}-{digest}", _once(body), digest=digest, labels=labels, lease=lease)
        await self._runtime.images.put(built.config_digest, built.target, _MANAGED)
        return await self._runtime.images.put(name, built.target, _MANAGED)

    async def _base(self, record: ContainerRecord) -> Base:
        """Read the configuration and the manifest of the image that the container was made from."""
        image = await self._runtime.images.get(record.image)
        status = await self._runtime.containers.status(record.id)
        wanted = status.container.image_ref if status is not None else ""
        if image is None and wanted:
            image = await self._runtime.images.get(wanted)
        if image is None:
            raise NotFound(f"the image {record.image} of container {record.id} is not here any more")
        for manifest in await self._manifests(image.target.digest):
            digest = str((manifest.get("config") or {}).get("digest"))
            if wanted in {"", digest}:
                names = [each.name for each in await self._runtime.images.list() if each.target == image.target]
                return Base(await self._read(digest), manifest, base_annotations(names, image.target.digest))
        raise NotFound(f"the manifest of image {record.image} is not here any more")

    async def _manifests(self, digest: str) -> list[dict[str, Any]]:
        """Return the manifests behind an image's target that are here."""
        document = await self._read(digest)
        if "manifests" not in document:
            return [document]
        found: list[dict[str, Any]] = []
        for entry in document["manifests"]:
            if await self._runtime.content.info(str(entry["digest"])) is not None:
                found.append(await self._read(str(entry["digest"])))
        return found

    async def _read(self, digest: str) -> dict[str, Any]:
        body = await self._runtime.content.read(digest, limit=_DOCUMENT_LIMIT)
        try:
            return msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise CheckpointError(f"{digest} is no document of an image: {error}") from None

    def _here(self, path: str) -> str:
        return f"{self._runtime.info.host_root}{path}"


async def _once(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


async def _nothing() -> AsyncGenerator[bytes, None]:
    return
    yield b""
