"""Reads what to warm, and what to apply, from a file.

The file is either a plain list of images, one reference a line with ``#`` comments, or YAML (JSON is YAML, too) with
``ImagePullJob``, ``ImageListPullJob``, ``ContainerRecreateRequest``, ``Checkpoint`` and ``Commit`` objects, as many
documents as you like. Fields that have no meaning for a single node are named in a warning, never dropped in silence;
types are checked everywhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.errors import ManifestError
from stoker.objects.images import WarmRequest

if TYPE_CHECKING:
    from stoker.manifest_fields import Context, Fields
    from stoker.objects.checkpoints import CheckpointRequest, CommitRequest
    from stoker.objects.containers import RecreateRequest
    from stoker.yaml_nodes import Node

LIMIT_BYTES = 4 * 1024 * 1024
API_VERSIONS = ("apps.kruise.io/v1alpha1", "apps.kruise.io/v1beta1")

_JOBS = ("ImagePullJob", "ImageListPullJob")
_RECREATE = "ContainerRecreateRequest"
_CHECKPOINT, _COMMIT = "Checkpoint", "Commit"
_KINDS = (_RECREATE, *_JOBS, _CHECKPOINT, _COMMIT)
_OURS = "stoker.dev/v1"
_AGENTS = ("agents.kruise.io/v1alpha1", _OURS)
_VERSIONS = {_RECREATE: (*API_VERSIONS, _OURS), _CHECKPOINT: _AGENTS, _COMMIT: _AGENTS}
_LISTS = ("List", *(f"{kind}List" for kind in _KINDS))
_YAML_START = re.compile(r"""---|%|[{\[]|["']?[A-Za-z_][\w.-]*["']?\s*:(\s|$)""")
_COMMENT = re.compile(r"(^|\s)#.*")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a file asks for."""

    requests: tuple[WarmRequest, ...]
    """One for each object in the file; one for a plain list."""
    warnings: tuple[str, ...] = ()
    """What the file says and this node does not honour; each with file and line."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One object of a file."""

    label: str
    """Kind and name, for people: ``ImagePullJob 'base'``."""
    request: WarmRequest | RecreateRequest | CheckpointRequest | CommitRequest
    place: str
    """File and line."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """The objects of a file in their order."""

    wishes: tuple[Wish, ...]
    warnings: tuple[str, ...] = ()


def read_manifest(name: str) -> Manifest:
    """Read the file *name*, ``-`` for standard input; ManifestError when it cannot be read or is malformed."""
    return parse_manifest(*_read(name))


def read_objects(name: str) -> Wishes:
    """Read the objects in the file *name*, ``-`` for standard input; ManifestError."""
    return parse_objects(*_read(name))


def read_text(name: str) -> tuple[str, str]:
    """Return what is in the file *name* (``-``: standard input), and what messages call it; ManifestError."""
    raw, source = _read(name)
    return _decoded(raw, source), source


def _read(name: str) -> tuple[bytes, str]:
    """Return what is in a file, and what messages call it."""
    source = "<stdin>" if name == "-" else name
    try:
        if name == "-":
            raw = sys.stdin.buffer.read(LIMIT_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                raw = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise ManifestError(source, error.strerror or str(error)) from None
    return raw, source


def parse_manifest(raw: bytes, source: str) -> Manifest:
    """Return which images *raw* asks for; *source* names it in messages. ManifestError: malformed or empty."""
    text = _decoded(raw, source)
    first = next((line for line in text.splitlines() if _COMMENT.sub("", line).strip()), "")
    if not first:
        raise ManifestError(source, "the file names no images")
    if not _YAML_START.match(first.lstrip()):
        return _parse_list(text, source)
    wishes = _objects(text, source, _JOBS, "warmed")
    requests = tuple(wish.request for wish in wishes.wishes if isinstance(wish.request, WarmRequest))
    if not requests:
        raise ManifestError(source, "the file names no images")
    return Manifest(requests, wishes.warnings)


def parse_objects(raw: bytes, source: str) -> Wishes:
    """Return the objects in *raw*; *source* names it in messages. ManifestError when it is malformed or empty."""
    wishes = _objects(_decoded(raw, source), source, _KINDS, "applied")
    if not wishes.wishes:
        raise ManifestError(source, "there is no object in the file")
    return wishes


def _decoded(raw: bytes, source: str) -> str:
    if len(raw) > LIMIT_BYTES:
        raise ManifestError(source, f"the file is larger than {LIMIT_BYTES // 1024**2} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ManifestError(source, "this is not UTF-8 text", line) from None


# ---------------------------------------------------------------------------------------------- plain lists


def _parse_list(text: str, source: str) -> Manifest:
    images = []
    for number, line in enumerate(text.splitlines(), start=1):
        reference = _COMMENT.sub("", line).strip()
        if not reference:
            continue
        if reference.startswith("- "):
            raise ManifestError(source, "write one reference a line, without a dash", number)
        if len(reference.split()) > 1:
            raise ManifestError(source, f"one reference a line, and {reference[:80]!r} has spaces in it", number)
        if not reference.isprintable():
            raise ManifestError(source, f"{reference[:80]!r} has characters that no reference has", number)
        images.append(reference)
    return Manifest((WarmRequest(images=images),))


# ---------------------------------------------------------------------------------------------- objects


def _objects(text: str, source: str, kinds: tuple[str, ...], doing: str) -> Wishes:
    """*kinds*: what may be in the file; *doing*: what it is read for, in messages."""
    from stoker.manifest_fields import Context  # late: plain lists need no YAML
    from stoker.yaml_nodes import load_documents

    context = Context(source)
    wishes = [wish for document in load_documents(text, source) for wish in _object(context, document, kinds, doing)]
    return Wishes(tuple(wishes), tuple(text for _, text in sorted(context.warnings)))


def _object(context: Context, node: Node, kinds: tuple[str, ...], doing: str) -> Iterator[Wish]:
    from stoker.manifest_fields import Fields

    top = Fields(context, node, "")
    kind, kind_node = top.text("kind"), top.node("kind")
    if kind in _LISTS:
        top.ignore("apiVersion", "metadata")
        items = top.items("items")
        top.warn_unknown(kind)
        for item in items:
            yield from _object(context, item, kinds, doing)
        return
    if kind not in kinds:
        context.fail(kind_node, f"kind is {kind!r}; only {_either(kinds, 'and')} can be {doing}")
    version = _version(top, kind)
    metadata = top.optional_map("metadata")
    name = namespace = shown = ""
    if metadata is not None:
        name = metadata.optional_text("name") or ""
        shown = name or metadata.optional_text("generateName") or ""
        namespace = metadata.optional_text("namespace") or ""
    label = f"{kind} {shown!r}" if shown else kind
    top.ignore("status")
    spec = top.map("spec")
    top.warn_unknown(label)
    place = f"{context.source}:{kind_node.line}"
    if kind == _RECREATE:
        from stoker.manifest_recreates import recreate_request

        yield Wish(label, recreate_request(spec, version, name, namespace, label), place)
    elif kind in {_CHECKPOINT, _COMMIT}:
        from stoker.manifest_checkpoints import checkpoint_request, commit_request

        read = checkpoint_request if kind == _CHECKPOINT else commit_request
        yield Wish(label, read(spec, version, name, namespace, label), place)
    else:
        from stoker.manifest_images import warm_request

        yield Wish(label, warm_request(spec, kind, shown, label), place)


def _version(top: Fields, kind: str) -> str:
    version = top.text("apiVersion")
    known = _VERSIONS.get(kind, API_VERSIONS)
    if version not in known:
        top.context.fail(top.node("apiVersion"), f"apiVersion is {version!r}, not {_either(known, 'or')}")
    return version


def _either(words: tuple[str, ...], conjunction: str) -> str:
    """Return ``a``, ``a or b``, ``a, b or c``."""
    *most, last = words
    return f"{', '.join(most)} {conjunction} {last}" if most else last
