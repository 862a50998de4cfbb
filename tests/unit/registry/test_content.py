"""Digests, and which media type a manifest has."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.registry.content import (
    DIGEST_LENGTHS,
    DOCKER_LIST,
    DOCKER_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    digest_of,
    has_digest,
    is_digest,
    manifest_type,
)


@given(st.binary(), st.sampled_from(sorted(DIGEST_LENGTHS)))
def test_a_digest_is_that_of_its_bytes_only(body: bytes, algorithm: str) -> None:
    digest = digest_of(body, algorithm)
    assert digest == f"{algorithm}:{hashlib.new(algorithm, body).hexdigest()}"
    assert is_digest(digest)
    assert has_digest(body, digest)
    assert not has_digest(body + b"x", digest)


@pytest.mark.parametrize(
    "text", ["", "sha256", "sha256:", "sha256:" + "a" * 63, "sha256:" + "A" * 64, "md5:" + "a" * 32, "sha1:" + "a" * 40]
)
def test_other_text_is_no_digest(text: str) -> None:
    assert not is_digest(text)


@pytest.mark.parametrize(
    ("content_type", "document", "expected"),
    [
        (OCI_INDEX, {}, OCI_INDEX),
        (f"{OCI_MANIFEST}; charset=utf-8", {}, OCI_MANIFEST),
        (DOCKER_LIST.upper(), {}, DOCKER_LIST),
        ("application/octet-stream", {"mediaType": DOCKER_MANIFEST}, DOCKER_MANIFEST),
        ("", {"schemaVersion": 2, "manifests": []}, OCI_INDEX),
        ("text/plain", {"schemaVersion": 2, "config": {}, "layers": []}, OCI_MANIFEST),
    ],
)
def test_the_type_of_a_manifest(content_type: str, document: object, expected: str) -> None:
    assert manifest_type(content_type, msgspec.json.encode(document)) == expected


@pytest.mark.parametrize(
    ("content_type", "document", "named"),
    [
        ("application/vnd.docker.distribution.manifest.v1+prettyjws", {"schemaVersion": 1}, "manifest.v1"),
        ("text/plain", {"schemaVersion": 1, "fsLayers": []}, "text/plain"),
        ("application/json", {"mediaType": "application/x-thing"}, "application/x-thing"),
        ("", {"schemaVersion": 2, "config": {}}, "none"),
        ("", {"mediaType": ["x"]}, "x"),
    ],
)
def test_other_types_are_named(content_type: str, document: object, named: str) -> None:
    with pytest.raises(LookupError, match=named):
        manifest_type(content_type, msgspec.json.encode(document))


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"null", b"[" * 100_000, b'{"a":'])
def test_a_manifest_is_a_json_object(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a JSON object"):
        manifest_type(OCI_MANIFEST, body)
