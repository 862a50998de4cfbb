"""The HTTP protocol of one connection, with an ErrorBody even for what is not HTTP."""

from __future__ import annotations

import asyncio

from aiohttp import web

from stokerd.api.errors import failure_of, response_of
from stokerd.errors import InvalidInput

IDLE_SECONDS = 75.0
"""A connection with no request, or half the head of one, is closed after so long."""


class Protocol(web.RequestHandler):
    """aiohttp's protocol; failures that come before or after the middlewares are told in our own words."""

    __slots__ = ()

    def __init__(self, server: web.Server) -> None:
        """There is no access log: requests are counted, and failures are logged where they happen."""
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # aiohttp tests for it, its annotation does not say so
            auto_decompress=False,
            keepalive_timeout=IDLE_SECONDS,
        )

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to a request that cannot be read or answered; the connection is closed after it."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer is on its way already; only closing the connection can tell")
        if status < 500:
            first_line = (message or "").strip().partition("\n")[0].rstrip(":")
            error: Exception = InvalidInput(f"this is not HTTP as stokerd understands it: {first_line or 'malformed'}")
        else:
            error = exc if isinstance(exc, Exception) else RuntimeError(message or f"HTTP status {status}")
        response = response_of(failure_of(error, where="an HTTP connection"))
        response.force_close()
        return response
