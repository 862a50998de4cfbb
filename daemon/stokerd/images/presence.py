"""Is an image there, complete and unpacked? Three small calls: asking for what is warm costs next to nothing."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from stokerd.errors import RuntimeNotFound
from stokerd.images.manifests import BadManifest, ImageConfig, parse_config
from stokerd.registry.references import Reference
from stokerd.runtime.protocol import Runtime


@dataclass(frozen=True, slots=True)
class Present:
    """An image that is warm: ``digest`` is that of the manifest or index its name leads to, ``size`` bytes by CRI."""

    image_id: str
    digest: str
    size: int
    pinned: bool


class Presence:
    """Looks images up in the runtime. Configurations never change, so those read once are remembered."""

    _REMEMBERED = 512

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._configs: OrderedDict[str, ImageConfig] = OrderedDict()

    async def find(self, reference: Reference) -> Present | None:
        """Return the image when CRI knows it and its topmost snapshot is there, None otherwise.

        Raises RuntimeFailure when the runtime cannot be asked.
        """
        name = reference.pull_spec
        status, record = await asyncio.gather(self._runtime.cri.status(name), self._runtime.images.get(name))
        if status is None or record is None:
            return None
        config = await self._config(status.id)
        if config is None:
            return None
        chain = config.chain_ids
        if chain and await self._runtime.snapshots.stat(chain[-1]) is None:
            return None
        return Present(status.id, record.target.digest, status.size, status.pinned)

    async def _config(self, digest: str) -> ImageConfig | None:
        known = self._configs.get(digest)
        if known is not None:
            self._configs.move_to_end(digest)
            return known
        try:
            config = parse_config(await self._runtime.content.read(digest))
        except (RuntimeNotFound, BadManifest):
            return None
        self._configs[digest] = config
        if len(self._configs) > self._REMEMBERED:
            self._configs.popitem(last=False)
        return config
