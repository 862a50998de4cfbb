"""Join tokens: what they look like, and when one is good. Pure.

``stoker-join.<id>.<secret>``: the id finds it, the secret proves it. Only a digest of the secret is kept; the secret is
24 random bytes, so a plain digest is as good as a slow one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Literal

from msgspec import Struct

from stoker_coordinator.nodes.names import NODE_NAME

_FORM = re.compile(r"stoker-join\.([0-9a-f]{12})\.([A-Za-z0-9_-]{32})")

Verdict = Literal["", "UnknownToken", "TokenExpired", "TokenUsedUp", "TokenRevoked", "TokenForAnotherNode", "WrongName"]


class Token(Struct, frozen=True):
    """What is kept of a token. Times are seconds since the epoch."""

    id: str
    digest: bytes
    created_at: float
    expires_at: float
    uses_left: int
    node: str = ""
    """Only for this node; empty: for any that has not joined yet."""
    revoked: bool = False
    note: str = ""


def parse(text: str) -> tuple[str, str] | None:
    """Return id and secret of a token, None when it is none."""
    match = _FORM.fullmatch(text.strip()[:200])
    return (match[1], match[2]) if match else None


def text_of(identity: str, secret: str) -> str:
    return f"stoker-join.{identity}.{secret}"


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("ascii")).digest()


def judge(token: Token | None, secret: str, node: str, now: float, *, joined: bool) -> Verdict:
    """Say why a token is not good for *node*; empty: it is. *joined*: a node of this name has joined before, so only a
    token that names it lets another key have the name."""
    if token is None or not hmac.compare_digest(token.digest, digest_of(secret)):
        return "UnknownToken"
    if token.revoked:
        return "TokenRevoked"
    if now >= token.expires_at:
        return "TokenExpired"
    if token.uses_left <= 0:
        return "TokenUsedUp"
    if NODE_NAME.fullmatch(node) is None:
        return "WrongName"
    if token.node != node and (token.node or joined):
        return "TokenForAnotherNode"
    return ""


SAYS: dict[Verdict, tuple[str, str]] = {
    "UnknownToken": ("there is no such join token", "make one with `stoker --server ... nodes token`"),
    "TokenExpired": ("the join token has expired", "make a new one"),
    "TokenUsedUp": ("the join token has been used as often as it may be", "make a new one for each node"),
    "TokenRevoked": ("the join token was revoked", "make a new one"),
    "TokenForAnotherNode": (
        "the join token is not for a node of this name",
        "a node of this name has joined before, or the token names another one: make a token for this name",
    ),
    "WrongName": ("this is no name for a node", "lower-case letters, digits, hyphens and dots, as in host names"),
}
"""What a node is told, and what its people can do."""
