"""Checkpoints pushed to registries, and pulled from them onto other nodes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Protocol

import msgspec
import structlog

from stoker.objects.images import InlineAuth
from stokerd.checkpoints import archive_plan as plans
from stokerd.checkpoints.archive_plan import Contents
from stokerd.checkpoints.artifacts import (
    CONTENTS_TYPE,
    MEMORY_TYPE,
    ROOT_TYPE,
    SHM_TYPE,
    Artifact,
    manifest_of,
    read_artifact,
)
from stokerd.checkpoints.ending import in_own_thread, to_the_end
from stokerd.checkpoints.errors import ArchiveRefused
from stokerd.checkpoints.exporting import Exporter, Package, write_memory
from stokerd.checkpoints.holding import Holder
from stokerd.checkpoints.image_plan import base_annotations
from stokerd.checkpoints.imaging import MANIFEST, digest_of
from stokerd.checkpoints.importing import Importer, ImportWish, Landing
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.pressing import Produce, pressed
from stokerd.checkpoints.pushes import StoredContents
from stokerd.checkpoints.streaming import Source, plain
from stokerd.checkpoints.tarring import END
from stokerd.checkpoints.trees import Stop
from stokerd.checkpoints.untarring import TarReader
from stokerd.errors import InvalidInput, NotFound
from stokerd.registry.bodies import Tell
from stokerd.registry.client import RegistryClient
from stokerd.registry.credentials import Credential
from stokerd.registry.fetching import fetch
from stokerd.registry.keyring import Keyring
from stokerd.registry.push_types import Blob, Document, Load, Moved, Policy, Pushed
from stokerd.registry.pushing import push
from stokerd.registry.references import Reference, parse_reference
from stokerd.runtime.protocol import NativeRuntime
from stokerd.runtime.types import Descriptor

_log = structlog.get_logger("checkpoints")
_LEVEL = 3
_FRAMES = 256
"""Frames of 4 MiB in one blob: registries have limits, and several go side by side."""
_CONTENTS_LIMIT = 16 << 20


class Warmer(Protocol):
    """Brings images onto the node."""

    async def warm(self, image: str, auths: Sequence[InlineAuth]) -> None:
        """Return when *image* is there, complete and unpacked."""
        ...


class Shipper:
    """Sends checkpoints to registries and gets them from there."""

    def __init__(
        self,
        runtime: NativeRuntime,
        client: RegistryClient,
        keyring: Keyring,
        warmer: Warmer,
        holder: Holder,
        policy: Policy | None = None,
    ) -> None:
        self._runtime, self._client, self._keyring, self._warmer = runtime, client, keyring, warmer
        self._holder, self._policy = holder, policy or Policy()

    # ------------------------------------------------------------------------------------------ out

    async def push(
        self,
        exporter: Exporter,
        manifest: Manifest,
        to: str,
        credentials: Sequence[Credential] = (),
        *,
        tell: Tell = lambda _: None,
    ) -> Pushed:
        """Push a checkpoint as the artifact *to*. It is packed into containerd's content store first, and goes from
        there: an upload that breaks goes on, and the same again sends nothing."""
        target = _target(to)
        async with self._holder.lease("ship") as lease:
            async with exporter.package(manifest) as package:
                artifact = await self._stage(package, lease)
            body = manifest_of(artifact, package.contents.manifest, await self._base(manifest))
            document = Document(MANIFEST, digest_of(body), body, target.tag or "latest")
            load = Load(tuple(Blob(each.digest, each.size) for each in artifact.blobs), (document,))
            contents = StoredContents(self._runtime, self._client, self._keyring, {}, lease, self._policy)
            known = await self._keyring.lookup(target, credentials)
            done = await push(self._client, target, load, contents, known, tell=tell, policy=self._policy)
        _log.info("checkpoint is pushed", id=manifest.id, reference=str(target), bytes=done.transferred)
        return done

    async def _stage(self, package: Package, lease: str) -> Artifact:
        """Pack everything into the content store, held by the lease."""
        body = msgspec.json.encode(package.contents)
        info = await self._runtime.content.write(f"{lease}-contents", _once(body), lease=lease)
        contents = Descriptor(CONTENTS_TYPE, info.digest, info.size)
        (root,) = await self._blobs(package.roots.pack, ROOT_TYPE, lease, one=True)
        memory = await self._blobs(partial(_memory, package), MEMORY_TYPE, lease)
        shm = None
        if package.shm:
            (shm,) = await self._blobs(package.pack_shm, SHM_TYPE, lease, one=True)
        return Artifact(contents, root, tuple(memory), shm)

    async def _blobs(
        self, produce: Produce[None], media_type: str, lease: str, *, one: bool = False
    ) -> list[Descriptor]:
        """Compress what *produce* writes into one blob, or into as many as it takes."""
        found: list[Descriptor] = []
        frames = pressed(produce, _LEVEL, [], "zstd")
        async with aclosing(frames):
            ended = False

            async def some() -> AsyncGenerator[bytes, None]:
                nonlocal ended
                count = 0
                async for frame in frames:
                    yield frame
                    count += 1
                    if count == _FRAMES and not one:
                        return
                ended = True

            while not ended:
                ref = f"{lease}-{len(found)}-{media_type.rpartition('/')[2]}"
                try:
                    info = await self._runtime.content.write(ref, some(), lease=lease)
                except BaseException:
                    await to_the_end(self._runtime.content.abort(ref), f"abort {ref}")
                    raise
                if info.size or not found:
                    found.append(Descriptor(media_type, info.digest, info.size))
        return found

    async def _base(self, manifest: Manifest) -> dict[str, str]:
        """Say where the image is that the checkpoint stands on."""
        image = await self._runtime.images.get(manifest.source.image)
        if image is None:
            image = await self._runtime.images.get(manifest.source.image_digest)
        if image is None:
            return {}
        names = [each.name for each in await self._runtime.images.list() if each.target == image.target]
        return base_annotations(names, image.target.digest)

    # ------------------------------------------------------------------------------------------ in

    async def pull(
        self,
        importer: Importer,
        name: str,
        wish: ImportWish,
        auths: Sequence[InlineAuth] = (),
        *,
        tell: Tell = lambda _: None,
    ) -> Manifest:
        """Pull an artifact and take it in as an archive is: trusted in nothing, complete or not there at all."""
        wish.check()
        reference = parse_reference(name)
        known = await self._keyring.lookup(reference, [credential_of(each) for each in auths])
        resolved = await self._client.resolve(reference, known)
        artifact = read_artifact(resolved.body, await asyncio.to_thread(importer.limits, wish.limit))
        body = await self._client.fetch_blob(reference, artifact.contents.digest, _CONTENTS_LIMIT, known)
        contents = plans.read_contents(body, await asyncio.to_thread(importer.limits, wish.limit))
        if (artifact.shm is None) == (plans.SHM in contents.pieces):
            raise ArchiveRefused("its layers are not those that its contents name")
        await self._image(importer, contents, artifact.base, auths)

        async def fill(landing: Landing) -> None:
            get = partial(self._pieces, reference, known, tell)
            await _through(get((artifact.root,)), lambda source, stop: landing.tree(plans.ROOT, plain(source), stop))
            but = {plans.ROOT, plans.SHM}
            await _through(
                get(artifact.memory),
                lambda source, stop: landing.archive(TarReader(plain(source)), stop, but=but),
            )
            if artifact.shm is not None:
                await _through(get((artifact.shm,)), lambda source, stop: landing.tree(plans.SHM, plain(source), stop))

        return await importer.land(contents, wish, fill)

    async def _image(
        self, importer: Importer, contents: Contents, base: Reference | None, auths: Sequence[InlineAuth]
    ) -> None:
        """Have the image pulled that the checkpoint stands on, by its digest, unless it is here."""
        try:
            await importer.parent(contents.manifest)
        except NotFound as error:
            if base is None:
                raise
            _log.info("pulling the image of a checkpoint", image=str(base), why=error.message)
            await self._warmer.warm(str(base), auths)
            await importer.parent(contents.manifest)

    async def _pieces(
        self, reference: Reference, known: Sequence[Credential], tell: Tell, blobs: Sequence[Descriptor]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the blobs, one after the other, as one stream."""
        for blob in blobs:
            got = 0
            stream = fetch(self._client, reference, blob.digest, blob.size, known, self._policy)
            async with aclosing(stream) as pieces:
                async for piece in pieces:
                    got += len(piece)
                    tell(Moved(blob.digest, blob.size, got, "fetching"))
                    yield piece


def credential_of(auth: InlineAuth) -> Credential:
    return Credential(
        username=auth.username,
        password=auth.password,
        identity_token=auth.identity_token,
        registry_token=auth.registry_token,
        source="request",
        server=auth.registry,
    )


async def _through(pieces: AsyncGenerator[bytes, None], work: Callable[[Source, Stop], None]) -> None:
    """Let *work* read a stream in a thread, to its end."""
    stop = threading.Event()
    loop = asyncio.get_running_loop()
    async with aclosing(pieces):
        await in_own_thread(stop, lambda: work(Source(pieces, loop, stop.is_set), stop.is_set), "fetched")


def _memory(package: Package, write: Callable[[bytes], object], stop: Stop) -> None:
    write_memory(package, write, stop)
    write(END)


def _target(to: str) -> Reference:
    reference = parse_reference(to)
    if reference.digest:
        raise InvalidInput(f"{to}: what is to be pushed has no digest yet", hint="give it a tag")
    return reference


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body
