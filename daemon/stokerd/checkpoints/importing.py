"""Checkpoints that come from elsewhere: taken apart under suspicion, complete or not there at all.

Nothing of the archive decides where anything is written, what a clone may do, or what an image is called. What it says
about files is judged entry by entry (`archive_plan`); what runs with them is a container of this node, or a plain one
(`trusting`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableSet
from datetime import datetime
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from stokerd.checkpoints import archive_plan as plans
from stokerd.checkpoints import shelf as shelves
from stokerd.checkpoints.archive_plan import Contents, Limits, OuterPlan, TreePlan
from stokerd.checkpoints.digests import tree_digest
from stokerd.checkpoints.ending import in_own_thread, in_thread, to_the_end
from stokerd.checkpoints.errors import ArchiveRefused, CheckpointError
from stokerd.checkpoints.framing import Framer
from stokerd.checkpoints.imaging import chain_id
from stokerd.checkpoints.manifest import VERSION, Manifest, Root
from stokerd.checkpoints.model import Intent, active_key, root_name, snapshot_labels
from stokerd.checkpoints.operations import LABELS_OF_OURS
from stokerd.checkpoints.overlay import root_of
from stokerd.checkpoints.preparing import new_id
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.streaming import Counted, Source, plain
from stokerd.checkpoints.taking import no_space, remove
from stokerd.checkpoints.trees import Stop
from stokerd.checkpoints.unpacking import unpack
from stokerd.checkpoints.untarring import Read, TarReader
from stokerd.errors import InvalidInput, NotFound, RuntimeFailure, RuntimeNotFound
from stokerd.runtime.protocol import NativeRuntime

_log = structlog.get_logger("checkpoints")
_CONTENTS_LIMIT = 16 << 20
_SHARE = 0.9
"""Of the free space, what an import may take."""


class ImportWish(msgspec.Struct, frozen=True):
    """How a checkpoint is to be taken in: with the runtime spec of the container ``like``, or, when whoever made it is
    to be trusted, as a plain container of its own. ``limit`` in bytes, 0 for what the disk allows."""

    like: str = ""
    trust: bool = False
    name: str = ""
    limit: int = 0
    labels: dict[str, str] = msgspec.field(default_factory=dict)

    def check(self) -> None:
        """InvalidInput unless exactly one of both is said."""
        if bool(self.like) == self.trust:
            raise InvalidInput(
                "whose runtime configuration a clone gets must be said: a container of this node (like), or its own "
                "(trust)",
                hint="--like POD/CONTAINER, or --trust when you trust whoever made it as you trust root",
            )


Fill = Callable[["Landing"], Awaitable[None]]
"""Brings everything that was announced to where it belongs."""


class Importer:
    """Takes checkpoints in. *under_way* are the ids that nobody else clears up; *left* is called when something was
    left that the next reconciliation has to do."""

    def __init__(
        self,
        runtime: NativeRuntime,
        shelf: Shelf,
        owner: str,
        clock: Callable[[], datetime],
        under_way: MutableSet[str],
        left: Callable[[], object],
    ) -> None:
        self._runtime, self._shelf, self._owner, self._left = runtime, shelf, owner, left
        self._clock, self._under_way, self._framer = clock, under_way, Framer(runtime)

    async def receive(self, pieces: AsyncIterator[bytes], wish: ImportWish) -> Manifest:
        """Take in what `exporting` has written. ArchiveRefused names the entry; nothing is left of what is refused."""
        wish.check()
        stop = threading.Event()
        source = Source(pieces, asyncio.get_running_loop(), stop.is_set)
        limits = await asyncio.to_thread(self.limits, wish.limit)

        def begin() -> tuple[TarReader, Contents]:
            reader = TarReader(plain(source))
            first = next(reader.members(), None)
            if first is None or first.name != plans.CONTENTS.encode() or first.size > _CONTENTS_LIMIT:
                raise ArchiveRefused(f"its first entry is not {plans.CONTENTS}: it is no checkpoint of Stoker's")
            return reader, plans.read_contents(b"".join(reader.data()), limits)

        reader, contents = await in_own_thread(stop, begin, "import")

        async def fill(landing: Landing) -> None:
            await in_own_thread(stop, lambda: landing.archive(reader, stop.is_set), "import")

        return await self.land(contents, wish, fill)

    def limits(self, limit: int) -> Limits:
        """Return how much may come: what was said, and no more than the disk takes."""
        free, inodes = self._shelf.free()
        bytes_ = int(free * _SHARE)
        most = Limits(min(limit, bytes_) if limit else bytes_)
        return replace(most, entries=min(most.entries, max(1, int(inodes * _SHARE))))

    async def land(self, contents: Contents, wish: ImportWish, fill: Fill) -> Manifest:
        """Make a checkpoint of what *fill* brings; whatever fails, nothing is left."""
        parent = await self.parent(contents.manifest)
        now = self._clock()
        identity = new_id(now)
        self._under_way.add(identity)
        done = False
        try:
            intent = Intent(identity, "", now, was_paused=True)
            await in_thread(threading.Event(), lambda: self._shelf.begin(intent))
            manifest = await self._fill(identity, contents, wish, parent, now, fill)
            done = True
        except OSError as error:
            raise no_space(error) or CheckpointError(f"{error.filename or identity}: {error.strerror}") from None
        finally:
            tidy = done
            try:
                if not done:
                    tidy = await to_the_end(self._clear(identity), f"clear {identity}")
            finally:
                self._under_way.discard(identity)
                if not tidy:
                    self._left()
        _log.info("checkpoint is taken in", id=identity, bytes=manifest.bytes, like=wish.like, trusted=wish.trust)
        return manifest

    async def _fill(
        self, identity: str, contents: Contents, wish: ImportWish, parent: str, now: datetime, fill: Fill
    ) -> Manifest:
        labels = snapshot_labels(identity, self._owner, now)
        snapshots = self._runtime.snapshots
        target = root_of(await snapshots.prepare(active_key(identity), parent, labels=labels))
        if target is None or not target.upper:
            raise CheckpointError("the snapshot for the root filesystem is not on containerd's overlayfs")
        upper = f"{self._runtime.info.host_root}{target.upper}"
        landing = Landing(contents, self._shelf.path(identity), upper, await asyncio.to_thread(self.limits, 0))
        await fill(landing)
        frame = await self._framer.frame(wish.like, landing.documents, contents)
        record = await self._framer.record(frame, contents.manifest, wish.like)
        stop = threading.Event()

        def finish() -> Manifest:
            self._shelf.write(identity, shelves.SPEC, record.spec.value)
            self._shelf.write(identity, shelves.RECORD, msgspec.msgpack.encode(record))
            self._shelf.write(identity, shelves.FILES, msgspec.json.encode(frame.files))
            digest = tree_digest(upper, stop.is_set)
            shm = self._shelf.path(identity, shelves.SHM)
            root = Root(
                snapshot=root_name(identity),
                parent=parent,
                snapshotter=self._runtime.info.snapshotter,
                digest=digest,
                bytes=landing.root_bytes,
                entries=landing.root_entries,
            )
            return replace(
                contents.manifest,
                version=VERSION,
                id=identity,
                name=wish.name or plans.name_of(contents.manifest, identity),
                created_at=now,
                source=plans.come_from_elsewhere(contents.manifest.source),
                root=root,
                parts=self._shelf.parts(identity),
                shm_digest=tree_digest(str(shm), stop.is_set) if plans.SHM in contents.pieces else "",
                labels={**plans.labels_of(contents.manifest, LABELS_OF_OURS), **wish.labels},
                group="",
            )

        manifest = await in_thread(stop, finish)
        await snapshots.commit(active_key(identity), root_name(identity), labels=labels)
        await in_thread(threading.Event(), lambda: self._shelf.seal(manifest))
        return manifest

    async def parent(self, manifest: Manifest) -> str:
        """Return the snapshot that the root stands on: that of the image which it says, and no other one."""
        image = manifest.source.image_digest
        try:
            config = msgspec.json.decode(await self._runtime.content.read(image, limit=4 << 20), type=_Config)
        except (RuntimeNotFound, msgspec.MsgspecError):
            config = None
        parent = chain_id(config.rootfs.diff_ids) if config is not None and config.rootfs.diff_ids else ""
        info = await self._runtime.snapshots.stat(parent) if parent else None
        if info is None or info.kind != "committed":
            raise NotFound(
                f"the image that the checkpoint stands on is not on this node: {manifest.source.image} ({image})",
                hint=f"stoker image warm {manifest.source.image}",
            )
        if parent != manifest.root.parent:
            raise ArchiveRefused("its root stands on other layers than its image has", plans.CONTENTS)
        return parent

    async def _clear(self, identity: str) -> bool:
        """Remove what there is of it; False when that is left to the next reconciliation."""
        try:
            await remove(self._runtime, self._shelf, identity)
        except (RuntimeFailure, CheckpointError, OSError) as error:
            _log.warning("cannot clear up now; the next reconciliation does", id=identity, why=str(error))
            return False
        return True


class Landing:
    """What comes goes to its place: images and /dev/shm to the checkpoint's directory, the root to *upper*. Blocking.

    ``documents`` are the small files of the archive.
    """

    def __init__(self, contents: Contents, place: Path, upper: str, limits: Limits) -> None:
        self._contents, self._place, self._upper, self._limits = contents, place, upper, limits
        self.documents: dict[str, bytes] = {}
        self.root_bytes = self.root_entries = 0

    def archive(self, reader: TarReader, stop: Stop, *, but: Collection[str] = ()) -> None:
        """Take the rest of an archive whose first entry was read; it has all that was announced *but* some."""
        pieces = {name: piece for name, piece in self._contents.pieces.items() if name not in but}
        outer = OuterPlan(replace(self._contents, pieces=pieces))
        for member in reader.members():
            name, piece = outer.expect(member)
            data = Counted(reader.data())
            if name == plans.ROOT:
                self.root(data.read, stop)
            elif name == plans.SHM:
                self.shm(data.read, stop)
            elif name.startswith(plans.IMAGES):
                self.image(name.removeprefix(plans.IMAGES), data.read)
            else:
                self.documents[name] = _all(data.read)
            data.finish(name, piece.digest)
        outer.check_complete()

    def image(self, name: str, read: Read) -> None:
        """Write one of CRIU's images."""
        with (self._place / shelves.IMAGES / name).open("xb") as file:
            while data := read(1 << 20):
                file.write(data)

    def tree(self, name: str, read: Read, stop: Stop) -> None:
        """Take the root filesystem, or /dev/shm, that comes alone."""
        data = Counted(iter(lambda: read(1 << 20), b""))
        (self.root if name == plans.ROOT else self.shm)(data.read, stop)
        data.finish(name, self._contents.pieces[name].digest)

    def root(self, read: Read, stop: Stop) -> None:
        plan = TreePlan(replace(self._limits, bytes=self._contents.pieces[plans.ROOT].size))
        unpack(TarReader(read), plan, self._upper, stop)
        self.root_bytes, self.root_entries = plan.taken, plan.entries

    def shm(self, read: Read, stop: Stop) -> None:
        place = self._place / shelves.SHM
        place.mkdir(mode=0o700)
        size = self._contents.pieces[plans.SHM].size
        unpack(TarReader(read), TreePlan(replace(self._limits, bytes=size), layers=False), str(place), stop)


def _all(read: Read) -> bytes:
    found = bytearray()
    while data := read(1 << 20):
        found += data
    return bytes(found)


class _RootFs(msgspec.Struct):
    diff_ids: list[str] = []


class _Config(msgspec.Struct):
    rootfs: _RootFs = msgspec.field(default_factory=_RootFs)
