"""Manifests, indexes and image configurations: parsed, checked, and the right platform chosen. Pure.

Source: the OCI image specification v1.1 and Docker's schema 2; the order in which platforms are accepted is that of
containerd's platform matcher, since containerd is who will pull.
"""

from __future__ import annotations

import hashlib
import platform as host
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from stokerd.errors import StokerError
from stokerd.runtime.types import Descriptor

Compression = Literal["gzip", "zstd", "none", "unknown"]

INDEX_TYPES = frozenset(
    {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}
)
MANIFEST_TYPES = frozenset(
    {"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"}
)
_LAYER_COMPRESSION: dict[str, Compression] = {
    "application/vnd.oci.image.layer.v1.tar": "none",
    "application/vnd.oci.image.layer.v1.tar+gzip": "gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd": "zstd",
    "application/vnd.oci.image.layer.nondistributable.v1.tar": "none",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip": "gzip",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd": "zstd",
    "application/vnd.docker.image.rootfs.diff.tar": "none",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": "zstd",
    "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip": "gzip",
}
_ATTESTATION_ANNOTATION = "vnd.docker.reference.type"
_MAX_LAYERS = 1000
_DIGEST = re.compile(r"sha(?:256:[0-9a-f]{64}|384:[0-9a-f]{96}|512:[0-9a-f]{128})")


class BadManifest(StokerError):
    """The document is not a manifest, index or configuration that can be used."""

    reason = "BadManifest"


class NoMatchingPlatform(StokerError):
    """The image exists, but not for this machine."""

    reason = "NoMatchingPlatform"


@dataclass(frozen=True, slots=True, order=True)
class Platform:
    """os/architecture[/variant], in Go's names."""

    os: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One manifest of an index; ``attestation`` marks provenance and SBOM entries, which are no images."""

    descriptor: Descriptor
    platform: Platform | None
    attestation: bool


@dataclass(frozen=True, slots=True)
class Index:
    entries: tuple[IndexEntry, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def download_size(self) -> int:
        """Compressed bytes of all layers, one that occurs twice counted once."""
        return sum({layer.digest: layer.size for layer in self.layers}.values())


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What is needed of a configuration: the platform, and the layers' uncompressed digests in order."""

    platform: Platform
    diff_ids: tuple[str, ...]

    @property
    def chain_ids(self) -> tuple[str, ...]:
        """Names of the committed snapshots, lowest first (OCI image configuration, "Layer ChainID")."""
        chain: list[str] = []
        for diff_id in self.diff_ids:
            if chain:
                diff_id = "sha256:" + hashlib.sha256(f"{chain[-1]} {diff_id}".encode()).hexdigest()
            chain.append(diff_id)
        return tuple(chain)


# ------------------------------------------------------------------------------------------------ wire forms


class _Platform(msgspec.Struct):
    os: str = ""
    architecture: str = ""
    variant: str = ""


class _Descriptor(msgspec.Struct, rename="camel"):
    digest: str
    size: int = 0
    media_type: str = ""
    platform: _Platform | None = None
    annotations: dict[str, str] | None = None


class _Document(msgspec.Struct, rename="camel"):
    """A manifest or an index: told apart by what it holds, since mediaType is optional in both."""

    schema_version: int = 2
    media_type: str = ""
    manifests: list[_Descriptor] | None = None
    config: _Descriptor | None = None
    layers: list[_Descriptor] | None = None


class _RootFs(msgspec.Struct):
    diff_ids: list[str] = []
    type: str = ""


class _Config(msgspec.Struct):
    rootfs: _RootFs
    os: str = ""
    architecture: str = ""
    variant: str = ""


