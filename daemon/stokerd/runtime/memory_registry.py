"""Registries in memory: images with real manifests, and whatever can go wrong while they are fetched."""

from __future__ import annotations

import asyncio
import hashlib
import json
import platform as machine
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stokerd.errors import StokerError
from stokerd.runtime.memory_faults import Hold, Script
from stokerd.runtime.types import RegistryAuth

Style = Literal["oci", "docker"]
Stage = str
"""resolve, index, manifest, config, layer, unpack, record; layer:N and unpack:N (from 0), or a layer's digest."""

_DOCKER_HUB = "docker.io"
_TYPES: Mapping[tuple[Style, str], str] = {
    ("oci", "index"): "application/vnd.oci.image.index.v1+json",
    ("oci", "manifest"): "application/vnd.oci.image.manifest.v1+json",
    ("oci", "config"): "application/vnd.oci.image.config.v1+json",
    ("oci", "gzip"): "application/vnd.oci.image.layer.v1.tar+gzip",
    ("oci", "zstd"): "application/vnd.oci.image.layer.v1.tar+zstd",
    ("oci", "none"): "application/vnd.oci.image.layer.v1.tar",
    ("docker", "index"): "application/vnd.docker.distribution.manifest.list.v2+json",
    ("docker", "manifest"): "application/vnd.docker.distribution.manifest.v2+json",
    ("docker", "config"): "application/vnd.docker.container.image.v1+json",
    ("docker", "gzip"): "application/vnd.docker.image.rootfs.diff.tar.gzip",
    ("docker", "zstd"): "application/vnd.docker.image.rootfs.diff.tar.zstd",
    ("docker", "none"): "application/vnd.docker.image.rootfs.diff.tar",
}


def host_platform() -> str:
    """Return this machine's platform in Go's names, as the real daemon would find it."""
    name = machine.machine().lower()
    return f"linux/{ {'x86_64': 'amd64', 'aarch64': 'arm64'}.get(name, name) }"


