"""A client of the distribution protocol: from a name to bytes that have the digest they should have.

It asks what the runtime would ask: the servers that the node's registry configuration names, in their order, with
each credential that applies, and at last with none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

from stokerd.errors import InvalidInput
from stokerd.registry.auth import Authorizer
from stokerd.registry.content import (
    MANIFEST_TYPES,
    Descriptor,
    digest_of,
    has_digest,
    is_digest,
    manifest_type,
)
from stokerd.registry.credentials import Credential
from stokerd.registry.errors import (
    DigestMismatch,
    ManifestNotFound,
    NoRegistryEndpoint,
    RegistryDenied,
    RegistryError,
    RegistryProtocol,
    RegistryTimeout,
    RegistryUnauthorized,
    Subject,
    UnsupportedMediaType,
)
from stokerd.registry.hosts import RegistryEndpoint, is_loopback
from stokerd.registry.lines import Line
from stokerd.registry.references import DEFAULT_TAG, Reference
from stokerd.registry.transport import Answer, Request, Timeouts, Transport

MANIFEST_LIMIT = 4 << 20
"""Bytes that a manifest may have; containerd takes about as many."""
ANONYMOUS = "anonymous"

_ACCEPT = {"Accept": ", ".join(MANIFEST_TYPES)}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A manifest or an index. ``endpoint`` is the URL of the server that gave it, ``credential`` the source used."""

    descriptor: Descriptor
    body: bytes = field(repr=False)
    endpoint: str
    credential: str = ANONYMOUS


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is asked of each server: ``kind`` is the part of the path before ``target``, a tag or a digest."""

    reference: Reference
    kind: str
    target: str
    digest: str | None
    limit: int
    capabilities: frozenset[str]
    headers: Mapping[str, str] = field(default_factory=dict)

    def subject(self, registry: str) -> Subject:
        return Subject(registry, self.reference.name, self.target)


class RegistryClient:
    """Asks registries for manifests and small blobs. Everything it raises is a RegistryError or an InvalidInput."""

    def __init__(
        self,
        *,
        hosts: Callable[[str], tuple[RegistryEndpoint, ...]],
        timeouts: Timeouts | None = None,
        manifest_limit: int = MANIFEST_LIMIT,
        user_agent: str = "stoker",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*hosts* returns the servers of a reference's host, as ``load_endpoints`` does; it may read files."""
        self._hosts = hosts
        self._manifest_limit = manifest_limit
        self._transport = Transport(timeouts or Timeouts(), user_agent)
        self._authorizer = Authorizer(self._transport, clock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections; the client cannot be used after that."""
        await self._transport.aclose()

    async def resolve(self, reference: Reference, credentials: Sequence[Credential] = ()) -> Resolved:
        """Return the manifest or index that *reference* names; its digest is checked against all that is known.

        *credentials* are tried in turn, then nobody. On Docker Hub this counts as a pull.
        """
        if reference.digest:
            return await self.fetch_manifest(reference, reference.digest, credentials)
        wanted = self._manifest(reference, reference.tag or DEFAULT_TAG, None, frozenset({"pull", "resolve"}))
        return await self._call(wanted, credentials, _read_manifest)

    async def fetch_manifest(
        self, reference: Reference, digest: str, credentials: Sequence[Credential] = ()
    ) -> Resolved:
        """Return the manifest or index *digest* of the repository of *reference*, whatever its tag and digest."""
        wanted = self._manifest(reference, _checked(digest), digest, frozenset({"pull"}))
        return await self._call(wanted, credentials, _read_manifest)

    async def fetch_blob(
        self, reference: Reference, digest: str, size_limit: int, credentials: Sequence[Credential] = ()
    ) -> bytes:
        """Return the blob *digest* of the repository of *reference*, which may have *size_limit* bytes."""
        wanted = _Wanted(reference, "blobs", _checked(digest), digest, size_limit, frozenset({"pull"}))
        return await self._call(wanted, credentials, _read_blob)

    # ------------------------------------------------------------------------------------------ for pushes

    async def endpoints(self, reference: Reference, capability: str) -> tuple[RegistryEndpoint, ...]:
        """Return the servers of the reference's registry that have the capability, in their order."""
        configured = await asyncio.to_thread(self._hosts, reference.host)
        return tuple(each for each in configured if capability in each.capabilities)

    def usable(self, endpoint: RegistryEndpoint, credentials: Sequence[Credential]) -> tuple[Credential | None, ...]:
        """Return the credentials that *endpoint* may be told, and at last none."""
        return (*(credentials if _may_know(endpoint) else ()), None)

    def line(
        self, endpoint: RegistryEndpoint, reference: Reference, credential: Credential | None, actions: str = "pull"
    ) -> Line:
        """Return what a repository is asked over, as one who has the credential."""
        return Line(self._transport, self._authorizer, endpoint, reference, credential, actions)

    # ------------------------------------------------------------------------------------------ inside

    def _manifest(self, reference: Reference, target: str, digest: str | None, capabilities: frozenset[str]) -> _Wanted:
        return _Wanted(reference, "manifests", target, digest, self._manifest_limit, capabilities, _ACCEPT)

    async def _call(
        self, wanted: _Wanted, credentials: Sequence[Credential], read: Callable[[_Wanted, _Found], _T]
    ) -> _T:
        total = self._transport.timeouts.total
        try:
            async with asyncio.timeout(total):
                return await self._ask_endpoints(wanted, credentials, read)
        except TimeoutError:
            subject = wanted.subject(wanted.reference.host)
            raise RegistryTimeout(f"there was no answer within {total:g} s", subject) from None

    async def _ask_endpoints(
        self, wanted: _Wanted, credentials: Sequence[Credential], read: Callable[[_Wanted, _Found], _T]
    ) -> _T:
        configured = await asyncio.to_thread(self._hosts, wanted.reference.host)
        endpoints = [endpoint for endpoint in configured if wanted.capabilities <= endpoint.capabilities]
        failures: list[RegistryError] = []
        for endpoint in endpoints:
            last = endpoint is endpoints[-1]
            try:
                return await self._ask_endpoint(endpoint, wanted, credentials, read, persistent=last)
            except RegistryError as error:
                failures.append(error)
        if not failures:
            needed = " and ".join(sorted(wanted.capabilities))
            raise NoRegistryEndpoint(
                f"no server that may {needed} is configured", wanted.subject(wanted.reference.host)
            )
        raise _with_earlier(failures)

    async def _ask_endpoint(
        self,
        endpoint: RegistryEndpoint,
        wanted: _Wanted,
        credentials: Sequence[Credential],
        read: Callable[[_Wanted, _Found], _T],
        *,
        persistent: bool,
    ) -> _T:
        failures: list[RegistryError] = []
        for credential in self.usable(endpoint, credentials):
            try:
                answer = await self._ask(endpoint, wanted, credential, persistent=persistent)
                return read(wanted, _Found(answer, endpoint, credential))
            except (RegistryUnauthorized, RegistryDenied, ManifestNotFound) as error:
                # Some registries hide from one what they show to another.
                failures.append(error)
            except RegistryError as error:
                if error.retryable or not failures:
                    raise
                failures.append(error)
        raise most_telling(failures)

    async def _ask(
        self, endpoint: RegistryEndpoint, wanted: _Wanted, credential: Credential | None, *, persistent: bool
    ) -> Answer:
        """Return a successful answer, authenticated as far as the server wants it, or raise what it means."""
        line = Line(self._transport, self._authorizer, endpoint, wanted.reference, credential)
        request = Request(
            url=line.url(wanted.kind, wanted.target),
            subject=wanted.subject(endpoint.host),
            limit=wanted.limit,
            headers=wanted.headers,
            persistent=persistent,
        )
        answer = await line.send(request)
        if answer.ok:
            return answer
        raise line.error(answer, request)


@dataclass(frozen=True, slots=True)
class _Found:
    """A successful answer, and from where and how it was got."""

    answer: Answer
    endpoint: RegistryEndpoint
    credential: Credential | None


def _checked(digest: str) -> str:
    if not is_digest(digest):
        raise InvalidInput(f"{digest[:80]!r} is not a digest")
    return digest


def _may_know(endpoint: RegistryEndpoint) -> bool:
    """Return whether *endpoint* is told credentials: as in containerd yes, but never a remote mirror without TLS."""
    secure = endpoint.scheme == "https" and not endpoint.plain_http_fallback
    return secure or not endpoint.namespace or is_loopback(endpoint.host)


def _read_manifest(wanted: _Wanted, found: _Found) -> Resolved:
    """Check a manifest against the digest that was asked for and the one that the server names."""
    body, headers = found.answer.body, found.answer.headers
    subject = wanted.subject(found.endpoint.host)
    named = headers.get("Docker-Content-Digest", "").strip()
    if named and not is_digest(named):
        raise RegistryProtocol("the digest that it names is none", subject, status=200)
    for digest in filter(None, (wanted.digest, named)):
        _check_digest(body, digest, subject)
    try:
        media_type = manifest_type(headers.get("Content-Type", ""), body)
    except ValueError as error:
        raise RegistryProtocol(str(error), subject, status=200) from None
    except LookupError as error:
        what = f"it gives a document of the type {str(error.args[0])[:100]!r}, which is no image"
        raise UnsupportedMediaType(what, subject, status=200) from None
    descriptor = Descriptor(media_type, wanted.digest or named or digest_of(body), len(body))
    source = found.credential.source if found.credential else ANONYMOUS
    endpoint = found.endpoint.url
    if not found.answer.foreign:
        # The scheme that was spoken, after a fall-back.
        endpoint = f"{urlsplit(found.answer.url).scheme}:{endpoint.partition(':')[2]}"
    return Resolved(descriptor, body, endpoint, source)


def _read_blob(wanted: _Wanted, found: _Found) -> bytes:
    _check_digest(found.answer.body, wanted.target, wanted.subject(found.endpoint.host))
    return found.answer.body


def _check_digest(body: bytes, digest: str, subject: Subject) -> None:
    if not has_digest(body, digest):
        actual = digest_of(body, digest.partition(":")[0])
        raise DigestMismatch(f"the content should have the digest {digest} and has {actual}", subject, status=200)


def most_telling(failures: Sequence[RegistryError]) -> RegistryError:
    """Return one of the failures that the credentials had in turn; the last is that of nobody."""
    *asked, nobody = failures
    for error in asked:
        if not isinstance(error, RegistryUnauthorized):
            return error
    # To nobody only "not found" is a verdict; anything else may just mean that nobody is asking.
    return asked[0] if asked and not isinstance(nobody, ManifestNotFound) else nobody


def _with_earlier(failures: Sequence[RegistryError]) -> RegistryError:
    """Return the last failure, which is the registry's own after those of its mirrors, with what these said."""
    *earlier, last = failures
    if not earlier:
        return last
    mirrors = "; ".join(f"{error.subject.registry}: {error.what}" for error in earlier)
    return type(last)(
        f"{last.what}; asked before: {mirrors}",
        last.subject,
        status=last.status,
        retry_after=last.retry_after,
        hint=last.hint,
    )
