"""Objects for a coordinator from files: as plain values that know where in the file they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stoker.errors import ManifestError
from stoker.manifests import read_text
from stoker.objects.kinds import ALL, KINDS, Kind
from stoker.yaml_nodes import Node, load_documents

_STEP = re.compile(r"\[(\d+)\]|\[([^\]]*)\]|\.?([^.\[\]]+)")
_SECRET = ("v1", "Secret")


@dataclass(frozen=True, slots=True)
class Given:
    """One object of a file."""

    kind: Kind
    version: str
    """The apiVersion that it is sent under."""
    namespace: str
    name: str
    document: dict[str, Any]
    source: str
    node: Node

    @property
    def label(self) -> str:
        """Kind and name, for people."""
        return f"{self.kind.name} {self.namespace}/{self.name}" if self.namespace else f"{self.kind.name} {self.name}"

    def place(self, path: str = "") -> str:
        """Return file and line of a path such as ``spec.containers[0].name``, or of what of it there is."""
        node = self.node
        for index, key, name in _STEP.findall(path):
            value = node.value
            if index and isinstance(value, list) and int(index) < len(value):
                node = value[int(index)]
            elif not index and isinstance(value, dict) and (key or name) in value:
                node = value[key or name]
            else:
                break
        return f"{self.source}:{node.line}"


def read_given(file: str, namespace: str) -> list[Given]:
    """Return the objects in *file* (``-``: standard input). *namespace*: for those that name none. ManifestError."""
    text, source = read_text(file)
    found = [given for node in load_documents(text, source) for given in _objects(node, source, namespace)]
    if not found:
        raise ManifestError(source, "there is no object in the file")
    return found


def _objects(node: Node, source: str, namespace: str) -> Iterator[Given]:
    fields = node.value
    if not isinstance(fields, dict):
        raise ManifestError(source, f"an object must be a map, not {node.kind}", node.line, node.column)
    kind, version = (_text(fields, name, node, source) for name in ("kind", "apiVersion"))
    if kind.endswith("List") and kind not in KINDS and "items" in fields:
        items = fields["items"].value
        for item in items if isinstance(items, list) else ():
            yield from _objects(item, source, namespace)
        return
    found = KINDS["PullSecret"] if (version, kind) == _SECRET else KINDS.get(kind)
    place = fields["kind"]
    if found is None:
        known = ", ".join(each.name for each in ALL)
        raise ManifestError(source, f"kind is {kind!r}; there are {known}", place.line, place.column)
    if (version, kind) != _SECRET and version not in found.versions:
        place = fields["apiVersion"]
        raise ManifestError(source, f"{kind} has no {version!r}; it has {' and '.join(found.versions)}", place.line)
    document = _plain(node)
    meta = document.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    where = str(meta.get("namespace") or namespace) if found.namespaced else ""
    version = found.version if (version, kind) == _SECRET else version
    yield Given(found, version, where, str(meta.get("name") or ""), document, source, node)


def _text(fields: dict[str, Node], name: str, node: Node, source: str) -> str:
    value = fields[name].value if name in fields else None
    if not isinstance(value, str):
        place = fields.get(name, node)
        raise ManifestError(source, f"{name} must be there, and text", place.line, place.column)
    return value


def _plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {name: _plain(value) for name, value in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(value) for value in node.value]
    return node.value
