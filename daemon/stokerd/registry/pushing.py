"""A push: what the registry lacks is sent to it, blob by blob, and then the documents that name them.

What is there already is left out, what another repository has is mounted, and an upload whose connection broke goes on
where the registry says that it stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from urllib.parse import quote

from stokerd.registry.answers import origin
from stokerd.registry.bodies import Body, Held, Tell
from stokerd.registry.client import ANONYMOUS, MANIFEST_LIMIT, RegistryClient, most_telling
from stokerd.registry.content import MANIFEST_TYPES, digest_of
from stokerd.registry.credentials import Credential
from stokerd.registry.errors import (
    DigestMismatch,
    NoRegistryEndpoint,
    RegistryDenied,
    RegistryError,
    RegistryProtocol,
    RegistryTimeout,
    RegistryUnauthorized,
    Subject,
)
from stokerd.registry.lines import Line
from stokerd.registry.push_types import Blob, BlobState, Contents, Document, Load, Moved, Policy, Pushed
from stokerd.registry.references import Reference
from stokerd.registry.sending import Sending
from stokerd.registry.transport import Answer, Request
from stokerd.registry.uploads import ACCEPTED, CREATED, Upload, begun, is_passing, pause, push_error

_SMALL = 256 << 10
_MOUNTS = 3
_ACCEPT = {"Accept": ", ".join(MANIFEST_TYPES)}
_OCTETS = "application/octet-stream"
_T = TypeVar("_T")


async def push(
    client: RegistryClient,
    reference: Reference,
    load: Load,
    contents: Contents,
    credentials: Sequence[Credential] = (),
    *,
    tell: Tell = lambda _: None,
    policy: Policy | None = None,
) -> Pushed:
    """Bring *load* to the registry; the last of its documents becomes *reference*.

    It goes to the first server of the registry that may be pushed to, with each credential in turn, and at last none.
    Raises RegistryErrors, which name the blob, and whatever *contents* raises.
    """
    endpoints = await client.endpoints(reference, "push")
    if not endpoints:
        raise NoRegistryEndpoint("no server that may be pushed to is configured", Subject(reference.host))
    endpoint = endpoints[0]
    failures: list[RegistryError] = []
    for credential in client.usable(endpoint, credentials):
        line = client.line(endpoint, reference, credential, "pull,push")
        try:
            return await Push(line, load, contents, tell, policy or Policy()).run()
        except (RegistryUnauthorized, RegistryDenied) as error:
            failures.append(error)
        except RegistryError as error:
            raise push_error(error, reference.name) from None
    raise push_error(most_telling(failures), reference.name)


class Push:
    """One push over one line."""

    def __init__(self, line: Line, load: Load, contents: Contents, tell: Tell, policy: Policy) -> None:
        self._line, self._load, self._contents, self._tell, self._policy = line, load, contents, tell, policy
        self._bytes = dict.fromkeys(("existing", "mounted", "sent"), 0)
        self._transferred = 0

    async def run(self) -> Pushed:
        top = self._load.documents[-1]
        await self._known(top)  # one request that learns how to authenticate, before many at a time
        await self._blobs()
        for document in self._load.documents:
            await self._document(document)
        await self._verify(top)
        return Pushed(
            reference=self._line.reference,
            digest=top.digest,
            endpoint=self._line.endpoint.url,
            credential=self._line.credential.source if self._line.credential else ANONYMOUS,
            transferred=self._transferred,
            **self._bytes,
        )

    async def _blobs(self) -> None:
        slots = asyncio.Semaphore(self._policy.parallel)

        async def one(blob: Blob) -> None:
            async with slots:
                await self._blob(blob)

        try:
            async with asyncio.TaskGroup() as group:
                for blob in {each.digest: each for each in self._load.blobs}.values():
                    group.create_task(one(blob), name=f"push {blob.digest[:19]}")
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _blob(self, blob: Blob) -> None:
        if await self._exists(blob):
            self._done(blob, "existing")
            return
        mounted, upload = await self._mount(blob)
        if mounted:
            self._done(blob, "mounted")
            return
        self._tell(Moved(blob.digest, blob.size, 0, "fetching"))
        await self._contents.obtain(blob)
        await Sending(self, blob, upload).run()
        self._done(blob, "sent")

    def _done(self, blob: Blob, state: BlobState) -> None:
        self._bytes[state] += blob.size
        self._tell(Moved(blob.digest, blob.size, blob.size, state))

    # ------------------------------------------------------------------------------------------ requests

    def subject(self, target: str) -> Subject:
        return Subject(self._line.endpoint.host, self._line.reference.name, target)

    async def ask(
        self, method: str, url: str, target: str, *, also: str = "", headers: dict[str, str] | None = None
    ) -> Answer:
        """Return the answer to a request without a body, of any status."""
        request = Request(
            url=url,
            subject=self.subject(target),
            limit=_SMALL if "/manifests/" not in url else MANIFEST_LIMIT,
            method=method,
            headers=headers or {},
            foreign=self._is_foreign(url),
            patience=self._policy.answer if method == "PUT" else 0.0,
            persistent=False,
        )
        return await self._line.send(request, also)

    async def send(self, method: str, url: str, target: str, body: Body, headers: dict[str, str]) -> Answer:
        """Return the answer to a request with a body, of any status; RegistryTimeout when it does not move."""
        request = Request(
            url=url,
            subject=self.subject(target),
            limit=_SMALL,
            method=method,
            body=body.pieces,
            length=body.length,
            headers={"Content-Type": _OCTETS, **headers},
            foreign=self._is_foreign(url),
            patience=self._policy.answer,
            persistent=False,
        )
        try:
            async with asyncio.timeout(self._policy.stall) as limit:
                body.limit = limit
                return await self._line.send(request)
        except TimeoutError:
            what = f"nothing of an upload moved within {self._policy.stall:g} s"
            raise RegistryTimeout(what, self.subject(target)) from None
        except RegistryError:
            if body.failure is not None:  # what could not be read looks like a connection that broke
                raise body.failure from None
            raise
        finally:
            body.limit = None
            self._transferred += body.sent

    def refused(self, answer: Answer, target: str) -> RegistryError:
        return self._line.error(answer, Request(url=answer.url, subject=self.subject(target), limit=0))

    def _is_foreign(self, url: str) -> bool:
        """Say whether *url* is another server's: after a fall-back, plain HTTP of the same one is not."""
        own = origin(self._line.endpoint.url)
        plain = ("http", own[1], own[2])
        return origin(url) != own and not (self._line.endpoint.plain_http_fallback and origin(url) == plain)

    async def patiently(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Do something that may be done again, until it succeeds or it is enough."""
        attempt = 0
        while True:
            try:
                return await work()
            except RegistryError as error:
                attempt += 1
                await self.rest(attempt, error)

    async def rest(self, attempt: int, error: RegistryError) -> None:
        """Wait before try number *attempt*; raise *error* when there is no sense in another one."""
        wait = pause(attempt, error, self._policy.pause) if is_passing(error) else None
        if attempt >= self._policy.attempts or wait is None:
            raise error
        await asyncio.sleep(wait)

    # ------------------------------------------------------------------------------------------ blobs

    async def _exists(self, blob: Blob) -> bool:
        return await self.patiently(lambda: self.has(blob))

    async def has(self, blob: Blob) -> bool:
        answer = await self.ask("HEAD", self._line.url("blobs", blob.digest), blob.digest)
        if answer.status == 200 or answer.foreign:  # who is sent to where it lies has been told that it is there
            return True
        if answer.status == 404:
            return False
        raise self.refused(answer, blob.digest)

    async def _mount(self, blob: Blob) -> tuple[bool, Upload | None]:
        """Let the registry take the blob from another repository; return the upload that was begun instead."""
        own = self._line.reference.path
        upload: Upload | None = None
        for repository in [each for each in blob.mounts if each != own][:_MOUNTS]:
            query = f"mount={quote(blob.digest, safe=':')}&from={quote(repository, safe='')}"
            url, also = self._line.url("blobs", "uploads/", query), f"repository:{repository}:pull"
            try:
                answer = await self.ask("POST", url, blob.digest, also=also)
            except RegistryError:
                continue  # what cannot be mounted is sent
            if answer.status == CREATED:
                return True, None
            if answer.status == ACCEPTED:
                upload = self.upload(answer, blob)
        return False, upload

    def upload(self, answer: Answer, blob: Blob) -> Upload:
        try:
            return begun(answer.url, answer.headers)
        except ValueError as error:
            raise RegistryProtocol(str(error), self.subject(blob.digest), status=answer.status) from None

    async def begin(self, blob: Blob) -> Upload:
        answer = await self.ask("POST", self._line.url("blobs", "uploads/"), blob.digest)
        if answer.status != ACCEPTED:
            raise self.refused(answer, blob.digest)
        return self.upload(answer, blob)

    def body(self, blob: Blob, offset: int, length: int) -> Body:
        return Body(self._contents, blob, offset, length, self._tell, self._policy)

    @property
    def chunk(self) -> int:
        return self._policy.chunk

    # ------------------------------------------------------------------------------------------ documents

    async def _known(self, document: Document) -> bool:
        """Say whether the registry has the document under the name that it is to have."""
        target = document.tag or document.digest

        async def look() -> bool:
            answer = await self.ask("HEAD", self._line.url("manifests", target), target, headers=_ACCEPT)
            if answer.status in {200, 404}:
                return answer.status == 200 and answer.headers.get("Docker-Content-Digest") == document.digest
            raise self.refused(answer, target)

        return await self.patiently(look)

    async def _document(self, document: Document) -> None:
        target = document.tag or document.digest
        url, headers = self._line.url("manifests", target), {"Content-Type": document.media_type}

        async def put() -> None:
            body = Body(Held(document.body), Blob(document.digest, len(document.body)), 0, len(document.body))
            answer = await self.send("PUT", url, target, body, headers)
            if answer.status not in {200, CREATED, ACCEPTED}:
                raise self.refused(answer, target)

        if not await self._known(document):
            await self.patiently(put)

    async def _verify(self, document: Document) -> None:
        """Make sure that the registry gives under this name what was pushed."""
        target = document.tag or document.digest

        async def look() -> str:
            url = self._line.url("manifests", target)
            answer = await self.ask("HEAD", url, target, headers=_ACCEPT)
            named = answer.headers.get("Docker-Content-Digest", "")
            if answer.status == 200 and named:
                return named
            answer = await self.ask("GET", url, target, headers=_ACCEPT)
            if answer.status != 200:
                raise self.refused(answer, target)
            return digest_of(answer.body, document.digest.partition(":")[0])

        found = await self.patiently(look)
        if found != document.digest:
            what = f"it has {found} under this name after {document.digest} was pushed"
            raise DigestMismatch(what, self.subject(target), hint="somebody else pushes to this name; push again")
