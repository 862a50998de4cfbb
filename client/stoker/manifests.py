"""Reads what to warm from a file.

The file is either a plain list, one reference a line with ``#`` comments, or YAML with ``ImagePullJob`` and
``ImageListPullJob`` objects (``apps.kruise.io/v1alpha1`` and ``v1beta1``), as many documents as you like. Fields that
have no meaning for a single node are named in a warning, never dropped in silence; types are checked everywhere.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from stoker.errors import ManifestError
from stoker.objects.images import PullPolicy, WarmRequest

if TYPE_CHECKING:
    from stoker.yaml_nodes import Node

LIMIT_BYTES = 4 * 1024 * 1024
API_VERSIONS = ("apps.kruise.io/v1alpha1", "apps.kruise.io/v1beta1")
# What OpenKruise takes where a pullPolicy leaves it out.
DEFAULT_BACKOFF_LIMIT = 3

_SINGLE, _MANY = "ImagePullJob", "ImageListPullJob"
_LISTS = ("List", f"{_SINGLE}List", f"{_MANY}List")
_YAML_START = re.compile(r"""---|%|[{\[]|["']?[A-Za-z_][\w.-]*["']?\s*:(\s|$)""")
_COMMENT = re.compile(r"(^|\s)#.*")

_NOT_ON_ONE_NODE = {
    "selector": "this node warms the image, whether it is selected or not",
    "podSelector": "this node warms the image, whether it has such pods or not",
    "parallelism": "it counts nodes, and this is one; stokerd's own settings limit concurrent pulls",
    "pullSecrets": "stokerd cannot read Kubernetes secrets; it uses the node's credentials and those given to `stoker`",
    "sandboxConfig": "stokerd chooses the labels and annotations of its pulls",
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a file asks for."""

    requests: tuple[WarmRequest, ...]
    """One for each object in the file; one for a plain list."""
    warnings: tuple[str, ...] = ()
    """What the file says and this node does not honour; each with file and line."""


@dataclass(slots=True)
class _Context:
    source: str
    warnings: list[tuple[int, str]] = field(default_factory=list)
    """With the line, to be put in order."""

    def fail(self, node: Node, what: str) -> NoReturn:
        raise ManifestError(self.source, what, node.line, node.column)

    def warn(self, node: Node, what: str) -> None:
        self.warnings.append((node.line, f"{self.source}:{node.line}: {what}"))


def read_manifest(name: str) -> Manifest:
    """Read the file *name*, ``-`` for standard input; ManifestError when it cannot be read or is malformed."""
    source = "<stdin>" if name == "-" else name
    try:
        if name == "-":
            raw = sys.stdin.buffer.read(LIMIT_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                raw = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise ManifestError(source, error.strerror or str(error)) from None
    return parse_manifest(raw, source)


def parse_manifest(raw: bytes, source: str) -> Manifest:
    """Return what *raw* asks for; *source* names it in messages. ManifestError when it is malformed or empty."""
    if len(raw) > LIMIT_BYTES:
        raise ManifestError(source, f"the file is larger than {LIMIT_BYTES // 1024**2} MiB")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ManifestError(source, "this is not UTF-8 text", line) from None
    first = next((line for line in text.splitlines() if _COMMENT.sub("", line).strip()), "")
    if not first:
        raise ManifestError(source, "the file names no images")
    if _YAML_START.match(first.lstrip()):
        return _parse_objects(text, source)
    return _parse_list(text, source)


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


def _parse_objects(text: str, source: str) -> Manifest:
    from stoker.yaml_nodes import load_documents  # late: plain lists need no YAML

    context = _Context(source)
    requests: list[WarmRequest] = []
    for document in load_documents(text, source):
        requests += _object(context, document)
    if not requests:
        raise ManifestError(source, "the file names no images")
    return Manifest(tuple(requests), tuple(text for _, text in sorted(context.warnings)))


def _object(context: _Context, node: Node) -> list[WarmRequest]:
    top = _Fields(context, node, "")
    kind, kind_node = top.text("kind"), top.node("kind")
    if kind in _LISTS:
        top.ignore("apiVersion", "metadata")
        items = top.items("items")
        top.warn_unknown(kind)
        return [request for item in items for request in _object(context, item)]
    if kind not in (_SINGLE, _MANY):
        context.fail(kind_node, f"kind is {kind!r}; only {_SINGLE} and {_MANY} can be warmed")
    version = top.text("apiVersion")
    if version not in API_VERSIONS:
        context.fail(top.node("apiVersion"), f"apiVersion is {version!r}, not {' or '.join(API_VERSIONS)}")
    metadata = top.optional_map("metadata")
    name = ""
    if metadata is not None:
        name = metadata.optional_text("name") or metadata.optional_text("generateName") or ""
    label = f"{kind} {name!r}" if name else kind
    top.ignore("status")
    spec = top.map("spec")
    top.warn_unknown(label)
    return [_request(spec, kind, name, label)]


def _request(spec: _Fields, kind: str, name: str, label: str) -> WarmRequest:
    images = [spec.text("image")] if kind == _SINGLE else spec.texts("images")
    if not images:
        spec.context.fail(spec.node("images"), "spec.images is empty")
    policy: PullPolicy = (
        "Always" if spec.choice("imagePullPolicy", "IfNotPresent", "Always") == "Always" else "IfNotPresent"
    )
    attempts, timeout = _pull_policy(spec, label)
    deadline = _completion_policy(spec, label)
    if deadline is not None:
        timeout = min(timeout, deadline) if timeout is not None else deadline
    _warn_of_cluster_fields(spec, label)
    spec.warn_unknown(label)
    return WarmRequest(images=images, name=name, policy=policy, attempts=attempts, timeout_seconds=timeout)


def _pull_policy(spec: _Fields, label: str) -> tuple[int | None, float | None]:
    """Return attempts and the deadline of all of them; OpenKruise's timeout is the deadline of one."""
    policy = spec.optional_map("pullPolicy")
    if policy is None:
        return None, None
    backoff_limit = policy.optional_integer("backoffLimit", 0)
    timeout = policy.optional_integer("timeoutSeconds", 1)
    policy.warn_unknown(label)
    if backoff_limit is None and timeout is None:
        return None, None
    attempts = (DEFAULT_BACKOFF_LIMIT if backoff_limit is None else backoff_limit) + 1
    return attempts, None if timeout is None else float(timeout * attempts)


def _completion_policy(spec: _Fields, label: str) -> float | None:
    policy = spec.optional_map("completionPolicy")
    if policy is None:
        return None
    if policy.choice("type", "Always", "Never") == "Never":
        policy.warn("type", label, "the job runs once; `stoker image keep` warms an image again whenever it is gone")
    deadline = policy.optional_integer("activeDeadlineSeconds", 1)
    if deadline is not None:
        policy.warn(
            "activeDeadlineSeconds", label, "it counts for each image from the start of its pull, not for the job"
        )
    if policy.optional_integer("ttlSecondsAfterFinished", 0) is not None:
        policy.warn("ttlSecondsAfterFinished", label, "stokerd forgets finished jobs by its own settings")
    policy.warn_unknown(label)
    return None if deadline is None else float(deadline)


def _warn_of_cluster_fields(spec: _Fields, label: str) -> None:
    for name in ("selector", "podSelector", "sandboxConfig"):
        if spec.optional_map(name) is not None:
            spec.warn(name, label, _NOT_ON_ONE_NODE[name])
    if spec.optional_number_or_text("parallelism") is not None:
        spec.warn("parallelism", label, _NOT_ON_ONE_NODE["parallelism"])
    if spec.has("pullSecrets") and spec.texts("pullSecrets"):
        spec.warn("pullSecrets", label, _NOT_ON_ONE_NODE["pullSecrets"])


class _Fields:
    """A map of the file that notes which of its fields were asked for."""

    def __init__(self, context: _Context, node: Node, path: str) -> None:
        if not isinstance(node.value, dict):
            context.fail(node, f"{path or 'the document'} must be a map, not {node.kind}")
        self.context = context
        self._node = node
        self._fields = node.value
        self._path = path
        self._seen: set[str] = set()

    def _name(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        self._seen.add(name)
        return name in self._fields and self._fields[name].value is not None

    def node(self, name: str) -> Node:
        if not self.has(name):
            self.context.fail(self._node, f"{self._name(name)} is missing")
        return self._fields[name]

    def _wrong(self, node: Node, name: str, expected: str) -> NoReturn:
        self.context.fail(node, f"{self._name(name)} must be {expected}, not {node.kind}")

    def text(self, name: str) -> str:
        node = self.node(name)
        if not isinstance(node.value, str):
            self._wrong(node, name, "text")
        if not node.value.strip():
            self.context.fail(node, f"{self._name(name)} is empty")
        return node.value.strip()

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self.has(name) else None

    def choice(self, name: str, *allowed: str) -> str | None:
        text = self.optional_text(name)
        if text is not None and text not in allowed:
            self.context.fail(self.node(name), f"{self._name(name)} is {text!r}, not {' or '.join(allowed)}")
        return text

    def optional_integer(self, name: str, least: int) -> int | None:
        if not self.has(name):
            return None
        node = self.node(name)
        if not isinstance(node.value, int) or isinstance(node.value, bool):
            self._wrong(node, name, "a whole number")
        if node.value < least:
            self.context.fail(node, f"{self._name(name)} is {node.value}, less than {least}")
        return node.value

    def optional_number_or_text(self, name: str) -> int | str | None:
        if self.has(name) and isinstance(self.node(name).value, str):
            return self.text(name)
        return self.optional_integer(name, 0)

    def items(self, name: str) -> list[Node]:
        node = self.node(name)
        if not isinstance(node.value, list):
            self._wrong(node, name, "a list")
        return node.value

    def texts(self, name: str) -> list[str]:
        texts = []
        for index, item in enumerate(self.items(name)):
            if not isinstance(item.value, str):
                self._wrong(item, f"{name}[{index}]", "text")
            if not item.value.strip():
                self.context.fail(item, f"{self._name(name)}[{index}] is empty")
            texts.append(item.value.strip())
        return texts

    def map(self, name: str) -> _Fields:
        return _Fields(self.context, self.node(name), self._name(name))

    def optional_map(self, name: str) -> _Fields | None:
        return self.map(name) if self.has(name) else None

    def ignore(self, *names: str) -> None:
        """Fields that say nothing about what to do."""
        self._seen.update(names)

    def warn(self, name: str, label: str, why: str) -> None:
        self.context.warn(self.node(name), f"{label}: {self._name(name)} is not honoured here: {why}")

    def warn_unknown(self, label: str) -> None:
        for name, node in self._fields.items():
            if name not in self._seen:
                self.context.warn(node, f"{label}: {self._name(name)} is unknown and has no effect")
