"""Two reports of one node: what stayed as it was, and what changed. Pure.

Facts that stayed keep their times, so that a report without changes is the same bytes; the rest is told as small
changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from stoker.objects.topology import ChangeKind, Fact, TopologyChange, TopologyReport, TopologySource

S = TypeVar("S", bound=msgspec.Struct)
_LONGEST = 120
_TIMES = frozenset(("since",))
# What tells the items of a list from each other; the first that an item has.
_KEYS = ("name", "number", "id", "code", "chassis", "refused", "xid", "kind")
_KINDS = {
    "gpus": "gpu", "nics": "nic", "ports": "port", "neighbours": "neighbour", "sources": "source", "numa": "numa",
    "domains": "domain", "findings": "finding", "health": "health", "fabric": "fabric", "matrix": "matrix",
    "pcie": "pcie", "disks": "disk", "images": "image", "pods": "pod", "items": "", "nvlinks": "nvlinks", "xids": "xid",
}  # fmt: skip


def settle(report: TopologyReport, before: TopologyReport | None) -> TopologyReport:
    """Return *report*, with the times of *before* wherever nothing changed; *before* itself if nothing did at all."""
    if before is None or before.node != report.node or before.version != report.version:
        return report
    settled = _settle(report, before)
    if msgspec.structs.replace(settled, since=before.since) == before:
        return before
    return settled


def _settle(new: S, old: S) -> S:
    changed: dict[str, Any] = {}
    own_same = True
    for name in new.__struct_fields__:
        if name in _TIMES:
            continue
        mine, its = getattr(new, name), getattr(old, name)
        value: Any
        if isinstance(mine, msgspec.Struct) and type(mine) is type(its):
            value = _settle(mine, its)
            part = isinstance(mine, Fact)
        elif isinstance(mine, list) and mine and isinstance(mine[0], msgspec.Struct):
            value = _settle_list(mine, its)
            part = isinstance(mine[0], Fact)
        else:
            value, part = (
                mine,
                isinstance(its, Fact) or (isinstance(its, list) and bool(its) and isinstance(its[0], Fact)),
            )
        changed[name] = value
        # A part that is a fact has a time of its own.
        own_same = own_same and (part or value == its)
    if own_same and isinstance(new, Fact | TopologySource) and hasattr(old, "since"):
        changed["since"] = old.since
    return msgspec.structs.replace(new, **changed)


def _settle_list(new: list[Any], old: list[Any]) -> list[Any]:
    known = dict(_keyed(old))
    return [_settle(item, known[key]) if key in known else item for key, item in _keyed(new)]


def _keyed(items: list[Any]) -> Iterator[tuple[tuple[str, int], Any]]:
    """Return items with what tells them apart; of those that call themselves the same, by their order."""
    seen: dict[str, int] = {}
    for item in items:
        key = key_of(item)
        seen[key] = seen.get(key, 0) + 1
        yield (key, seen[key]), item


def key_of(item: msgspec.Struct) -> str:
    """Return what an item of a list is called."""
    for name in _KEYS:
        value = getattr(item, name, None)
        if value not in {None, ""}:
            if name == "code":
                return f"{value} {' '.join(getattr(item, 'subjects', ()))}"
            if name == "chassis":
                return f"{value} {getattr(item, 'port', '')}"
            if name == "kind":
                return f"{value} {getattr(item, 'peer', '')}".strip()
            if name == "name" and hasattr(item, "namespace"):
                return f"{item.namespace}/{value}"
            # A neighbour's name may change while it stays the same one.
            if name == "name" and hasattr(item, "chassis"):
                continue
            return str(value)
    return ""


def changes(old: TopologyReport, new: TopologyReport) -> list[TopologyChange]:
    """Return the differences between two reports, in a stable order; none of them is larger than a line."""
    return list(_changes(old, new, "", new.since))


def _changes(old: msgspec.Struct, new: msgspec.Struct, subject: str, at: datetime) -> Iterator[TopologyChange]:
    for name in new.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if name in _TIMES or before == after:
            continue
        if isinstance(before, msgspec.Struct) and isinstance(after, msgspec.Struct):
            yield from _changes(before, after, _below(subject, name), at)
        elif _structs(before) or _structs(after):
            yield from _list_changes(before, after, subject, name, at)
        elif isinstance(before, msgspec.Struct) or isinstance(after, msgspec.Struct):
            yield _change(at, "added" if before is None else "removed", _below(subject, name))
        elif isinstance(before, dict) and isinstance(after, dict):
            for key in sorted(before.keys() | after.keys()):
                if before.get(key) != after.get(key):
                    where = f"{name}.{key}"
                    yield _change(at, "changed", subject, where, before.get(key), after.get(key))
        elif name == "rows":
            yield _change(at, "changed", subject, name)
        else:
            yield _change(at, "changed", subject, name, before, after)


def _list_changes(old: list[Any], new: list[Any], subject: str, name: str, at: datetime) -> Iterator[TopologyChange]:
    before, after = dict(_keyed(old)), dict(_keyed(new))
    for key, item in before.items():
        if key not in after:
            yield _change(at, "removed", _below(subject, name, key[0]), "", _what(item), None)
    for key, item in after.items():
        if key not in before:
            yield _change(at, "added", _below(subject, name, key[0]), "", None, _what(item))
        else:
            yield from _changes(before[key], item, _below(subject, name, key[0]), at)


def _structs(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], msgspec.Struct)


def _what(item: msgspec.Struct) -> str:
    """Return what to say of an item that comes or goes: what a finding says, what a neighbour or a NIC is called."""
    return next(
        (str(value) for name in ("message", "name", "use", "refused") if (value := getattr(item, name, ""))), ""
    )


def _below(subject: str, name: str, key: str = "") -> str:
    return " ".join(filter(None, (subject, _KINDS.get(name, name), key)))


def _change(
    at: datetime, kind: ChangeKind, subject: str, name: str = "", before: object = None, after: object = None
) -> TopologyChange:
    return TopologyChange(
        at=at, kind=kind, subject=subject or "node", field=name, before=_shown(before), after=_shown(after)
    )


def _shown(value: object) -> str:
    if value is None:
        return ""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
