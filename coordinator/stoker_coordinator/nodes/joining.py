"""A node gets its certificate: by a join token first, by the one it has later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from stoker.objects.link import Certificate, JoinAnswer, JoinRequest
from stoker_coordinator.errors import CoordinatorError
from stoker_coordinator.nodes import tokens
from stoker_coordinator.nodes.authority import Authority, fingerprint_of
from stoker_coordinator.nodes.ledger import Ledger
from stoker_coordinator.nodes.metrics import LinkMetrics
from stoker_coordinator.nodes.names import Identity
from stoker_coordinator.nodes.settings import LinkSettings

_log = structlog.get_logger("nodes")
_MAX_REQUEST = 16 << 10
_AT_ONCE = 8
_WAITING = 256
_FAILURE_PAUSE = 0.5
"""A wrong token is answered so late: guessing 24 random bytes is hopeless anyway, and should not cost us anything."""


class Joining:
    """Answers those who have no certificate yet."""

    def __init__(
        self,
        ledger: Ledger,
        authority: Authority,
        settings: LinkSettings,
        metrics: LinkMetrics,
        wall: Callable[[], float],
    ) -> None:
        self._ledger, self._authority, self._settings = ledger, authority, settings
        self._metrics, self._wall = metrics, wall
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    async def join(self, data: bytes) -> bytes:
        """Answer one request; it never raises."""
        if self._waiting >= _WAITING:
            answer = JoinAnswer(reason="Busy", message="many nodes are joining", hint="try again in a few seconds")
        else:
            self._waiting += 1
            try:
                async with self._turns:
                    answer = await self._answer(data)
            finally:
                self._waiting -= 1
        self._metrics.joined.labels(answer.reason or "Joined").inc()
        return msgspec.msgpack.encode(answer)

    async def _answer(self, data: bytes) -> JoinAnswer:
        try:
            request = msgspec.msgpack.decode(data[: _MAX_REQUEST + 1], type=JoinRequest)
        except msgspec.DecodeError:
            return JoinAnswer(reason="Invalid", message="this is no request to join")
        parsed = tokens.parse(request.token)
        try:
            key = await asyncio.to_thread(fingerprint_of, request.csr)
            identity, secret = parsed or ("", "")
            verdict = await self._ledger.join(identity, secret, request.node, key, self._wall())
            if isinstance(verdict, str):
                return await self._refused(verdict, identity, request.node)
            return await self._sign(request, verdict, identity)
        except CoordinatorError as error:
            return JoinAnswer(reason=error.reason, message=error.message, hint=error.hint or "")

    async def _refused(self, verdict: tokens.Verdict, identity: str, node: str) -> JoinAnswer:
        _log.warning("a node may not join", node=node[:64], token=identity, why=verdict)
        await asyncio.sleep(_FAILURE_PAUSE)
        message, hint = tokens.SAYS[verdict]
        return JoinAnswer(reason=verdict, message=message, hint=hint)

    async def _sign(self, request: JoinRequest, epoch: int, token: str) -> JoinAnswer:
        issued = await asyncio.to_thread(
            self._authority.sign, request.csr, Identity(request.node, epoch), self._settings.certificate_lifetime
        )
        _log.info("a node has joined", node=request.node, token=token, time=epoch)
        return JoinAnswer(chain=issued.chain, not_after=issued.not_after)


async def renew(authority: Authority, identity: Identity, csr: bytes, seconds: float) -> Certificate:
    """Return a new certificate for whom the connection has proved to be *identity*. Invalid."""
    issued = await asyncio.to_thread(authority.sign, csr, identity, seconds)
    return Certificate(chain=issued.chain, not_after=issued.not_after)
