"""An HTTP proxy on 127.0.0.1 in front of a registry that goes wrong by rule, and counts what passes.

It runs in a thread with an event loop of its own, so blocking and asynchronous tests use it alike. Without rules it
changes nothing: paths, headers, ranges, statuses, bodies and so digests pass as they are.

    with FaultProxy(registry.address) as proxy:
        proxy.rule(Reset(after=1 << 20), path=BLOBS, times=1)
        ...
        assert proxy.bytes_sent(BLOBS) < image.compressed_size * 1.1
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

from tests.rig.errors import RigError
from tests.rig.exchange import Exchange, RequestRecord
from tests.rig.faults import Fault, Plan, Rule
from tests.rig.tokenauth import TokenAuth


@dataclass(frozen=True)
class PathStats:
    """All requests for one path together."""

    requests: int
    bytes: int
    ranges: tuple[str, ...]


class FaultProxy:
    """Start it with start(), `with` or `async with`."""

    def __init__(
        self, upstream: str, *, port: int = 0, auth: TokenAuth | None = None, seed: int = 0, ready_timeout: float = 10.0
    ) -> None:
        self.upstream = upstream if "://" in upstream else f"http://{upstream}"
        self.port = port
        self.auth = auth
        self._rules: list[Rule] = []
        self._records: list[RequestRecord] = []
        self._changed = threading.Condition()
        self._chance = random.Random(seed)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._ready = threading.Event()
        self._ready_timeout = ready_timeout
        self._failure: BaseException | None = None

    # Life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def start(self) -> None:
        self._ready.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="faultproxy", daemon=True)
        self._thread.start()
        if not self._ready.wait(self._ready_timeout) or self._failure is not None:
            raise RigError(f"the fault proxy did not start: {self._failure}")

    def stop(self) -> None:
        """Close every connection, whatever state it is in."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._stopping is None:
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join(10)
        if thread.is_alive():
            raise RigError("the fault proxy did not stop")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # Rules

    def rule(
        self,
        fault: Fault,
        *,
        path: str = "",
        method: str | None = None,
        nth: int | Sequence[int] | None = None,
        times: int | None = None,
        probability: float = 1.0,
    ) -> Rule:
        """Add a rule; its counters tell how often it matched and applied."""
        which = None if nth is None else (nth,) if isinstance(nth, int) else tuple(nth)
        made = Rule(fault, path, method, which, times, probability)
        self._rules = [*self._rules, made]
        return made

    def remove(self, rule: Rule) -> None:
        self._rules = [each for each in self._rules if each is not rule]

    def clear(self) -> None:
        """No more rules; what was counted stays."""
        self._rules = []

    # What passed

    @property
    def requests(self) -> list[RequestRecord]:
        with self._changed:
            return list(self._records)

    def forget(self) -> None:
        """Count from nothing again."""
        with self._changed:
            self._records = []

    def matching(self, path: str = "", method: str | None = None) -> list[RequestRecord]:
        return [r for r in self.requests if (method is None or r.method == method) and re.search(path, r.path)]

    def bytes_sent(self, path: str = "", method: str | None = "GET") -> int:
        return sum(each.bytes for each in self.matching(path, method))

    def stats(self) -> dict[str, PathStats]:
        grouped: dict[str, list[RequestRecord]] = {}
        for each in self.requests:
            grouped.setdefault(each.path, []).append(each)
        return {
            path: PathStats(len(some), sum(r.bytes for r in some), tuple(r.range for r in some if r.range))
            for path, some in grouped.items()
        }

    def wait_until(self, what: str, condition: Callable[[list[RequestRecord]], bool], timeout: float = 20.0) -> None:
        """Block until the records satisfy `condition`; it is asked again at every request and every piece of a body."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self._records), timeout):
                raise RigError(f"{what}: not within {timeout:g} s")

    def wait_seen(self, path: str = "", *, method: str | None = None, count: int = 1, timeout: float = 20.0) -> None:
        """Block until `count` requests for `path` have arrived since the start or forget()."""

        def enough(records: list[RequestRecord]) -> bool:
            found = [r for r in records if (method is None or r.method == method) and re.search(path, r.path)]
            return len(found) >= count

        self.wait_until(f"{count} requests for {path!r}", enough, timeout)

    async def seen(self, path: str = "", *, method: str | None = None, count: int = 1, timeout: float = 20.0) -> None:
        await asyncio.to_thread(self.wait_seen, path, method=method, count=count, timeout=timeout)

    # The server, all of it in its own thread

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # noqa: BLE001 - start() raises it in the caller's thread
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:

            async def handler(request: web.BaseRequest) -> web.StreamResponse:
                return await Exchange(self, session, request).answer()

            server = web.Server(handler, access_log=None, handler_cancellation=True)
            runner = web.ServerRunner(server, shutdown_timeout=0.2)
            await runner.setup()
            try:
                site = web.TCPSite(runner, "127.0.0.1", self.port)
                await site.start()
                self.port = int(runner.addresses[0][1])
                self._ready.set()
                await self._stopping.wait()
            finally:
                transports = [each.transport for each in server.connections if each.transport is not None]
                await runner.cleanup()
                for transport in transports:
                    transport.abort()  # one whose peer reads no more would never be done
        for _ in range(3):  # what is closed is told so in the next turns of the loop
            await asyncio.sleep(0)

    def plan_for(self, request: web.BaseRequest) -> Plan:
        plan = Plan()
        for rule in self._rules:
            rule.apply(request.method, request.raw_path, plan, self._chance)
        return plan

    def note(self, record: RequestRecord | None = None) -> None:
        with self._changed:
            if record is not None:
                self._records.append(record)
            self._changed.notify_all()
