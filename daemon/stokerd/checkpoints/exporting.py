"""A checkpoint as one archive, written while it is read: nothing of it is held in memory or copied to the disk."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, MutableSet
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from stokerd.checkpoints import archive_plan as plans
from stokerd.checkpoints import shelf as shelves
from stokerd.checkpoints.archive_plan import Contents, Piece
from stokerd.checkpoints.ending import in_thread, to_the_end
from stokerd.checkpoints.errors import CheckpointDamaged, CheckpointError, Stopped
from stokerd.checkpoints.layers import pack_layer
from stokerd.checkpoints.manifest import Manifest, Part
from stokerd.checkpoints.model import CHECKPOINT_LABEL, root_name, snapshot_labels
from stokerd.checkpoints.overlay import root_of
from stokerd.checkpoints.pressing import pressed
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.tarring import END, FILE, Member, header, padding
from stokerd.checkpoints.trees import Stop
from stokerd.runtime.protocol import NativeRuntime

_STEP = 1 << 20
_LEVEL = 3
Write = Callable[[bytes], object]


class Roots(msgspec.Struct, frozen=True):
    """Where the files of a checkpoint's root are, the topmost first, over the snapshot ``parent`` of an image."""

    places: tuple[str, ...]
    parent: str

    def pack(self, write: Write, stop: Stop) -> None:
        """Write the layer that they make together."""
        pack_layer(self.places[0], write, stop, self.places[1:])


class Package(msgspec.Struct, frozen=True):
    """Everything that is written of a checkpoint."""

    contents: Contents
    roots: Roots
    documents: dict[str, bytes]
    place: Path
    shm: str = ""

    def pack_shm(self, write: Write, stop: Stop) -> None:
        pack_layer(self.shm, write, stop)


class Exporter:
    """Writes checkpoints out."""

    def __init__(
        self,
        runtime: NativeRuntime,
        shelf: Shelf,
        owner: str,
        clock: Callable[[], datetime],
        views: MutableSet[str],
    ) -> None:
        """*views* are snapshots in use, which nobody clears up."""
        self._runtime, self._shelf, self._owner, self._clock = runtime, shelf, owner, clock
        self._views = views

    async def archive(self, manifest: Manifest) -> AsyncGenerator[bytes, None]:
        """Yield the archive: tar, compressed with zstd on all cores. Whoever does not read to the end closes it."""
        async with self.package(manifest) as package:
            chunks = pressed(partial(write_archive, package), _LEVEL, [], "zstd")
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk

    @asynccontextmanager
    async def package(self, manifest: Manifest) -> AsyncIterator[Package]:
        """Make ready what is written, and hold it meanwhile: with a view on it a checkpoint cannot be removed."""
        view = f"{root_name(manifest.id)}-out-{secrets.token_hex(4)}"
        labels = snapshot_labels(manifest.id, self._owner, self._clock())
        self._views.add(view)
        try:
            mounts = await self._runtime.snapshots.view(view, manifest.root.snapshot, labels=labels)
            root = root_of(mounts)
            if root is None or not root.lowers:
                raise CheckpointError(f"the root of checkpoint {manifest.id} is not on containerd's overlayfs")
            count, parent = await of_checkpoints(self._runtime, manifest.root.snapshot)
            prefix = self._runtime.info.host_root
            roots = Roots(tuple(f"{prefix}{each}" for each in root.lowers[:count]), parent)
            stop = threading.Event()
            yield await in_thread(stop, lambda: self._prepare(manifest, roots, stop.is_set))
        finally:
            self._views.discard(view)
            await to_the_end(self._runtime.snapshots.remove(view), f"remove {view}")

    def _prepare(self, manifest: Manifest, roots: Roots, stop: Stop) -> Package:
        """Find out sizes and digests of all parts; those of the memory are known. In a thread."""
        place = self._shelf.path(manifest.id)
        pieces = {f"{plans.IMAGES}{name}": Piece(part.size, part.digest) for name, part in _images(manifest).items()}
        manifest = replace(manifest, root=replace(manifest.root, parent=roots.parent), group="", parts=())
        documents = dict(plans.documents(manifest, manifest.created_at))
        documents[plans.SPEC] = (place / shelves.SPEC).read_bytes()
        documents[plans.FILES] = (place / shelves.FILES).read_bytes()
        pieces |= {name: Piece(len(body), _digest(body)) for name, body in documents.items()}
        pieces[plans.ROOT] = measured(roots.pack, stop)
        shm = str(place / shelves.SHM) if manifest.shm_digest else ""
        if shm:
            pieces[plans.SHM] = measured(lambda write, stop: pack_layer(shm, write, stop), stop)
        return Package(Contents(plans.FORMAT, manifest, pieces), roots, documents, place, shm)


async def of_checkpoints(runtime: NativeRuntime, snapshot: str) -> tuple[int, str]:
    """Return how many snapshots, from this one down, are those of checkpoints, and that of an image beneath them."""
    count = 0
    while True:
        info = await runtime.snapshots.stat(snapshot)
        if info is None:
            raise CheckpointDamaged(f"snapshot {snapshot} is not here any more")
        if CHECKPOINT_LABEL not in info.labels:
            return count, snapshot
        count, snapshot = count + 1, info.parent


def measured(produce: Callable[[Write, Stop], object], stop: Stop) -> Piece:
    """Return size and digest of what *produce* writes."""
    found, size = hashlib.sha256(), 0

    def write(data: bytes) -> None:
        nonlocal size
        found.update(data)
        size += len(data)

    produce(write, stop)
    return Piece(size, f"sha256:{found.hexdigest()}")


def write_archive(package: Package, write: Write, stop: Stop) -> None:
    """Write the whole archive. CheckpointDamaged when a part is not as it was written down any more."""
    body = msgspec.json.encode(package.contents)
    _file(plans.CONTENTS, len(body), write)
    _data(body, write)
    write_memory(package, write, stop)
    _file(plans.ROOT, package.contents.pieces[plans.ROOT].size, write)
    package.roots.pack(write, stop)
    write(padding(package.contents.pieces[plans.ROOT].size))
    if package.shm:
        _file(plans.SHM, package.contents.pieces[plans.SHM].size, write)
        package.pack_shm(write, stop)
        write(padding(package.contents.pieces[plans.SHM].size))
    write(END)


def write_memory(package: Package, write: Write, stop: Stop) -> None:
    """Write documents and CRIU's images as members of an archive, without its end."""
    for name, document in package.documents.items():
        _file(name, len(document), write)
        _data(document, write)
    for name, piece in sorted(package.contents.memory.items()):
        _file(f"{plans.IMAGES}{name}", piece.size, write)
        _copy(package.place / shelves.IMAGES / name, piece.size, write, stop)
        write(padding(piece.size))


def _copy(path: Path, size: int, write: Write, stop: Stop) -> None:
    left = size
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as file:
        while left:
            if stop():
                raise Stopped("the export was told to stop")
            data = file.read(min(_STEP, left))
            if not data:
                raise CheckpointDamaged(f"{path.name} is shorter than it was", hint="stoker checkpoint verify")
            write(data)
            left -= len(data)


def _file(name: str, size: int, write: Write) -> None:
    write(header(Member(name.encode(), FILE, 0o600, size=size)))


def _data(body: bytes, write: Write) -> None:
    write(body)
    write(padding(len(body)))


def _images(manifest: Manifest) -> dict[str, Part]:
    start = f"{shelves.IMAGES}/"
    return {part.path.removeprefix(start): part for part in manifest.parts if part.path.startswith(start)}


def _digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"
