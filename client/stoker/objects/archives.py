"""Objects about what leaves a node and enters it: pushes, and checkpoints from elsewhere."""

from __future__ import annotations

from msgspec import field

from stoker.objects.images import InlineAuth, Request


class ImagePushRequest(Request):
    """``POST /v1/images/push``: push an image of the node to a registry."""

    image: str
    to: str = ""
    """The name that it gets there; empty: its own."""
    auths: list[InlineAuth] = field(default_factory=list)
    request: str = ""
    """As in CheckpointRequest."""


class CheckpointPushRequest(Request):
    """``POST /v1/checkpoints/{id}/push``: push a checkpoint as an artifact."""

    to: str
    auths: list[InlineAuth] = field(default_factory=list)
    request: str = ""


class CheckpointPullRequest(Request):
    """``POST /v1/checkpoints/pull``: get a checkpoint that somebody has pushed.

    Exactly one of ``like`` and ``trust`` says what clones of it may do: as much as a container of this node, which is
    named as in CheckpointRequest; or what a plain container may, for those who trust its maker as they trust root.
    """

    reference: str
    like: str = ""
    trust: bool = False
    name: str = ""
    """Under which it can be found here; empty: its own."""
    auths: list[InlineAuth] = field(default_factory=list)
    request: str = ""
