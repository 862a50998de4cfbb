"""What fields a type has, and walks through documents (plain maps and lists) along them. Pure.

A walk finds every fault of a document at once, each with its path, and what of it has no effect here.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec import NODEFAULT, Struct

from stoker.objects.meta import NotHonoured, Only, Secret

Container = Literal["one", "list", "map"]
Change = Callable[[str, str], str]
"""What is to become of a secret, by its path and its text."""
_LARGEST = (1 << 63) - 1
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


class Field(Struct, frozen=True):
    """One field of a type."""

    name: str
    """In JSON."""
    hint: Any
    """Its type, without marks."""
    required: bool
    inner: type[Struct] | None
    """The type of what is in it, if that has fields."""
    container: Container
    """How it holds these: itself, in a list, in a map."""
    not_honoured: NotHonoured | None
    only: Only | None
    secret: bool


class Notes(Struct):
    """What a walk found. Paths are as in ``spec.containers[0].name``."""

    problems: list[str] = msgspec.field(default_factory=list)
    warnings: list[str] = msgspec.field(default_factory=list)


@cache
def fields_of(kind: type[Struct]) -> Mapping[str, Field]:
    """Return the fields of a type by their names in JSON."""
    return {info.encode_name: _field(info) for info in msgspec.structs.fields(kind)}


def _field(info: msgspec.structs.FieldInfo) -> Field:
    hint: Any = info.type
    marks: tuple[Any, ...] = ()
    if typing.get_origin(hint) is typing.Annotated:
        marks = hint.__metadata__
        hint = typing.get_args(hint)[0]
    inner, container = _inner(hint)
    return Field(
        name=info.encode_name,
        hint=hint,
        required=info.default is NODEFAULT and info.default_factory is NODEFAULT,
        inner=inner,
        container=container,
        not_honoured=next((mark for mark in marks if isinstance(mark, NotHonoured)), None),
        only=next((mark for mark in marks if isinstance(mark, Only)), None),
        secret=any(isinstance(mark, Secret) for mark in marks),
    )


def _inner(hint: Any) -> tuple[type[Struct] | None, Container]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return hint, "one"
    if origin is tuple and arguments:
        return _inner(arguments[0])[0], "list"
    if origin is dict:
        return _inner(arguments[1])[0], "map"
    if origin in {types.UnionType, typing.Union}:
        return next((found for each in arguments if (found := _inner(each))[0] is not None), (None, "one"))
    return None, "one"


def without_nulls(document: Any) -> Any:
    """Return a document without fields that are null: in YAML they are as good as missing."""
    if isinstance(document, Mapping):
        return {name: without_nulls(value) for name, value in document.items() if value is not None}
    if isinstance(document, list):
        return [without_nulls(value) for value in document]
    return document


def examine(document: Mapping[str, Any], kind: type[Struct], version: str, *, path: str = "", partial: bool) -> Notes:
    """Return what is wrong with a document of *kind*, and what of it has no effect.

    *version*: its apiVersion. *partial*: it is a patch, so nothing is missing.
    """
    notes = Notes()
    _examine(document, kind, path, version, partial, notes)
    return notes


def _examine(
    document: Mapping[str, Any], kind: type[Struct], path: str, version: str, partial: bool, notes: Notes
) -> None:
    fields, tag = fields_of(kind), kind.__struct_config__.tag_field
    for name, value in document.items():
        place = _join(path, name)
        field = fields.get(name)
        if name == tag:
            continue
        if field is None:
            notes.warnings.append(f"{place} is unknown and has no effect")
        elif value is None:
            continue
        elif field.only is not None and version != field.only.version:
            notes.problems.append(f"{place}: is not a field of {version}; write apiVersion: {field.only.version}")
        elif field.not_honoured is not None:
            if _too_large(value):
                notes.problems.append(f"{place}: has a number that is too large")
            elif value not in ({}, [], "", False):
                notes.warnings.append(f"{place} is not honoured here: {field.not_honoured.why}")
        else:
            _examine_value(value, field, place, version, partial, notes)
    if not partial:
        notes.problems += [
            f"{_join(path, field.name)}: is missing"
            for field in fields.values()
            if field.required and document.get(field.name) is None
        ]


def _examine_value(value: Any, field: Field, place: str, version: str, partial: bool, notes: Notes) -> None:
    if field.inner is None:
        problem = _fault(value, field)
        if problem:
            notes.problems.append(f"{place}{problem}")
        return
    if not isinstance(value, list if field.container == "list" else Mapping):
        notes.problems.append(
            f"{place}: must be {'a list' if field.container == 'list' else 'a map'}, not {_word(value)}"
        )
        return
    # In a list a patch replaces everything, so nothing may be missing there.
    partial = partial and field.container != "list"
    for where, each in _members(value, field.container):
        if isinstance(each, Mapping):
            _examine(each, field.inner, place + where, version, partial, notes)
        elif not (partial and each is None):
            notes.problems.append(f"{place}{where}: must be a map, not {_word(each)}")


def _members(value: Any, container: Container) -> list[tuple[str, Any]]:
    if container == "list":
        return [(f"[{index}]", each) for index, each in enumerate(value)]
    if container == "map":
        return [(f"[{name}]", each) for name, each in value.items()]
    return [("", value)]


def _fault(value: Any, field: Field) -> str:
    """Return what is wrong with a value that has no fields of its own, and where in it; empty: nothing."""
    if _too_large(value):
        return ": has a number that is too large"
    try:
        msgspec.convert(value, field.hint)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        inside = where.rstrip("`")
        if "enum" in what:
            choices = [repr(each) for each in typing.get_args(_leaf(field.hint))]
            shown = f" is {value!r}," if isinstance(value, str) else " is"
            return f"{inside}:{shown[:80]} not {' or '.join(choices)}"
        if "datetime" in what:
            return f"{inside}: must be a time such as 2026-01-31T12:00:00Z"
        return f"{inside}: must be {_expected(field.hint, bool(inside))}" + ("" if inside else f", not {_word(value)}")
    return ""


def _too_large(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_too_large, value.values()))
    if isinstance(value, list):
        return any(map(_too_large, value))
    return isinstance(value, int) and not -_LARGEST <= value <= _LARGEST


def _leaf(hint: Any) -> Any:
    """Return what a hint is about: the Literal, or the type in a list, a map or a choice with None."""
    if typing.get_origin(hint) is Literal:
        return hint
    arguments = [each for each in typing.get_args(hint) if each not in {type(None), Ellipsis}]
    return _leaf(arguments[-1]) if arguments else hint


def _expected(hint: Any, inside: bool) -> str:
    origin = typing.get_origin(hint)
    if origin is tuple and not inside:
        return "a list"
    if origin is dict and not inside:
        return "a map"
    if origin in {types.UnionType, typing.Union} and not inside:
        return " or ".join(_WORDS[each] for each in typing.get_args(hint) if each in _WORDS)
    return _WORDS.get(_leaf(hint), "something else")


def _word(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a map"
    return "a list" if isinstance(value, list) else _WORDS.get(type(value), "something else")


def _join(path: str, name: str) -> str:
    shown = name if name.isprintable() and len(name) <= 100 else repr(name[:100])
    return f"{path}.{shown}" if path else shown


# ---------------------------------------------------------------------------------------------- secrets


@cache
def has_secrets(kind: type[Struct]) -> bool:
    """Whether objects of a type have texts that are sealed."""
    return any(
        field.secret or (field.inner is not None and has_secrets(field.inner)) for field in fields_of(kind).values()
    )


def map_secrets(document: Any, kind: type[Struct], change: Change, path: str = "") -> Any:
    """Return a document with what *change* makes of each secret in it, given its path and the text."""
    if not isinstance(document, Mapping) or not has_secrets(kind):
        return document
    fields, result = fields_of(kind), dict(document)
    for name, value in document.items():
        field = fields.get(name)
        if field is None or value is None:
            continue
        place = _join(path, name)
        if field.secret and isinstance(value, str) and value:
            result[name] = change(place, value)
        elif field.inner is not None and has_secrets(field.inner):
            result[name] = _map_inside(value, field.inner, field.container, change, place)
    return result


def _map_inside(value: Any, inner: type[Struct], container: Container, change: Change, place: str) -> Any:
    if container == "list" and isinstance(value, list | tuple):
        return [map_secrets(each, inner, change, f"{place}[{index}]") for index, each in enumerate(value)]
    if container == "map" and isinstance(value, Mapping):
        return {name: map_secrets(each, inner, change, f"{place}[{name}]") for name, each in value.items()}
    return map_secrets(value, inner, change, place)