def digest_of(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


# ------------------------------------------------------------------------------------------------ names


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference as CRI reads it: a digest wins over a tag, and neither means ``latest``."""

    repository: str
    tag: str
    digest: str

    @classmethod
    def parse(cls, text: str) -> Reference | None:
        """Return None for what is no reference at all."""
        name, _, digest = text.partition("@")
        head, slash, last = name.rpartition("/")
        last, _, tag = last.partition(":")
        name = f"{head}{slash}{last}"
        if not last or any(character.isspace() for character in text):
            return None
        domain, slash, rest = name.partition("/")
        if not slash or not ("." in domain or ":" in domain or domain == "localhost"):
            domain, rest = _DOCKER_HUB, name
        if domain == _DOCKER_HUB and "/" not in rest:
            rest = f"library/{rest}"
        return cls(f"{domain}/{rest}", "" if digest else tag or "latest", digest)

    @property
    def host(self) -> str:
        return self.repository.partition("/")[0]

    @property
    def path(self) -> str:
        return self.repository.partition("/")[2]

    @property
    def target(self) -> str:
        return self.digest or self.tag

    def __str__(self) -> str:
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag}"


# ------------------------------------------------------------------------------------------------ images


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer without content: only what it weighs, in the registry and once it is unpacked."""

    digest: str
    diff_id: str
    size: int
    unpacked: int
    inodes: int
    compression: Literal["gzip", "zstd", "none"] = "gzip"

    @classmethod
    def of(
        cls,
        size: int,
        seed: object = "",
        *,
        unpacked: int | None = None,
        inodes: int = 10,
        compression: Literal["gzip", "zstd", "none"] = "gzip",
    ) -> Layer:
        """Make a layer of *size* compressed bytes; equal arguments make equal layers."""
        grown = size * 2 if unpacked is None else unpacked
        key = f"{size} {grown} {compression} {seed}"
        return cls(
            digest_of(f"blob {key}".encode()), digest_of(f"diff {key}".encode()), size, grown, inodes, compression
        )


@dataclass(frozen=True, slots=True)
class Variant:
    """An image for one platform."""

    platform: str
    manifest: bytes
    manifest_digest: str
    config: bytes
    config_digest: str
    layers: tuple[Layer, ...]

    @property
    def chain_ids(self) -> tuple[str, ...]:
        return chain_ids([layer.diff_id for layer in self.layers])


@dataclass(frozen=True, slots=True)
class RemoteImage:
    """What lies in a registry under one name: one variant, or an index over several."""

    reference: str
    digest: str
    media_type: str
    document: bytes
    variants: tuple[Variant, ...]

    def variant(self, platform: str) -> Variant:
        return next(variant for variant in self.variants if variant.platform == platform)

    @property
    def first(self) -> Variant:
        return self.variants[0]

    @property
    def id(self) -> str:
        """The image id (of the first variant)."""
        return self.first.config_digest

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self.first.layers

    @property
    def compressed_size(self) -> int:
        return sum(layer.size for layer in self.layers)

    @property
    def by_digest(self) -> str:
        """The reference that names the content instead of the tag."""
        parsed = Reference.parse(self.reference)
        assert parsed is not None
        return f"{parsed.repository}@{self.digest}"


def chain_ids(diff_ids: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the committed snapshots, lowest first."""
    chain: list[str] = []
    for diff_id in diff_ids:
        chain.append(digest_of(f"{chain[-1]} {diff_id}".encode()) if chain else diff_id)
    return tuple(chain)


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _platform_document(platform: str) -> dict[str, str]:
    os, _, rest = platform.partition("/")
    architecture, _, variant = rest.partition("/")
    document = {"os": os, "architecture": architecture}
    return {**document, "variant": variant} if variant else document


def build_variant(platform: str, layers: Sequence[Layer], style: Style = "oci", seed: object = "") -> Variant:
    """Write the configuration and the manifest over *layers*."""
    config = _encode(
        {
            **_platform_document(platform),
            "config": {"Labels": {"seed": str(seed)}},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        }
    )
    manifest = _encode(
        {
            "schemaVersion": 2,
            "mediaType": _TYPES[style, "manifest"],
            "config": _descriptor(_TYPES[style, "config"], digest_of(config), len(config)),
            "layers": [_descriptor(_TYPES[style, layer.compression], layer.digest, layer.size) for layer in layers],
        }
    )
    return Variant(platform, manifest, digest_of(manifest), config, digest_of(config), tuple(layers))


def _descriptor(media_type: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest, "size": size}


# ------------------------------------------------------------------------------------------------ the remote


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest, an index or a configuration as a registry hands it out."""

    media_type: str
    digest: str
    body: bytes


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
            build_variant(platform, _layers(layers, f"{origin} {platform}"), style, origin)
            for platform in platforms or (self.platform,)
        )
        first = variants[0]
        media_type, document = _TYPES[style, "manifest"], first.manifest
        if index or attested or len(variants) > 1:
            media_type, document = _TYPES[style, "index"], _index(variants, style, attested=attested)
        image = RemoteImage(str(parsed), digest_of(document), media_type, document, variants)
        self._keep(parsed, image, style)
        return image

    def _keep(self, name: Reference, image: RemoteImage, style: Style) -> None:
        known = self._contents.setdefault(name.repository, set())
        documents = [Document(image.media_type, image.digest, image.document)]
        for variant in image.variants:
            documents.append(Document(_TYPES[style, "manifest"], variant.manifest_digest, variant.manifest))
            documents.append(Document(_TYPES[style, "config"], variant.config_digest, variant.config))
            self._layers.update({layer.digest: layer for layer in variant.layers})
            known.update(layer.digest for layer in variant.layers)
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


def _layers(wanted: Sequence[int | Layer], seed: str) -> list[Layer]:
    return [
        layer if isinstance(layer, Layer) else Layer.of(layer, f"{seed} {number}")
        for number, layer in enumerate(wanted)
    ]


def _index(variants: Sequence[Variant], style: Style, *, attested: bool) -> bytes:
    entries = [
        {
            **_descriptor(_TYPES[style, "manifest"], variant.manifest_digest, len(variant.manifest)),
            "platform": _platform_document(variant.platform),
        }
        for variant in variants
    ]
    if attested:
        entries += [_attestation(variant.manifest_digest) for variant in variants]
    return _encode({"schemaVersion": 2, "mediaType": _TYPES[style, "index"], "manifests": entries})


def _attestation(digest: str) -> dict[str, Any]:
    """Return an index entry as build tools add them; nobody fetches what it names."""
    return {
        **_descriptor(_TYPES["oci", "manifest"], digest_of(f"attestation {digest}".encode()), 566),
        "platform": {"os": "unknown", "architecture": "unknown"},
        "annotations": {
            "vnd.docker.reference.type": "attestation-manifest",
            "vnd.docker.reference.digest": digest,
        },
    }
