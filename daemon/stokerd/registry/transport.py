"""HTTP to registries: one session, TLS as the endpoint says, redirects under control, bounded answers.

Errors of aiohttp, of TLS and of sockets become ours here and nowhere else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from msgspec.structs import replace
from yarl import URL

from stokerd.registry.answers import origin, redirect_target
from stokerd.registry.errors import (
    RegistryError,
    RegistryProtocol,
    RegistryTimeout,
    RegistryTls,
    RegistryUnreachable,
    Subject,
)
from stokerd.registry.hosts import RegistryEndpoint, is_loopback
from stokerd.registry.proxies import proxy_for

MAX_REDIRECTS = 5
MAX_REFUSAL = 64 << 10
"""Bytes that are read of an answer that is no success."""

_MAX_CONTEXTS = 32
_MAX_CONNECTIONS = 16
_KEEP_ALIVE = 15.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_WHOLE_OR_PART = frozenset({200, 206})
_ASKING = frozenset({"GET", "HEAD"})

_ERRORS: tuple[tuple[type[BaseException], type[RegistryError], str], ...] = (
    (aiohttp.ClientConnectorCertificateError, RegistryTls, "its certificate is not trusted"),
    (aiohttp.ClientConnectorSSLError, RegistryTls, "the TLS handshake failed"),
    (ssl.SSLError, RegistryTls, "TLS failed"),
    (aiohttp.ClientConnectorDNSError, RegistryUnreachable, "its name is not known"),
    (aiohttp.ClientProxyConnectionError, RegistryUnreachable, "the proxy cannot be reached"),
    (aiohttp.ClientHttpProxyError, RegistryUnreachable, "the proxy refuses to connect"),
    (TimeoutError, RegistryTimeout, "it did not answer in time"),
    (aiohttp.ClientConnectorError, RegistryUnreachable, "no connection can be made"),
    (aiohttp.ClientPayloadError, RegistryUnreachable, "the connection broke before the answer was complete"),
    (aiohttp.ClientConnectionError, RegistryUnreachable, "the connection broke"),
    (OSError, RegistryUnreachable, "the connection broke"),
    (aiohttp.InvalidURL, RegistryProtocol, "its address cannot be used"),
    (aiohttp.ClientError, RegistryProtocol, "the answer is not HTTP"),
    # Addresses that no host can have, such as one with a label of 64 characters.
    (ValueError, RegistryProtocol, "its address cannot be used"),
)
_FOREIGN_ERRORS = (aiohttp.ClientError, OSError, ValueError)
_PIECE = 256 << 10


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect (with TLS), between two reads, for a whole call, and before each new try of a connection."""

    connect: float = 10.0
    read: float = 20.0
    total: float = 60.0
    backoff: tuple[float, ...] = (0.2, 0.8)


@dataclass(frozen=True, slots=True)
class Request:
    """A GET, a POST of ``form``, or another ``method``, with the ``length`` bytes that ``body`` yields.

    ``limit`` is how many bytes a successful answer may have. ``authorization`` and ``own_headers`` (the endpoint's)
    are sent to the origin of ``url`` only, and not at all to a ``foreign`` one; without ``may_leave`` a redirect must
    not lead anywhere else. With ``persistent`` a connection that fails is tried again. What has a body is redirected
    nowhere.
    """

    url: str = field(repr=False)
    subject: Subject
    limit: int
    method: str = "GET"
    body: Callable[[], AsyncIterator[bytes]] | None = field(default=None, repr=False)
    length: int = 0
    foreign: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    own_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    authorization: str | None = field(default=None, repr=False)
    form: bytes | None = field(default=None, repr=False)
    may_leave: bool = True
    persistent: bool = True
    patience: float = 0.0
    """Seconds between two reads, where the answer may take longer than others do."""

    def altered(self, **fields: Any) -> Request:
        """Return the request with other fields."""
        return dataclasses.replace(self, **fields)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; the body of one that is no success may be cut.

    ``foreign``: a redirect led to another origin. Nobody there is to be told credentials.
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    challenges: tuple[str, ...]
    body: bytes = field(repr=False)
    url: str = field(repr=False)
    foreign: bool = False

    @property
    def ok(self) -> bool:
        return self.status == 200


