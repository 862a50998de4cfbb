"""The Python client of a coordinator (asyncio).

    async with ServerClient(Server("https://coordinator:7400", token="...")) as client:
        async for obj in client.list(KINDS["ImagePullJob"]):
            ...

Objects are plain values, as they are in JSON. Every method raises ClientError when the coordinator refuses or fails,
and ServerUnreachable when it cannot be talked to.
"""

from __future__ import annotations

import asyncio
import io
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from stoker.errors import ClientError, DaemonUnreachable
from stoker.objects.kinds import Kind
from stoker.transport import part

Document = dict[str, Any]

_ANSWER_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 60.0
_PAGE = 500
_LINE_BYTES = 8 << 20
_FIRST_DELAY, _LONGEST_DELAY = 0.2, 5.0
_APPLY, _MERGE, _JSON = "application/apply-patch+json", "application/merge-patch+json", "application/json"
_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_LOOK = "systemctl status stoker-coordinator"


@dataclass(frozen=True, slots=True)
class Server:
    """Where a coordinator is, and who asks it."""

    url: str
    """``https://host:7400``, ``http://127.0.0.1:7400``, or ``unix:/run/stoker-coordinator/api.sock``."""
    token: str = ""
    ca_file: str = ""
    """What its certificate is checked by; empty: what the system trusts."""

    def __post_init__(self) -> None:
        parsed = urlsplit(self.url)
        if parsed.scheme == "unix" and parsed.path.startswith("/"):
            return
        if parsed.scheme not in {"http", "https"} or not parsed.hostname or parsed.path not in {"", "/"}:
            raise ValueError(
                f"{self.url!r} is no coordinator: write https://host:7400, http://127.0.0.1:7400 or unix:/path/of.sock"
            )

    def __repr__(self) -> str:
        return f"Server({self.url!r})"


class ServerUnreachable(DaemonUnreachable):
    """The coordinator does not answer: nothing listens, it is not trusted, or the connection broke."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a change."""

    object: Document
    outcome: str = ""
    """created, changed, unchanged, deleted or deleting."""
    warnings: tuple[str, ...] = ()


class Refused(ClientError):
    """The coordinator refuses an object; ``problems`` has a line for each fault, with its path."""

    def __init__(self, reason: str, message: str, hint: str, status: int, problems: tuple[str, ...]) -> None:
        super().__init__(reason, message, hint, status)
        self.problems = problems


