"""Reads typed fields of a manifest, and notes which were asked for; every fault has its file, line and column."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from stoker.errors import ManifestError
from stoker.yaml_nodes import Node


@dataclass(slots=True)
class Context:
    """One file, and what is to be said about it."""

    source: str
    warnings: list[tuple[int, str]] = field(default_factory=list)
    """With the line, to be put in order."""

    def fail(self, node: Node, what: str) -> NoReturn:
        raise ManifestError(self.source, what, node.line, node.column)

    def warn(self, node: Node, what: str) -> None:
        self.warnings.append((node.line, f"{self.source}:{node.line}: {what}"))


class Fields:
    """A map of the file that notes which of its fields were asked for."""

    def __init__(self, context: Context, node: Node, path: str) -> None:
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

    def any_text(self, name: str) -> str:
        """Return text as it is, empty or not; it may be a secret, and no message quotes it."""
        node = self.node(name)
        if not isinstance(node.value, str):
            self._wrong(node, name, "text (in quotes)")
        return node.value

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

    def optional_number(self, name: str, least: float) -> float | None:
        if not self.has(name):
            return None
        node = self.node(name)
        if not isinstance(node.value, int | float) or isinstance(node.value, bool):
            self._wrong(node, name, "a number")
        if not least <= node.value < float("inf"):  # refuses nan, too
            self.context.fail(node, f"{self._name(name)} is {node.value}, not a number from {least:g}")
        return float(node.value)

    def flag(self, name: str) -> bool:
        """Return true or false; missing is false."""
        if not self.has(name):
            return False
        node = self.node(name)
        if not isinstance(node.value, bool):
            self._wrong(node, name, "true or false")
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
        """Return a list of texts without blanks around them."""
        return [text.strip() for text in self.words(name)]

    def words(self, name: str) -> list[str]:
        """Return a list of texts as they are."""
        words = []
        for index, item in enumerate(self.items(name)):
            if not isinstance(item.value, str):
                self._wrong(item, f"{name}[{index}]", "text")
            if not item.value.strip():
                self.context.fail(item, f"{self._name(name)}[{index}] is empty")
            words.append(item.value)
        return words

    def maps(self, name: str) -> list[Fields]:
        """Return the maps of a list."""
        path = self._name(name)
        return [Fields(self.context, item, f"{path}[{index}]") for index, item in enumerate(self.items(name))]

    def map(self, name: str) -> Fields:
        return Fields(self.context, self.node(name), self._name(name))

    def optional_map(self, name: str) -> Fields | None:
        return self.map(name) if self.has(name) else None

    def ignore(self, *names: str) -> None:
        """Fields that say nothing about what to do."""
        self._seen.update(names)

    def refuse(self, name: str, why: str) -> NoReturn:
        """Refuse the file because of a field."""
        self.context.fail(self.node(name), f"{self._name(name)} {why}")

    def fail(self, why: str) -> NoReturn:
        """Refuse the file because of this map."""
        self.context.fail(self._node, f"{self._path} {why}")

    def refuse_unknown(self) -> None:
        """Refuse the file when it has fields that nobody asked for."""
        for name, node in self._fields.items():
            if name not in self._seen:
                self.context.fail(node, f"{self._name(name)} is unknown")

    def warn(self, name: str, label: str, why: str, *, part: bool = False) -> None:
        """*part*: it is honoured, but not altogether."""
        how = "is honoured in part" if part else "is not honoured here"
        self.context.warn(self.node(name), f"{label}: {self._name(name)} {how}: {why}")

    def warn_unknown(self, label: str) -> None:
        for name, node in self._fields.items():
            if name not in self._seen:
                self.context.warn(node, f"{label}: {self._name(name)} is unknown and has no effect")
