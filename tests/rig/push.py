"""A small blocking client of the registry API: pushes what images.py builds, and deletes."""

from __future__ import annotations

import base64
import http.client
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self
from urllib.parse import urlsplit

from tests.rig.errors import RigError
from tests.rig.images import Image, Index
from tests.rig.layers import Layer

Body = bytes | BinaryIO | None


@dataclass(frozen=True)
class Pushed:
    """What lies in a registry under one name."""

    reference: str
    repository: str
    tag: str
    # Of what the tag names: the index where there is one.
    digest: str
    # Of the (first) image.
    manifest_digest: str
    config_digest: str
    layers: tuple[Layer, ...]
    compressed_size: int
    unpacked_size: int
    files: int

    @property
    def layer_digests(self) -> tuple[str, ...]:
        return tuple(layer.digest for layer in self.layers)

    @property
    def diff_ids(self) -> tuple[str, ...]:
        return tuple(layer.diff_id for layer in self.layers)

    @property
    def by_digest(self) -> str:
        """The reference that names the content rather than the tag."""
        return f"{self.reference.rpartition(':')[0]}@{self.digest}"


class RegistryClient:
    """One connection to one registry; not for several threads."""

    def __init__(
        self, address: str, *, auth: tuple[str, str] | None = None, ca: Path | None = None, timeout: float = 60.0
    ) -> None:
        self.address = address
        self._headers: dict[str, str] = {}
        if auth is not None:
            word = base64.b64encode(f"{auth[0]}:{auth[1]}".encode()).decode()
            self._headers["Authorization"] = f"Basic {word}"
        if ca is None:
            self._connection = http.client.HTTPConnection(address, timeout=timeout)
        else:
            context = ssl.create_default_context(cafile=str(ca))
            self._connection = http.client.HTTPSConnection(address, timeout=timeout, context=context)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def call(
        self, method: str, path: str, *, body: Body = None, headers: dict[str, str] | None = None, expect: int | None
    ) -> tuple[int, dict[str, str], bytes]:
        """One request; `expect` is the status without which it is an error, None takes any."""
        self._connection.request(method, path, body=body, headers={**self._headers, **(headers or {})})
        with self._connection.getresponse() as answer:
            content = answer.read()
            found = {name.lower(): value for name, value in answer.getheaders()}
            status = answer.status
        if expect is not None and status != expect:
            raise RigError(f"{method} {path} at {self.address}: {status} instead of {expect}: {content[:500]!r}")
        return status, found, content

    def has_blob(self, repository: str, digest: str) -> bool:
        return self.call("HEAD", f"/v2/{repository}/blobs/{digest}", expect=None)[0] == 200

    def put_blob(self, repository: str, digest: str, size: int, content: Body) -> None:
        _, headers, _ = self.call("POST", f"/v2/{repository}/blobs/uploads/", body=b"", expect=202)
        parts = urlsplit(headers["location"])
        query = f"{parts.query}&digest={digest}" if parts.query else f"digest={digest}"
        sent = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        self.call("PUT", f"{parts.path}?{query}", body=content, headers=sent, expect=201)

    def put_manifest(self, repository: str, tag_or_digest: str, content: bytes, media_type: str) -> None:
        where = f"/v2/{repository}/manifests/{tag_or_digest}"
        self.call("PUT", where, body=content, headers={"Content-Type": media_type}, expect=201)

    def push_image(self, repository: str, image: Image, tag: str) -> None:
        for layer in image.layers:
            if not self.has_blob(repository, layer.digest):
                with layer.blob.open("rb") as file:
                    self.put_blob(repository, layer.digest, layer.size, file)
        if not self.has_blob(repository, image.config_digest):
            self.put_blob(repository, image.config_digest, len(image.config), image.config)
        self.put_manifest(repository, tag, image.manifest, image.media_type)

    def delete_manifest(self, repository: str, digest: str) -> None:
        """The registry must allow it (delete=True)."""
        self.call("DELETE", f"/v2/{repository}/manifests/{digest}", expect=202)

    def delete_blob(self, repository: str, digest: str) -> None:
        self.call("DELETE", f"/v2/{repository}/blobs/{digest}", expect=202)


def push(
    address: str,
    repository: str,
    image: Image | Index,
    *,
    tag: str = "v1",
    auth: tuple[str, str] | None = None,
    ca: Path | None = None,
) -> Pushed:
    """Push an image or an index with all its images; blobs that are there are not sent again."""
    with RegistryClient(address, auth=auth, ca=ca) as client:
        if isinstance(image, Image):
            client.push_image(repository, image, tag)
            first = image
        else:
            for each in (*image.images, *image.attestations):
                client.push_image(repository, each, each.digest)
            client.put_manifest(repository, tag, image.document, image.media_type)
            first = image.images[0]
    return Pushed(
        reference=f"{address}/{repository}:{tag}",
        repository=repository,
        tag=tag,
        digest=image.digest,
        manifest_digest=first.digest,
        config_digest=first.config_digest,
        layers=first.layers,
        compressed_size=first.compressed_size,
        unpacked_size=first.unpacked_size,
        files=first.files,
    )