class Transport:
    """Sends requests to registries. Open connections are those of one session; ``aclose`` ends them."""

    def __init__(self, timeouts: Timeouts, user_agent: str) -> None:
        self.timeouts = timeouts
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._contexts: dict[object, ssl.SSLContext] = {}

    async def aclose(self) -> None:
        """Close all connections. The transport cannot be used after that."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def send(self, endpoint: RegistryEndpoint, request: Request) -> Answer:
        """Return the answer to *request*, of any status, after following redirects.

        Raises RegistryUnreachable, RegistryTimeout, RegistryTls or RegistryProtocol.
        """
        for pause in self.timeouts.backoff if request.persistent else ():
            try:
                return await self._follow(endpoint, request)
            except RegistryTimeout:
                raise
            except RegistryUnreachable:
                await asyncio.sleep(pause)
        return await self._follow(endpoint, request)

    async def _follow(self, endpoint: RegistryEndpoint, request: Request) -> Answer:
        answer = await self._exchange(endpoint, request, request.url, foreign=request.foreign)
        home = origin(answer.url)
        for _ in range(MAX_REDIRECTS):
            if answer.status not in _REDIRECTS:
                return answer
            url, foreign = _next(request, answer, home)
            answer = await self._exchange(endpoint, request, url, foreign=foreign)
        if answer.status not in _REDIRECTS:
            return answer
        raise RegistryProtocol(f"it redirects more than {MAX_REDIRECTS} times", request.subject)

    async def stream(self, endpoint: RegistryEndpoint, request: Request) -> AsyncGenerator[bytes | Answer, None]:
        """Yield the answer to a GET, after following redirects, and then the pieces of its body if it is a success.

        Raises as `send` does, also in the middle. Nothing is tried again.
        """
        url, foreign, home = request.url, request.foreign, None
        for _ in range(MAX_REDIRECTS + 1):
            subject = _of(request, url, foreign=foreign)
            try:
                async with self._opened(endpoint, request, url, foreign=foreign) as (response, spoken):
                    answer = await _answer(response, request, spoken, foreign=foreign)
                    if answer.status not in _REDIRECTS:
                        yield answer
                        if answer.status in _WHOLE_OR_PART:
                            async for piece in response.content.iter_chunked(_PIECE):
                                yield piece
                        return
            except _FOREIGN_ERRORS as error:
                raise _translate(error, subject) from None
            home = home or origin(answer.url)
            url, foreign = _next(request, answer, home)
        raise RegistryProtocol(f"it redirects more than {MAX_REDIRECTS} times", request.subject)

    async def _exchange(self, endpoint: RegistryEndpoint, request: Request, url: str, *, foreign: bool) -> Answer:
        try:
            async with self._opened(endpoint, request, url, foreign=foreign) as (response, spoken):
                return await _answer(response, request, spoken, foreign=foreign, whole=True)
        except _FOREIGN_ERRORS as error:
            # "from None": aiohttp's errors carry the request with its headers along.
            raise _translate(error, _of(request, url, foreign=foreign)) from None

    @asynccontextmanager
    async def _opened(
        self, endpoint: RegistryEndpoint, request: Request, url: str, *, foreign: bool
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, str]]:
        """Send the request; yield its answer, not read yet, and the URL: a plain one where the endpoint has no TLS."""
        try:
            response = await self._once(endpoint, request, url, foreign=foreign)
        except aiohttp.ClientConnectionError as error:
            # Only for the endpoint itself: its token server never gets credentials in the clear.
            own = url.startswith(f"https://{endpoint.host}/")
            if not (own and endpoint.plain_http_fallback and _speaks_no_tls(error)):
                raise
            url = "http" + url.removeprefix("https")
            response = await self._once(endpoint, request, url, foreign=foreign)
        async with response:
            yield response, url

    async def _once(
        self, endpoint: RegistryEndpoint, request: Request, url: str, *, foreign: bool
    ) -> aiohttp.ClientResponse:
        headers = [*request.headers.items(), ("Accept-Encoding", "identity")]
        if request.body is not None or request.length:
            headers.append(("Content-Length", str(request.length)))
        if not foreign:
            skipped = "authorization" if request.authorization else None
            headers += [(name, value) for name, value in request.own_headers if name.lower() != skipped]
            if request.authorization:
                headers.append(("Authorization", request.authorization))
        connect = self.timeouts.connect if endpoint.dial_timeout is None else endpoint.dial_timeout
        return await self._open_session().request(
            request.method if request.form is None else "POST",
            # As it is: quoting it anew would break the signature of a storage URL.
            URL(url, encoded=True),
            data=request.form if request.body is None else request.body(),
            headers=headers,
            allow_redirects=False,
            proxy=proxy_for(url, os.environ),
            ssl=await self._tls(endpoint, url, request.subject),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=connect, sock_read=request.patience or self.timeouts.read
            ),
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise RuntimeError("the transport is closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, keepalive_timeout=_KEEP_ALIVE),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": self._user_agent},
                auto_decompress=False,
            )
        return self._session

    async def _tls(self, endpoint: RegistryEndpoint, url: str, subject: Subject) -> ssl.SSLContext:
        """Return a context of our own, made when it is first needed: aiohttp's knows no certificates (`stokerd.lean`).

        As in containerd, an endpoint's settings hold for its token server and its storage too. That loopback needs
        no verification, though, says nothing about what a registry there names elsewhere.
        """
        elsewhere = is_loopback(endpoint.host) and not is_loopback(urlsplit(url).netloc)
        verify = elsewhere or not endpoint.skip_verify
        files = (*endpoint.ca, *(path for pair in endpoint.client for path in pair if path))
        try:
            # The times are part of the key: a certificate that was renewed is read again.
            times = tuple(path.stat().st_mtime_ns for path in files)
        except OSError as error:
            raise _bad_file(Path(str(error.filename)), error, subject) from None
        key = (verify, endpoint.ca, endpoint.client, times)
        context = self._contexts.get(key)
        if context is None:
            context = await asyncio.to_thread(_make_context, endpoint, subject, verify=verify)
            while len(self._contexts) >= _MAX_CONTEXTS:
                del self._contexts[next(iter(self._contexts))]
            self._contexts[key] = context
        return context


def _make_context(endpoint: RegistryEndpoint, subject: Subject, *, verify: bool) -> ssl.SSLContext:
    """Return a context that trusts the system's CAs and the endpoint's, and shows the endpoint's certificates."""
    context = ssl.create_default_context() if verify else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    for path in endpoint.ca:
        try:
            context.load_verify_locations(path)
        except OSError as error:
            raise _bad_file(path, error, subject) from None
    for certificate, key in endpoint.client:
        try:
            # The empty password keeps OpenSSL from asking at the terminal for that of an encrypted key.
            context.load_cert_chain(certificate, key, password="")
        except OSError as error:
            raise _bad_file(key or certificate, error, subject) from None
    return context


