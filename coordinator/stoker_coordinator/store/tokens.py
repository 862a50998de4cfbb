"""Continue tokens: where the next page of a list begins, and of which moment it is. Pure."""

from __future__ import annotations

import base64
import binascii

import msgspec
from msgspec import Struct

from stoker_coordinator.errors import Invalid

_LONGEST = 2048


class Place(Struct, frozen=True, array_like=True):
    """The last object of a page, and the revision of the list."""

    kind: str
    revision: int
    namespace: str
    name: str


def write(place: Place) -> str:
    """Return a place as a token."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def read(token: str, kind: str) -> Place:
    """Return the place that a token is; Invalid when it is none, or one of another kind."""
    try:
        raw = token.encode("ascii")
        if len(raw) > _LONGEST:
            raise ValueError
        place = msgspec.json.decode(base64.urlsafe_b64decode(raw + b"=" * (-len(raw) % 4)), type=Place)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise Invalid("this continue token is none of ours", hint="begin the list anew") from None
    if place.kind != kind or place.revision < 0:
        raise Invalid(f"this continue token is of a list of {place.kind[:40]}", hint="begin the list anew")
    return place
