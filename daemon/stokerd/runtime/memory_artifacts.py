"""Images as values: references, layers that are only numbers, and the real documents over them."""

from __future__ import annotations

import hashlib
import json
import platform as machine
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Style = Literal["oci", "docker"]
Compression = Literal["gzip", "zstd", "none", "unknown"]

_DOCKER_HUB = "docker.io"
MEDIA_TYPES: Mapping[tuple[Style, str], str] = {
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
    ("oci", "unknown"): "application/vnd.example.layer.v9+weird",
    ("docker", "unknown"): "application/vnd.example.layer.v9+weird",
}
UNKNOWN_LAYER = MEDIA_TYPES["oci", "unknown"]
"""A layer that no containerd can unpack."""


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
    compression: Compression = "gzip"

    @classmethod
    def of(
        cls,
        size: int,
        seed: object = "",
        *,
        unpacked: int | None = None,
        inodes: int = 10,
        compression: Compression = "gzip",
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
            "mediaType": MEDIA_TYPES[style, "manifest"],
            "config": _descriptor(MEDIA_TYPES[style, "config"], digest_of(config), len(config)),
            "layers": [
                _descriptor(MEDIA_TYPES[style, layer.compression], layer.digest, layer.size) for layer in layers
            ],
        }
    )
    return Variant(platform, manifest, digest_of(manifest), config, digest_of(config), tuple(layers))


def _descriptor(media_type: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest, "size": size}


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest, an index or a configuration as a registry hands it out."""

    media_type: str
    digest: str
    body: bytes


def make_layers(wanted: Sequence[int | Layer], seed: str) -> list[Layer]:
    return [
        layer if isinstance(layer, Layer) else Layer.of(layer, f"{seed} {number}")
        for number, layer in enumerate(wanted)
    ]


def build_index(variants: Sequence[Variant], style: Style, *, attested: bool) -> bytes:
    entries = [
        {
            **_descriptor(MEDIA_TYPES[style, "manifest"], variant.manifest_digest, len(variant.manifest)),
            "platform": _platform_document(variant.platform),
        }
        for variant in variants
    ]
    if attested:
        entries += [_attestation(variant.manifest_digest) for variant in variants]
    return _encode({"schemaVersion": 2, "mediaType": MEDIA_TYPES[style, "index"], "manifests": entries})


def _attestation(digest: str) -> dict[str, Any]:
    """Return an index entry as build tools add them; nobody fetches what it names."""
    return {
        **_descriptor(MEDIA_TYPES["oci", "manifest"], digest_of(f"attestation {digest}".encode()), 566),
        "platform": {"os": "unknown", "architecture": "unknown"},
        "annotations": {
            "vnd.docker.reference.type": "attestation-manifest",
            "vnd.docker.reference.digest": digest,
        },
    }
