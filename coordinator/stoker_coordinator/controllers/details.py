"""What nodes say beside a result, read. Pure."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from stoker.objects.checkpoints import Operation
from stoker.objects.containers import RecreateStatus
from stoker.objects.link import Result

D = TypeVar("D", RecreateStatus, Operation)


def decode(result: Result, kind: type[D]) -> D | None:
    """Return what a result tells of, None when it tells of nothing that can be read."""
    if not bytes(result.detail):
        return None
    try:
        return msgspec.msgpack.decode(result.detail, type=kind)
    except msgspec.DecodeError:
        return None
