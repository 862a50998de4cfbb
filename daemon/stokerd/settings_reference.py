"""Writes docs/configuration.md from settings.py, where every setting is described beside its field.

python -m stokerd.settings_reference > docs/configuration.md
python -m stokerd.settings_reference --check docs/configuration.md
"""

# ruff: noqa: T201 - a program for developers

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from stokerd import settings
from stokerd.settings import Settings, Unit, is_live

_HEAD = """\
# Configuration

<!-- Made from daemon/stokerd/settings.py by `python -m stokerd.settings_reference > docs/configuration.md`. -->

stokerd reads one TOML file, `/etc/stoker/stokerd.toml` where it is installed as a service (`stokerd --config FILE`
elsewhere). Every setting has a default, so the file may be empty. `stokerd --check-config --config FILE`
prints all errors at once and starts nothing.

- Durations are strings such as `"90s"`, `"10m"`, `"24h"`, or numbers of seconds.
- Sizes are strings such as `"512MiB"`, `"2GiB"`, or numbers of bytes.
- **Reload** says whether a changed value holds as soon as the file is read again, by `stoker reload`, `systemctl reload
  stokerd` or SIGHUP; running work goes on. The others need `systemctl restart stokerd`, which parks running work and
  takes it up again. A file with errors changes nothing: all its errors are logged, and `systemctl status stokerd` and
  `stoker doctor` say so.
"""
_TIMES = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_ENDLESS = {"seconds": get_args(settings.PositiveSeconds)[1].most, "bytes": 1 << 60, "count": 10**9}


def render() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for part in fields(Settings):
        parts.append("\n".join(_part(type(getattr(Settings(), part.name)))))
    return "\n".join(parts)


def _part(kind: type[Any]) -> Iterator[str]:
    texts = _field_texts(kind)
    title, _, rest = " ".join((inspect.getdoc(kind) or "").split()).partition(": ")
    yield f"## {title.strip('`')}"
    yield ""
    yield _sentence(rest)
    yield ""
    yield "| key | default | value | reload | what it does |"
    yield "|---|---|---|---|---|"
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        default = _written(getattr(kind(), field.name), hints[field.name])
        reload = "yes" if is_live(kind, field.name) else "restart"
        text = texts[field.name].replace("``", "`").replace("|", "\\|")
        yield f"| `{field.name}` | `{default}` | {_values(hints[field.name])} | {reload} | {text} |"
    yield ""


def _field_texts(kind: type[Any]) -> dict[str, str]:
    """Return the docstring of each field on one line; Python itself does not keep them."""
    (found,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(found, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, after in zip(found.body, found.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            texts[ast.unparse(field.target)] = " ".join(str(after.value.value).split())
    return texts


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _unit(hint: Any) -> Unit | None:
    return next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Unit)), None)


def _bare(hint: Any) -> Any:
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
    return "absolute path" if bare is Path else "text"


def _written(value: Any, hint: Any) -> str:
    """Return a default as it would stand in the file."""
    unit = _unit(hint)
    if unit is not None:
        text = _number(value, unit)
        return f'"{text}"' if not text[-1].isdigit() else text
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{entry}"' for entry in value) + "]"
    return f'"{value}"'


def _number(value: float, unit: Unit) -> str:
    if unit.kind == "seconds" and value:
        if value < 1:
            return f"{value * 1000:g}ms"
        return next(f"{value / size:g}{name}" for size, name in _TIMES if value >= size and value % size == 0)
    if unit.kind == "bytes" and value:
        return next((f"{value / size:g}{name}" for size, name in _SIZES if value % size == 0), str(int(value)))
    return f"{value:g}" if value < 1e6 or unit.kind == "share" else f"{value:.0f}"


def main(arguments: list[str]) -> int:
    """Print the page, or compare it with a file: 0 the same, 1 stale."""
    if not arguments:
        print(render(), end="")
        return 0
    if len(arguments) != 2 or arguments[0] != "--check":
        print("usage: python -m stokerd.settings_reference [--check FILE]", file=sys.stderr)
        return 2
    if Path(arguments[1]).read_text(encoding="utf-8") == render():
        return 0
    print(f"{arguments[1]} is stale: python -m stokerd.settings_reference > {arguments[1]}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
