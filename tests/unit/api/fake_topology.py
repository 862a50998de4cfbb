"""TopologyPort with a settable report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

from stoker.objects.topology import TopologyChange, TopologyEvent, TopologyLoad, TopologyReport

THEN = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


class FakeTopology:
    """TopologyPort with a settable report."""

    def __init__(self) -> None:
        self.answer = TopologyReport(version=1, node="node-1", since=THEN)
        self.failure: Exception | None = None
        self.asked = 0
        self._readers: list[asyncio.Queue[TopologyEvent | Exception]] = []

    @property
    def readers(self) -> int:
        return len(self._readers)

    async def report(self) -> TopologyReport:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return self.answer

    async def load_of_ports(self) -> TopologyLoad:
        return TopologyLoad(node=(await self.report()).node, at=THEN)

    async def follow(self) -> AsyncGenerator[TopologyEvent, None]:
        news: asyncio.Queue[TopologyEvent | Exception] = asyncio.Queue()
        self._readers.append(news)
        try:
            yield TopologyEvent(report=self.answer)
            while True:
                event = await news.get()
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self._readers.remove(news)

    def tell(self, *subjects: str) -> None:
        """Say that these things changed."""
        changes = [
            TopologyChange(at=THEN, kind="changed", subject=subject, field="state", before="active", after="down")
            for subject in subjects
        ]
        for news in self._readers:
            news.put_nowait(TopologyEvent(changes=changes))

    def break_off(self, error: Exception) -> None:
        """Let the streams fail."""
        for news in self._readers:
            news.put_nowait(error)
