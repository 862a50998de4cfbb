"""What is written beside the memory, and the manifest of it all."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import msgspec

from stokerd.checkpoints import shelf as shelves
from stokerd.checkpoints.cloning import CONTAINER_LABEL, IMAGE_LABEL, POD_LABEL, sandbox_files
from stokerd.checkpoints.digests import tree_digest
from stokerd.checkpoints.ending import in_thread
from stokerd.checkpoints.manifest import VERSION, Manifest, Part, Root, Source
from stokerd.checkpoints.mending import FILES, mended
from stokerd.checkpoints.preparing import Job
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.surveying import node_of
from stokerd.runtime.protocol import NativeRuntime

_FILE_LIMIT = 1 << 20


class Describer:
    """Writes down what belongs to a checkpoint whose memory and files have been taken."""

    def __init__(self, runtime: NativeRuntime, shelf: Shelf) -> None:
        self._runtime, self._shelf = runtime, shelf

    async def describe(self, job: Job, root: Root, frozen_ms: float, *, shm: bool) -> Manifest:
        """Write all parts but the manifest, and return that."""
        source = await self._source(job)
        stop = threading.Event()

        def finish() -> tuple[tuple[Part, ...], str]:
            self._shelf.write(job.id, shelves.SPEC, job.record.spec.value)
            self._shelf.write(job.id, shelves.RECORD, msgspec.msgpack.encode(job.record))
            self._shelf.write(job.id, shelves.FILES, msgspec.json.encode(self._sandbox_files(job)))
            self._mend(job.id)
            place = self._shelf.path(job.id, shelves.SHM)
            return self._shelf.parts(job.id), tree_digest(str(place), stop.is_set) if shm else ""

        parts, shm_digest = await in_thread(stop, finish)
        name = job.wish.name
        if name and job.together > 1:
            name = f"{name}/{source.container_name}"
        return Manifest(
            version=VERSION,
            id=job.id,
            name=name or job.id,
            created_at=job.began,
            source=source,
            node=await asyncio.to_thread(node_of, self._runtime.info),
            root=root,
            parts=parts,
            shm_digest=shm_digest,
            frozen_ms=round(frozen_ms, 3),
            left_running=job.wish.leave_running,
            tcp=job.wish.tcp,
            labels=job.wish.labels,
            group=job.group,
            external_unix_sockets=job.wish.external_unix_sockets,
        )

    def _mend(self, checkpoint: str) -> None:
        """Put right what CRIU would restore otherwise than it was."""
        path = self._shelf.path(checkpoint, shelves.IMAGES, FILES)
        with contextlib.suppress(FileNotFoundError):
            new = mended(path.read_bytes())
            if new is not None:
                path.write_bytes(new)

    async def _source(self, job: Job) -> Source:
        """Say what it was. A container of ours says of itself which of CRI's it stands for."""
        record = job.record
        is_cri = record.labels.get("io.cri-containerd.kind") == "container"
        about = await self._runtime.containers.status(record.id) if is_cri else None
        pods = {pod.id: pod for pod in await self._runtime.pods.list()}
        pod = pods.get(about.container.pod_id if about is not None else record.labels.get(POD_LABEL, ""))
        return Source(
            container_id=record.id,
            container_name=about.container.name if about is not None else record.labels.get(CONTAINER_LABEL, record.id),
            pod_id=pod.id if pod is not None else "",
            pod_name=pod.name if pod is not None else "",
            pod_namespace=pod.namespace if pod is not None else "",
            image=record.image,
            image_digest=about.container.image_ref if about is not None else record.labels.get(IMAGE_LABEL, ""),
            runtime=record.runtime,
        )

    def _sandbox_files(self, job: Job) -> dict[str, bytes]:
        """Read the files that go with the pod, such as resolv.conf: a clone outlives it."""
        found: dict[str, bytes] = {}
        for place, source in sandbox_files(job.record.document()).items():
            path = Path(f"{self._runtime.info.host_root}{source}")
            with contextlib.suppress(OSError):
                if path.is_file() and path.stat().st_size <= _FILE_LIMIT:
                    found[place] = path.read_bytes()
        return found
