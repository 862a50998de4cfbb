"""Images of this node pushed to registries, out of containerd's content store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

import msgspec
import structlog

from stokerd.checkpoints.ending import to_the_end
from stokerd.checkpoints.errors import CheckpointError
from stokerd.checkpoints.holding import Holder
from stokerd.checkpoints.image_plan import Held, Plan, blobs, children, plan, source_label
from stokerd.errors import NotFound, RuntimeFailure, RuntimeNotFound, StokerError
from stokerd.registry.bodies import Tell
from stokerd.registry.client import RegistryClient
from stokerd.registry.credentials import Credential
from stokerd.registry.errors import BlobMissing, RegistryError, Subject
from stokerd.registry.fetching import fetch
from stokerd.registry.keyring import Keyring
from stokerd.registry.push_types import Blob, Policy, Pushed
from stokerd.registry.pushing import push
from stokerd.registry.references import Reference, parse_reference
from stokerd.runtime.protocol import NativeRuntime
from stokerd.runtime.types import Descriptor, ImageRecord

_log = structlog.get_logger("checkpoints")
_DOCUMENT_LIMIT = 4 << 20


class ImagePushed(msgspec.Struct, frozen=True):
    """``partial``: of an index only the manifest that is on this node was pushed."""

    image: str
    pushed: Pushed
    partial: bool = False


class ImagePusher:
    """Pushes images. What is not here any more, and not there either, is fetched again from where it came from."""

    def __init__(
        self,
        runtime: NativeRuntime,
        client: RegistryClient,
        keyring: Keyring,
        holder: Holder,
        policy: Policy | None = None,
    ) -> None:
        self._runtime, self._client, self._keyring = runtime, client, keyring
        self._holder, self._policy = holder, policy or Policy()

    async def push(
        self, image: str, to: str = "", credentials: Sequence[Credential] = (), *, tell: Tell = lambda _: None
    ) -> ImagePushed:
        """Push *image* under its own name, or as *to*. NotFound, InvalidReference, RegistryErrors."""
        record = await self.record(image)
        target = parse_reference(to or record.name)
        if target.digest:
            target = Reference(target.host, target.path, target.tag or "latest")
        what = await self._plan(record, target)
        async with self._holder.lease("push") as lease:
            contents = StoredContents(self._runtime, self._client, self._keyring, what.origins, lease, self._policy)
            known = await self._keyring.lookup(target, credentials)
            done = await push(self._client, target, what.load, contents, known, tell=tell, policy=self._policy)
            await self._remember(what, target)
        _log.info("image is pushed", image=str(target), digest=done.digest, bytes=done.transferred)
        return ImagePushed(str(target), done, what.partial)

    async def record(self, image: str) -> ImageRecord:
        """Return the image's record, by its name as people write it; NotFound."""
        found = await self._runtime.images.get(image)
        if found is None and not image.startswith("sha256:"):
            found = await self._runtime.images.get(str(parse_reference(image)))
        if found is None:
            raise NotFound(f"image {image} is not on this node", hint="stoker image ls")
        return found

    async def _plan(self, record: ImageRecord, target: Reference) -> Plan:
        top = await self._held(record.target)
        if top is None:
            raise NotFound(f"the manifest of image {record.name} is not here any more", hint="pull it again")
        below = children(top)
        manifests = [held for each in below if (held := await self._held(each)) is not None]
        partial = len(manifests) < len(below)
        if partial:
            top = await self._own(record, manifests)
            manifests = []
        labels = {}
        for held in manifests or [top]:
            for each in blobs(held):
                info = await self._runtime.content.info(each.digest)
                if info is not None:
                    labels[each.digest] = info.labels
        names = [each.name for each in await self._runtime.images.list() if each.target == record.target]
        return plan(top, manifests, labels, target, names, partial=partial)

    async def _own(self, record: ImageRecord, manifests: Sequence[Held]) -> Held:
        """Return the manifest of an index that the node runs: the only one that CRI has pulled."""
        image = await self._runtime.cri.status(record.name)
        for held in manifests:
            if image is not None and any(each.digest == image.id for each in blobs(held)):
                return held
        raise CheckpointError(f"of image {record.name} no manifest is here as a whole", hint="pull it again")

    async def _held(self, descriptor: Descriptor) -> Held | None:
        info = await self._runtime.content.info(descriptor.digest)
        if info is None:
            return None
        body = await self._runtime.content.read(descriptor.digest, limit=_DOCUMENT_LIMIT)
        return Held(descriptor, body, info.labels)

    async def _remember(self, what: Plan, target: Reference) -> None:
        """Say of what is here that the registry has it: it can be mounted from there, and fetched again."""
        for digest in (*(each.digest for each in what.load.blobs), *(each.digest for each in what.load.documents)):
            info = await self._runtime.content.info(digest)
            label = source_label(target, info.labels) if info is not None else {}
            if not label:
                continue
            try:
                await self._runtime.content.write(f"label-{digest}", _nothing(), digest=digest, labels=label)
            except RuntimeFailure as error:  # it went away just now: there is nothing to remember
                _log.debug("a blob cannot be labelled", digest=digest, why=error.message)
                await self._runtime.content.abort(f"label-{digest}")


class StoredContents:
    """`push_types.Contents` out of containerd. What is fetched again is held by the lease."""

    def __init__(
        self,
        runtime: NativeRuntime,
        client: RegistryClient,
        keyring: Keyring,
        origins: Mapping[str, tuple[Reference, ...]],
        lease: str,
        policy: Policy,
    ) -> None:
        self._runtime, self._client, self._keyring = runtime, client, keyring
        self._origins, self._lease, self._policy = origins, lease, policy

    async def obtain(self, blob: Blob) -> None:
        if await self._runtime.content.info(blob.digest) is not None:
            return
        failures: list[str] = []
        for origin in self._origins.get(blob.digest, ()):
            try:
                await self._fetch(origin, blob)
            except RegistryError as error:
                failures.append(f"{origin.name}: {error.what}")
            else:
                return
        tried = "; ".join(failures) or "nobody knows where it came from"
        raise BlobMissing(
            f"the blob {blob.digest} is not here any more, and cannot be fetched again ({tried})",
            Subject("this node", target=blob.digest),
        )

    async def read(self, blob: Blob, offset: int, size: int) -> bytes:
        try:
            return await self._runtime.content.read_at(blob.digest, offset, size)
        except RuntimeNotFound:
            what = f"the blob {blob.digest} went away while it was pushed"
            raise BlobMissing(what, Subject("this node", target=blob.digest)) from None

    async def _fetch(self, origin: Reference, blob: Blob) -> None:
        known = await self._keyring.lookup(origin)
        ref = f"{self._lease}-{blob.digest}"
        async with aclosing(fetch(self._client, origin, blob.digest, blob.size, known, self._policy)) as pieces:
            try:
                await self._runtime.content.write(ref, pieces, size=blob.size, digest=blob.digest, lease=self._lease)
            except BaseException:
                await to_the_end(self._abort(ref), f"abort {ref}")
                raise

    async def _abort(self, ref: str) -> None:
        try:
            await self._runtime.content.abort(ref)
        except StokerError as error:
            _log.warning("cannot abort an ingest", ref=ref, why=error.message)


async def _nothing() -> AsyncGenerator[bytes, None]:
    return
    yield b""
