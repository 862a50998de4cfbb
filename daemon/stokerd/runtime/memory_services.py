"""The services of one connection to the memory runtime. Each call is counted, takes a turn of the loop, may fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stokerd.errors import RuntimeFailure, RuntimeInvalid, RuntimeNotFound, RuntimeUnavailable, StokerError
from stokerd.runtime.memory_artifacts import Reference, digest_of
from stokerd.runtime.memory_faults import Script
from stokerd.runtime.memory_pull import CALL, Machine, Pull
from stokerd.runtime.pod_types import ContainerEvent
from stokerd.runtime.types import (
    ContentInfo,
    CriImage,
    Descriptor,
    ImageEvent,
    ImageFs,
    ImageRecord,
    Ingest,
    Lease,
    LeaseResource,
    RegistryAuth,
)

T = TypeVar("T")


def unreachable(call: str) -> RuntimeUnavailable:
    return RuntimeUnavailable(
        f"containerd cannot be reached ({call}: Socket closed)",
        status="UNAVAILABLE",
        call=call,
        hint="is containerd running? (stoker doctor)",
    )


@dataclass(eq=False)
class Session:
    """One connection. When it breaks, everything that waits on it fails, and it never comes back."""

    machine: Machine
    calls: Counter[str]
    script: Script
    latency: Callable[[], float]
    alive: bool = True
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    subscribers: set[asyncio.Queue[ImageEvent | None]] = field(default_factory=set)
    watchers: set[asyncio.Queue[ContainerEvent | None]] = field(default_factory=set)

    def break_off(self) -> None:
        self.alive = False
        for task in self.tasks:
            task.cancel()
        for subscriber in self.subscribers:
            subscriber.put_nowait(None)
        for watcher in self.watchers:
            watcher.put_nowait(None)

    def publish(self, event: ImageEvent) -> None:
        for queue in self.subscribers:
            queue.put_nowait(event)

    def publish_container(self, event: ContainerEvent) -> None:
        for queue in self.watchers:
            queue.put_nowait(event)

    async def call(self, name: str, work: Callable[[], T], of: str = "") -> T:
        """Make a call that one transaction answers; *of* is the name of what it is about, for failures and barriers."""

        async def answer() -> T:
            return work()

        return await self.run(name, answer, of)

    async def run(self, name: str, work: Callable[[], Coroutine[Any, Any, T]], of: str = "") -> T:
        """Make a call. It runs in a task of its own, as it would in another process."""
        self.calls[name] += 1
        if not self.alive:
            raise unreachable(name)
        task = asyncio.ensure_future(self._answer(name, work, of))
        self.tasks.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self.alive and current is not None and not current.cancelling():
                raise unreachable(name) from None
            raise
        finally:
            self.tasks.discard(task)

    async def _answer(self, name: str, work: Callable[[], Coroutine[Any, Any, T]], of: str) -> T:
        await asyncio.sleep(self.latency())
        await self._pass(name, name, of)
        answer = await work()
        await self._pass(name, f"{name}:done", of)
        return answer

    async def _pass(self, name: str, place: str, of: str) -> None:
        due = await self.script.due((place,), reference=of)
        if isinstance(due, StokerError):
            raise due
        if due is not None:
            raise RuntimeFailure(due, status="UNKNOWN", call=name)


class MemoryCri:
    """`protocol.CriImages`."""

    def __init__(self, session: Session, used: Callable[[], frozenset[str]]) -> None:
        self._session, self._machine, self._store = session, session.machine, session.machine.store
        self._used = used

    async def pull(self, ref: str, *, auth: RegistryAuth | None = None, lease: str | None = None) -> str:
        async def work() -> str:
            _named(ref, CALL)
            name = Reference.parse(ref)
            if name is None:
                raise RuntimeFailure(
                    f'failed to parse image reference "{ref}": invalid reference format', status="UNKNOWN", call=CALL
                )
            return await self._pull(name, auth, lease)

        return await self._session.run(CALL, work)

    async def _pull(self, name: Reference, auth: RegistryAuth | None, lease: str | None) -> str:
        own = "" if lease else self._store.temporary_lease()
        pull = Pull(self._machine, name, auth, lease or own, lambda: self._session.alive)
        try:
            return await pull.run()
        finally:
            if own and self._session.alive:
                self._store.leases.pop(own, None)
                self._store.collect()

    async def status(self, ref: str) -> CriImage | None:
        return await self._session.call("cri.ImageStatus", lambda: self.find(ref, "cri.ImageStatus"))

    async def list(self) -> tuple[CriImage, ...]:
        return await self._session.call("cri.ListImages", lambda: tuple(self._images().values()))

    async def remove(self, ref: str) -> None:
        def work() -> None:
            image = self.find(ref, "cri.RemoveImage")
            if image is None:
                return
            for name in self._names()[image.id]:
                self._store.delete_record(name)
            self._store.collect()

        await self._session.call("cri.RemoveImage", work)

    async def fs_info(self) -> ImageFs:
        def work() -> ImageFs:
            usages = [snapshot.usage for snapshot in self._store.snapshots.values()]
            return ImageFs(
                f"{self._store.disk.path}/io.containerd.snapshotter.v1.{self._store.snapshotter}",
                sum(usage.bytes for usage in usages),
                sum(usage.inodes for usage in usages),
            )

        return await self._session.call("cri.ImageFsInfo", work)

    async def in_use(self) -> frozenset[str]:
        return await self._session.call("cri.ListContainers", self._used)

    async def version(self) -> None:
        """Answer a ping."""
        await self._session.call("cri.Version", lambda: None)

    def find(self, ref: str, call: str) -> CriImage | None:
        """Return the image that *ref* names to CRI: by name, digest reference, id, or the beginning of an id."""
        _named(ref, call)
        images = self._images()
        if ref in images:
            return images[ref]
        name = Reference.parse(ref)
        record = self._store.records.get(str(name))
        if record is not None:
            return images.get(self._id_of(record))
        return next((image for image in images.values() if image.id.startswith(f"sha256:{ref}")), None)

    def _id_of(self, record: ImageRecord) -> str:
        manifest = self._machine.manifest_of(record.target.digest)
        return str(manifest["config"]["digest"]) if manifest is not None else ""

    def _names(self) -> dict[str, tuple[str, ...]]:
        """Return the records' names by image id; what has no manifest here is no image to CRI."""
        names: dict[str, tuple[str, ...]] = {}
        for record in self._store.records.values():
            image_id = self._id_of(record)
            if image_id in self._store.blobs:
                names[image_id] = (*names.get(image_id, ()), record.name)
        return names

    def _images(self) -> dict[str, CriImage]:
        return {image_id: self._image(image_id, names) for image_id, names in self._names().items()}

    def _image(self, image_id: str, names: tuple[str, ...]) -> CriImage:
        records = [self._store.records[name] for name in names]
        manifest = self._machine.manifest_of(records[0].target.digest)
        assert manifest is not None
        sizes = [manifest["config"]["size"], *(layer["size"] for layer in manifest["layers"])]
        return CriImage(
            image_id,
            tuple(sorted(name for name in names if "@" not in name and name != image_id)),
            tuple(sorted(name for name in names if "@" in name)),
            sum(sizes) + records[0].target.size,
            self._machine.generation != "1.6" and any(record.pinned for record in records),
        )


