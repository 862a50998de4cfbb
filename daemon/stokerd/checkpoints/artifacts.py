"""A checkpoint as an artifact of a registry: which blobs it is made of, and what its manifest says. Pure.

The configuration is what `archive_plan` calls the contents. The first layer is the root filesystem over the image, as
images have layers; the next ones, one after the other, are the archive of documents and memory, cut at frames of zstd;
the last one, where there is one, is /dev/shm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stokerd.checkpoints.archive_plan import Limits
from stokerd.checkpoints.errors import ArchiveRefused
from stokerd.checkpoints.image_plan import BASE_DIGEST, BASE_NAME, encoded
from stokerd.checkpoints.imaging import LAYER, MANIFEST
from stokerd.checkpoints.manifest import Manifest
from stokerd.registry.content import is_digest
from stokerd.registry.references import InvalidReference, Reference, parse_reference
from stokerd.runtime.types import Descriptor

TYPE = "application/vnd.stoker.checkpoint.v1"
CONTENTS_TYPE = "application/vnd.stoker.checkpoint.contents.v1+json"
ROOT_TYPE = f"{LAYER}+zstd"
MEMORY_TYPE = "application/vnd.stoker.checkpoint.memory.v1.tar+zstd"
SHM_TYPE = "application/vnd.stoker.checkpoint.shm.v1.tar+zstd"

_CRIU = "org.criu.checkpoint."
_MOST_LAYERS = 10_000
_CONTENTS_LIMIT = 16 << 20


class Artifact(msgspec.Struct, frozen=True):
    """The blobs of an artifact. ``base`` is where the image that it stands on can be pulled, None where nobody said."""

    contents: Descriptor
    root: Descriptor
    memory: tuple[Descriptor, ...]
    shm: Descriptor | None = None
    base: Reference | None = None

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        return (self.contents, self.root, *self.memory, *((self.shm,) if self.shm is not None else ()))

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.blobs)


def manifest_of(artifact: Artifact, manifest: Manifest, base: Mapping[str, str]) -> bytes:
    """Return the artifact's manifest; *base* says where the image is."""
    layers = [_entry(each) for each in artifact.blobs[1:]]
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": TYPE,
        "config": _entry(artifact.contents),
        "layers": layers,
        "annotations": about(manifest, base),
    }
    return encoded(document)


def about(manifest: Manifest, base: Mapping[str, str]) -> dict[str, str]:
    """Return what others look for: those of checkpointctl and of containerd, CRI-O's name, and OCI's own."""
    source, node = manifest.source, manifest.node
    found = {
        f"{_CRIU}container.name": source.container_name,
        f"{_CRIU}pod.name": source.pod_name,
        f"{_CRIU}pod.namespace": source.pod_namespace,
        f"{_CRIU}rootfsImageName": source.image,
        f"{_CRIU}rootfsImageID": source.image_digest,
        f"{_CRIU}runtime.name": source.runtime,
        f"{_CRIU}engine.name": "stoker",
        f"{_CRIU}criu.version": node.criu,
        f"{_CRIU}host.arch": node.architecture,
        f"{_CRIU}host.kernel": node.kernel,
        "io.kubernetes.cri-o.annotations.checkpoint.name": source.container_name,
        "org.opencontainers.image.created": manifest.created_at.isoformat(),
        **base,
    }
    return {name: value for name, value in found.items() if value}


def read_artifact(body: bytes, limits: Limits) -> Artifact:
    """Read an artifact's manifest; ArchiveRefused when it is no checkpoint, or more than may come."""
    try:
        found = msgspec.json.decode(body, type=_Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ArchiveRefused(f"the manifest cannot be read: {str(error)[:200]}") from None
    if found.artifactType != TYPE or found.config.mediaType != CONTENTS_TYPE:
        raise ArchiveRefused(
            "it is an image, or something else, and no checkpoint",
            hint="stoker image warm pulls images, stoker checkpoint pull pulls what stoker checkpoint push has pushed",
        )
    if len(found.layers) > _MOST_LAYERS or found.config.size > _CONTENTS_LIMIT:
        raise ArchiveRefused("it has more layers than a checkpoint, or too large a configuration")
    kinds = [each.mediaType for each in found.layers]
    memory = kinds.count(MEMORY_TYPE)
    wanted = [ROOT_TYPE, *([MEMORY_TYPE] * memory), *([SHM_TYPE] if SHM_TYPE in kinds else [])]
    if not memory or kinds != wanted:
        raise ArchiveRefused("its layers are not those of a checkpoint, in their order")
    layers = [Descriptor(each.mediaType, each.digest, each.size) for each in found.layers]
    artifact = Artifact(
        contents=Descriptor(found.config.mediaType, found.config.digest, found.config.size),
        root=layers[0],
        memory=tuple(layers[1 : 1 + memory]),
        shm=layers[-1] if SHM_TYPE in kinds else None,
        base=_base(found.annotations or {}),
    )
    if any(each.size < 0 or not is_digest(each.digest) for each in artifact.blobs):
        raise ArchiveRefused("it names a blob without a digest or a size")
    if artifact.bytes > limits.bytes:
        raise ArchiveRefused(
            f"it has {artifact.bytes} bytes, {limits.bytes} are allowed here", hint="free space for the checkpoints"
        )
    return artifact


def _base(found: Mapping[str, Any]) -> Reference | None:
    """Return the image by digest: no name that it may have had comes onto the node as a tag."""
    name, digest = found.get(BASE_NAME), found.get(BASE_DIGEST)
    if not isinstance(name, str) or not isinstance(digest, str):
        return None
    try:
        reference = parse_reference(name)
        return parse_reference(f"{reference.name}@{digest}")
    except InvalidReference:
        return None


def _entry(descriptor: Descriptor) -> dict[str, Any]:
    return {"mediaType": descriptor.media_type, "digest": descriptor.digest, "size": descriptor.size}


class _Entry(msgspec.Struct):
    mediaType: str
    digest: str
    size: int


class _Manifest(msgspec.Struct):
    config: _Entry
    layers: list[_Entry]
    artifactType: str = ""
    annotations: dict[str, Any] | None = None
