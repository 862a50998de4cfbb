"""Looks after what should last: pins keep their labels and end in time, kept images are warmed again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

import structlog
from msgspec.structs import replace

from stoker.objects import images as api
from stokerd.errors import InvalidInput, JournalError, LimitExceeded, NotFound, RuntimeFailure, RuntimeNotFound
from stokerd.images import pins as rules
from stokerd.images.budget import DiskBudget
from stokerd.images.clock import Clock
from stokerd.images.feed import Hub
from stokerd.images.keeps import decide_keeps
from stokerd.images.presence import Presence
from stokerd.images.space import human
from stokerd.images.views import time_of
from stokerd.journal.images import ImageJournal
from stokerd.journal.rows import KeepRow, PinRow
from stokerd.registry.references import Reference, parse_reference
from stokerd.runtime.protocol import Runtime
from stokerd.runtime.types import ImageEvent

_log = structlog.get_logger("images")
_SETTLE = 0.5
"""containerd writes the records of one image one after another: look once they are all there."""
_MAX_ROUNDS = 5
_RETRY = 5.0
"""After something broke, until it is tried again."""

Rewarm = Callable[[KeepRow], Awaitable[None]]


class Tender:
    """Pins and keeps. `run` belongs to the daemon's task group; `poke` makes it look at once."""

    def __init__(
        self,
        runtime: Runtime,
        presence: Presence,
        budget: DiskBudget,
        journal: ImageJournal,
        hub: Hub,
        clock: Clock,
        *,
        pin_limit: float,
        interval: float,
        pause_limit: float,
        busy: Callable[[], Collection[str]],
        rewarm: Rewarm,
    ) -> None:
        self._runtime = runtime
        self._presence = presence
        self._budget = budget
        self._journal = journal
        self._hub = hub
        self._clock = clock
        self._pin_limit = pin_limit
        self._interval = interval
        self._pause_limit = pause_limit
        self._busy = busy
        self._rewarm = rewarm
        self._pins: dict[str, PinRow] = {}
        self._keeps: dict[str, KeepRow] = {}
        self._references: dict[str, Reference] = {}
        self._tries: dict[str, int] = {}
        self._poked = asyncio.Event()
        self._failing = ""
        self._lock = asyncio.Lock()

    def apply(self, *, pin_limit: float, interval: float, pause_limit: float) -> None:
        """Let new settings hold; a lower limit ends no pin that there is."""
        self._pin_limit = pin_limit
        self._interval = interval
        self._pause_limit = pause_limit
        self.poke()

    async def load(self) -> None:
        self._pins = {pin.reference: pin for pin in await self._journal.pins()}
        self._keeps = {keep.reference: keep for keep in await self._journal.keeps()}
        self._references = {name: parse_reference(name) for name in (*self._pins, *self._keeps)}

    # ------------------------------------------------------------------------------------------ pins

    @property
    def pinned(self) -> dict[str, PinRow]:
        return {name: pin for name, pin in self._pins.items() if not pin.releasing}

    @property
    def kept(self) -> dict[str, KeepRow]:
        return dict(self._keeps)

    def pins_on(self, names: Collection[str]) -> list[PinRow]:
        """Return the pins on any of these names that the runtime knows images by."""
        return [pin for name, pin in self.pinned.items() if self._references[name].pull_spec in names]

    def keeps_on(self, names: Collection[str]) -> list[KeepRow]:
        """Return the keeps of any of these names that the runtime knows images by."""
        return [keep for name, keep in self._keeps.items() if self._references[name].pull_spec in names]

    async def pin(self, reference: Reference, seconds: float) -> api.PinStatus:
        """Pin an image that is there for *seconds*, 0: until it is unpinned."""
        if not 0 <= seconds <= 100 * 365 * 86400:
            raise InvalidInput(f"{reference}: cannot be pinned for {seconds:g} seconds")
        present = await self._presence.find(reference)
        if present is None:
            raise NotFound(f"{reference} is not on this node", hint=f"stoker image warm --pin … {reference}")
        name, now = str(reference), self._clock.time()
        row = PinRow(name, present.digest, present.size, now, now + seconds if seconds else None)
        async with self._lock:
            await self._check_limit(row)
            await self._journal.save_pin(row)
            self._pins[name] = row
            self._references[name] = reference
            self._poked.set()  # what breaks off now is made up for
            await self._converge_pins()
        self._tell("pinned", name)
        return await self._pin_status(row)

    async def unpin(self, reference: Reference) -> api.PinStatus:
        """End a pin; every record of the image loses its label before this returns."""
        name = str(reference)
        async with self._lock:
            row = self._pins.get(name)
            if row is None or row.releasing:
                raise NotFound(f"{reference} is not pinned by stokerd", hint="stoker image pins lists what is")
            row = await self._release(row)
            self._poked.set()
            await self._converge_pins()
        self._tell("unpinned", name)
        return await self._pin_status(row)

    async def pin_list(self) -> api.PinList:
        disk = await self._budget.read()
        rows = list(self.pinned.values())
        return api.PinList(
            pins=[await self._pin_status(row) for row in rows],
            total_bytes=rules.total_size(rows),
            limit_bytes=int(disk.total_bytes * self._pin_limit / 100),
        )

    async def _check_limit(self, row: PinRow) -> None:
        others = [pin for name, pin in self.pinned.items() if name != row.reference]
        total = rules.total_size([*others, row])
        disk = await self._budget.read()
        limit = int(disk.total_bytes * self._pin_limit / 100)
        if total > limit:
            raise LimitExceeded(
                f"pinning {row.reference} ({human(row.size)}) would bring pinned images to {human(total)}, over the "
                f"limit of {human(limit)} ({self._pin_limit:g} % of {disk.path})",
                hint="unpin something (stoker image pins), or raise images.pin_limit",
            )

    async def _pin_status(self, row: PinRow) -> api.PinStatus:
        status = await self._runtime.cri.status(self._references[row.reference].pull_spec)
        verified = bool(status and status.pinned) and not row.releasing
        message = ""
        if status is None:
            message = "the image is not on the node"
        elif not verified and not row.releasing:
            capability = self._runtime.info.capability("pin")
            message = capability.detail if not capability.available else "the runtime does not report it as pinned yet"
        return api.PinStatus(
            reference=row.reference,
            digest=row.digest,
            size=row.size,
            created_at=time_of(row.created_at),
            expires_at=time_of(row.expires_at),
            verified=verified,
            message=message,
        )

    async def _converge_pins(self) -> None:
        """Apply what the rules say until they say nothing more. The caller holds the lock."""
        for _ in range(_MAX_ROUNDS):
            records = await self._runtime.images.list()
            names = {name: self._references[name].pull_spec for name in self._pins}
            actions = rules.decide_pins(self._pins.values(), names, records, self._clock.time())
            if not actions:
                return
            for action in actions:
                await self._apply(action)
        _log.warning("something else keeps changing the pin labels of images on this node")

    async def _apply(self, action: rules.PinAction) -> None:
        match action:
            case rules.SetPin(name):
                await self._label(name, rules.set_labels())
            case rules.ClearPin(name):
                await self._label(name, rules.clear_labels())
            case rules.ReleasePin(reference):
                await self._release(self._pins[reference])
                _log.info("pin expired", image=reference)
                self._tell("unpinned", reference, "expired")
            case rules.ForgetPin(reference):
                await self._journal.forget_pin(reference)
                del self._pins[reference]
            case rules.FollowPin(reference, digest):
                image = await self._runtime.cri.status(self._references[reference].pull_spec)
                before = self._pins[reference]
                row = replace(before, digest=digest, size=image.size if image is not None else before.size)
                await self._journal.save_pin(row)
                self._pins[reference] = row

    async def _label(self, name: str, labels: dict[str, str | None]) -> None:
        try:
            await self._runtime.images.set_labels(name, labels)
        except RuntimeNotFound:
            return  # it went away between the look and the change

    async def _release(self, row: PinRow) -> PinRow:
        row = replace(row, releasing=True)
        await self._journal.save_pin(row)
        self._pins[row.reference] = row
        return row

    # ------------------------------------------------------------------------------------------ keeps

    async def keep(self, reference: Reference, policy: api.PullPolicy, priority: int) -> api.KeepStatus:
        name = str(reference)
        async with self._lock:
            before = self._keeps.get(name)
            created = before.created_at if before else self._clock.time()
            row = KeepRow(name, policy, priority, created, before.rewarmed if before else 0)
            await self._journal.save_keep(row)
            self._keeps[name] = row
            self._references[name] = reference
            self._tries.pop(name, None)
        self._poked.set()
        return await self._keep_status(row)

    async def unkeep(self, reference: Reference) -> api.KeepStatus:
        async with self._lock:
            row = self._keeps.get(str(reference))
            if row is None:
                raise NotFound(f"{reference} is not kept", hint="stoker image keeps lists what is")
            await self._journal.forget_keep(row.reference)
            del self._keeps[row.reference]
            self._tries.pop(row.reference, None)
        return await self._keep_status(row)

    async def keep_list(self) -> list[api.KeepStatus]:
        return [await self._keep_status(row) for row in list(self._keeps.values())]

    async def _keep_status(self, row: KeepRow) -> api.KeepStatus:
        present = await self._presence.find(self._references[row.reference]) is not None
        busy = self._references[row.reference].pull_spec in self._busy()
        return api.KeepStatus(
            reference=row.reference,
            policy=row.policy,
            priority=row.priority,
            created_at=time_of(row.created_at),
            present=present,
            rewarmed=row.rewarmed,
            message="being warmed" if busy else "" if present else "waits to be warmed again",
        )

    async def _tend_keeps(self) -> float | None:
        names = {name: self._references[name].pull_spec for name in self._keeps}
        present = {name for name in names if await self._presence.find(self._references[name]) is not None}
        for name in present:
            self._tries.pop(name, None)
        under_way = self._busy()
        busy = {name for name, spec in names.items() if spec in under_way}
        now, keeps = self._clock.time(), self._keeps.values()
        actions, wake = decide_keeps(keeps, present, busy, now, self._pause_limit, self._tries)
        last = await self._journal.last_warmed() if actions else {}
        for action in actions:
            row = await self._note_rewarm(action.reference, last)
            if row is not None:
                self._tell("rewarm", row.reference)
                await self._rewarm(row)
        return wake

    async def _note_rewarm(self, reference: str, last: Mapping[str, float]) -> KeepRow | None:
        """Write down that a kept image is warmed again; None when it is kept no more."""
        async with self._lock:
            row = self._keeps.get(reference)
            if row is None:
                return None
            again = last.get(reference, 0.0) >= (row.last_rewarm_at or row.created_at)
            row = replace(row, rewarmed=row.rewarmed + again, last_rewarm_at=self._clock.time())
            await self._journal.save_keep(row)
            self._keeps[reference] = row
            self._tries[reference] = self._tries.get(reference, 0) + 1
        _log.info("kept image is gone; warming it again" if again else "warming kept image", image=reference)
        return row

    # ------------------------------------------------------------------------------------------ the loop

    def poke(self) -> None:
        self._poked.set()

    def heed(self, event: ImageEvent) -> None:
        """Look soon when something happened to an image that matters here."""
        if self._poked.is_set() or not (self._pins or self._keeps):
            return
        interesting = (self._references[name].pull_spec for name in (*self._pins, *self._keeps))
        if event.name.startswith("sha256:") or event.name in interesting:
            self._poked.set()

    async def tend(self) -> float | None:
        """Put everything right once; return when to look again (seconds since the epoch), None: at the interval."""
        async with self._lock:
            await self._converge_pins()
        wake = await self._tend_keeps()
        expiry = rules.next_expiry(self._pins.values())
        return min((moment for moment in (wake, expiry) if moment is not None), default=None)

    async def run(self) -> None:
        while True:
            await self._runtime.wait_ready()
            try:
                wake = await self.tend()
            except (RuntimeFailure, JournalError) as error:
                if str(error) != self._failing:
                    _log.warning("pins and kept images could not be looked after", why=str(error))
                self._failing = str(error)
                wake = self._clock.time() + _RETRY
            else:
                if self._failing:
                    _log.info("pins and kept images are looked after again")
                self._failing = ""
            pause = self._interval
            if wake is not None:
                pause = min(max(wake - self._clock.time(), _SETTLE), pause)
            try:
                async with asyncio.timeout(pause):
                    await self._poked.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(_SETTLE)
            self._poked.clear()

    def _tell(self, kind: api.ChangeKind, reference: str, message: str = "") -> None:
        self._hub.tell_node(lambda: api.ImageChange(kind=kind, reference=reference, message=message))