def _named(ref: str, call: str) -> None:
    if not ref:
        raise RuntimeInvalid("the name of an image must not be empty", call=call)


class MemoryContent:
    """`protocol.ContentStore`."""

    def __init__(self, session: Session) -> None:
        self._session, self._store = session, session.machine.store

    async def info(self, digest: str) -> ContentInfo | None:
        def work() -> ContentInfo | None:
            blob = self._store.blobs.get(digest)
            return blob.info() if blob is not None else None

        return await self._session.call("content.Info", work)

    async def list(self) -> tuple[ContentInfo, ...]:
        return await self._session.call(
            "content.List", lambda: tuple(self._store.blobs[digest].info() for digest in sorted(self._store.blobs))
        )

    async def read(self, digest: str, *, limit: int = 8 << 20) -> bytes:
        def work() -> bytes:
            blob = self._store.blobs.get(digest)
            if blob is None:
                raise RuntimeNotFound(f"content digest {digest}: not found", status="NOT_FOUND", call="content.Read")
            if blob.size > limit:
                raise RuntimeInvalid(f"{digest} is larger than the {limit} bytes that are read", call="content.Read")
            return blob.body if blob.body is not None else bytes(blob.size)

        return await self._session.call("content.Read", work)

    async def read_at(self, digest: str, offset: int, size: int) -> bytes:
        def work() -> bytes:
            blob = self._store.blobs.get(digest)
            if blob is None:
                raise RuntimeNotFound(f"content digest {digest}: not found", status="NOT_FOUND", call="content.Read")
            if offset > blob.size:
                raise RuntimeInvalid(f"read past the end of {digest}", status="OUT_OF_RANGE", call="content.Read")
            body = blob.body if blob.body is not None else bytes(blob.size)
            return body[offset : offset + size]

        return await self._session.call("content.Read", work)

    async def ingests(self) -> tuple[Ingest, ...]:
        return await self._session.call(
            "content.ListStatuses", lambda: tuple(ingest.status() for ingest in self._store.ingests.values())
        )

    async def abort(self, ref: str) -> None:
        await self._session.call("content.Abort", lambda: self._store.abort(ref))

    async def delete(self, digest: str) -> None:
        await self._session.call("content.Delete", lambda: self._store.delete_blob(digest))

    async def write(
        self,
        ref: str,
        chunks: AsyncIterable[bytes],
        *,
        size: int = 0,
        digest: str = "",
        labels: Mapping[str, str] | None = None,
        lease: str | None = None,
    ) -> ContentInfo:
        body = b"" if digest in self._store.blobs else b"".join([chunk async for chunk in chunks])

        def work() -> ContentInfo:
            real = digest if digest in self._store.blobs else digest_of(body)
            if digest not in {"", real} or (size and real not in self._store.blobs and size != len(body)):
                raise RuntimeInvalid(
                    f"unexpected commit digest {real}, expected {digest}, or size {len(body)}, expected {size}",
                    status="FAILED_PRECONDITION",
                    call="content.Write",
                )
            return self._store.put_blob(ref, real, body, labels or {}, lease)

        return await self._session.call("content.Write", work)


