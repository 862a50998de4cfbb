"""Jobs, their items, and the pulls that several jobs may share: the service's state, changed on the event loop only."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec.structs import replace

from stokerd.images.progress import PullProgress
from stokerd.journal.rows import ItemRow, JobRow, JobState, Phase
from stokerd.registry.credentials import Credential
from stokerd.registry.references import Reference

FINAL: frozenset[Phase] = frozenset({"Succeeded", "Failed", "Cancelled"})


class Item:
    """One image of a job. ``pulling_since`` and ``pulled_for`` clock its deadline: waiting does not count.

    ``attempt_since`` is when the attempt that runs for it began (seconds since the epoch), None while none does;
    ``failed`` counts those that count against the attempts of its job.
    """

    __slots__ = (
        "attempt_since",
        "failed",
        "job",
        "next_attempt_at",
        "progress",
        "pulled_for",
        "pulling_since",
        "reference",
        "remark",
        "row",
    )

    def __init__(self, job: Job, row: ItemRow, reference: Reference) -> None:
        self.job = job
        self.row = row
        self.reference = reference
        self.progress = PullProgress()
        self.pulling_since: float | None = None
        self.pulled_for = 0.0
        self.attempt_since: float | None = None
        self.failed = 0
        self.next_attempt_at: float | None = None
        self.remark = ""

    @property
    def finished(self) -> bool:
        return self.row.phase in FINAL

    @property
    def key(self) -> str:
        """What is pulled: items of one key share one pull."""
        return self.reference.pull_spec

    @property
    def always(self) -> bool:
        """The registry has to be asked, even if the image is there."""
        return self.job.row.policy == "Always"

    @property
    def lost_auths(self) -> bool:
        """Credentials came with the request, but a restart of the daemon has forgotten them."""
        return self.job.row.had_auths and not self.job.auths

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

    ``running``: an attempt is made, or what follows from it is seen to; ``task`` is the attempt itself, ``taking``
    those whom it is made for. ``closing``: nobody wants the image any more, and what attempts left is being removed.
    ``failed`` counts attempts in a row, for the pauses between them.
    """

    key: str
    reference: Reference
    sequence: int
    state: Literal["waiting", "running", "closing"] = "waiting"
    items: dict[Item, None] = field(default_factory=dict)
    taking: dict[Item, None] = field(default_factory=dict)
    traces: bool = False
    """Attempts, of this run or of an earlier one, may have left something in the runtime."""
    attempt: int = 0
    failed: int = 0
    not_before: float = 0.0
    task: asyncio.Task[Any] | None = None
    asked: bool = False
    """The attempt has come to its answer, or to the registry: it is too late for requests that want that asked."""
    offered: frozenset[Credential] = frozenset()
    """Credentials of requests that the attempt goes with."""
    progress: PullProgress = field(default_factory=PullProgress)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing is left of the pull, or when somebody wants it again."""
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    _priorities: Counter[int] = field(default_factory=Counter)

    def add(self, item: Item) -> None:
        if not self.items:
            self.gone.set()
            self.gone = asyncio.Event()
        self.items[item] = None
        self._priorities[item.job.row.priority] += 1

    def remove(self, item: Item) -> None:
        del self.items[item]
        self.taking.pop(item, None)
        priority = item.job.row.priority
        self._priorities[priority] -= 1
        if not self._priorities[priority]:
            del self._priorities[priority]

    def admits(self, item: Item) -> bool:
        """Say whether the running attempt can still be one for *item*, too."""
        if self.task is None or self.task.done() or self.task.cancelling():
            return False
        return not (item.always and self.asked)

    @property
    def registry(self) -> str:
        return self.reference.host

    @property
    def priority(self) -> int:
        return max(self._priorities, default=0)

    @property
    def always(self) -> bool:
        return any(item.always for item in self.items)

    @property
    def auths(self) -> tuple[Credential, ...]:
        return tuple(dict.fromkeys(auth for item in self.items for auth in item.job.auths))


def unique(images: Iterable[tuple[str, Reference]]) -> list[tuple[str, Reference]]:
    """Return *images* with each pull named once, in the order of first mention."""
    seen: dict[str, tuple[str, Reference]] = {}
    for image, reference in images:
        seen.setdefault(reference.pull_spec, (image, reference))
    return list(seen.values())
