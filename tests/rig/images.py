"""Images by code: manifests, configurations and indexes over the layers of layers.py.

    image = images.build(ImageSpec(layers=(LayerSpec(size=1 << 20),)))
    pushed = push.push(registry.address, "demo/app", image, tag="v1")

What a registry or a node must refuse or survive is made here too: wrong diff ids, unknown media types, foreign
platforms, attestations, nothing at all.
"""

from __future__ import annotations

import hashlib
import json
import platform as machine
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.rig.layers import BlobStore, Layer, LayerSpec

Style = Literal["oci", "docker"]

OCI = "application/vnd.oci.image"
DOCKER = "application/vnd.docker"
MANIFEST = {"oci": f"{OCI}.manifest.v1+json", "docker": f"{DOCKER}.distribution.manifest.v2+json"}
INDEX = {"oci": f"{OCI}.index.v1+json", "docker": f"{DOCKER}.distribution.manifest.list.v2+json"}
CONFIG = {"oci": f"{OCI}.config.v1+json", "docker": f"{DOCKER}.container.image.v1+json"}
LAYER = {
    ("oci", "gzip"): f"{OCI}.layer.v1.tar+gzip",
    ("oci", "zstd"): f"{OCI}.layer.v1.tar+zstd",
    ("oci", "none"): f"{OCI}.layer.v1.tar",
    ("docker", "gzip"): f"{DOCKER}.image.rootfs.diff.tar.gzip",
    ("docker", "zstd"): f"{DOCKER}.image.rootfs.diff.tar.zstd",
    ("docker", "none"): f"{DOCKER}.image.rootfs.diff.tar",
}
ATTESTATION = {"type": "vnd.docker.reference.type", "digest": "vnd.docker.reference.digest"}
UNSUPPORTED_LAYER = "application/vnd.example.layer.v9+weird"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64", "ppc64le": "ppc64le", "s390x": "s390x"}


@dataclass(frozen=True)
class Platform:
    """What an image is for."""

    architecture: str
    os: str = "linux"
    variant: str = ""

    @classmethod
    def own(cls) -> Platform:
        return cls(ARCHITECTURES.get(machine.machine(), machine.machine()))

    @classmethod
    def foreign(cls) -> Platform:
        """One that this machine is not."""
        return cls("s390x" if cls.own().architecture != "s390x" else "amd64")

    def document(self) -> dict[str, str]:
        base = {"architecture": self.architecture, "os": self.os}
        return {**base, "variant": self.variant} if self.variant else base


@dataclass(frozen=True)
class ImageSpec:
    """One image of one platform."""

    layers: tuple[LayerSpec, ...] = (LayerSpec(),)
    style: Style = "oci"
    platform: Platform = field(default_factory=Platform.own)
    # The `config` of the image configuration: Env, Cmd, Entrypoint, Labels, User, WorkingDir, ...
    config: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    # The layer (by number) whose diff id in the configuration is wrong.
    wrong_diff_id: int | None = None
    # Media types of layers (by number) that are not what the layer is.
    media_types: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Image:
    """A built image: all that a registry or an archive needs of it."""

    manifest: bytes
    media_type: str
    config: bytes
    layers: tuple[Layer, ...]
    platform: Platform

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)

    @property
    def config_digest(self) -> str:
        return digest_of(self.config)

    @property
    def compressed_size(self) -> int:
        return sum(layer.size for layer in self.layers)

    @property
    def unpacked_size(self) -> int:
        return sum(layer.unpacked_size for layer in self.layers)

    @property
    def files(self) -> int:
        return sum(layer.files for layer in self.layers)


@dataclass(frozen=True)
class Index:
    """An index (manifest list) over images; attestations are images too, and marked by their descriptor."""

    document: bytes
    media_type: str
    images: tuple[Image, ...]
    attestations: tuple[Image, ...] = ()

    @property
    def digest(self) -> str:
        return digest_of(self.document)

    def image_for(self, platform: Platform) -> Image:
        return next(image for image in self.images if image.platform == platform)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def build(spec: ImageSpec, store: BlobStore | None = None) -> Image:
    """Build the layers that are not in the store, and the documents over them."""
    where = store or BlobStore()
    with ThreadPoolExecutor(max_workers=2) as pool:  # zlib and hashlib let go of the interpreter
        layers = tuple(pool.map(where.layer, spec.layers))
    config = encode(_configuration(spec, layers))
    media_type = MANIFEST[spec.style]
    manifest = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": {"mediaType": CONFIG[spec.style], "digest": digest_of(config), "size": len(config)},
        "layers": [
            {
                "mediaType": spec.media_types.get(number, LAYER[spec.style, layer.compression]),
                "digest": layer.digest,
                "size": layer.size,
            }
            for number, layer in enumerate(layers)
        ],
        **({"annotations": dict(spec.annotations)} if spec.annotations else {}),
    }
    return Image(encode(manifest), media_type, config, layers, spec.platform)


def _configuration(spec: ImageSpec, layers: Sequence[Layer]) -> dict[str, Any]:
    diff_ids = [layer.diff_id for layer in layers]
    if spec.wrong_diff_id is not None:
        diff_ids[spec.wrong_diff_id] = digest_of(b"not what is in it")
    return {
        **spec.platform.document(),
        "created": "2024-01-01T00:00:00Z",
        "config": dict(spec.config),
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": [{"created": "2024-01-01T00:00:00Z", "created_by": f"layer {n}"} for n in range(len(layers))],
    }


def index(images: Sequence[Image], *, style: Style = "oci", attested: bool = False) -> Index:
    """An index over `images`; `attested` adds one attestation entry per image, as buildx does."""
    entries: list[dict[str, Any]] = [
        {
            "mediaType": image.media_type,
            "digest": image.digest,
            "size": len(image.manifest),
            "platform": image.platform.document(),
        }
        for image in images
    ]
    attestations = tuple(_attestation(image) for image in images) if attested else ()
    for image, attestation in zip(images, attestations, strict=False):
        entries.append(
            {
                "mediaType": attestation.media_type,
                "digest": attestation.digest,
                "size": len(attestation.manifest),
                "platform": {"architecture": "unknown", "os": "unknown"},
                "annotations": {ATTESTATION["type"]: "attestation-manifest", ATTESTATION["digest"]: image.digest},
            }
        )
    document = {"schemaVersion": 2, "mediaType": INDEX[style], "manifests": entries}
    return Index(encode(document), INDEX[style], tuple(images), attestations)


def _attestation(image: Image) -> Image:
    unknown = Platform("unknown", "unknown")
    return build(
        ImageSpec(
            layers=(LayerSpec(size=512, seed=image.digest, compression="none"),),
            platform=unknown,
            media_types={0: "application/vnd.in-toto+json"},
        )
    )


def random_image(
    *, layers: int = 1, size: int = 64 << 10, files: int = 1, seed: int | str = 0, compressible: float = 0.0
) -> ImageSpec:
    """`layers` layers that hold `size` bytes in `files` files together."""
    each = LayerSpec(size=size // max(layers, 1), files=max(files // max(layers, 1), 1), compressible=compressible)
    made = tuple(replace(each, seed=f"{seed}/{n}", directory=f"layer{n}") for n in range(layers))
    return ImageSpec(layers=made)


def family(
    count: int, *, base: tuple[LayerSpec, ...], own_size: int = 16 << 10, seed: int | str = 0
) -> list[ImageSpec]:
    """`count` images on the same base layers, each with one layer of its own."""
    return [
        ImageSpec(layers=(*base, LayerSpec(size=own_size, seed=f"{seed}/{n}", directory=f"own{n}")))
        for n in range(count)
    ]