class MemoryImages:
    """`protocol.ImageStore`."""

    def __init__(self, session: Session) -> None:
        self._session, self._store = session, session.machine.store

    async def get(self, name: str) -> ImageRecord | None:
        return await self._session.call("images.Get", lambda: self._store.records.get(name))

    async def list(self) -> tuple[ImageRecord, ...]:
        return await self._session.call(
            "images.List", lambda: tuple(self._store.records[name] for name in sorted(self._store.records))
        )

    async def set_labels(self, name: str, labels: Mapping[str, str | None]) -> ImageRecord:
        return await self._session.call("images.Update", lambda: self._store.set_labels(name, labels))

    async def put(self, name: str, target: Descriptor, labels: Mapping[str, str]) -> ImageRecord:
        return await self._session.call("images.Create", lambda: self._store.put_record(name, target, labels))

    async def delete(self, name: str, *, sync: bool = True) -> None:
        def work() -> None:
            self._store.delete_record(name)
            if sync:
                self._store.collect()

        await self._session.call("images.Delete", work)


class MemoryLeases:
    """`protocol.Leases`."""

    def __init__(self, session: Session) -> None:
        self._session, self._store = session, session.machine.store

    async def create(self, lease_id: str, labels: Mapping[str, str]) -> Lease:
        return await self._session.call("leases.Create", lambda: self._store.create_lease(lease_id, labels))

    async def list(self) -> tuple[Lease, ...]:
        return await self._session.call(
            "leases.List", lambda: tuple(self._store.leases[name].lease for name in sorted(self._store.leases))
        )

    async def resources(self, lease_id: str) -> tuple[LeaseResource, ...]:
        return await self._session.call("leases.ListResources", lambda: self._store.held_by(lease_id))

    async def delete(self, lease_id: str, *, sync: bool = True) -> None:
        def work() -> None:
            if self._store.leases.pop(lease_id, None) is not None and sync:
                self._store.collect()

        await self._session.call("leases.Delete", work)


class MemoryEvents:
    """`protocol.Events`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def images(self) -> AsyncGenerator[ImageEvent, None]:
        return _listen(self._session, "events.Subscribe", self._session.subscribers)

    def containers(self) -> AsyncGenerator[ContainerEvent, None]:
        return _listen(self._session, "cri.GetContainerEvents", self._session.watchers)


async def _listen(session: Session, call: str, queues: set[asyncio.Queue[T | None]]) -> AsyncGenerator[T, None]:
    """Yield what is published from now on; the stream breaks with the connection."""
    session.calls[call] += 1
    if not session.alive:
        raise unreachable(call)
    queue: asyncio.Queue[T | None] = asyncio.Queue()
    queues.add(queue)
    try:
        while (event := await queue.get()) is not None:
            yield event
    finally:
        queues.discard(queue)
    raise unreachable(call)
