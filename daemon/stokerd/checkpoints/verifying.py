"""All of a checkpoint read again and compared with its manifest."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Callable
from datetime import datetime

from stokerd.checkpoints.digests import tree_digest
from stokerd.checkpoints.ending import in_thread, to_the_end
from stokerd.checkpoints.errors import CheckpointDamaged
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.model import root_name, snapshot_labels
from stokerd.checkpoints.overlay import root_of
from stokerd.checkpoints.shelf import SHM, Shelf
from stokerd.errors import RuntimeInvalid, RuntimeNotFound, RuntimeUnavailable
from stokerd.runtime.protocol import NativeRuntime


class Verifier:
    """Compares. ``views`` are the snapshots that it looks through meanwhile: nobody else clears those up."""

    def __init__(
        self, runtime: NativeRuntime, shelf: Shelf, owner: str, clock: Callable[[], datetime], views: set[str]
    ) -> None:
        self._runtime, self._shelf, self._owner, self._clock, self._views = runtime, shelf, owner, clock, views

    async def verify(self, manifest: Manifest) -> None:
        """CheckpointDamaged names every difference."""
        problems = list(await asyncio.to_thread(self._shelf.verify, manifest))
        if manifest.shm_digest:
            place = self._shelf.node_path(manifest.id, SHM)
            problems += await self._compare(place, manifest.shm_digest, "/dev/shm")  # noqa: S108
        problems += await self._root(manifest)
        if problems:
            raise CheckpointDamaged(
                f"checkpoint {manifest.id} is damaged: {'; '.join(problems[:5])}",
                problems=tuple(problems),
                hint="make it anew; what a restore of it would bring back is not what was there",
            )

    async def _root(self, manifest: Manifest) -> tuple[str, ...]:
        """Look at the snapshot's own files through a view, which is removed again."""
        name = f"{root_name(manifest.id)}-view-{secrets.token_hex(4)}"
        labels = snapshot_labels(manifest.id, self._owner, self._clock())
        self._views.add(name)
        try:
            root = root_of(await self._runtime.snapshots.view(name, manifest.root.snapshot, labels=labels))
            if root is None or not root.lowers:
                return (f"snapshot {manifest.root.snapshot} is not on containerd's overlayfs",)
            return await self._compare(root.lowers[0], manifest.root.digest, "the root filesystem")
        except (RuntimeNotFound, RuntimeInvalid) as error:  # what else containerd has to say is no damage
            return (f"snapshot {manifest.root.snapshot}: {error.message}",)
        finally:
            self._views.discard(name)
            await to_the_end(self._runtime.snapshots.remove(name), f"remove {name}")

    async def _compare(self, directory: str, digest: str, what: str) -> tuple[str, ...]:
        """Compare a directory of the node. RuntimeUnavailable while that is out of reach, which is no damage."""
        stop, root = threading.Event(), self._runtime.info.host_root
        try:
            found = await in_thread(stop, lambda: tree_digest(f"{root}{directory}", stop.is_set))
            problem = "" if found == digest else f"{what} has other content than was written"
        except OSError as error:
            problem = f"{what} cannot be read: {error.strerror}"
        if problem and not await asyncio.to_thread(os.path.isdir, root or "/"):
            raise RuntimeUnavailable(f"{what} cannot be reached", hint="it is, when containerd is back")
        return (problem,) if problem else ()
