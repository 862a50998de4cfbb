"""What is sent of one document: all of it, what has changed, or nothing. Pure.

Only the newest state is kept beside the one that was sent: however slowly the coordinator reads, nothing piles up.
"""

from __future__ import annotations

from typing import Any

from stoker import link_documents as documents
from stoker.objects.link import MAX_MESSAGE, Delta, Document, Full

_MARGIN = 4096
_TOO_LARGE = MAX_MESSAGE - _MARGIN


class Outgoing:
    """One document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problem = ""
        """Why it cannot be sent as it is."""
        self._latest = b""
        self._latest_digest = ""
        self._sent = b""
        self._sent_digest = ""
        self._sequence = 0

    def offer(self, content: Any) -> bool:
        """Take the document as it is now; say whether there is anything to send."""
        text = documents.canonical(content)
        digest = documents.digest_of(text)
        if digest != self._latest_digest:
            self._latest, self._latest_digest = documents.pack(text), digest
        return self.pending

    @property
    def pending(self) -> bool:
        return bool(self._latest_digest) and self._latest_digest != self._sent_digest

    def begin(self, known: str) -> None:
        """Begin a stream on whose other end the document is in the state *known*; empty: it is not there."""
        self._sequence = 0
        if known and known == self._latest_digest:
            self._sent, self._sent_digest = self._latest, known
        elif not known or known != self._sent_digest:
            self.forget()

    def forget(self) -> None:
        """The other end needs all of it."""
        self._sent, self._sent_digest = b"", ""

    def take(self) -> Full | Delta | None:
        """Return what to send now; it counts as sent then."""
        if not self.pending:
            return None
        message = self._message()
        self.problem = ""
        if len(message.body) > _TOO_LARGE:
            self.problem = f"the {self.document} document is too large: {len(message.body)} bytes packed"
        self._sent, self._sent_digest = self._latest, self._latest_digest
        if self.problem:
            return None
        self._sequence += 1
        return message

    def _message(self) -> Full | Delta:
        number = self._sequence + 1
        if self._sent_digest:
            before, after = (documents.read(documents.unpack(each)) for each in (self._sent, self._latest))
            body = documents.pack(documents.canonical(documents.compare(before, after)))
            if len(body) < len(self._latest):
                return Delta(
                    document=self.document,
                    sequence=number,
                    base=self._sent_digest,
                    digest=self._latest_digest,
                    body=body,
                )
        return Full(document=self.document, sequence=number, digest=self._latest_digest, body=self._latest)
