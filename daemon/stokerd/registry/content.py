"""Content addresses: digests, descriptors, and checking bytes against them. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
MANIFEST_TYPES = (OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST)

DIGEST_LENGTHS = {"sha256": 64, "sha384": 96, "sha512": 128}
"""Algorithms that images use, with the number of lower-case hexadecimal digits of each."""

_HEX = re.compile(r"[a-f0-9]*")


class Descriptor(msgspec.Struct, frozen=True):
    """An OCI descriptor; ``size`` in bytes."""

    media_type: str
    digest: str
    size: int


class _Shape(msgspec.Struct):
    mediaType: Any = None
    schemaVersion: Any = None
    manifests: Any = None
    config: Any = None
    layers: Any = None


def is_digest(text: str) -> bool:
    """Return whether *text* is ``algorithm:hex`` of a known algorithm, with exactly its number of digits."""
    algorithm, _, digits = text.partition(":")
    return len(digits) == DIGEST_LENGTHS.get(algorithm) and _HEX.fullmatch(digits) is not None


def digest_of(body: bytes, algorithm: str = "sha256") -> str:
    """Return the digest of *body*; *algorithm* is one of ``DIGEST_LENGTHS``."""
    return f"{algorithm}:{hashlib.new(algorithm, body, usedforsecurity=False).hexdigest()}"


def has_digest(body: bytes, digest: str) -> bool:
    """Return whether *body* has the (well-formed) *digest*."""
    return digest_of(body, digest.partition(":")[0]) == digest


def manifest_type(content_type: str, body: bytes) -> str:
    """Return the media type of the manifest *body*: one of ``MANIFEST_TYPES``.

    *content_type* is the answer's header; where it says nothing useful, as from some mirrors, the body itself is
    looked at. Raises ValueError for a body that is no JSON object, and LookupError for a type of another kind.
    """
    try:
        shape = msgspec.json.decode(body, type=_Shape)
    except (msgspec.MsgspecError, RecursionError):
        raise ValueError("the manifest is not a JSON object") from None
    declared = content_type.partition(";")[0].strip().lower()
    for media_type in (declared, shape.mediaType):
        if media_type in MANIFEST_TYPES:
            return str(media_type)
    if shape.schemaVersion == 2 and not shape.mediaType:
        # OCI documents may leave their media type out.
        if isinstance(shape.manifests, list):
            return OCI_INDEX
        if isinstance(shape.config, dict) and isinstance(shape.layers, list):
            return OCI_MANIFEST
    raise LookupError(shape.mediaType or declared or "none")
