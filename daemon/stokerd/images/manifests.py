"""Manifests, indexes and image configurations: parsed, checked, and the right platform chosen. Pure.

Source: the OCI image specification v1.1 and Docker's schema 2; the order in which platforms are accepted is that of
containerd's platform matcher, since containerd is who will pull.
"""

from __future__ import annotations

import hashlib
import platform as host
import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

import msgspec

from stokerd.errors import StokerError
from stokerd.runtime.types import Descriptor

Compression = Literal["gzip", "zstd", "none", "unknown"]
_Entry = TypeVar("_Entry")

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
    "application/vnd.docker.image.rootfs.foreign.diff.tar": "none",
    "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip": "gzip",
    "application/vnd.docker.image.rootfs.foreign.diff.tar.zstd": "zstd",
}
_ATTESTATION_ANNOTATION = "vnd.docker.reference.type"
_MAX_ENTRIES = 1000
_MAX_SIZE = 1 << 50
"""A petabyte: sums of a thousand such sizes still fit the 64 bits of what they are written into."""
_DIGEST = re.compile(r"sha(?:256:[0-9a-f]{64}|384:[0-9a-f]{96}|512:[0-9a-f]{128})")


class BadManifest(StokerError):
    """The document is not a manifest, index or configuration that can be used."""

    reason = "BadManifest"


class NoMatchingPlatform(StokerError):
    """The image exists, but not for this machine."""

    reason = "NoMatchingPlatform"


class Platform(msgspec.Struct, frozen=True, order=True):
    """os/architecture[/variant], in Go's names."""

    os: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


class IndexEntry(msgspec.Struct, frozen=True):
    """One manifest of an index; ``attestation`` marks provenance and SBOM entries, which are no images."""

    descriptor: Descriptor
    platform: Platform | None
    attestation: bool


class Index(msgspec.Struct, frozen=True):
    entries: tuple[IndexEntry, ...]


class Manifest(msgspec.Struct, frozen=True):
    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def download_size(self) -> int:
        """Compressed bytes of all layers, one that occurs twice counted once."""
        return sum({layer.digest: layer.size for layer in self.layers}.values())


class ImageConfig(msgspec.Struct, frozen=True):
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
    os: str | None = None
    architecture: str | None = None
    variant: str | None = None


class _Descriptor(msgspec.Struct, rename="camel"):
    digest: str
    size: int = 0
    media_type: str | None = None
    platform: _Platform | None = None
    annotations: dict[str, str | None] | None = None


class _Document(msgspec.Struct, rename="camel"):
    """A manifest or an index: told apart by what it holds, since mediaType is optional in both."""

    schema_version: int = 2
    media_type: str | None = None
    manifests: list[_Descriptor] | None = None
    config: _Descriptor | None = None
    layers: list[_Descriptor] | None = None
    fs_layers: msgspec.Raw = msgspec.Raw()


class _RootFs(msgspec.Struct):
    diff_ids: list[str] | None = None


class _Config(_Platform):
    rootfs: _RootFs | None = None


_Wire = TypeVar("_Wire", _Document, _Config)


def _decoded(body: bytes, kind: type[_Wire], what: str) -> _Wire:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadManifest(f"not {what}: {error}") from None


def parse_document(body: bytes) -> Manifest | Index:
    """Parse a manifest or an index; BadManifest says what is wrong with it."""
    document = _decoded(body, _Document, "a manifest")
    version = 1 if bytes(document.fs_layers) else document.schema_version
    if version != 2:
        raise BadManifest(f"schema version {version} is not supported", hint="push the image again with a current tool")
    holds_index = document.manifests is not None
    holds_manifest = document.config is not None or document.layers is not None
    # CVE-2021-41190: what two programs could read in two ways is read by none.
    if (holds_index and (holds_manifest or document.media_type in MANIFEST_TYPES)) or (
        holds_manifest and document.media_type in INDEX_TYPES
    ):
        raise BadManifest("the document is a manifest and an index at once")
    if document.manifests is not None:
        return Index(tuple(map(_index_entry, _bounded(document.manifests, "manifests"))))
    if document.config is None:
        raise BadManifest("neither a manifest (no config) nor an index (no manifests)")
    layers = tuple(map(_descriptor, _bounded(document.layers or [], "layers")))
    return Manifest(_descriptor(document.config), layers)


def parse_config(body: bytes) -> ImageConfig:
    """Parse an image configuration."""
    config = _decoded(body, _Config, "an image configuration")
    if config.rootfs is None:
        raise BadManifest("not an image configuration: it names no root file system")
    diff_ids = _bounded(config.rootfs.diff_ids or [], "layers")
    return ImageConfig(_platform(config), tuple(map(_checked_digest, diff_ids)))


