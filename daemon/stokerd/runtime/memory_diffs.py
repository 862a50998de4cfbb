"""The diff service of one connection to the memory runtime. It works where snapshots have real directories."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path

from stokerd.errors import RuntimeInvalid, RuntimeNotFound
from stokerd.runtime.memory_artifacts import digest_of
from stokerd.runtime.memory_services import Session
from stokerd.runtime.task_types import Mount
from stokerd.runtime.types import UNCOMPRESSED_LABEL, Descriptor

_WHITEOUT = ".wh."


class MemoryDiffs:
    """`protocol.Diffs`."""

    def __init__(self, session: Session) -> None:
        self._session, self._store = session, session.machine.store

    async def create(
        self, lower: Sequence[Mount], upper: Sequence[Mount], *, media_type: str, ref: str, lease: str
    ) -> Descriptor:
        del lower  # what is over it is all that the upper directory has

        def work() -> Descriptor:
            body = _pack(_directory(upper))
            packed = gzip.compress(body, mtime=0) if media_type.endswith("gzip") else body
            labels = {UNCOMPRESSED_LABEL: digest_of(body)} if packed is not body else {}
            info = self._store.put_blob(ref, digest_of(packed), packed, labels, lease)
            return Descriptor(media_type, info.digest, info.size)

        return await self._session.call("diff.Diff", work)

    async def apply(self, layer: Descriptor, mounts: Sequence[Mount]) -> str:
        def work() -> str:
            blob = self._store.blobs.get(layer.digest)
            if blob is None or blob.body is None:
                raise RuntimeNotFound(f"content digest {layer.digest}: not found", call="diff.Apply")
            body = gzip.decompress(blob.body) if layer.media_type.endswith("gzip") else blob.body
            with tarfile.open(fileobj=io.BytesIO(body)) as archive:
                archive.extractall(_directory(mounts), filter="tar")
            return digest_of(body)

        return await self._session.call("diff.Apply", work)


def _directory(mounts: Sequence[Mount]) -> Path:
    """Return where what is written to such mounts goes."""
    mount = mounts[0]
    if mount.type == "bind" and "rw" in mount.options:
        return Path(mount.source)
    found = next((each.partition("=")[2] for each in mount.options if each.startswith("upperdir=")), "")
    if not found:
        raise RuntimeInvalid("these mounts are read-only", status="INVALID_ARGUMENT", call="diff")
    return Path(found)


def _pack(upper: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(upper.rglob("*")):
            about, name = path.lstat(), str(path.relative_to(upper))
            if stat.S_ISSOCK(about.st_mode):
                continue
            if stat.S_ISCHR(about.st_mode) and not about.st_rdev:
                head, _, tail = name.rpartition("/")
                archive.addfile(tarfile.TarInfo(os.path.join(head, _WHITEOUT + tail)))  # noqa: PTH118 - a name in tar
            else:
                archive.add(path, name, recursive=False)
    return out.getvalue()
