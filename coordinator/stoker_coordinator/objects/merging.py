"""Merge patches (RFC 7386). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge(target: Any, patch: Any) -> Any:
    """Return *target* with *patch* merged in: null takes a field away, maps are merged, everything else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result
