"""What crosses between a node and its coordinator, as messages in msgpack (docs/coordinator-link.md).

One stream a node. Up: what the node is, has and did. Down: what it should do, always the whole of it, so that a
message that is lost is repaired by the next one. Unknown fields and unknown messages are passed over, so that either
side may be newer than the other; what both speak is agreed on at the start.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct, field

from stoker.objects.checkpoints import CheckpointRequest, CloneRequest
from stoker.objects.images import InlineAuth

PROTOCOL = 1
"""Newest version that is spoken here. It grows when a message comes to mean something else, not when one is added."""
LEAST_PROTOCOL = 1
"""Oldest version that is still spoken here."""

SERVICE = "stoker.dev.v1.NodeLink"
CONNECT = f"/{SERVICE}/Connect"
JOIN_SERVICE = "stoker.dev.v1.NodeJoin"
JOIN = f"/{JOIN_SERVICE}/Join"

MAX_MESSAGE = 4 << 20
"""Bytes of one message, either way; gRPC breaks the stream on more."""
MAX_DOCUMENT = 16 << 20
"""Bytes of one document when it is unpacked."""
MAX_RESULTS = 64
"""Results in one message."""

# What the other side says is a text: it may be newer, and know more of these.
Document = Literal["topology", "load", "images", "pods", "checkpoints"]
WishKind = Literal["warm", "recreate", "checkpoint", "clone", "commit", "policy"]
ResultPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Cancelled"]
FINAL: tuple[ResultPhase, ...] = ("Succeeded", "Failed", "Cancelled")


class Message(Struct, tag_field="t", omit_defaults=True, kw_only=True, frozen=True):
    """Base of all messages."""


# ---------------------------------------------------------------------------------------------- up


class Known(Struct, omit_defaults=True, frozen=True):
    """A state of a document, by its digest."""

    document: str
    digest: str


class Hello(Message, tag="hello", frozen=True):
    """First message of a stream."""

    node: str
    protocol: int = PROTOCOL
    least_protocol: int = LEAST_PROTOCOL
    boot_id: str = ""
    """The kernel's; another one after each boot."""
    machine_id: str = ""
    """Of the installation. Two machines with the same name and different ones of these are two machines."""
    instance: str = ""
    """Made by chance at each start of stokerd: who comes back with an old one was there all the time."""
    version: str = ""
    runtime: str = ""
    """Name and version, with a blank between them."""
    capabilities: dict[str, str] = field(default_factory=dict)
    """What the node can do; with a text: why it cannot."""
    addresses: list[str] = field(default_factory=list)
    generation: int = 0
    """Of the last Desired that was taken up."""


class Heartbeat(Message, tag="beat", frozen=True):
    """The node is there."""

    ready: bool = True
    problem: str = ""
    """Why it is not ready, in words."""
    free_bytes: int = 0
    nonce: int = 0
    """Of the Probe that this answers."""


class About(Message, tag="about", frozen=True):
    """What the Hello said of the node, where that has changed: containerd was replaced, CRIU has been looked at."""

    runtime: str = ""
    capabilities: dict[str, str] = field(default_factory=dict)


class Full(Message, tag="full", frozen=True):
    """A document as it is. ``body``: its JSON, packed (`stoker.link_documents`)."""

    document: str
    sequence: int
    """Of this document on this stream: 1, 2, 3 ..."""
    digest: str
    body: bytes


class Delta(Message, tag="delta", frozen=True):
    """What has become of a document. It means something only to who has the document in the state ``base``."""

    document: str
    sequence: int
    base: str
    digest: str
    """Of the document as it is then."""
    body: bytes


class Result(Struct, omit_defaults=True, kw_only=True, frozen=True):
    """How far a wish is. One with a final phase is said again until it is acknowledged."""

    uid: str
    generation: int
    kind: str
    phase: ResultPhase
    reason: str = ""
    message: str = ""
    hint: str = ""
    detail: Raw = field(default_factory=lambda: Raw(b"\xc0"))
    """JobStatus, RecreateStatus or Operation, in msgpack; nil where there is none."""


class Results(Message, tag="results", frozen=True):
    results: list[Result]


class Renew(Message, tag="renew", frozen=True):
    """Asks for a new certificate, while the old one holds."""

    csr: bytes


# ---------------------------------------------------------------------------------------------- down


class Welcome(Message, tag="welcome", frozen=True):
    """First answer: what both go by."""

    protocol: int
    version: str = ""
    heartbeat_seconds: float = 10.0
    known: list[Known] = field(default_factory=list)
    """Documents that the coordinator still has from this node: with the same digest none need be sent, and deltas may
    begin with it."""
    cluster: str = ""


class Refused(Message, tag="refused", frozen=True):
    """Instead of Welcome, or later: the stream ends. The node tries again, after so long."""

    reason: str
    message: str
    hint: str = ""
    retry_seconds: float = 60.0


