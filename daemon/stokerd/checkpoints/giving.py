"""What is given to one clone alone: environment, files. Pure.

A restored process keeps the environment that it had: a new one is put where programs can read it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from stokerd.checkpoints.clone_types import CloneWish
from stokerd.errors import InvalidInput

ENV_FILE = "/run/stoker/env"
"""The environment, one ``NAME='value'`` a line, as a shell reads it; readable for the program's user alone."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST = 16 << 20
_LONGEST = 4096


def given_files(wish: CloneWish, spec: Mapping[str, Any], own: Collection[str]) -> dict[str, bytes]:
    """Return all files that the clone is given, by their path in it; InvalidInput for what cannot be.

    *own* are files that each clone has for itself anyhow, such as /etc/resolv.conf; what is on other mounts is shared.
    """
    files = dict(wish.files)
    if wish.env:
        if ENV_FILE in files:
            raise InvalidInput(f"{ENV_FILE} is where the environment is put: give only one of them")
        files[ENV_FILE] = environment(wish.env)
    if sum(map(len, files.values())) > _MOST:
        raise InvalidInput(f"files for a clone may have {_MOST >> 20} MiB together")
    mounts = [str(each.get("destination")) for each in spec.get("mounts") or []]
    for path in files:
        _check(path)
        above = next((each for each in mounts if _below(path, each) and path not in own), None)
        if above is not None:
            raise InvalidInput(f"{path} is on the mount {above}, and would not be the clone's own")
    return files


def environment(env: Mapping[str, str]) -> bytes:
    """Write an environment as a shell reads it."""
    for name, value in env.items():
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{name[:80]!r} is no name for a variable of the environment")
        if "\0" in value:
            raise InvalidInput(f"the value of {name} holds a byte that no environment can")
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(env.items()))
    return text.encode("utf-8", "surrogateescape")


def hook_process(spec: Mapping[str, Any], wish: CloneWish) -> dict[str, Any]:
    """Return the process that a hook is: the container's own in all but what it runs."""
    process = {**(spec.get("process") or {}), "args": list(wish.hook), "terminal": False}
    process.pop("consoleSize", None)
    process["env"] = [*(process.get("env") or ()), *(f"{name}={value}" for name, value in wish.env.items())]
    return process


def owner_of(spec: Mapping[str, Any]) -> tuple[int, int]:
    """Return the user and group that the program runs as."""
    user = (spec.get("process") or {}).get("user") or {}
    return int(user.get("uid") or 0), int(user.get("gid") or 0)


def _check(path: str) -> None:
    steps = path.split("/")
    if not path.startswith("/") or path.endswith("/") or "\0" in path or len(path) > _LONGEST:
        raise InvalidInput(f"{path[:80]!r} is no absolute path of a file")
    if any(step in {"", ".", ".."} for step in steps[1:]):
        raise InvalidInput(f"{path[:80]!r} is no plain path: it has empty steps, or . or ..")


def _below(path: str, mount: str) -> bool:
    return mount != "/" and (path == mount or path.startswith(f"{mount.rstrip('/')}/"))
