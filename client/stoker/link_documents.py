"""Documents that a node keeps its coordinator up to date about: packed, compared, brought from state to state. Pure.

A document is JSON: an object whose values are lists of things with a key of their own (``name``, ``id`` ...), or
anything else. A delta says which of these things are new or changed and which are gone; other values are sent whole. It
works on what was sent, not on types: fields that a coordinator does not know yet are kept, and count for the digest.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from stoker.objects.link import MAX_DOCUMENT

KEYS = ("key", "id", "name", "code")
"""Where the key of a thing in a list is looked for, in this order."""
_LEVEL = 1
_LONGEST_TEXT = 8192
_DIGEST_BYTES = 12
_UNSAFE = re.compile(rb"\\u00[01]|\\[bfnrt]|\x7f|\xc2[\x80-\x9f]|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]")
"""Control characters, and those that turn the direction of text, as JSON has them."""
_UNSAFE_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f]")

Plain = dict[str, Any]


class Broken(Exception):
    """The bytes are no document, no delta, or not one that fits."""


class Change(Struct, omit_defaults=True):
    """From one state of a document to another."""

    set: dict[str, Any] = field(default_factory=dict)
    """Values that are sent whole."""
    put: dict[str, list[Any]] = field(default_factory=dict)
    """By list: things that are new, or have changed."""
    gone: dict[str, list[str]] = field(default_factory=dict)
    """By list: keys of things that are there no more; by itself: names of values."""
    order: dict[str, list[str]] = field(default_factory=dict)
    """By list: all keys, where things are not in the order in which they would be otherwise."""
    dropped: list[str] = field(default_factory=list)


def plain(document: Any) -> Plain:
    """Return a Struct (or what is plain already) as JSON would have it."""
    made: Plain = msgspec.json.decode(msgspec.json.encode(document))
    return made


def canonical(document: Any) -> bytes:
    """Return the JSON of a document, the same for the same content."""
    return msgspec.json.encode(document, order="sorted")


def digest_of(text: bytes) -> str:
    """Return what tells one state from another, of canonical JSON."""
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def pack(text: bytes) -> bytes:
    """Return JSON as it travels and is kept."""
    return zlib.compress(text, _LEVEL)


def unpack(body: bytes, limit: int = MAX_DOCUMENT) -> bytes:
    """Return the JSON that was packed; Broken when it is not, or is larger than *limit*."""
    machine = zlib.decompressobj()
    try:
        text = machine.decompress(body, limit + 1)
    except zlib.error as error:
        raise Broken(f"not packed as it should be: {error}") from None
    if len(text) > limit:
        raise Broken(f"larger than {limit} bytes")
    if not machine.eof:
        raise Broken("cut off")
    return text


def read(text: bytes) -> Plain:
    """Return what the JSON of a document says; Broken."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Broken(f"not a document: {error}") from None


def compare(before: Plain, after: Plain) -> Change:
    """Return the way from one state to the other."""
    change = Change(dropped=[name for name in before if name not in after])
    for name, value in after.items():
        if name in before and before[name] == value:
            continue
        old, new = _keyed(before.get(name)), _keyed(value)
        if old is None or new is None:
            change.set[name] = value
            continue
        put = [thing for key, thing in new.items() if key not in old or old[key] != thing]
        gone = [key for key in old if key not in new]
        if put:
            change.put[name] = put
        if gone:
            change.gone[name] = gone
        if list(_merged(old, put, gone)) != list(new):
            change.order[name] = list(new)
    return change


def apply(before: Plain, change: Change) -> Plain:
    """Return the document that *change* leads to; Broken when it does not fit. *before* stays as it is."""
    after = {name: value for name, value in before.items() if name not in change.dropped}
    after.update(change.set)
    for name in {*change.put, *change.gone, *change.order}:
        old = _keyed(before.get(name))
        if old is None:
            raise Broken(f"{name!r} is no list of things with keys")
        merged = _merged(old, change.put.get(name, []), change.gone.get(name, []))
        order = change.order.get(name)
        if order is not None:
            if sorted(order) != sorted(merged):
                raise Broken(f"the order of {name!r} names other things than there are")
            merged = {key: merged[key] for key in order}
        after[name] = list(merged.values())
    return after


def read_change(body: bytes, limit: int = MAX_DOCUMENT) -> Change:
    """Return the change that was packed; Broken."""
    try:
        return msgspec.json.decode(unpack(body, limit), type=Change)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Broken(f"not a change: {error}") from None


def _merged(old: Mapping[str, Any], put: list[Any], gone: list[str]) -> dict[str, Any]:
    merged = {key: thing for key, thing in old.items() if key not in set(gone)}
    for thing in put:
        key = _key(thing)
        if key is None:
            raise Broken("a thing without a key")
        merged[key] = thing
    return merged


def _keyed(value: Any) -> dict[str, Any] | None:
    """Return a list of things by their keys; None where it is something else, or two things have the same key."""
    if not isinstance(value, list):
        return None
    found = {_key(thing): thing for thing in value}
    if None in found or len(found) != len(value):
        return None
    return found  # type: ignore[return-value]


def _key(thing: Any) -> str | None:
    if isinstance(thing, dict):
        for name in KEYS:
            key = thing.get(name)
            if isinstance(key, str | int) and key != "":
                return f"{name}={key}"
    return None


def is_safe(text: bytes) -> bool:
    """Say whether JSON has no character in it that should not reach a terminal or a page."""
    return _UNSAFE.search(text) is None


def cleaned(value: Any) -> Any:
    """Return a document with such characters shown as ``\\x1b``, and texts of a sound length."""
    if isinstance(value, str):
        return _UNSAFE_TEXT.sub(_shown, value[:_LONGEST_TEXT])
    if isinstance(value, list):
        return [cleaned(each) for each in value]
    if isinstance(value, dict):
        return {cleaned(name): cleaned(each) for name, each in value.items()}
    return value


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