class ServerClient:
    """Connections to a coordinator, as an async context manager."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._session: aiohttp.ClientSession | None = None
        unix = server.url.startswith("unix:")
        self._base = "http://coordinator" if unix else server.url.rstrip("/")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # ------------------------------------------------------------------------------------------ objects

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Document:
        """Return one object."""
        return (await self._ask("GET", _path(kind, namespace, name))).object

    async def list(
        self, kind: Kind, *, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Document]:
        """Yield all objects that are meant, as they were at one moment; *namespace* None: of all."""
        query = {"limit": str(_PAGE), **_selectors(labels, fields)}
        while True:
            page = (await self._ask("GET", _path(kind, namespace), query=query)).object
            for item in page["items"]:
                yield item
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                return

    async def create(self, kind: Kind, version: str, namespace: str, document: Document, *, dry_run: bool) -> Answer:
        """Make a new object."""
        return await self._ask("POST", _path(kind, namespace, version=version), document, dry_run=dry_run)

    async def apply(
        self, kind: Kind, version: str, namespace: str, name: str, document: Document, *, dry_run: bool = False
    ) -> Answer:
        """Make an object, or make the one that is there like it."""
        path = _path(kind, namespace, name, version=version)
        return await self._ask("PATCH", path, document, media=_APPLY, dry_run=dry_run)

    async def patch(self, kind: Kind, name: str, namespace: str, patch: Document, *, dry_run: bool = False) -> Answer:
        """Merge a patch into an object."""
        return await self._ask("PATCH", _path(kind, namespace, name), patch, media=_MERGE, dry_run=dry_run)

    async def delete(self, kind: Kind, name: str, namespace: str = "", *, dry_run: bool = False) -> Answer:
        """Remove an object."""
        return await self._ask("DELETE", _path(kind, namespace, name), dry_run=dry_run)

    # ------------------------------------------------------------------------------------------ letting nodes in

    async def authority(self) -> str:
        """Return the certificate (PEM) that nodes know the coordinator by."""
        try:
            async with self._open().get(self._url("/v1/authority")) as response:
                raw = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error
        if response.status != 200:
            raise _error_of(response.status, raw)
        return raw.decode("ascii", "replace")

    async def create_join_token(self, *, seconds: float, uses: int = 1, node: str = "", note: str = "") -> str:
        """Return a new join token, which nobody can see again."""
        wish = {"seconds": seconds, "uses": uses, "node": node, "note": note}
        return str((await self._ask("POST", "/v1/join-tokens", wish)).object["token"])

    async def join_tokens(self) -> Sequence[Document]:
        """Return all join tokens, without their secrets."""
        items: Sequence[Document] = (await self._ask("GET", "/v1/join-tokens")).object["items"]
        return items

    async def revoke_join_token(self, identity: str) -> None:
        """Let a join token serve no more."""
        await self._ask("DELETE", f"/v1/join-tokens/{part(identity)}")

    async def exclude(self, node: str) -> None:
        """Let no certificate of a node hold any more, and end its stream."""
        await self._ask("DELETE", f"/v1/nodes/{part(node)}/certificate")

    async def text(self, path: str, query: Mapping[str, str]) -> str:
        """Return what is at a path that has no objects: the topology, in one of its forms."""
        given = {name: value for name, value in query.items() if value}
        try:
            async with self._open().get(self._url(path), params=given) as response:
                raw, status = await response.read(), response.status
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error
        if status != 200:
            raise _error_of(status, raw)
        return raw.decode("utf-8", "replace")

    # ------------------------------------------------------------------------------------------ watching

    async def watch(
        self, kind: Kind, *, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> AsyncGenerator[Document, None]:
        """Yield ``{"type": ..., "object": ...}`` for everything that there is and that happens, for ever.

        A connection that breaks is made again and goes on where it ended. Where that is too long ago, everything that
        there is comes once more, after an event of type SYNC.
        """
        revision, delay = "", _FIRST_DELAY
        while True:
            try:
                async for event in self._events(kind, namespace, labels, fields, revision):
                    delay = _FIRST_DELAY
                    revision = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        yield event
            except ServerUnreachable:
                if not revision:
                    raise
            except ClientError as error:
                if error.status not in {410, 429, 503}:
                    raise
                if error.status == 410:
                    revision = ""
                    yield {"type": "SYNC", "object": {}}
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    async def _events(
        self, kind: Kind, namespace: str | None, labels: str, fields: str, revision: str
    ) -> AsyncGenerator[Document, None]:
        query = {"watch": "1", "allowWatchBookmarks": "1", "resourceVersion": revision, **_selectors(labels, fields)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS)
        try:
            async with self._open().get(self._url(_path(kind, namespace)), params=query, timeout=timeout) as response:
                if response.status != 200:
                    raise _error_of(response.status, await response.read())
                while line := await response.content.readuntil(b"\n"):
                    if not line.endswith(b"\n"):
                        return
                    event = msgspec.json.decode(line)
                    if event["type"] == "ERROR":
                        raise _error_of(event["object"].get("code", 500), msgspec.json.encode(event["object"]))
                    yield event
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ClientError("BadAnswer", f"cannot read the coordinator's events: {error}") from error

    # ------------------------------------------------------------------------------------------ the connection

    async def _ask(
        self,
        method: str,
        path: str,
        body: Document | None = None,
        *,
        media: str = _JSON,
        query: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> Answer:
        options: dict[str, Any] = {"params": {**(query or {}), **({"dryRun": "All"} if dry_run else {})}}
        if body is not None:
            options |= {"data": io.BytesIO(msgspec.json.encode(body)), "headers": {"Content-Type": media}}
        try:
            async with self._open().request(method, self._url(path), **options) as response:
                raw, status, headers = await response.read(), response.status, response.headers
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error
        if status // 100 != 2:
            raise _error_of(status, raw)
        try:
            document = msgspec.json.decode(raw, type=Document)
        except msgspec.MsgspecError as error:
            raise ClientError("BadAnswer", f"cannot read the answer to {method} {path}: {error}", "", status) from None
        warnings = [match[1] for text in headers.getall("Warning", []) if (match := _WARNING.match(text))]
        plain = tuple(re.sub(r"\\(.)", r"\1", text) for text in warnings)
        return Answer(document, headers.get("Stoker-Outcome", ""), plain)

    def _url(self, path: str) -> URL:
        return URL(self._base + path, encoded=True)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            server = self._server
            connector: aiohttp.BaseConnector
            if server.url.startswith("unix:"):
                connector = aiohttp.UnixConnector(path=urlsplit(server.url).path)
            else:
                connector = aiohttp.TCPConnector(ssl=_trust(server))
            headers = {"Authorization": f"Bearer {server.token}"} if server.token else {}
            timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS, sock_connect=_CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(
                connector=connector, headers=headers, timeout=timeout, trust_env=False, read_bufsize=_LINE_BYTES
            )
        return self._session

    def _unreachable(self, error: BaseException) -> ServerUnreachable:
        url = self._server.url
        if isinstance(error, TimeoutError):
            return ServerUnreachable(f"the coordinator at {url} does not answer", _LOOK)
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            why = getattr(error.certificate_error, "verify_message", "") or "its certificate is not trusted"
            return ServerUnreachable(
                f"the coordinator at {url} is not trusted: {why}", "say what to trust: STOKER_CACERT=FILE or --cacert"
            )
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        what = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        return ServerUnreachable(f"the coordinator at {url} cannot be reached: {what}", f"is it running? {_LOOK}")


def _trust(server: Server) -> ssl.SSLContext | bool:
    if not server.ca_file or not server.url.startswith("https:"):
        return True
    try:
        return ssl.create_default_context(cafile=server.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ClientError("BadTrust", f"{server.ca_file} cannot be used: {error}") from None


def _path(kind: Kind, namespace: str | None, name: str = "", *, version: str = "") -> str:
    parts = ["/apis", version or kind.version]
    if kind.namespaced and namespace is not None:
        parts += ["namespaces", part(namespace)]
    return "/".join([*parts, kind.plural, *([part(name)] if name else [])])


def _selectors(labels: str, fields: str) -> dict[str, str]:
    given = {"labelSelector": labels, "fieldSelector": fields}
    return {name: text for name, text in given.items() if text}


def _error_of(status: int, raw: bytes) -> ClientError:
    try:
        body = msgspec.json.decode(raw, type=Document)
        return Refused(
            str(body["reason"]),
            str(body["message"]),
            str(body.get("hint", "")),
            status,
            tuple(str(problem) for problem in body.get("problems", ())),
        )
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError):
        text = raw[:200].decode("utf-8", "replace").strip()
        return ClientError("BadAnswer", f"HTTP status {status}: {text or 'no body'}", "", status)