class Wish(Struct, omit_defaults=True, kw_only=True, frozen=True):
    """One thing that the node should do. The same uid and generation is the same wish, however often it is said."""

    uid: str
    generation: int
    kind: str
    name: str = ""
    """For people."""
    spec: Raw = field(default_factory=lambda: Raw(b"\xc0"))
    """WarmRequest, RecreateRequest, CheckpointWish, CloneWish or CommitRequest, in msgpack. It may hold secrets."""
    done: bool = False
    """It is over, and nothing more is to be done, but what it made is to stay: nil stands in place of the spec. Clones
    are wished for so as long as their object is there."""

    def __repr__(self) -> str:
        return f"Wish(uid={self.uid!r}, generation={self.generation}, kind={self.kind!r}, name={self.name!r})"


class CheckpointWish(Struct, omit_defaults=True, kw_only=True, frozen=True):
    """A checkpoint, and where it is pushed to once it is made; it stays when that fails."""

    request: CheckpointRequest
    destination: str = ""
    auths: list[InlineAuth] = field(default_factory=list)


class CloneWish(Struct, omit_defaults=True, kw_only=True, frozen=True):
    """Clones. A node without the checkpoint, or that is told of none, gets it from ``reference`` first, and goes by
    ``like`` or ``trust`` as in CheckpointPullRequest."""

    request: CloneRequest
    reference: str = ""
    like: str = ""
    trust: bool = False
    auths: list[InlineAuth] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"CloneWish(checkpoint={self.request.checkpoint!r}, reference={self.reference!r}, ...)"


class Desired(Message, tag="desired", frozen=True):
    """Everything that the node should do. What is missing here that was there before is wished for no more: work is
    broken off, and clones are removed."""

    generation: int
    wishes: list[Wish] = field(default_factory=list)
    paused: bool = False
    """Begin nothing new; what runs goes on."""


class ResultKey(Struct, frozen=True):
    uid: str
    generation: int


class Ack(Message, tag="ack", frozen=True):
    """These results are kept: they need not be said again."""

    results: list[ResultKey]


class Resync(Message, tag="resync", frozen=True):
    """Send this document in full: what came does not fit what is here."""

    document: str
    why: str = ""


class Probe(Message, tag="probe", frozen=True):
    """Asks for a heartbeat at once: is this one still there?"""

    nonce: int


class Notice(Message, tag="notice", frozen=True):
    """Something that people at the node should know; it is logged there."""

    reason: str
    message: str
    hint: str = ""


class Certificate(Message, tag="certificate", frozen=True):
    """Answer to Renew."""

    chain: bytes
    """PEM."""
    not_after: float


UpMessage: TypeAlias = Hello | Heartbeat | About | Full | Delta | Results | Renew
DownMessage: TypeAlias = Welcome | Refused | Desired | Ack | Resync | Probe | Notice | Certificate


# ---------------------------------------------------------------------------------------------- joining


class JoinRequest(Struct, omit_defaults=True, kw_only=True, frozen=True):
    """A token and a key's proof, for a certificate."""

    token: str
    node: str
    csr: bytes
    """PEM."""

    def __repr__(self) -> str:
        return f"JoinRequest(node={self.node!r}, [redacted])"


class JoinAnswer(Struct, omit_defaults=True, kw_only=True, frozen=True):
    """The certificate, or why there is none."""

    chain: bytes = b""
    not_after: float = 0.0
    reason: str = ""
    message: str = ""
    hint: str = ""


# ---------------------------------------------------------------------------------------------- bytes


class Unknown(Struct, frozen=True):
    """A message of a kind that is not known here, from a newer peer: passed over."""

    kind: str


class _Tag(Struct):
    t: str


_encoder = msgspec.msgpack.Encoder()
_up = msgspec.msgpack.Decoder(UpMessage)
_down = msgspec.msgpack.Decoder(DownMessage)
_tag = msgspec.msgpack.Decoder(_Tag)
_UP_KINDS = frozenset({"hello", "beat", "about", "full", "delta", "results", "renew"})
_DOWN_KINDS = frozenset({"welcome", "refused", "desired", "ack", "resync", "probe", "notice", "certificate"})

encode = _encoder.encode


def decode_up(data: bytes) -> UpMessage | Unknown:
    """Return a message of a node. msgspec.DecodeError, ValidationError among them, when it is none."""
    try:
        return _up.decode(data)
    except msgspec.ValidationError:
        return _unknown(data, _UP_KINDS)


def decode_down(data: bytes) -> DownMessage | Unknown:
    """Return a message of a coordinator; msgspec.DecodeError as above."""
    try:
        return _down.decode(data)
    except msgspec.ValidationError:
        return _unknown(data, _DOWN_KINDS)


def _unknown(data: bytes, kinds: frozenset[str]) -> Unknown:
    kind = _tag.decode(data).t
    if kind in kinds:
        raise  # noqa: PLE0704 - called while the error is handled: it is the message itself that is wrong
    return Unknown(kind[:64])


def agree(protocol: int, least: int) -> int:
    """Return the newest version that both sides speak; 0: there is none."""
    common = min(protocol, PROTOCOL)
    return common if common >= max(least, LEAST_PROTOCOL) else 0
