"""What can go wrong between containerd and a registry, as values.

A fault changes the plan for one answer; a rule says for which requests. All rules that match apply, in their order,
so that a slow answer can also be cut short.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tests.rig.errors import RigError

BLOBS = r"/blobs/sha256:"
MANIFESTS = r"/manifests/"


class Gate:
    """A barrier between a test and an answer: the answer stops at it until the test lets it through."""

    def __init__(self) -> None:
        self._open = False
        self._lock = threading.Lock()
        self._reached = threading.Event()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def wait_reached(self, timeout: float = 20.0) -> None:
        """Block until an answer stands at the gate."""
        if not self._reached.wait(timeout):
            raise RigError(f"no request came to the gate within {timeout:g} s")

    async def reached(self, timeout: float = 20.0) -> None:
        await asyncio.to_thread(self.wait_reached, timeout)

    def release(self) -> None:
        """Let through whoever waits and whoever will come."""
        with self._lock:
            self._open = True
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def pass_through(self) -> None:
        event = asyncio.Event()
        with self._lock:
            if not self._open:
                self._waiting.append((asyncio.get_running_loop(), event))
            else:
                event.set()
        self._reached.set()
        await event.wait()


@dataclass
class Plan:
    """What happens to one answer."""

    delay: float = 0.0
    # Bytes a second.
    rate: float | None = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    hang: bool = False
    reset_after: int | None = None
    truncate_at: int | None = None
    honest_length: bool = False
    flip_at: int | None = None
    ignore_range: bool = False
    cut_at: int | None = None
    cut_before: bool = False
    # Gates and the number of body bytes after which each stands.
    gates: list[tuple[int, Gate]] = field(default_factory=list)

    @property
    def end(self) -> int | None:
        """The number of body bytes after which the answer ends early."""
        ends = [each for each in (self.reset_after, self.truncate_at) if each is not None]
        return min(ends) if ends else None


class Fault(Protocol):
    """Changes the plan of one answer."""

    def apply(self, plan: Plan) -> None: ...


@dataclass(frozen=True)
class Delay:
    """The answer begins late."""

    seconds: float

    def apply(self, plan: Plan) -> None:
        plan.delay += self.seconds


@dataclass(frozen=True)
class Trickle:
    """The body comes slowly."""

    bytes_per_second: float

    def apply(self, plan: Plan) -> None:
        plan.rate = self.bytes_per_second


@dataclass(frozen=True)
class Reset:
    """The connection is reset after some bytes of the body."""

    after: int = 0

    def apply(self, plan: Plan) -> None:
        plan.reset_after = self.after


@dataclass(frozen=True)
class Cut:
    """The connection is reset after some bytes of the request's body: the registry has had them, or nothing (before).

    ``before`` is what a proxy does that passes requests on when it has them whole.
    """

    at: int
    before: bool = False

    def apply(self, plan: Plan) -> None:
        plan.cut_at, plan.cut_before = self.at, self.before


@dataclass(frozen=True)
class Truncate:
    """The body ends early, with a Content-Length that says so (honest) or with the full one and a closed connection.

    The end of the connection is orderly; `Reset` is the other kind.
    """

    at: int
    honest: bool = False

    def apply(self, plan: Plan) -> None:
        plan.truncate_at, plan.honest_length = self.at, self.honest


@dataclass(frozen=True)
class WrongDigest:
    """One byte of the body is another."""

    at: int = 100

    def apply(self, plan: Plan) -> None:
        plan.flip_at = self.at


@dataclass(frozen=True)
class NoRange:
    """Ranges are ignored: 200 with the whole body."""

    def apply(self, plan: Plan) -> None:
        plan.ignore_range = True


@dataclass(frozen=True)
class Hang:
    """The request is taken and never answered."""

    def apply(self, plan: Plan) -> None:
        plan.hang = True


@dataclass(frozen=True)
class Hold:
    """The answer waits at a gate after some bytes of the body (0: before it begins)."""

    gate: Gate
    after: int = 0

    def apply(self, plan: Plan) -> None:
        plan.gates.append((self.after, self.gate))


@dataclass(frozen=True)
class Status:
    """Another status instead of the registry's answer."""

    code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None

    def apply(self, plan: Plan) -> None:
        plan.status, plan.headers = self.code, self.headers
        plan.body = self.body if self.body is not None else error_body(self.code)


ERROR_CODES = {401: "UNAUTHORIZED", 403: "DENIED", 404: "NOT_FOUND", 429: "TOOMANYREQUESTS"}


def error_body(code: int) -> bytes:
    word = ERROR_CODES.get(code, "UNKNOWN")
    return b'{"errors":[{"code":"%s","message":"from the fault proxy"}]}' % word.encode()


def unauthorized(challenge: str | None = 'Basic realm="rig"') -> Status:
    """401; without a challenge when it is None."""
    return Status(401, {} if challenge is None else {"Www-Authenticate": challenge})


def too_many_requests(retry_after: float | str = 1) -> Status:
    return Status(429, {"Retry-After": str(retry_after)})


@dataclass
class Rule:
    """A fault and the requests that it befalls."""

    fault: Fault
    # Searched in the path with its query.
    path: str = ""
    method: str | None = None
    # Only these of the matching requests, counted from 1.
    nth: tuple[int, ...] | None = None
    # At most so many.
    times: int | None = None
    probability: float = 1.0
    matched: int = 0
    applied: int = 0

    def apply(self, method: str, path: str, plan: Plan, chance: random.Random) -> bool:
        if (self.method is not None and method != self.method) or not re.search(self.path, path):
            return False
        self.matched += 1
        if self.nth is not None and self.matched not in self.nth:
            return False
        if self.times is not None and self.applied >= self.times:
            return False
        if self.probability < 1.0 and chance.random() >= self.probability:
            return False
        self.applied += 1
        self.fault.apply(plan)
        return True
