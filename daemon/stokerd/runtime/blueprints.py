"""Changes to a container's blueprint: pure functions on what CRI says a container was made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stokerd.runtime.pod_types import Blueprint


def renewed(
    blueprint: Blueprint,
    *,
    attempt: int,
    image: str | None = None,
    env: Mapping[str, str | None] | None = None,
    labels: Mapping[str, str | None] | None = None,
) -> Blueprint:
    """Return a copy for the attempt *attempt*; everything that is not named stays as it is.

    *image* replaces the image reference and all else that the old image's entry said. *env* and *labels* set (str) or
    take away (None) the names given; environment keeps its order, new names come last.
    """
    config: dict[str, Any] = dict(blueprint.config)
    config["metadata"] = {**config.get("metadata", {}), "attempt": attempt}
    if image is not None:
        config["image"] = {"image": image, "user_specified_image": image}
    if env:
        config["envs"] = _merged_env(config.get("envs") or [], env)
    if labels:
        merged = {**(config.get("labels") or {}), **labels}
        config["labels"] = {key: value for key, value in merged.items() if value is not None}
    return Blueprint(config)


def _merged_env(present: list[dict[str, Any]], changes: Mapping[str, str | None]) -> list[dict[str, Any]]:
    left = {name: value for name, value in changes.items() if value is not None}
    merged: list[dict[str, Any]] = []
    for entry in present:
        name = entry.get("key", "")
        if name not in changes:
            merged.append(entry)
        elif name in left:
            merged.append({"key": name, "value": left.pop(name)})
    return merged + [{"key": name, "value": value} for name, value in left.items()]
