"""OCI archives for `ctr images import`."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.rig.images import Image, encode
from tests.rig.layers import Layer

LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'


def write(target: Path, images: Mapping[str, Image]) -> Path:
    """Write `images` (by full reference) into one archive; complete or absent."""
    aside = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with tarfile.open(aside, "w") as tar:
            _add(tar, "oci-layout", LAYOUT)
            _add(tar, "index.json", _index(images))
            written: set[str] = set()
            for image in images.values():
                _write_image(tar, image, written)
        aside.rename(target)
    finally:
        aside.unlink(missing_ok=True)
    return target


def _index(images: Mapping[str, Image]) -> bytes:
    manifests = [
        {
            "mediaType": image.media_type,
            "digest": image.digest,
            "size": len(image.manifest),
            "annotations": {
                "io.containerd.image.name": reference,
                "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
            },
        }
        for reference, image in images.items()
    ]
    return encode({"schemaVersion": 2, "manifests": manifests})


def _write_image(tar: tarfile.TarFile, image: Image, written: set[str]) -> None:
    for digest, content in ((image.digest, image.manifest), (image.config_digest, image.config)):
        if digest not in written:
            written.add(digest)
            _add(tar, _blob(digest), content)
    for layer in image.layers:
        if layer.digest not in written:
            written.add(layer.digest)
            _add_layer(tar, layer)


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def _add_layer(tar: tarfile.TarFile, layer: Layer) -> None:
    info = tarfile.TarInfo(_blob(layer.digest))
    info.size = layer.size
    with layer.blob.open("rb") as file:
        tar.addfile(info, file)
