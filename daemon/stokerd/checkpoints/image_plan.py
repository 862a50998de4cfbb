"""Which documents and blobs of an image are pushed, and where what is not here came from. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from stokerd.checkpoints.errors import CheckpointError
from stokerd.registry.push_types import Blob, Document, Load
from stokerd.registry.references import InvalidReference, Reference, parse_reference
from stokerd.runtime.types import Descriptor

SOURCE_LABEL = "containerd.io/distribution.source."
BASE_NAME = "org.opencontainers.image.base.name"
BASE_DIGEST = "org.opencontainers.image.base.digest"
_LONGEST_LABEL = 4000
_MOST_LAYERS = 1000


class Held(msgspec.Struct, frozen=True):
    """A document that is here, and the labels of its content."""

    descriptor: Descriptor
    body: bytes
    labels: Mapping[str, str]

    def document(self) -> dict[str, Any]:
        """Return it as values; CheckpointError when it is none."""
        try:
            found = msgspec.json.decode(self.body, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError):
            raise CheckpointError(f"{self.descriptor.digest} is no document of an image") from None
        return found


class Plan(msgspec.Struct, frozen=True):
    """What is pushed. ``origins`` are repositories, by the blob's digest, that may give what is not here.
    ``partial``: the image is an index of which only this one manifest is here."""

    load: Load
    origins: Mapping[str, tuple[Reference, ...]]
    partial: bool = False


def children(held: Held) -> tuple[Descriptor, ...]:
    """Return the manifests that an index names; none for a manifest."""
    entries = held.document().get("manifests")
    return tuple(_descriptor(each) for each in entries) if isinstance(entries, list) else ()


def blobs(held: Held) -> tuple[Descriptor, ...]:
    """Return configuration and layers of a manifest."""
    document = held.document()
    entries = [document.get("config"), *(document.get("layers") or [])]
    if len(entries) > _MOST_LAYERS:
        raise CheckpointError(f"{held.descriptor.digest} names {len(entries)} blobs, {_MOST_LAYERS} are allowed")
    return tuple(_descriptor(each) for each in entries)


def plan(
    top: Held,
    manifests: Sequence[Held],
    labels: Mapping[str, Mapping[str, str]],
    target: Reference,
    names: Iterable[str],
    *,
    partial: bool = False,
) -> Plan:
    """Return what is pushed as *target*: *top*, with *manifests* beneath it when it is an index.

    *labels* are those of the blobs that are here; *names* are others of the same image.
    """
    below = [held for held in manifests if held.descriptor.digest != top.descriptor.digest]
    leaves = manifests or (top,)
    found: dict[str, Blob] = {}
    origins: dict[str, tuple[Reference, ...]] = {}
    named = tuple(filter(None, map(_reference, names)))
    for held in leaves:
        known = (*_base(held), *_labelled(held.labels), *named)
        for each in blobs(held):
            sources = (*_labelled(labels.get(each.digest, {})), *known)
            mounts = tuple(dict.fromkeys(ref.path for ref in sources if ref.host == target.host))
            found[each.digest] = Blob(each.digest, each.size, mounts)
            origins[each.digest] = tuple(dict.fromkeys(sources))
    tag = target.tag or ("" if target.digest else "latest")
    documents = [Document(held.descriptor.media_type, held.descriptor.digest, held.body) for held in below]
    documents.append(Document(top.descriptor.media_type, top.descriptor.digest, top.body, tag))
    return Plan(Load(tuple(found.values()), tuple(documents)), origins, partial)


def source_label(target: Reference, known: Mapping[str, str]) -> dict[str, str]:
    """Return the label that says of a blob that this repository has it, beside those that had it before."""
    name = f"{SOURCE_LABEL}{target.host}"
    paths = list(dict.fromkeys([*filter(None, known.get(name, "").split(",")), target.path]))
    text = ",".join(paths)
    return {name: text} if len(text) <= _LONGEST_LABEL and text != known.get(name) else {}


def base_annotations(names: Iterable[str], digest: str) -> dict[str, str]:
    """Return what a manifest says of the image that it stands on: the name by which people know it, if there is one."""
    for name in sorted(names, key=lambda each: ("@" in each, each)):
        reference = _reference(name)
        if reference is not None:
            return {
                BASE_NAME: f"{reference.name}:{reference.tag}" if reference.tag else reference.name,
                BASE_DIGEST: digest,
            }
    return {}


def encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _base(held: Held) -> tuple[Reference, ...]:
    annotations = held.document().get("annotations")
    name = annotations.get(BASE_NAME) if isinstance(annotations, dict) else None
    found = _reference(name) if isinstance(name, str) else None
    return (found,) if found is not None else ()


def _labelled(labels: Mapping[str, str]) -> tuple[Reference, ...]:
    """Return the repositories from which containerd has got a blob."""
    found: list[Reference] = []
    for name, value in sorted(labels.items()):
        if name.startswith(SOURCE_LABEL):
            host = name.removeprefix(SOURCE_LABEL)
            found += [Reference(host, path) for path in value.split(",") if path]
    return tuple(found)


def _reference(name: str) -> Reference | None:
    try:
        found = parse_reference(name)
    except InvalidReference:
        return None
    return Reference(found.host, found.path, found.tag)


def _descriptor(entry: object) -> Descriptor:
    try:
        found = msgspec.convert(entry, type=_Descriptor)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"a manifest names something that is no blob: {error}") from None
    return Descriptor(found.mediaType, found.digest, found.size)


class _Descriptor(msgspec.Struct):
    mediaType: str
    digest: str
    size: int
