"""One server, asked as one who has a credential, or as nobody: challenges are answered, refusals become errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from msgspec.structs import replace as altered

from stokerd.registry.answers import error_for_answer
from stokerd.registry.auth import Authorizer, source_hint
from stokerd.registry.credentials import Credential
from stokerd.registry.errors import RegistryError
from stokerd.registry.hosts import RegistryEndpoint
from stokerd.registry.references import Reference
from stokerd.registry.transport import Answer, Request, Transport


class Line:
    """What is asked of *endpoint* about the repository of *reference*, with *credential* (None: nobody)."""

    def __init__(
        self,
        transport: Transport,
        authorizer: Authorizer,
        endpoint: RegistryEndpoint,
        reference: Reference,
        credential: Credential | None,
        actions: str = "pull",
    ) -> None:
        """*actions* are what a token is to allow: ``pull``, or ``pull,push``."""
        self._transport, self._authorizer = transport, authorizer
        self.endpoint, self.reference, self.credential = endpoint, reference, credential
        self.scope = f"repository:{reference.path}:{actions}"

    def url(self, kind: str, target: str, query: str = "") -> str:
        """Return the address of ``/<repository>/<kind>/<target>`` at this server."""
        namespace = f"ns={quote(self.endpoint.namespace, safe='')}" if self.endpoint.namespace else ""
        query = "&".join(filter(None, (query, namespace)))
        return f"{self.endpoint.url}/{self.reference.path}/{kind}/{target}{'?' if query else ''}{query}"

    async def send(self, request: Request, also: str = "") -> Answer:
        """Return the answer, of any status, authenticated as far as the server wants it.

        *also* are scopes beside the repository's own. What is sent to a foreign place says nothing of who asks.
        """
        scope = f"{self.scope} {also}".strip()
        request = self._dressed(request, scope)
        answer = await self._transport.send(self.endpoint, request)
        again = await self._again(request, answer, scope)
        return answer if again is None else await self._transport.send(self.endpoint, again)

    async def stream(self, request: Request) -> AsyncGenerator[bytes | Answer, None]:
        """Yield the answer of the last try, and then the pieces of its body, as `Transport.stream` does."""
        request, again = self._dressed(request, self.scope), None
        async with aclosing(self._transport.stream(self.endpoint, request)) as found:
            async for piece in found:
                if isinstance(piece, Answer):
                    again = await self._again(request, piece, self.scope)
                if again is None:
                    yield piece
        if again is not None:
            async with aclosing(self._transport.stream(self.endpoint, again)) as found:
                async for piece in found:
                    yield piece

    def error(self, answer: Answer, request: Request) -> RegistryError:
        """Return what an answer that is no success means."""
        foreign = answer.foreign
        hint = source_hint(self.credential) if answer.status in (401, 403) and not foreign else None
        subject = altered(request.subject, registry=urlsplit(answer.url).netloc) if foreign else request.subject
        return error_for_answer(answer.status, answer.headers, answer.body, subject, now=datetime.now(UTC), hint=hint)

    def _dressed(self, request: Request, scope: str) -> Request:
        if request.foreign:
            return request
        header = self._authorizer.known(self.endpoint, scope, self.credential)
        return request.altered(authorization=header, own_headers=self.endpoint.header)

    async def _again(self, request: Request, answer: Answer, scope: str) -> Request | None:
        """Return the request with what a refusal asks for, None when there is nothing to add."""
        fixed = self.credential is not None and bool(self.credential.registry_token)
        if answer.status != 401 or answer.foreign or fixed:
            return None
        wants = await self._authorizer.answer(self.endpoint, answer, scope, self.credential, request.subject)
        # A password that was refused is not sent twice: some registries lock accounts.
        return request.altered(authorization=wants) if wants != request.authorization else None
