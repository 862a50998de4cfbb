"""Names, labels, references: texts that objects are made of, and what is wrong with them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from stoker.objects.meta import LabelSelector, Requirement

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_REFERENCE = re.compile(r"[A-Za-z0-9\[][\w.:/@\[\]+-]*", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3})%", re.ASCII)
_ANNOTATIONS_BYTES = 256 << 10
_LONGEST_REFERENCE = 512


def name(text: str, path: str) -> Iterator[str]:
    """Yield what is wrong with an object's name."""
    if not text:
        yield f"{path}: is missing"
    elif len(text) > 253 or not _SUBDOMAIN.fullmatch(text):
        yield (
            f"{path}: {_shown(text)} is no name: lower-case letters, digits, '-' and '.', at most 253 characters,"
            " beginning and ending with a letter or digit"
        )


def namespace(text: str, path: str) -> Iterator[str]:
    """Yield what is wrong with a namespace."""
    if len(text) > 63 or not _LABEL.fullmatch(text):
        yield f"{path}: {_shown(text)} is no namespace: lower-case letters, digits and '-', at most 63 characters"


def qualified(text: str, path: str) -> Iterator[str]:
    """Yield what is wrong with the name of a label, an annotation or a finalizer: ``prefix/name``."""
    prefix, slash, last = text.rpartition("/")
    if (slash and (len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix))) or (
        len(last) > 63 or not _QUALIFIED.fullmatch(last)
    ):
        yield f"{path}: {_shown(text)} is no name such as app or example.com/app"


def labels(found: Mapping[str, str], path: str) -> Iterator[str]:
    """Yield what is wrong with labels."""
    for key, value in found.items():
        yield from qualified(key, path)
        if len(value) > 63 or (value and not _QUALIFIED.fullmatch(value)):
            yield (
                f"{path}[{_short(key)}]: {_shown(value)} is no label's value: letters, digits, '-', '_' and '.',"
                " at most 63 characters"
            )


def notes(found: Mapping[str, str], path: str) -> Iterator[str]:
    """Yield what is wrong with annotations."""
    for key in found:
        yield from qualified(key.lower(), path)
    size = sum(len(key) + len(value) for key, value in found.items())
    if size > _ANNOTATIONS_BYTES:
        yield f"{path}: has {size} characters, more than {_ANNOTATIONS_BYTES}"


def selector(found: LabelSelector, path: str) -> Iterator[str]:
    """Yield what is wrong with a label selector."""
    yield from labels(found.match_labels, f"{path}.matchLabels")
    yield from requirements(found.match_expressions, f"{path}.matchExpressions")


def requirements(found: tuple[Requirement, ...], path: str) -> Iterator[str]:
    """Yield what is wrong with conditions on labels."""
    for index, each in enumerate(found):
        place = f"{path}[{index}]"
        yield from qualified(each.key, f"{place}.key")
        wanted = each.operator in {"In", "NotIn"}
        if wanted and not each.values:
            yield f"{place}.values: is missing; {each.operator} needs at least one"
        if not wanted and each.values:
            yield f"{place}.values: must be empty, as {each.operator} has none"


def reference(text: str, path: str) -> Iterator[str]:
    """Yield what is wrong with an image reference. The node that pulls it knows more."""
    if not text.strip():
        yield f"{path}: is empty"
    elif len(text) > _LONGEST_REFERENCE or not _REFERENCE.fullmatch(text):
        yield f"{path}: {_shown(text)} is no image reference"


def number_or_percent(value: int | str, path: str) -> Iterator[str]:
    """Yield what is wrong with a number from 0 on, or a share such as ``10%``."""
    if isinstance(value, int):
        if value < 0:
            yield f"{path}: is {value}, less than 0"
        return
    match = _PERCENT.fullmatch(value)
    if match is None or int(match[1]) > 100:
        yield f'{path}: {_shown(value)} is neither a number nor a share from "0%" to "100%"'


def at_least(value: float | None, least: float, path: str) -> Iterator[str]:
    """Yield a problem when a number is too small, or none at all; None is sound."""
    if value is not None and not least <= value < float("inf"):
        yield f"{path}: is {value:g}, not a number from {least:g}"


def twice(values: tuple[str, ...], path: str) -> Iterator[str]:
    """Yield a problem when a text is there more than once."""
    seen: set[str] = set()
    for value in values:
        if value in seen:
            yield f"{path}: has {_shown(value)} twice"
            return
        seen.add(value)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def _short(text: str) -> str:
    return text if text.isprintable() and len(text) <= 80 else _shown(text)
