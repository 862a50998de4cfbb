"""One object of a coordinator in full, for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from stoker.cli import server_tables as tables
from stoker.cli.text import Style, clean, table
from stoker.objects.kinds import Kind
from stoker.objects.meta import Condition

_MOST = 20


def description(document: dict[str, Any], kind: Kind, now: datetime, style: Style) -> Iterator[str]:
    """Yield lines."""
    obj = tables.typed(document, kind)
    meta = obj.metadata
    where = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
    yield f"{style.paint(kind.name, 'bold')} {clean(where)}"
    created = f"{meta.creation_timestamp:%Y-%m-%d %H:%M:%S} UTC" if meta.creation_timestamp is not None else "-"
    yield from _pairs(
        {
            "Created": f"{created} ({tables.age(meta.creation_timestamp, now)} ago)",
            "Generation": f"{meta.generation}",
            "Labels": ", ".join(f"{name}={value}" for name, value in meta.labels.items()),
            "Annotations": ", ".join(meta.annotations),
            "Owned by": ", ".join(f"{owner.kind} {owner.name}" for owner in meta.owner_references),
            "Finalizers": ", ".join(meta.finalizers),
            "Going since": f"{meta.deletion_timestamp:%Y-%m-%d %H:%M:%S} UTC" if meta.deletion_timestamp else "",
        }
    )
    for title in ("spec", "status"):
        plain = dict(document.get(title) or {})
        conditions = plain.pop("conditions", None) if title == "status" else None
        if plain:
            yield ""
            yield style.paint(title.capitalize(), "bold")
            yield from _tree(plain, "  ")
        if conditions:
            yield ""
            yield style.paint("Conditions", "bold")
            yield from _conditions(getattr(obj.status, "conditions", ()), now, style)


def _pairs(values: dict[str, str]) -> Iterator[str]:
    shown = {name: value for name, value in values.items() if value}
    width = max(len(name) for name in shown) + 1
    for name, value in shown.items():
        yield f"  {f'{name}:'.ljust(width)} {clean(value)}"


def _tree(value: Any, indent: str) -> Iterator[str]:
    """Yield plain values as people write YAML, long lists cut."""
    if isinstance(value, dict):
        for name, each in value.items():
            if isinstance(each, dict | list) and each:
                yield f"{indent}{clean(str(name))}:"
                yield from _tree(each, f"{indent}  ")
            elif each not in ({}, []):
                yield f"{indent}{clean(str(name))}: {_scalar(each)}"
        return
    for each in value[:_MOST]:
        if isinstance(each, dict):
            first, *rest = list(_tree(each, "")) or [""]
            yield f"{indent}- {first}"
            yield from (f"{indent}  {line}" for line in rest)
        else:
            yield f"{indent}- {_scalar(each)}"
    if len(value) > _MOST:
        yield f"{indent}(and {len(value) - _MOST} more: -o yaml shows all)"


def _scalar(value: Any) -> str:
    if value is True or value is False:
        return "true" if value else "false"
    return clean(str(value)) if value != "" else '""'


def _conditions(conditions: tuple[Condition, ...], now: datetime, style: Style) -> Iterator[str]:
    rows = [
        (each.type, each.status, tables.age(each.last_transition_time, now), each.reason, each.message)
        for each in conditions
    ]
    for line in table(("TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"), rows, style, right=frozenset()):
        yield f"  {line}"