def compression_of(media_type: str) -> Compression:
    """Return how a layer is compressed, ``unknown`` for a type that containerd cannot unpack."""
    base = media_type.partition(";")[0].strip()
    return _LAYER_COMPRESSION.get(base.removesuffix("+encrypted"), "unknown")


def _bounded(entries: list[_Entry], what: str) -> list[_Entry]:
    if len(entries) > _MAX_ENTRIES:
        raise BadManifest(f"{len(entries)} {what} are more than the {_MAX_ENTRIES} that are accepted")
    return entries


def _checked_digest(digest: str) -> str:
    if not _DIGEST.fullmatch(digest):
        raise BadManifest(f"{digest[:100]!r} is not a digest")
    return digest


def _descriptor(wire: _Descriptor) -> Descriptor:
    digest = _checked_digest(wire.digest)
    if not 0 <= wire.size <= _MAX_SIZE:
        raise BadManifest(f"{wire.size} is no believable size of {digest}")
    return Descriptor(wire.media_type or "", digest, wire.size)


def _index_entry(wire: _Descriptor) -> IndexEntry:
    platform = _platform(wire.platform) if wire.platform is not None else None
    attestation = _ATTESTATION_ANNOTATION in (wire.annotations or {})
    if platform is not None and "unknown" in {platform.os, platform.architecture}:
        platform, attestation = None, True
    return IndexEntry(_descriptor(wire), platform, attestation)


def _platform(wire: _Platform) -> Platform:
    return _normalised(Platform(wire.os or "", wire.architecture or "", wire.variant or ""))


# ------------------------------------------------------------------------------------------------ platforms

_MACHINES: Mapping[str, tuple[str, str]] = {
    "x86_64": ("amd64", ""),
    "aarch64": ("arm64", ""),
    "armv8l": ("arm", "v8"),
    "armv7l": ("arm", "v7"),
    "armv6l": ("arm", "v6"),
    "armv5tel": ("arm", "v5"),
    "i686": ("386", ""),
    "i586": ("386", ""),
    "loongarch64": ("loong64", ""),
}
"""What ``uname -m`` prints, in Go's words; the rest is called the same."""


def local_platform(machine: str | None = None) -> Platform:
    """Return the platform of this machine (or of *machine*, a name as ``uname -m`` prints)."""
    machine = (machine or host.machine()).lower()
    return _normalised(Platform("linux", *_MACHINES.get(machine, (machine, ""))))


def _normalised(platform: Platform) -> Platform:
    """Return one of several ways to write the same, as containerd does; on Linux no system at all means Linux."""
    system, architecture, variant = (part.lower() for part in (platform.os, platform.architecture, platform.variant))
    match architecture, variant:
        case ("i386", _):
            architecture, variant = "386", ""
        case ("x86_64" | "x86-64" | "amd64", _):
            architecture, variant = "amd64", "" if variant == "v1" else variant
        case ("aarch64" | "arm64", _):
            architecture, variant = "arm64", "" if variant in {"8", "v8"} else variant
        case ("armhf", _) | ("arm", "" | "7"):
            architecture, variant = "arm", "v7"
        case ("armel", _):
            architecture, variant = "arm", "v6"
        case ("arm", "5" | "6" | "8"):
            variant = f"v{variant}"
        case _:
            pass
    return Platform(system or "linux", architecture, variant)


def accepted_platforms(wanted: Platform) -> tuple[Platform, ...]:
    """Return what a machine of *wanted* can run, best first, as containerd's default matcher orders it."""
    wanted = _normalised(wanted)
    os, arch, variant = wanted.os, wanted.architecture, wanted.variant
    level = int(variant[1:]) if re.fullmatch(r"v\d{1,2}", variant) else 0
    if arch == "amd64":
        lower = (_normalised(Platform(os, arch, f"v{lesser}")) for lesser in range(level - 1, 0, -1))
        return (wanted, *lower, Platform(os, "386"))
    if arch == "arm64":
        arm = (Platform(os, "arm", f"v{lesser}") for lesser in (8, 7, 6, 5))
        return (wanted, *([Platform(os, arch)] if variant else []), *arm)
    if arch == "arm":
        return (wanted, *(Platform(os, arch, f"v{lesser}") for lesser in range(level - 1, 4, -1)))
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
    """Raise NoMatchingPlatform when an image is for another kind of machine: containerd pulls it all the same.

    One that does not name its architecture is let through.
    """
    if config.platform.architecture and config.platform not in accepted_platforms(wanted):
        raise no_platform(name, wanted, (config.platform,))


def no_platform(name: str, wanted: Platform, there: Iterable[Platform]) -> NoMatchingPlatform:
    listed = ", ".join(sorted({str(platform) for platform in there})) or "none"
    return NoMatchingPlatform(
        f"{name} is not available for {wanted}; platforms there: {listed}",
        hint="build and push the image for this platform, or choose another tag",
    )
