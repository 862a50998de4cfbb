"""One stream to the coordinator, from greeting to end. What is said is the newest there is; nothing is queued."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, cast

import grpc
import msgspec
import structlog

from stoker.objects import link
from stoker.objects.link import (
    About,
    Ack,
    Certificate,
    Desired,
    Heartbeat,
    Hello,
    Notice,
    Probe,
    Refused,
    Renew,
    Results,
    Resync,
    Unknown,
    Welcome,
)
from stokerd.errors import StokerError
from stokerd.uplink.inventory import Inventory
from stokerd.uplink.wishes import Wishes

_log = structlog.get_logger("uplink")
_WRITE_SECONDS, _WELCOME_SECONDS = 30.0, 20.0
_DOCUMENT_PAUSE, _RESULT_PAUSE, _RESAY_SECONDS = 0.25, 0.5, 30.0
"""Between two messages of one document, and of progress; the first of them is said at once. And how long to wait for
results to be acknowledged before they are said again."""


class RefusedHere(StokerError):
    """The coordinator does not want this stream; ``seconds``: when to try again."""

    reason = "Refused"

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message, hint=refused.hint or None)
        self.why = refused.reason
        self.seconds = refused.retry_seconds


class Broken(StokerError):
    """The stream has ended."""

    reason = "Disconnected"
    retryable = True


class Stream:
    """Use once."""

    def __init__(
        self,
        hello: Hello,
        inventory: Inventory,
        wishes: Wishes,
        beat: Callable[[], Awaitable[tuple[Heartbeat, About | None]]],
        certified: Callable[[Certificate], Awaitable[None]],
        beside: Callable[[Stream], Awaitable[None]],
        woken: asyncio.Event,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*beat* says how the node is, and what is known of it, None where that is unknown now; *certified* takes a new
        certificate; *beside* runs while the stream is open; *woken* is set when there may be something to say."""
        self._hello, self._inventory, self._wishes = hello, inventory, wishes
        self._beat, self._certified, self._beside = beat, certified, beside
        self._woken, self._clock = woken, clock
        self._soon: dict[str, Any] = {}
        """Messages to be said before anything else, by kind."""
        self._last_beat = Heartbeat()
        self._about = About(runtime=hello.runtime, capabilities=hello.capabilities)
        self._interval = 10.0
        self._not_before: dict[str, float] = {}
        self._resay_at = 0.0

    def renew(self, csr: bytes) -> None:
        """Ask for a new certificate."""
        self._put("renew", Renew(csr=csr))

    async def run(self, channel: grpc.aio.Channel) -> NoReturn:
        """Serve the stream until it ends. Raises RefusedHere or Broken, never returns."""
        call: Any = channel.stream_stream(link.CONNECT)()
        try:
            async with asyncio.timeout(_WELCOME_SECONDS):
                await call.write(link.encode(self._hello))
                welcome = await self._read(call)
            if not isinstance(welcome, Welcome):
                raise Broken("the coordinator's first answer is no welcome")
            self._greeted(welcome)
            await self._serve(call)
            raise Broken("the stream has ended")
        except TimeoutError:
            raise Broken("the coordinator did not answer in time") from None
        except grpc.aio.AioRpcError as error:
            raise ended(error) from None
        except asyncio.InvalidStateError:
            raise Broken(f"{(await call.code()).name}: {await call.details()}") from None
        except msgspec.DecodeError as error:
            raise Broken(f"the coordinator's message cannot be read: {error}") from None
        finally:
            call.cancel()

    async def _serve(self, call: Any) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._inventory.run(), name="uplink: inventory")
                group.create_task(self._keep_beating(), name="uplink: heartbeat")
                group.create_task(self._write(call), name="uplink: write")
                group.create_task(self._hear(call), name="uplink: read")
                group.create_task(self._alongside(), name="uplink: certificate")
        except BaseExceptionGroup as group_error:
            raise _first(group_error) from None

    def _greeted(self, welcome: Welcome) -> None:
        self._interval = min(max(welcome.heartbeat_seconds, 0.1), 300.0)
        known = {each.document: each.digest for each in welcome.known}
        for name, document in self._inventory.documents.items():
            document.begin(known.get(name, ""))
        self._wishes.begin_stream()
        self._resay_at = self._clock() + _RESAY_SECONDS
        _log.info("connected to the coordinator", version=welcome.version, protocol=welcome.protocol)

    async def _alongside(self) -> None:
        await self._beside(self)

    # ------------------------------------------------------------------------------------------ hearing

    async def _read(self, call: Any) -> link.DownMessage | Unknown:
        data = await call.read()
        if data is grpc.aio.EOF:
            raise Broken("the coordinator has closed the stream")
        message = link.decode_down(cast("bytes", data))
        if isinstance(message, Refused):
            raise RefusedHere(message)
        return message

    async def _hear(self, call: Any) -> None:
        while True:
            match await self._read(call):
                case Desired() as desired:
                    self._wishes.take(desired)
                case Ack(results):
                    await self._wishes.acknowledge(results)
                case Resync(document, why):
                    _log.info("the coordinator needs a document anew", document=document, why=why)
                    if document in self._inventory.documents:
                        self._inventory.documents[document].forget()
                        self._woken.set()
                case Probe(nonce):
                    self._put("probe", msgspec.structs.replace(self._last_beat, nonce=nonce))
                case Notice(reason, message, hint):
                    _log.warning("the coordinator says", reason=reason, message=message, hint=hint)
                case Certificate() as certificate:
                    await self._certified(certificate)
                case _:
                    pass  # from a newer coordinator, which can do without an answer

    # ------------------------------------------------------------------------------------------ saying

    def _put(self, kind: str, message: Any) -> None:
        self._soon[kind] = message
        self._woken.set()

    async def _keep_beating(self) -> None:
        while True:
            self._last_beat, about = await self._beat()
            self._put("beat", self._last_beat)
            if about is not None and about != self._about:
                self._about = about
                self._put("about", about)
            await asyncio.sleep(self._interval)

    async def _write(self, call: Any) -> None:
        while True:
            self._woken.clear()
            now = self._clock()
            message, due = self._next(now)
            if message is not None:
                async with asyncio.timeout(_WRITE_SECONDS):
                    await call.write(link.encode(message))
                continue
            try:
                async with asyncio.timeout(max(due - now, 0.0)):
                    await self._woken.wait()
            except TimeoutError:
                continue

    def _next(self, now: float) -> tuple[Any, float]:
        """Return what to say now, or None and when to look again."""
        if self._soon:
            return self._soon.pop(next(iter(self._soon))), now
        if now >= self._resay_at:
            self._resay_at = now + _RESAY_SECONDS
            if self._wishes.unacknowledged:
                self._wishes.begin_stream()
        due = self._resay_at
        if self._wishes.unsaid:
            if (wait := self._not_before.get("results", 0.0)) <= now:
                self._not_before["results"] = now + _RESULT_PAUSE
                return Results(results=self._wishes.take_results()), now
            due = min(due, wait)
        for name, document in self._inventory.documents.items():
            if not document.pending:
                continue
            if (wait := self._not_before.get(name, 0.0)) > now:
                due = min(due, wait)
                continue
            self._not_before[name] = now + _DOCUMENT_PAUSE
            message = document.take()
            if message is not None:
                return message, now
            _log.error("the coordinator cannot be told of this", document=name, why=document.problem)
        return None, due


def ended(error: grpc.aio.AioRpcError) -> Broken:
    """Say how a stream has ended. Of one that ended while a message was on its way gRPC says INTERNAL, and hides the
    coordinator's own words (https://github.com/grpc/grpc/issues/36066); they come with the next try."""
    if error.code() is grpc.StatusCode.INTERNAL and error.details() == "Internal error from Core":
        return Broken("the coordinator ended the stream while it was written to")
    return Broken(f"{error.code().name}: {error.details()}")


def _first(error: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what ended a group: what the coordinator says of it before anything else."""
    found: list[BaseException] = []
    queue: list[BaseException] = [error]
    while queue:
        each = queue.pop(0)
        if isinstance(each, BaseExceptionGroup):
            queue += each.exceptions
        else:
            found.append(each)
    return next((each for each in found if isinstance(each, RefusedHere)), found[0])
