"""Settings as pages of documentation: every key with its default, what it can be, and the words beside its field."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from stoker.toml_settings import PositiveSeconds, Unit

_TIMES = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_ENDLESS = {"seconds": get_args(PositiveSeconds)[1].most, "bytes": 1 << 60, "count": 10**9}

IsLive = Callable[[type[Any], str], bool]


def render(settings: type[Any], head: str, is_live: IsLive | None = None) -> str:
    """Return a page with a table for each part of *settings*. *is_live*: whether a field changes at a reload; None: the
    program has no reload, and the tables no column for it."""
    made = settings()
    parts = ["\n".join(_part(type(getattr(made, part.name)), is_live)) for part in fields(settings)]
    return "\n".join([head, *parts])


def _part(kind: type[Any], is_live: IsLive | None) -> Iterator[str]:
    texts = field_texts(kind)
    title, _, rest = " ".join((inspect.getdoc(kind) or "").split()).partition(": ")
    yield f"## {title.strip('`')}"
    yield ""
    yield rest[:1].upper() + rest[1:]
    yield ""
    yield f"| key | default | value |{' reload |' if is_live is not None else ''} what it does |"
    yield f"|---|---|---|{'---|' if is_live is not None else ''}---|"
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        value = getattr(kind(), field.name)
        default = f"`{_written(value, hints[field.name])}`" if value is not None else "none"
        reload = "" if is_live is None else f"{'yes' if is_live(kind, field.name) else 'restart'} | "
        text = texts[field.name].replace("``", "`").replace("|", "\\|")
        yield f"| `{field.name}` | {default} | {_values(hints[field.name])} | {reload}{text} |"
    yield ""


def field_texts(kind: type[Any]) -> dict[str, str]:
    """Return the docstring of each field on one line; Python itself does not keep them."""
    (found,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(found, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, after in zip(found.body, found.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            texts[ast.unparse(field.target)] = " ".join(str(after.value.value).split())
    return texts


def _unit(hint: Any) -> Unit | None:
    return next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Unit)), None)


def _bare(hint: Any) -> Any:
    if get_origin(hint) is UnionType:
        return _bare(next(each for each in get_args(hint) if each is not type(None)))
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _values(hint: Any) -> str:
    """Return the kind and the range of a setting in words."""
    unit, bare = _unit(hint), _bare(hint)
    if unit is not None:
        what = {"count": "number", "seconds": "duration", "bytes": "size", "percent": "percent", "share": "share"}
        least, most = _number(unit.least, unit), _number(unit.most, unit)
        if unit.most >= _ENDLESS.get(unit.kind, float("inf")):
            return what[unit.kind] if not unit.least else f"{what[unit.kind]}, at least {least}"
        return f"{what[unit.kind]}, {least} to {most}"
    if get_origin(bare) is Literal:
        return ", ".join(f'`"{choice}"`' for choice in get_args(bare))
    if get_origin(bare) is tuple:
        return "list of paths" if get_args(bare)[0] is Path else "list of texts"
    if bare is bool:
        return "`true`, `false`"
    return "absolute path" if bare is Path else "text"


def _written(value: Any, hint: Any) -> str:
    """Return a default as it would stand in the file."""
    unit = _unit(hint)
    if unit is not None:
        text = _number(value, unit)
        return f'"{text}"' if not text[-1].isdigit() else text
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{entry}"' for entry in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"'


def _number(value: float, unit: Unit) -> str:
    if unit.kind == "seconds" and value:
        if value < 1:
            return f"{value * 1000:g}ms"
        return next(f"{value / size:g}{name}" for size, name in _TIMES if value >= size and value % size == 0)
    if unit.kind == "bytes" and value:
        return next((f"{value / size:g}{name}" for size, name in _SIZES if value % size == 0), str(int(value)))
    return f"{value:g}" if value < 1e6 or unit.kind == "share" else f"{value:.0f}"


def write_or_check(arguments: list[str], render: Callable[[], str], module: str) -> int:
    """Print a page, or with ``--check FILE`` compare it with a file: 0 the same, 1 stale, 2 other arguments."""
    import sys

    if not arguments:
        sys.stdout.write(render())
        return 0
    if len(arguments) != 2 or arguments[0] != "--check":
        sys.stderr.write(f"usage: python -m {module} [--check FILE]\n")
        return 2
    if Path(arguments[1]).read_text(encoding="utf-8") == render():
        return 0
    sys.stderr.write(f"{arguments[1]} is stale: python -m {module} > {arguments[1]}\n")
    return 1
