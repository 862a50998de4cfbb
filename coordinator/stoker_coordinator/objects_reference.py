"""Writes docs/objects.md from the types of the objects, where every field is described beside it.

python -m stoker_coordinator.objects_reference > docs/objects.md
python -m stoker_coordinator.objects_reference --check docs/objects.md
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import NODEFAULT, Struct

from stoker import settings_pages
from stoker.objects.kinds import ALL, Kind
from stoker.objects.meta import ObjectMeta
from stoker_coordinator.auth import WISHES
from stoker_coordinator.objects import shapes

_HEAD = """\
# Objects of the coordinator

<!-- Made from client/stoker/objects/ by `python -m stoker_coordinator.objects_reference > docs/objects.md`. -->

What people wish for, and what is so, are objects in Kubernetes' form: `apiVersion`, `kind`, `metadata`, `spec` (the
wish) and `status` (what became of it). docs/coordinator.md tells how to make, change and watch them.

- The names and meanings of fields are OpenKruise's and Volcano's, so their users' YAML is taken as it is. What is ours
  is marked so.
- A field that has no effect here is taken and named in a warning, and so is one that nobody knows. Values that are
  wrong are refused with their paths, all of them at once.
- Sealed fields hold secrets: they are encrypted before they are kept, sent only to nodes that need them, and shown as
  `[sealed]`.
- Fields that are as they would be anyway are left out of what the API shows.
"""
_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}
_PLACES = {"one": "", "list": "[]", "map": "[NAME]"}


def render() -> str:
    """Return the whole page."""
    lines = [_HEAD, *_overview(), *_metadata()]
    for kind in ALL:
        lines += _kind(kind)
    return "\n".join(lines)


def _overview() -> Iterator[str]:
    yield "| kind | short | in a namespace | apiVersion | who writes it |"
    yield "|---|---|---|---|---|"
    for kind in ALL:
        versions = ", ".join(f"`{version}`" for version in kind.versions)
        who = "operators" if kind.name in WISHES else "the coordinator, admins"
        where = "yes" if kind.namespaced else "no"
        yield f"| [{kind.name}](#{kind.name.lower()}) | `{kind.short[0]}` | {where} | {versions} | {who} |"
    yield ""


def _metadata() -> Iterator[str]:
    yield "## metadata"
    yield ""
    yield "All kinds have the same."
    yield ""
    yield from _table(ObjectMeta, "metadata")


def _kind(kind: Kind) -> Iterator[str]:
    yield f"## {kind.name}"
    yield ""
    yield _own_words(kind.type)
    if kind.selectable:
        fields = ", ".join(f"`{each}`" for each in kind.selectable)
        yield f"Beside name and namespace it can be selected by {fields}."
    yield ""
    for name in ("spec", "status"):
        yield from _table(_type_of(kind.type, name), name)


def _type_of(kind: type[Struct], name: str) -> type[Struct]:
    found = shapes.fields_of(kind)[name].inner
    assert found is not None
    return found


def _table(kind: type[Struct], path: str) -> Iterator[str]:
    text = _own_words(kind) if path != "metadata" else ""
    yield f"**{path}**" + (f": {text}" if text else "")
    yield ""
    yield "| field | value | default | what it means |"
    yield "|---|---|---|---|"
    yield from _rows(kind, path)
    yield ""


def _rows(kind: type[Struct], path: str) -> Iterator[str]:
    texts = _texts(kind)
    for info in msgspec.structs.fields(kind):
        field = shapes.fields_of(kind)[info.encode_name]
        place = f"{path}.{field.name}"
        text = texts.get(info.name, "") or (_own_words(field.inner) if field.inner is not None else "")
        if field.not_honoured is not None:
            text = f"Has no effect: {field.not_honoured.why}."
        if field.only is not None:
            text = f"{text} Only in `{field.only.version}`.".strip()
        if field.secret:
            text = f"{text} Sealed.".strip()
        text = text.replace("``", "`").replace("|", "\\|")
        yield f"| `{place}` | {_value(field.hint)} | {_default(info)} | {text} |"
        if field.inner is not None and field.not_honoured is None and field.inner is not ObjectMeta:
            yield from _rows(field.inner, f"{place}{_PLACES[field.container]}")


def _own_words(kind: type[Struct]) -> str:
    """Return what a type says of itself, not what it inherits."""
    text = kind.__dict__.get("__doc__") or ""
    return "" if text.startswith(f"{kind.__name__}(") else _sentence(text)


def _texts(kind: type[Struct]) -> dict[str, str]:
    """Return what is said beside the fields of a type and of those that it builds on."""
    texts: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.startswith("stoker.objects"):
            texts |= settings_pages.field_texts(each)
    return texts


def _value(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments if each)
    if origin in {types.UnionType, typing.Union}:
        return " or ".join(_value(each) for each in arguments if each is not type(None))
    if origin is tuple:
        return f"list of {_plural(_value(arguments[0]))}"
    if origin is dict:
        return f"map of {_plural(_value(arguments[1]))}"
    if isinstance(hint, type) and issubclass(hint, Struct):
        return "map"
    if hint is Any:
        return "anything"
    return _WORDS.get(hint, "time")


def _plural(word: str) -> str:
    return f"{word}s" if word in {"map", "text", "number", "whole number"} else word


def _default(info: msgspec.structs.FieldInfo) -> str:
    if info.required:
        return "must be given"
    value = info.default if info.default is not NODEFAULT else info.default_factory()
    if value is None or value in ((), {}, "") or isinstance(value, Struct):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return (
        f"`{', '.join(value)}`"
        if isinstance(value, tuple)
        else f"`{value:g}`"
        if isinstance(value, float)
        else f"`{value}`"
    )


def _sentence(text: str | None) -> str:
    return " ".join((text or "").replace("``", "`").split())


def main(arguments: list[str]) -> int:
    """Print the page, or compare it with a file: 0 the same, 1 stale."""
    return settings_pages.write_or_check(arguments, render, "stoker_coordinator.objects_reference")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
