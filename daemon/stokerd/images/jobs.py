"""Jobs, their items, and the pulls that several jobs may share: the service's state, changed on the event loop only."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from stokerd.images.progress import PullProgress
from stokerd.journal.rows import ItemRow, JobRow, JobState, Phase
from stokerd.registry.credentials import Credential
from stokerd.registry.references import Reference

FINAL: frozenset[Phase] = frozenset({"Succeeded", "Failed", "Cancelled"})


class Item:
    """One image of a job. ``pulling_since`` and ``pulled_for`` clock its deadline: waiting does not count."""

    __slots__ = ("job", "next_attempt_at", "progress", "pulled_for", "pulling_since", "reference", "remark", "row")

    def __init__(self, job: Job, row: ItemRow, reference: Reference) -> None:
        self.job = job
        self.row = row
        self.reference = reference
        self.progress = PullProgress()
        self.pulling_since: float | None = None
        self.pulled_for = 0.0
        self.next_attempt_at: float | None = None
        self.remark = ""

    @property
    def finished(self) -> bool:
        return self.row.phase in FINAL

    @property
    def key(self) -> str:
        """What is pulled: items of one key share one pull."""
        return self.reference.pull_spec

    def remaining(self, now: float) -> float | None:
        """Return how many seconds of pulling are left, None without a deadline."""
        if self.job.row.timeout is None:
            return None
        running = now - self.pulling_since if self.pulling_since is not None else 0.0
        return self.job.row.timeout - self.pulled_for - running

    def stop_clock(self, now: float) -> None:
        if self.pulling_since is not None:
            self.pulled_for += now - self.pulling_since
            self.pulling_since = None


class Job:
    """A warm request."""

    def __init__(self, row: JobRow, auths: tuple[Credential, ...] = ()) -> None:
        self.row = row
        self.auths = auths
        self.items: list[Item] = []
        self.counts: Counter[Phase] = Counter()
        self.done = asyncio.Event()

    def add(self, row: ItemRow, reference: Reference) -> Item:
        item = Item(self, row, reference)
        self.items.append(item)
        self.counts[row.phase] += 1
        return item

    def change(self, item: Item, **changes: Any) -> None:
        """Change an item's row, and with its last item the job's state."""
        before = item.row.phase
        item.row = replace(item.row, **changes)
        if item.row.phase != before:
            self.counts[before] -= 1
            self.counts[item.row.phase] += 1

    @property
    def unfinished(self) -> int:
        return self.counts["Waiting"] + self.counts["Pulling"]

    def close(self, now: float) -> None:
        """Settle the state of a job whose items are all finished."""
        state: JobState = "Succeeded"
        if self.counts["Failed"]:
            state = "Failed"
        elif self.counts["Cancelled"]:
            state = "Cancelled"
        self.row = replace(self.row, state=state, finished_at=now)
        self.auths = ()
        self.done.set()


@dataclass(eq=False)
class Pull:
    """One image being pulled, or waiting to be, for all the items that want it.

    ``task`` is the running attempt; a pull that nobody wants any more is ``closing`` until its remains are gone.
    """

    key: str
    reference: Reference
    sequence: int
    items: list[Item] = field(default_factory=list)
    attempt: int = 0
    failed: int = 0
    not_before: float = 0.0
    running: bool = False
    closing: bool = False
    task: asyncio.Task[Any] | None = None
    progress: PullProgress = field(default_factory=PullProgress)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    joined: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def registry(self) -> str:
        return self.reference.host

    @property
    def priority(self) -> int:
        return max((item.job.row.priority for item in self.items), default=0)

    @property
    def always(self) -> bool:
        return any(item.job.row.policy == "Always" for item in self.items)

    @property
    def auths(self) -> tuple[Credential, ...]:
        return tuple(dict.fromkeys(auth for item in self.items for auth in item.job.auths))

    @property
    def lost_auths(self) -> bool:
        """Credentials came with a request, but a restart of the daemon has forgotten them."""
        return any(item.job.row.had_auths and not item.job.auths for item in self.items)


def unique(images: Iterable[tuple[str, Reference]]) -> list[tuple[str, Reference]]:
    """Return *images* with each pull named once, in the order of first mention."""
    seen: dict[str, tuple[str, Reference]] = {}
    for image, reference in images:
        seen.setdefault(reference.pull_spec, (image, reference))
    return list(seen.values())