def parse_document(body: bytes) -> Manifest | Index:
    """Parse a manifest or an index; BadManifest says what is wrong with it."""
    try:
        document = msgspec.json.decode(body, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadManifest(f"not a manifest: {error}") from None
    if document.schema_version != 2:
        raise BadManifest(f"schema version {document.schema_version} is not supported", hint="push the image again")
    if document.manifests is not None and (document.config is not None or document.layers is not None):
        raise BadManifest("the document is a manifest and an index at once")  # CVE-2021-41190
    if document.manifests is not None:
        return Index(tuple(_index_entry(entry) for entry in document.manifests[:_MAX_LAYERS]))
    if document.config is None:
        raise BadManifest("neither a manifest (no config) nor an index (no manifests)")
    layers = document.layers or []
    if len(layers) > _MAX_LAYERS:
        raise BadManifest(f"{len(layers)} layers are more than the {_MAX_LAYERS} that are accepted")
    return Manifest(_descriptor(document.config), tuple(_descriptor(layer) for layer in layers))


def parse_config(body: bytes) -> ImageConfig:
    """Parse an image configuration."""
    try:
        config = msgspec.json.decode(body, type=_Config)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadManifest(f"not an image configuration: {error}") from None
    platform = _normalised(Platform(config.os, config.architecture, config.variant))
    return ImageConfig(platform, tuple(config.rootfs.diff_ids))


def compression_of(media_type: str) -> Compression:
    """Return how a layer is compressed, ``unknown`` for a type that containerd cannot unpack."""
    base = media_type.partition(";")[0].strip()
    return _LAYER_COMPRESSION.get(base.removesuffix("+encrypted"), "unknown")


def _descriptor(wire: _Descriptor) -> Descriptor:
    if not _DIGEST.fullmatch(wire.digest):
        raise BadManifest(f"{wire.digest[:100]!r} is not a digest")
    if wire.size < 0:
        raise BadManifest(f"negative size of {wire.digest}")
    return Descriptor(wire.media_type, wire.digest, wire.size)


def _index_entry(wire: _Descriptor) -> IndexEntry:
    attestation = bool(wire.annotations and _ATTESTATION_ANNOTATION in wire.annotations)
    platform = None
    if wire.platform is not None and wire.platform.os != "unknown" and wire.platform.architecture != "unknown":
        platform = _normalised(Platform(wire.platform.os, wire.platform.architecture, wire.platform.variant))
    elif wire.platform is not None:
        attestation = True
    return IndexEntry(_descriptor(wire), platform, attestation)


# ------------------------------------------------------------------------------------------------ platforms

_ARCHITECTURES = {
    "x86_64": "amd64",
    "x86-64": "amd64",
    "aarch64": "arm64",
    "armhf": "arm",
    "armv7l": "arm",
    "armv6l": "arm",
    "i386": "386",
    "i686": "386",
}


def local_platform(machine: str | None = None) -> Platform:
    """Return the platform of this machine (or of *machine*, a name as ``uname -m`` prints)."""
    machine = (machine or host.machine()).lower()
    variant = {"armv7l": "v7", "armv6l": "v6"}.get(machine, "")
    return _normalised(Platform("linux", _ARCHITECTURES.get(machine, machine), variant))


def _normalised(platform: Platform) -> Platform:
    architecture = _ARCHITECTURES.get(platform.architecture.lower(), platform.architecture.lower())
    variant = platform.variant.lower()
    if architecture == "arm64" and variant in {"8", "v8"}:
        variant = ""
    elif architecture == "arm":
        variant = {"": "v7", "8": "v8", "7": "v7", "6": "v6", "5": "v5"}.get(variant, variant)
    elif architecture == "amd64" and variant == "v1":
        variant = ""
    return Platform(platform.os.lower(), architecture, variant)


def accepted_platforms(wanted: Platform) -> tuple[Platform, ...]:
    """Return what a machine of *wanted* can run, best first, as containerd's default matcher orders it."""
    os, arch = wanted.os, wanted.architecture
    if arch == "amd64":
        levels = {"v4": ("v4", "v3", "v2", ""), "v3": ("v3", "v2", ""), "v2": ("v2", "")}.get(wanted.variant, ("",))
        return (*(Platform(os, arch, level) for level in levels), Platform(os, "386"))
    if arch == "arm64":
        arm = (Platform(os, "arm", f"v{level}") for level in (8, 7, 6, 5))
        return (wanted, *([Platform(os, arch)] if wanted.variant else []), *arm)
    if arch == "arm":
        newest = int(wanted.variant[1:]) if re.fullmatch(r"v\d", wanted.variant) else 7
        return tuple(Platform(os, arch, f"v{level}") for level in range(newest, 4, -1))
    return (wanted,)


def select_platform(index: Index, wanted: Platform, name: str) -> IndexEntry:
    """Return the entry of *index* to pull on a *wanted* machine; NoMatchingPlatform lists those there are."""
    images = [entry for entry in index.entries if not entry.attestation]
    for candidate in accepted_platforms(wanted):
        for entry in images:
            if entry.platform == candidate:
                return entry
    for entry in images:
        if entry.platform is None:
            return entry
    raise no_platform(name, wanted, (entry.platform for entry in images if entry.platform))


def check_platform(config: ImageConfig, wanted: Platform, name: str) -> None:
    """Raise NoMatchingPlatform when a single-platform image is for another kind of machine."""
    if config.platform.os and config.platform not in accepted_platforms(wanted):
        raise no_platform(name, wanted, (config.platform,))


def no_platform(name: str, wanted: Platform, there: Iterable[Platform]) -> NoMatchingPlatform:
    listed = ", ".join(sorted({str(platform) for platform in there})) or "none"
    return NoMatchingPlatform(
        f"{name} is not available for {wanted}; platforms there: {listed}",
        hint="build and push the image for this platform, or choose another tag",
    )
