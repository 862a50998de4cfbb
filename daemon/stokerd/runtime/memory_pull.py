"""One pull of CRI in memory, in containerd's steps: resolve, documents, layers side by side, unpacking in order.

Sources: what containerd 1.6, 1.7 and 2.1 were seen to do, which tests/conformance holds this to.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NoReturn, TypeVar

from stokerd.errors import RuntimeFailure, RuntimeNotFound, StokerError
from stokerd.runtime.memory_artifacts import UNKNOWN_LAYER, Document, Layer, Reference, chain_ids
from stokerd.runtime.memory_registry import Remote
from stokerd.runtime.memory_store import Store
from stokerd.runtime.types import UNCOMPRESSED_LABEL, Descriptor, ImageEvent, RegistryAuth

T = TypeVar("T")
Generation = Literal["1.6", "1.7", "2.1"]

CALL = "cri.PullImage"
MANAGED = {"io.cri-containerd.image": "managed"}
_CONCURRENT_DOWNLOADS = 3
_UNPACK_STEPS = 8


@dataclass(slots=True)
class Machine:
    """What pulls work on: the stores, the registries, and one lock for every blob and every snapshot under way."""

    store: Store
    remote: Remote
    platform: str
    generation: Generation
    locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    def manifest_of(self, target: str) -> dict[str, Any] | None:
        """Return the manifest behind an image's target, None when it is not in the content store."""
        body = self.store.body(target)
        document = json.loads(body) if body is not None else None
        if document is not None and "manifests" in document:
            entry = choose(document, self.platform)
            return self.manifest_of(entry["digest"]) if entry is not None else None
        return document


def choose(index: dict[str, Any], platform: str) -> dict[str, Any] | None:
    """Return the entry of an index for this platform; the variant of the processor is not looked at."""
    os, architecture = platform.split("/")[:2]
    for entry in index["manifests"]:
        wanted = entry.get("platform")
        if wanted is None or (wanted["os"], wanted["architecture"]) == (os, architecture):
            return dict(entry)
    return None


