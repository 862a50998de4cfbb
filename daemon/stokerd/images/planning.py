"""What warming images would take, worked out from their manifests alone: nothing else is fetched, nothing is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stoker.objects import images as api
from stokerd.errors import StokerError
from stokerd.images import views
from stokerd.images.budget import DiskBudget
from stokerd.images.manifests import (
    ImageConfig,
    Index,
    Manifest,
    Platform,
    check_platform,
    parse_config,
    parse_document,
    select_platform,
)
from stokerd.images.presence import Presence
from stokerd.images.pull import CredentialLookup
from stokerd.images.space import Need, union_need
from stokerd.images.space import Presence as LayerPresence
from stokerd.registry.client import Resolved
from stokerd.registry.credentials import Credential
from stokerd.registry.references import Reference
from stokerd.runtime.protocol import Runtime
from stokerd.runtime.types import Usage

_PARALLEL = 4
_CONFIG_LIMIT = 8 << 20


class ManifestSource(Protocol):
    """What is needed of `registry.client.RegistryClient`."""

    async def resolve(self, reference: Reference, credentials: Sequence[Credential] = ()) -> Resolved: ...

    async def fetch_manifest(
        self, reference: Reference, digest: str, credentials: Sequence[Credential] = ()
    ) -> Resolved: ...

    async def fetch_blob(
        self, reference: Reference, digest: str, size_limit: int, credentials: Sequence[Credential] = ()
    ) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Image:
    """One image of a plan, with what the sum over all of them needs."""

    entry: api.ImagePlan
    manifest: Manifest | None = None
    presence: LayerPresence = field(default_factory=LayerPresence)


class Planner:
    """Makes plans. A reference that cannot be resolved is part of the plan, with the reason."""

    def __init__(
        self,
        runtime: Runtime,
        presence: Presence,
        budget: DiskBudget,
        keyring: CredentialLookup,
        registry: ManifestSource,
        platform: Platform,
    ) -> None:
        self._runtime = runtime
        self._presence = presence
        self._budget = budget
        self._keyring = keyring
        self._registry = registry
        self._platform = platform

    async def plan(self, images: Sequence[tuple[str, Reference]], auths: tuple[Credential, ...]) -> api.Plan:
        """Return what each image would take, and what all together would, against the disk as it is."""
        limit = asyncio.Semaphore(_PARALLEL)

        async def one(image: str, reference: Reference) -> _Image:
            async with limit:
                return await self._plan_one(image, reference, auths)

        planned = await asyncio.gather(*(one(image, reference) for image, reference in images))
        missing = [(image.manifest, image.presence) for image in planned if image.manifest is not None]
        known: dict[str, Usage] = {}
        for manifest, _ in missing:
            known |= await self._budget.known(manifest)
        need = union_need(missing, self._budget.ratios, known)
        disk = await self._budget.read()
        return api.Plan(images=[image.entry for image in planned], space=views.space(need, disk, self._budget.margins))

    async def _plan_one(self, image: str, reference: Reference, auths: tuple[Credential, ...]) -> _Image:
        entry = api.ImagePlan(image=image, reference=str(reference))
        try:
            return await self._resolved(entry, reference, auths)
        except StokerError as error:
            entry.reason, entry.message, entry.hint = error.reason, error.message, error.hint or ""
            return _Image(entry)

    async def _resolved(self, entry: api.ImagePlan, reference: Reference, auths: tuple[Credential, ...]) -> _Image:
        credentials = await self._keyring.lookup(reference, auths)
        resolved = await self._registry.resolve(reference, credentials)
        entry.digest = resolved.descriptor.digest
        document = parse_document(resolved.body)
        if isinstance(document, Index):
            chosen = select_platform(document, self._platform, str(reference)).descriptor.digest
            document = parse_document((await self._registry.fetch_manifest(reference, chosen, credentials)).body)
            if isinstance(document, Index):
                raise StokerError(f"{reference}: an index within an index is not supported")
        body = await self._registry.fetch_blob(reference, document.config.digest, _CONFIG_LIMIT, credentials)
        config = parse_config(body)
        check_platform(config, self._platform, str(reference))
        entry.platform = str(config.platform)
        presence = await self._layers_present(document, config)
        found = await self._presence.find(reference)
        entry.present = found is not None and found.digest == entry.digest
        known = await self._budget.known(document)
        need = Need() if entry.present else self._budget.need(document, presence, known)
        _fill(entry, document, presence, need)
        entry.unpack_estimated = any(layer.digest not in known for layer in document.layers[presence.unpacked :])
        return _Image(entry, None if entry.present else document, presence)

    async def _layers_present(self, manifest: Manifest, config: ImageConfig) -> LayerPresence:
        unpacked = 0
        for chain in config.chain_ids:
            if await self._runtime.snapshots.stat(chain) is None:
                break
            unpacked += 1
        digests = {layer.digest for layer in manifest.layers[unpacked:]}
        infos = await asyncio.gather(*(self._runtime.content.info(digest) for digest in digests))
        return LayerPresence(frozenset(info.digest for info in infos if info is not None), unpacked=unpacked)


def _fill(entry: api.ImagePlan, manifest: Manifest, presence: LayerPresence, need: Need) -> None:
    entry.layers_total = len(manifest.layers)
    entry.layers_missing = 0 if entry.present else len(manifest.layers) - presence.unpacked
    entry.download_bytes = need.download_bytes
    entry.unpack_bytes = need.unpack_bytes
    entry.unpack_inodes = need.unpack_inodes
