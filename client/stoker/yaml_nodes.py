"""Reads YAML into plain values that know their line, and refuses what a manifest has no use for.

Nothing is constructed but strings, numbers, booleans, null, lists and maps. Malformed text, duplicated keys, tags,
merge keys, deep nesting and aliases that blow a small file up are ManifestErrors with file, line and column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import yaml

from stoker.errors import ManifestError

LIMIT_BYTES = 4 * 1024 * 1024
LIMIT_DEPTH = 50
LIMIT_NODES = 200_000

# libyaml where it was built in; it is twenty times as fast.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALARS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp")}
_TEXT = "tag:yaml.org,2002:str"
_KEPT_AS_TEXT = {_TEXT, "tag:yaml.org,2002:timestamp"}

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it stands. ``value`` is a scalar, a ``list[Node]`` or a ``dict[str, Node]``."""

    value: Scalar | list[Node] | dict[str, Node]
    line: int
    column: int

    @property
    def kind(self) -> str:
        """What it is, in words for people."""
        match self.value:
            case None:
                return "nothing"
            case bool():
                return "true or false"
            case int():
                return "a whole number"
            case float():
                return "a number"
            case str():
                return "text"
            case list():
                return "a list"
            case dict():
                return "a map"


def load_documents(text: str, source: str) -> list[Node]:
    """Return the documents of a YAML stream, empty ones left out; ManifestError with the place of the fault."""
    if len(text.encode("utf-8", "surrogatepass")) > LIMIT_BYTES:
        raise ManifestError(source, f"the file is larger than {LIMIT_BYTES // 1024**2} MiB")
    try:
        _check_shape(text, source)
        documents = list(yaml.compose_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.problem, error.context) if part) or "malformed YAML"
        raise ManifestError(source, what, *_position(mark)) from None
    except yaml.YAMLError as error:
        raise ManifestError(source, str(error).partition("\n")[0]) from None
    reader = _Reader(source)
    nodes = [reader.read(document, 1) for document in documents]
    return [node for node in nodes if node.value is not None]


def _position(mark: Any) -> tuple[int, int]:
    """Line and column from 1; libyaml's marks and the pure ones have no common type."""
    return (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)


def _check_shape(text: str, source: str) -> None:
    """Refuse deep nesting before anything recursive sees the text."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > LIMIT_DEPTH:
                raise ManifestError(source, f"nested more than {LIMIT_DEPTH} levels deep", *_position(event.start_mark))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source
        self._left = LIMIT_NODES
        self._scalars = yaml.constructor.SafeConstructor()

    def read(self, node: yaml.Node, depth: int) -> Node:
        self._left -= 1
        if self._left < 0:
            self._fail(node, f"more than {LIMIT_NODES} values, aliases counted as often as they are used")
        if depth > LIMIT_DEPTH:  # an alias inside of what it stands for
            self._fail(node, f"nested more than {LIMIT_DEPTH} levels deep")
        if isinstance(node, yaml.ScalarNode):
            return self._place(node, self._scalar(node))
        if isinstance(node, yaml.SequenceNode):
            self._check_tag(node, "tag:yaml.org,2002:seq")
            return self._place(node, [self.read(child, depth + 1) for child in node.value])
        self._check_tag(node, "tag:yaml.org,2002:map")
        return self._place(node, self._map(node, depth))

    def _map(self, node: yaml.Node, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                self._fail(key, "merge keys (<<) are not supported; write the fields out")
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _SCALARS:
                self._fail(key, "a key must be plain text")
            if key.value in found:
                self._fail(key, f"the key {key.value!r} is there twice, first in line {found[key.value].line}")
            found[key.value] = self.read(value, depth + 1)
        return found

    def _scalar(self, node: yaml.ScalarNode) -> Scalar:
        if node.tag not in _SCALARS:
            self._fail(node, f"the tag {node.tag} is not supported")
        if node.tag in _KEPT_AS_TEXT:
            return str(node.value)
        try:
            value: Scalar = self._scalars.construct_object(node)
        except (ValueError, yaml.YAMLError):
            self._fail(node, f"{node.value[:40]!r} cannot be read")
        return value

    def _check_tag(self, node: yaml.Node, expected: str) -> None:
        if node.tag != expected:
            self._fail(node, f"the tag {node.tag} is not supported")

    def _place(self, node: yaml.Node, value: Scalar | list[Node] | dict[str, Node]) -> Node:
        return Node(value, *_position(node.start_mark))

    def _fail(self, node: yaml.Node, what: str) -> NoReturn:
        raise ManifestError(self._source, what, *_position(node.start_mark))