class Pull:
    """One attempt. ``alive`` tells whether containerd still runs: a crash cleans nothing up."""

    def __init__(
        self, machine: Machine, name: Reference, auth: RegistryAuth | None, lease: str, alive: Callable[[], bool]
    ) -> None:
        self._store, self._remote, self._machine = machine.store, machine.remote, machine
        self._name, self._auth, self._lease, self._alive = name, auth, lease, alive
        self._slots = asyncio.Semaphore(_CONCURRENT_DOWNLOADS)
        self._held = f"snapshots/{self._store.snapshotter}"
        self._old = machine.generation == "1.6"

    async def run(self) -> str:
        """Pull and return the image id; failures are put in containerd's words."""
        try:
            return await self._run()
        except BaseExceptionGroup as group:
            raise _first(group) from None

    async def _run(self) -> str:
        top = await self._resolve()
        manifest_document = await self._documents(top)
        manifest = json.loads(manifest_document.body)
        config = self._remote.document(manifest["config"]["digest"])
        await self._fetch("config", config.digest, len(config.body), config.body)
        layers = [self._remote.layer(entry["digest"]) for entry in manifest["layers"]]
        unknown = [layer for layer in layers if layer.compression == "unknown"]
        children = {f"containerd.io/gc.ref.content.l.{number}": layer.digest for number, layer in enumerate(layers)}
        self._label(manifest_document.digest, {"containerd.io/gc.ref.content.config": config.digest, **children})
        chain = chain_ids(json.loads(config.body)["rootfs"]["diff_ids"])
        if unknown:
            await self._beyond_unpacking(top, unknown, len(layers))
        else:
            await self._unpack_all(layers, chain)
            self._label_top(config.digest, chain)
        await self._stage(("record",))
        self._record(top, config.digest)
        return config.digest

    # ------------------------------------------------------------------------------------------ stages

    async def _stage(self, places: Sequence[str], offset: int = 0, frame: str = "") -> None:
        """Pass a stage: wait at its barriers, fail when a failure is due."""
        due = await self._remote.script.due(places, reference=str(self._name), offset=offset, visitor=self)
        if isinstance(due, StokerError):
            raise due
        if due is not None:
            self._refuse(frame + due)

    def _refuse(self, cause: str, kind: type[RuntimeFailure] = RuntimeFailure, status: str = "UNKNOWN") -> NoReturn:
        raise kind(f'failed to pull and unpack image "{self._name}": {cause}', status=status, call=CALL)

    @property
    def _resolving(self) -> str:
        return (
            "failed to resolve image: "
            if self._machine.generation == "2.1"
            else (f'failed to resolve reference "{self._name}": ')
        )

    async def _resolve(self) -> Document:
        frame = self._resolving
        await self._stage(("resolve",), frame=frame)
        name = self._name
        if name.host in self._remote.unreachable:
            self._refuse(
                f'{frame}failed to do request: Head "https://{name.host}/v2/{name.path}/manifests/{name.target}": '
                f"{self._remote.unreachable[name.host]}"
            )
        if not self._remote.admits(name, self._auth):
            self._refuse(frame + self._denial())
        found = self._remote.find(name)
        if found is None:
            self._refuse(f"{frame}{name}: not found", RuntimeNotFound, "NOT_FOUND")
        return found

    def _denial(self) -> str:
        name = self._name
        if self._old:
            return f"pulling from host {name.host} failed with status code [manifests {name.target}]: 401 Unauthorized"
        if self._auth is None:
            return (
                "pull access denied, repository does not exist or may require authorization: "
                "authorization failed: no basic auth credentials"
            )
        url = f"https://{name.host}/v2/{name.path}/manifests/{name.target}"
        return f"unexpected status from HEAD request to {url}: 401 Unauthorized"

    async def _documents(self, top: Document) -> Document:
        """Fetch what the name stands for, down to the manifest for this platform."""
        index = json.loads(top.body)
        if "manifests" not in index:
            await self._fetch("manifest", top.digest, len(top.body), top.body)
            return top
        await self._fetch("index", top.digest, len(top.body), top.body)
        entry = choose(index, self._machine.platform)
        if entry is None:
            self._no_platform(top)
        manifest = self._remote.document(entry["digest"])
        await self._fetch("manifest", manifest.digest, len(manifest.body), manifest.body)
        position = index["manifests"].index(entry)
        self._label(top.digest, {f"containerd.io/gc.ref.content.m.{position}": manifest.digest})
        return manifest

    def _no_platform(self, top: Document) -> NoReturn:
        if self._machine.generation == "2.1":  # it leaves the record behind that it made before it looked
            self._store.put_record(str(self._name), Descriptor(top.media_type, top.digest, len(top.body)), MANAGED)
            raise RuntimeNotFound(
                f"get image config descriptor: no match for platform in manifest {top.digest}: not found",
                status="NOT_FOUND",
                call=CALL,
            )
        self._refuse("no match for platform in manifest: not found", RuntimeNotFound, "NOT_FOUND")

    # ------------------------------------------------------------------------------------------ content

    async def _fetch(
        self, kind: str, digest: str, size: int, body: bytes | None = None, places: Sequence[str] = ()
    ) -> None:
        """Bring one blob into the content store, from where an earlier attempt was broken off."""
        ref = f"{kind}-{digest}"
        async with self._machine.locks[ref]:
            if digest in self._store.blobs:
                self._guarded(partial(self._store.hold, self._lease, "content", digest))
                return
            ingest = self._guarded(partial(self._store.open_ingest, ref, size, self._lease))
            self._remote.requests[digest] += 1
            places = (*places, kind, digest)
            while True:
                await self._stage(places, ingest.offset, "failed to copy: ")
                if ingest.offset >= size:
                    break
                await self._chunk(ref, digest, size, places)
            labels = {f"containerd.io/distribution.source.{self._name.host.partition(':')[0]}": self._name.path}
            self._guarded(partial(self._store.commit, ingest, digest, labels, body, self._lease))

    async def _chunk(self, ref: str, digest: str, size: int, places: Sequence[str]) -> None:
        ingest = self._store.ingests.get(ref)
        if ingest is None:
            self._refuse(f'failed commit on ref "{ref}": rename {self._store.disk.path}: no such file or directory')
        if self._remote.on_chunk is not None:
            await self._remote.on_chunk(digest, ingest.offset)
        step = min(self._remote.chunk, size - ingest.offset)
        stop = self._remote.script.next_stop(places, str(self._name), ingest.offset)
        if stop is not None:
            step = min(step, stop - ingest.offset)
        await self._remote.pace(step, self._remote.rate)
        self._guarded(partial(self._store.write, ingest, step), "failed to copy: ")
        self._remote.fetched[digest] += step

    def _guarded(self, work: Callable[[], T], frame: str = "") -> T:
        """Do one thing with the store; a failure of it is one of the pull."""
        try:
            return work()
        except RuntimeFailure as error:
            self._refuse(frame + error.message, type(error), error.status)

    def _label(self, digest: str, labels: dict[str, str]) -> None:
        self._guarded(partial(self._store.label, digest, labels))

    def _label_top(self, config: str, chain: Sequence[str]) -> None:
        if chain:
            self._label(config, {f"containerd.io/gc.ref.snapshot.{self._store.snapshotter}": chain[-1]})

    async def _beyond_unpacking(self, top: Document, unknown: Sequence[Layer], total: int) -> None:
        """Fetch layers of a kind that containerd cannot unpack. Alone, 2.1 takes them for no layers at all."""
        for layer in unknown:
            await self._fetch("unknown", layer.digest, layer.size)
        if len(unknown) < total:
            self._refuse(f"number of layers and diffIDs don't match: {total - len(unknown)} != {total}")
        if self._machine.generation == "2.1":
            return
        self._store.put_record(str(self._name), Descriptor(top.media_type, top.digest, len(top.body)), MANAGED)
        cause = "mismatched image rootfs and manifest layers"
        if self._old:
            cause = (
                f"failed to extract layer {unknown[0].diff_id}: failed to get stream processor for {UNKNOWN_LAYER}: "
                "no processor for media-type: unknown"
            )
        self._refuse(f"failed to unpack image on snapshotter {self._store.snapshotter}: {cause}")

    # ------------------------------------------------------------------------------------------ snapshots

    async def _unpack_all(self, layers: Sequence[Layer], chain: Sequence[str]) -> None:
        """Unpack layer by layer. Fetching begins with the first layer whose snapshot is missing."""
        fetches: dict[int, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            for number, name in enumerate(chain):
                async with self._machine.locks[f"unpack {name}"]:
                    if name in self._store.snapshots:
                        if not self._old:
                            self._guarded(partial(self._store.hold, self._lease, self._held, name))
                        continue
                    if not fetches:
                        for later in range(number, len(layers)):
                            fetches[later] = group.create_task(self._layer(later, layers[later]))
                    await self._unpack(number, layers[number], chain, fetches[number])

    async def _layer(self, number: int, layer: Layer) -> None:
        async with self._slots:
            await self._fetch("layer", layer.digest, layer.size, None, (f"layer:{number}",))

    async def _unpack(self, number: int, layer: Layer, chain: Sequence[str], fetch: asyncio.Task[None]) -> None:
        """Make the active snapshot, wait for the blob, fill the snapshot, commit it."""
        parent = chain[number - 1] if number else ""
        key = self._guarded(partial(self._store.prepare, chain[number], parent, self._lease))
        fetched = False
        try:
            await fetch
            fetched = True
            await self._fill(key, number, layer)
            self._guarded(partial(self._store.commit_snapshot, key, chain[number], self._lease))
        except BaseException as error:
            # 1.6 cleans up after a layer that is bad, not after one that did not come, or whose pull was broken off.
            bad = fetched and not isinstance(error, asyncio.CancelledError)
            if self._alive() and (bad or not self._old):
                self._store.remove_snapshot(key)
            raise
        self._label(layer.digest, {UNCOMPRESSED_LABEL: layer.diff_id})

    async def _fill(self, key: str, number: int, layer: Layer) -> None:
        places = ("unpack", f"unpack:{number}")
        frame = f"failed to extract layer ({layer.diff_id}): "
        done = 0
        for step in range(1, _UNPACK_STEPS + 1):
            await self._stage(places, done, frame)
            size = layer.unpacked * step // _UNPACK_STEPS - done
            inodes = layer.inodes * step // _UNPACK_STEPS - layer.inodes * (step - 1) // _UNPACK_STEPS
            await self._remote.pace(size, self._remote.unpack_rate)
            self._guarded(partial(self._store.grow, key, size, inodes), frame)
            done += size
        await self._stage(places, done, frame)

    # ------------------------------------------------------------------------------------------ records

    def _record(self, top: Document, image_id: str) -> None:
        """Write the records of name, id and digest. That of the name loses its labels, the others keep theirs."""
        target = Descriptor(top.media_type, top.digest, len(top.body))
        pulled, by_digest = str(self._name), f"{self._name.repository}@{top.digest}"
        self._store.put_record(pulled, target, MANAGED)
        self._refresh(image_id, target)
        if self._old:
            self._store.on_event(ImageEvent("update", pulled))
        if by_digest != pulled:
            self._refresh(by_digest, target)

    def _refresh(self, name: str, target: Descriptor) -> None:
        old = self._store.records.get(name)
        if old is None or old.target != target or self._old:
            self._store.put_record(name, target, {**(old.labels if old is not None else {}), **MANAGED})


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group, however deep it lies."""
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    return group
