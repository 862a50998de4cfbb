"""Asks UFM for all ports over HTTP: with credentials that are read anew each time, within limits of time and size."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import aiohttp

from stoker_coordinator.errors import CoordinatorError
from stoker_coordinator.hypernodes.sources.ufm import PATH

LONGEST_ANSWER = 256 << 20
_CHUNK = 1 << 16


class Credentials(NamedTuple):
    """What UFM asks for: a user with a password, or a token. Never logged."""

    user: str = ""
    password: str = ""
    token: str = ""


class UfmError(CoordinatorError):
    """UFM could not be asked. Says why, without what was sent."""

    reason = "SourceFailed"
    retryable = True


async def fetch(
    session: aiohttp.ClientSession,
    endpoint: str,
    credentials: Callable[[], Awaitable[Credentials]],
    *,
    timeout: float = 30.0,
    limit: int = LONGEST_ANSWER,
    tls: ssl.SSLContext | bool = True,
) -> bytes:
    """Return UFM's answer. *tls*: a context to check its certificate by; False does not check it.

    Redirects are not followed: credentials would go where they lead.
    """
    try:
        async with asyncio.timeout(timeout):
            secret = await credentials()
            # Tokens are taken by the third version of the interface alone.
            url = endpoint.rstrip("/") + (PATH.replace("/ufmRest/", "/ufmRestV3/") if secret.token else PATH)
            async with session.get(url, headers=_headers(secret), ssl=tls, allow_redirects=False) as response:
                if response.status != 200:
                    raise UfmError(_refused(response.status))
                return await _body(response, limit)
    except TimeoutError as exc:
        raise UfmError(f"UFM did not answer within {timeout:g} s") from exc
    except aiohttp.InvalidURL as exc:
        raise UfmError("the endpoint of UFM is no URL") from exc
    except aiohttp.ClientError as exc:
        raise UfmError(f"UFM cannot be reached: {type(exc).__name__}") from exc


def _headers(secret: Credentials) -> dict[str, str]:
    """Return how UFM is told who asks; it takes its tokens under the same scheme as passwords."""
    if not secret.token and not secret.user:
        return {}
    encoded = secret.token or base64.b64encode(f"{secret.user}:{secret.password}".encode()).decode()
    return {"Authorization": f"Basic {encoded}"}


def _refused(status: int) -> str:
    if status in {401, 403}:
        return f"UFM refuses the credentials (status {status}): check user and password"
    return f"UFM answered with status {status}"


async def _body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK):
        body += chunk
        if len(body) > limit:
            raise UfmError(f"UFM's answer is longer than {limit >> 20} MiB")
    return bytes(body)
