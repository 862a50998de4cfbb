"""What is pushed, from where it is read, and how a push is told of. Pure."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from stokerd.registry.references import Reference

BlobState = Literal["existing", "mounted", "fetching", "sending", "sent"]


class Blob(msgspec.Struct, frozen=True):
    """A blob to be pushed. ``mounts`` are repositories of the same registry that may have it."""

    digest: str
    size: int
    mounts: tuple[str, ...] = ()


class Document(msgspec.Struct, frozen=True):
    """A manifest or an index, under its digest and, for the last one, under a tag."""

    media_type: str
    digest: str
    body: bytes
    tag: str = ""


class Load(msgspec.Struct, frozen=True):
    """All that is pushed; a document comes after those that it names."""

    blobs: tuple[Blob, ...]
    documents: tuple[Document, ...]


class Contents(Protocol):
    """Where blobs are read from."""

    async def obtain(self, blob: Blob) -> None:
        """Make sure that the blob can be read, or raise why it cannot."""
        ...

    async def read(self, blob: Blob, offset: int, size: int) -> bytes:
        """Return *size* bytes, or fewer, but at least one."""
        ...


class Moved(msgspec.Struct, frozen=True):
    """How far one blob is; ``sent`` may fall back, when a registry has lost what it was sent."""

    digest: str
    size: int
    sent: int
    state: BlobState


class Pushed(msgspec.Struct, frozen=True):
    """What a push did: ``digest`` is what *reference* names in the registry now, the counts are bytes.

    ``transferred`` is what went over the network, what had to be sent again included.
    """

    reference: Reference
    digest: str
    endpoint: str
    credential: str
    sent: int = 0
    existing: int = 0
    mounted: int = 0
    transferred: int = 0


class Policy(msgspec.Struct, frozen=True):
    """How a push works. Times in seconds: ``stall`` is for one that does not move, ``answer`` for a registry that has
    all and thinks about it. A blob larger than ``chunk`` bytes is sent in pieces, so that less is lost with one."""

    parallel: int = 3
    chunk: int = 32 << 20
    attempts: int = 6
    stall: float = 60.0
    answer: float = 300.0
    pause: float = 0.25
