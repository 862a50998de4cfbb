"""What a clone of an imported checkpoint is put into, found on this node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from stokerd.checkpoints import archive_plan as plans
from stokerd.checkpoints.archive_plan import Contents
from stokerd.checkpoints.cloning import IMAGE_LABEL, sandbox_files
from stokerd.checkpoints.errors import ArchiveRefused, CheckpointRefused
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.trusting import Frame, read_spec, trusted, unlike
from stokerd.errors import NotFound
from stokerd.runtime.protocol import NativeRuntime
from stokerd.runtime.task_types import AnyValue, ContainerRecord

_SPEC = "types.containerd.io/opencontainers/runtime-spec/1/Spec"
_RUNC = "io.containerd.runc.v2"
_KIND = "io.cri-containerd.kind"
_FILE_LIMIT = 1 << 20
_MOST_FILES = 16


class Framer:
    """Finds the runtime spec of a container of this node, or makes a plain one."""

    def __init__(self, runtime: NativeRuntime) -> None:
        self._runtime = runtime

    async def frame(self, like: str, documents: Mapping[str, bytes], contents: Contents) -> Frame:
        """Return what the clone gets. CheckpointRefused when the container *like* is not like it, ArchiveRefused when
        what is to be trusted is more than plain."""
        came = read_spec(documents[plans.SPEC])
        if not like:
            return trusted(came, _files(documents), shm=plans.SHM in contents.pieces)
        record = await self._golden(like, contents.manifest)
        here = record.document()
        causes = unlike(came, here)
        if causes:
            raise CheckpointRefused(
                f"container {like} is not like the one that was checkpointed: {'; '.join(causes)}",
                causes=causes,
                hint="start a container of the same image with the same mounts, and name that one",
            )
        prefix = self._runtime.info.host_root
        return Frame(here, await asyncio.to_thread(_read_files, sandbox_files(here), prefix))

    async def record(self, frame: Frame, manifest: Manifest, like: str) -> ContainerRecord:
        """Return the record that clones are made after. Nothing of it comes from the archive but names to be shown."""
        source = manifest.source
        golden = await self._golden(like, manifest) if like else await self._any()
        return ContainerRecord(
            id=manifest.id,
            image=golden.image if like and golden is not None else source.image,
            runtime=golden.runtime if golden is not None else _RUNC,
            spec=AnyValue(golden.spec.type if golden is not None else _SPEC, msgspec.json.encode(frame.spec)),
            snapshotter=self._runtime.info.snapshotter,
            options=golden.options if golden is not None else None,
            labels={IMAGE_LABEL: source.image_digest},
        )

    async def _golden(self, like: str, manifest: Manifest) -> ContainerRecord:
        record = await self._runtime.records.get(like)
        status = await self._runtime.containers.status(like)
        if record is None or status is None:
            raise NotFound(f"no container {like} of CRI's is on this node")
        if status.container.image_ref != manifest.source.image_digest:
            raise CheckpointRefused(
                f"container {like} is of another image than the one that was checkpointed",
                hint=f"start one of {manifest.source.image}",
            )
        return record

    async def _any(self) -> ContainerRecord | None:
        """Return a container that CRI has made: it says how this node runs runc."""
        for kind in ("container", "sandbox"):
            for record in await self._runtime.records.list(labels={_KIND: kind}):
                if record.runtime == _RUNC:
                    return record
        return None


def _files(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    try:
        found = msgspec.json.decode(documents.get(plans.FILES, b"{}"), type=dict[str, bytes])
    except (msgspec.MsgspecError, RecursionError):
        raise ArchiveRefused("it cannot be read", plans.FILES) from None
    if len(found) > _MOST_FILES or any(len(each) > _FILE_LIMIT for each in found.values()):
        raise ArchiveRefused("it has more than the files of a pod", plans.FILES)
    return found


def _read_files(places: Mapping[str, str], prefix: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for place, source in places.items():
        path = Path(f"{prefix}{source}")
        with contextlib.suppress(OSError):
            if path.is_file() and path.stat().st_size <= _FILE_LIMIT:
                found[place] = path.read_bytes()
    return found