def _bad_file(path: Path, error: OSError, subject: Subject) -> RegistryTls:
    what = f"the file {path} of its configuration cannot be used: {error.strerror or 'it is no certificate or key'}"
    return RegistryTls(what, subject, hint="check the registry's directory below containerd's config_path")


def _of(request: Request, url: str, *, foreign: bool) -> Subject:
    return replace(request.subject, registry=urlsplit(url).netloc) if foreign else request.subject


def _next(request: Request, answer: Answer, home: tuple[str, str, int | None]) -> tuple[str, bool]:
    """Return where a redirect leads, and whether that is another origin than the first one."""
    try:
        url = redirect_target(answer.url, answer.headers.get("Location", ""))
    except ValueError as error:
        raise RegistryProtocol(str(error), request.subject, status=answer.status) from None
    foreign = answer.foreign or origin(url) != home
    if request.form is not None or (foreign and not request.may_leave):
        what = "it redirects a request for a token, which would carry credentials elsewhere"
        raise RegistryProtocol(what, request.subject, status=answer.status)
    if request.body is not None or request.method not in _ASKING:
        raise RegistryProtocol("it redirects an upload", request.subject, status=answer.status)
    return url, foreign


async def _answer(
    response: aiohttp.ClientResponse, request: Request, url: str, *, foreign: bool, whole: bool = False
) -> Answer:
    """Return what came; the body too when the *whole* is wanted, or when it is no success."""
    read = whole or response.status not in _WHOLE_OR_PART
    return Answer(
        response.status,
        response.headers,
        tuple(response.headers.getall("WWW-Authenticate", ())),
        await _read(response, request) if read and request.method != "HEAD" else b"",
        url,
        foreign,
    )


async def _read(response: aiohttp.ClientResponse, request: Request) -> bytes:
    body = bytearray()
    if response.status != 200:
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) >= MAX_REFUSAL:
                break
        return bytes(body[:MAX_REFUSAL])
    too_large = (response.content_length or 0) > request.limit
    if not too_large:
        async for chunk in response.content.iter_any():
            body += chunk
            if too_large := len(body) > request.limit:
                break
    if too_large:
        raise RegistryProtocol(f"the answer has more than {request.limit} bytes", request.subject, status=200)
    return bytes(body)


def _speaks_no_tls(error: aiohttp.ClientConnectionError) -> bool:
    """Return whether a handshake failed in the way in which one with a server without TLS does."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return False
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return isinstance(cause, (ssl.SSLError, ConnectionResetError, aiohttp.ServerDisconnectedError))


def _translate(error: BaseException, subject: Subject) -> RegistryError:
    kind, what = next((kind, what) for source, kind, what in _ERRORS if isinstance(error, source))
    detail = _detail(error)
    return kind(f"{what}: {detail}" if detail else what, subject)


def _detail(error: BaseException) -> str:
    """Return the system's own words, which name no header and no query."""
    cause: object = error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return cause.verify_message
    if isinstance(cause, ssl.SSLError):
        return cause.reason or ""
    return (cause.strerror or "") if isinstance(cause, OSError) else ""
