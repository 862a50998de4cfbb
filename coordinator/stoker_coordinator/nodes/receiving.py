"""What is kept of a node's documents, and how a message changes it. Pure.

Documents stay packed: a node's topology, images and pods are some kilobytes so, and some hundred as objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from stoker import link_documents as documents
from stoker.link_documents import Broken, Plain
from stoker.objects.inventory import CheckpointInventory, ImageInventory, PodInventory
from stoker.objects.link import Delta, Document, Full
from stoker.objects.topology import TopologyLoad, TopologyReport
from stoker_coordinator.nodes.ports import Content

MAX_KEPT = 2 << 20
"""Bytes of one document, unpacked."""
_TYPES: Mapping[str, type[Content]] = {
    "topology": TopologyReport,
    "load": TopologyLoad,
    "images": ImageInventory,
    "pods": PodInventory,
    "checkpoints": CheckpointInventory,
}
_NAMED: frozenset[str] = frozenset({"topology", "load"})
"""Documents that say themselves which node they are of."""


class Kept(Struct):
    """One document of one node. ``sequence``: of the last message on the stream that is open."""

    digest: str
    body: bytes
    sequence: int = 0


class Taken(Struct, frozen=True):
    """The document is something else now."""

    kept: Kept
    content: Content
    escaped: bool = False
    """There were characters in it that should not be; they are shown by their numbers."""


class Ignored(Struct, frozen=True):
    """A message that came twice, or after a later one, or is of a document that is not known here."""


class Gap(Struct, frozen=True):
    """What came does not fit what is kept: the whole document is needed."""

    why: str


class Lie(Struct, frozen=True):
    """The document is nothing that an honest node sends; it is not kept."""

    reason: str
    why: str


Outcome = Taken | Ignored | Gap | Lie


def take(kept: Kept | None, message: Full | Delta, node: str) -> Outcome:
    """Say what a message makes of what is kept."""
    if message.document not in _TYPES or (kept is not None and message.sequence <= kept.sequence):
        return Ignored()
    if isinstance(message, Full):
        return _full(message, node)
    if kept is None or message.base != kept.digest:
        return Gap("the delta is of a state that is not here")
    try:
        before = documents.read(documents.unpack(kept.body))
        after = documents.apply(before, documents.read_change(message.body, MAX_KEPT))
        text = documents.canonical(after)
    except Broken as error:
        return Gap(f"the delta does not fit: {error}")
    if documents.digest_of(text) != message.digest:
        return Gap("the delta leads to another state than the node has")
    return _checked(message, node, text, None)


def _full(message: Full, node: str) -> Outcome:
    try:
        text = documents.unpack(message.body, MAX_KEPT)
    except Broken as error:
        return Lie("UnreadableDocument", str(error))
    if documents.digest_of(text) != message.digest:
        return Lie("UnreadableDocument", "the digest is another one")
    return _checked(message, node, text, message.body)


def _checked(message: Full | Delta, node: str, text: bytes, body: bytes | None) -> Outcome:
    """Check a document before anybody sees it. What is kept is what was sent: deltas build on that."""
    if len(text) > MAX_KEPT:
        return Lie("DocumentTooLarge", f"{len(text)} bytes; at most {MAX_KEPT} are taken")
    escaped = not documents.is_safe(text)
    try:
        content = _content(message.document, text, escaped=escaped)
    except Broken as error:
        return Lie("UnreadableDocument", str(error))
    if message.document in _NAMED and content.node != node:  # type: ignore[union-attr]
        return Lie("WrongName", f"a {message.document} document of another node: {content.node[:64]!r}")  # type: ignore[union-attr]
    kept = Kept(message.digest, documents.pack(text) if body is None else body, message.sequence)
    return Taken(kept, content, escaped)


def _content(document: str, text: bytes, *, escaped: bool) -> Content:
    kind: Any = _TYPES[document]
    try:
        if escaped:
            return msgspec.convert(documents.cleaned(documents.read(text)), kind, strict=False)  # type: ignore[no-any-return]
        return msgspec.json.decode(text, type=kind)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Broken(documents.cleaned(str(error))) from None


def content_of(document: Document, kept: Kept) -> Content:
    """Return a kept document as objects again."""
    text = documents.unpack(kept.body)
    return _content(document, text, escaped=not documents.is_safe(text))


def read_kept(kept: Kept) -> Plain:
    """Return a kept document as plain values, with the fields that are not known here."""
    return documents.cleaned(documents.read(documents.unpack(kept.body)))  # type: ignore[no-any-return]
