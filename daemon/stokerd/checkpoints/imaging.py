"""An image made of another one and a layer: configuration, manifest, and the labels that keep its parts. Pure.

Source: the OCI image specification 1.1. Whatever the base is written in, the outcome is OCI: the layers' bytes are the
same, only their types are named otherwise.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from stokerd.errors import InvalidInput
from stokerd.runtime.types import Descriptor

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"

_OCI_LAYERS: Mapping[str, str] = {
    "application/vnd.docker.image.rootfs.diff.tar": LAYER,
    "application/vnd.docker.image.rootfs.diff.tar.gzip": f"{LAYER}+gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": f"{LAYER}+zstd",
}
Field = Literal["ENV", "CMD", "ENTRYPOINT", "WORKDIR", "USER", "LABEL", "EXPOSE"]
_FIELDS = ("ENV", "CMD", "ENTRYPOINT", "WORKDIR", "USER", "LABEL", "EXPOSE")


class Change(msgspec.Struct, frozen=True):
    """One change of the configuration, as a line of a Dockerfile says it."""

    field: Field
    value: Any
    text: str


class NewLayer(msgspec.Struct, frozen=True):
    """The layer that is put on top; ``diff_id`` is the digest of its uncompressed archive."""

    descriptor: Descriptor
    diff_id: str


class About(msgspec.Struct, frozen=True):
    """What the history says of the new layer."""

    created: datetime
    author: str = ""
    message: str = ""


class Built(msgspec.Struct, frozen=True):
    """The two documents of an image, and what the content store is told of what they refer to."""

    config: bytes
    manifest: bytes
    config_labels: dict[str, str]
    manifest_labels: dict[str, str]

    @property
    def config_digest(self) -> str:
        return digest_of(self.config)

    @property
    def target(self) -> Descriptor:
        return Descriptor(MANIFEST, digest_of(self.manifest), len(self.manifest))


def digest_of(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def chain_id(diff_ids: Sequence[str]) -> str:
    """Return the name of the snapshot that has all of these layers."""
    chain = diff_ids[0]
    for diff_id in diff_ids[1:]:
        chain = digest_of(f"{chain} {diff_id}".encode())
    return chain


# ------------------------------------------------------------------------------------------------ changes


def parse_change(text: str) -> Change:
    """Read ``ENV A=B``, ``CMD ["a", "b"]``, ``EXPOSE 80/tcp``; InvalidInput says what is wrong with others."""
    word, _, rest = text.strip().partition(" ")
    field, rest = word.upper(), rest.strip()
    if field not in _FIELDS or not rest:
        raise InvalidInput(f"--change {text!r}: one of {', '.join(_FIELDS)} and a value is wanted")
    try:
        return Change(field, _value(field, rest), text.strip())  # type: ignore[arg-type]
    except ValueError as error:
        raise InvalidInput(f"--change {text!r}: {error}") from None


def _value(field: str, rest: str) -> Any:
    if field in {"CMD", "ENTRYPOINT"}:
        return _argv(rest)
    if field in {"ENV", "LABEL"}:
        return _pairs(rest)
    if field == "EXPOSE":
        return [_port(each) for each in rest.split()]
    if field == "WORKDIR" and not rest.startswith("/"):
        raise ValueError("the directory must be absolute")
    return rest


def _argv(rest: str) -> list[str]:
    """Read a JSON list, or else a line for the shell."""
    if not rest.startswith("["):
        return ["/bin/sh", "-c", rest]
    found = json.loads(rest)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError("a list of words is wanted")
    return found


def _pairs(rest: str) -> dict[str, str]:
    words = shlex.split(rest)
    if words and "=" not in words[0]:  # the old form: one name, and all the rest is its value
        name, _, value = rest.partition(" ")
        words = [f"{name}={value.strip()}"]
    pairs = [word.partition("=") for word in words]
    if any(not name or not equals for name, equals, _ in pairs):
        raise ValueError("name=value is wanted")
    return {name: value for name, _, value in pairs}


def _port(text: str) -> str:
    number, _, protocol = text.partition("/")
    protocol = protocol.lower() or "tcp"
    if not number.isdecimal() or not 0 < int(number) < 65536 or protocol not in {"tcp", "udp", "sctp"}:
        raise ValueError(f"{text} is no port")
    return f"{int(number)}/{protocol}"


def _apply(config: dict[str, Any], change: Change) -> None:
    if change.field == "ENV":
        known = dict(each.partition("=")[::2] for each in config.get("Env") or [])
        config["Env"] = [f"{name}={value}" for name, value in {**known, **change.value}.items()]
    elif change.field == "LABEL":
        config["Labels"] = {**(config.get("Labels") or {}), **change.value}
    elif change.field == "EXPOSE":
        config["ExposedPorts"] = {**(config.get("ExposedPorts") or {}), **{port: {} for port in change.value}}
    else:
        names = {"CMD": "Cmd", "ENTRYPOINT": "Entrypoint", "WORKDIR": "WorkingDir", "USER": "User"}
        config[names[change.field]] = change.value
        if change.field == "ENTRYPOINT":  # what was to be handed to the old one means nothing to the new one
            config.pop("Cmd", None)


# ------------------------------------------------------------------------------------------------ documents


def build(
    base_config: Mapping[str, Any],
    base_manifest: Mapping[str, Any],
    layer: NewLayer,
    about: About,
    *,
    changes: Sequence[Change] = (),
    snapshotter: str = "overlayfs",
    squash: bool = False,
    annotations: Mapping[str, str] | None = None,
) -> Built:
    """Return the image that *layer* makes of the base; with *squash*, the layer is all there is.

    *annotations* say in the manifest where the layers of the base are.
    """
    config = _config(base_config, layer, about, changes, squash=squash)
    body = _json(config)
    layers = [] if squash else [_descriptor(each) for each in base_manifest.get("layers") or []]
    layers.append(_of(layer.descriptor))
    document: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": digest_of(body), "size": len(body)},
        "layers": layers,
    }
    if annotations and not squash:
        document["annotations"] = dict(annotations)
    manifest = _json(document)
    links = {f"containerd.io/gc.ref.content.l.{number}": str(each["digest"]) for number, each in enumerate(layers)}
    top = chain_id(config["rootfs"]["diff_ids"])
    return Built(
        config=body,
        manifest=manifest,
        config_labels={f"containerd.io/gc.ref.snapshot.{snapshotter}": top},
        manifest_labels={"containerd.io/gc.ref.content.config": digest_of(body), **links},
    )


def _config(
    base: Mapping[str, Any], layer: NewLayer, about: About, changes: Sequence[Change], *, squash: bool
) -> dict[str, Any]:
    config: dict[str, Any] = copy.deepcopy(dict(base))
    for name in ("container", "container_config", "docker_version", "id", "parent"):  # Docker's, about its own builds
        config.pop(name, None)
    run = config.setdefault("config", {}) or {}
    for change in changes:
        _apply(run, change)
    config["config"] = run
    created = about.created.isoformat().replace("+00:00", "Z")
    config["created"] = created
    if about.author:
        config["author"] = about.author
    entry = {"created": created, "created_by": "stoker commit", "author": about.author, "comment": about.message}
    history = [] if squash else list(config.get("history") or [])
    history.append({key: value for key, value in entry.items() if value})
    history += [{"created": created, "created_by": each.text, "empty_layer": True} for each in changes]
    config["history"] = history
    before = [] if squash else list((config.get("rootfs") or {}).get("diff_ids") or [])
    config["rootfs"] = {"type": "layers", "diff_ids": [*before, layer.diff_id]}
    return config


def _descriptor(layer: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(layer.get("mediaType") or f"{LAYER}+gzip")
    return {**layer, "mediaType": _OCI_LAYERS.get(kind, kind)}


def _of(descriptor: Descriptor) -> dict[str, Any]:
    return {"mediaType": descriptor.media_type, "digest": descriptor.digest, "size": descriptor.size}


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
