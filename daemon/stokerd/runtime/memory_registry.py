"""Registries in memory: images to be pulled, and whatever can go wrong while they are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from stokerd.errors import StokerError
from stokerd.runtime.memory_artifacts import (
    MEDIA_TYPES,
    Document,
    Layer,
    Reference,
    RemoteImage,
    Style,
    build_index,
    build_variant,
    digest_of,
    host_platform,
    make_layers,
)
from stokerd.runtime.memory_faults import Hold, Script
from stokerd.runtime.types import RegistryAuth

Stage = str
"""resolve, index, manifest, config, layer, unpack, record; layer:N and unpack:N (from 0), or a layer's digest."""


class Remote:
    """All registries that the node can reach.

    ``chunk`` is how many bytes arrive at once, ``rate`` how many in a second of the event loop's time (None: as fast as
    the loop turns), ``unpack_rate`` the same for unpacking. ``on_chunk`` is awaited before every chunk of a layer, with
    its digest and the offset. ``fetched`` counts the bytes that were sent, by digest; ``requests`` how often a digest
    was begun to be fetched.
    """

    def __init__(self, platform: str | None = None) -> None:
        self.platform = platform or host_platform()
        self.chunk = 1 << 20
        self.rate: float | None = None
        self.unpack_rate: float | None = None
        self.on_chunk: Callable[[str, int], Awaitable[None]] | None = None
        self.fetched: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.script = Script()
        self.unreachable: dict[str, str] = {}
        self._tags: dict[tuple[str, str], str] = {}
        self._contents: dict[str, set[str]] = {}
        self._documents: dict[str, Document] = {}
        self._layers: dict[str, Layer] = {}
        self._images: dict[str, RemoteImage] = {}
        self._accounts: dict[str, tuple[str, str]] = {}

    # ------------------------------------------------------------------------------------------ content

    def add_image(
        self,
        reference: str,
        *,
        layers: Sequence[int | Layer] = (1 << 20,),
        platforms: Sequence[str] = (),
        index: bool | None = None,
        attested: bool = False,
        style: Style = "oci",
        seed: object = None,
    ) -> RemoteImage:
        """Put an image into its registry; a tag that exists moves to it.

        A number among *layers* makes a layer of that size that no other image has, unless its *seed* is the same.
        With several *platforms*, with *index* or *attested*, the name stands for an index.
        """
        parsed = Reference.parse(reference)
        assert parsed is not None, reference
        origin = reference if seed is None else seed
        variants = tuple(
            build_variant(platform, make_layers(layers, f"{origin} {platform}"), style, origin)
            for platform in platforms or (self.platform,)
        )
        first = variants[0]
        media_type, document = MEDIA_TYPES[style, "manifest"], first.manifest
        if index or attested or len(variants) > 1:
            media_type, document = MEDIA_TYPES[style, "index"], build_index(variants, style, attested=attested)
        image = RemoteImage(str(parsed), digest_of(document), media_type, document, variants)
        self._keep(parsed, image, style)
        return image

    def _keep(self, name: Reference, image: RemoteImage, style: Style) -> None:
        known = self._contents.setdefault(name.repository, set())
        documents = [Document(image.media_type, image.digest, image.document)]
        for variant in image.variants:
            documents.append(Document(MEDIA_TYPES[style, "manifest"], variant.manifest_digest, variant.manifest))
            documents.append(Document(MEDIA_TYPES[style, "config"], variant.config_digest, variant.config))
            self._layers.update({layer.digest: layer for layer in variant.layers})
            known.update(layer.digest for layer in variant.layers)
        self._images[image.digest] = image
        self._documents.update({document.digest: document for document in documents})
        known.update(document.digest for document in documents)
        if name.tag:
            self._tags[name.repository, name.tag] = image.digest

    def remove(self, reference: str) -> None:
        """Take a tag, or what a digest names, out of its registry."""
        name = Reference.parse(reference)
        assert name is not None, reference
        self._tags.pop((name.repository, name.tag), None)
        self._contents.get(name.repository, set()).discard(name.digest)

    def find(self, name: Reference) -> Document | None:
        """Return what a name stands for, None when its registry does not have it."""
        digest = name.digest or self._tags.get((name.repository, name.tag), "")
        if digest not in self._contents.get(name.repository, set()):
            return None
        return self._documents.get(digest)

    def image(self, name: Reference) -> RemoteImage | None:
        """Return the image behind a name, None when its registry does not have it."""
        found = self.find(name)
        return self._images.get(found.digest) if found is not None else None

    def document(self, digest: str) -> Document:
        return self._documents[digest]

    def layer(self, digest: str) -> Layer:
        return self._layers[digest]

    # ------------------------------------------------------------------------------------------ access

    def require_auth(self, scope: str, username: str, password: str) -> None:
        """Let only this account pull from *scope*, a registry or a repository."""
        self._accounts[scope] = (username, password)

    def admits(self, name: Reference, auth: RegistryAuth | None) -> bool:
        wanted = self._accounts.get(name.repository) or self._accounts.get(name.host)
        return wanted is None or (auth is not None and (auth.username, auth.password) == wanted)

    # ------------------------------------------------------------------------------------------ faults

    def fail(self, reference: str, stage: Stage, error: StokerError | str, *, times: int = 1, after: int = 0) -> None:
        """Fail the next *times* pulls of *reference* at *stage*, once *after* bytes of it are through.

        A text becomes a failure in the words that containerd puts around a cause; an error is raised as it is.
        """
        self.script.fail(stage, error, reference=_normal(reference), after=after, times=times)

    def hold(self, reference: str, stage: Stage, *, after: int = 0, times: int = 1 << 30) -> Hold:
        """Stop pulls of *reference* at *stage*, once *after* bytes of it are through, until the barrier is released."""
        return self.script.hold(stage, reference=_normal(reference), after=after, times=times)

    def answer(self, reference: str, status: int, *, times: int = 1) -> None:
        """Answer the next *times* pulls of *reference* with an HTTP status instead of a manifest."""
        name = Reference.parse(reference)
        assert name is not None, reference
        words = {
            400: "Bad Request",
            401: "Unauthorized",
            403: "Forbidden",
            429: "Too Many Requests",
            500: "Internal Server Error",
            502: "Bad Gateway",
            503: "Service Unavailable",
            504: "Gateway Timeout",
        }
        url = f"https://{name.host}/v2/{name.path}/manifests/{name.target}"
        cause = f"unexpected status from HEAD request to {url}: {status} {words.get(status, '')}".rstrip()
        self.fail(reference, "resolve", cause, times=times)

    async def pace(self, size: int, rate: float | None) -> None:
        """Take the time that *size* bytes take; always lets the event loop turn."""
        await asyncio.sleep(size / rate if rate else 0)


def _normal(reference: str) -> str:
    return str(Reference.parse(reference) or "")
