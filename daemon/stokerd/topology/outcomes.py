"""How a reading of a source went, and how a reader says that there is no such source."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Absent(Exception):
    """There is no such source; without a text it is not even worth a word."""


class Outcome(msgspec.Struct, frozen=True):
    """How a reading went. A source that is absent without a reason is not in the report at all."""

    state: Literal["ok", "absent", "failed"]
    reason: str = ""
    data: Any = None
    """Of the kind that the collector's field of `knowledge.Knowledge` has."""
