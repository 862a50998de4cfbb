"""Answering a registry's challenges: passwords, and bearer tokens that are fetched and kept while they live."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar
from urllib.parse import urlsplit

from msgspec.structs import replace

from stokerd.registry.answers import error_for_answer
from stokerd.registry.challenges import (
    Challenge,
    TokenProblem,
    TokenRequest,
    basic_authorization,
    choose_challenge,
    parse_challenges,
    parse_token,
    token_request,
    token_scopes,
)
from stokerd.registry.credentials import Credential
from stokerd.registry.errors import RegistryProtocol, RegistryUnauthorized, Subject
from stokerd.registry.hosts import RegistryEndpoint
from stokerd.registry.transport import Answer, Request, Transport

_MAX_ANSWER = 256 << 10
_MAX_ENTRIES = 256
_SLACK = 10.0
"""Seconds before its end from which on a token is not used any more; a fifth of its life where that is less."""

_K = TypeVar("_K")
_V = TypeVar("_V")
_Key = tuple[str, str, tuple[str, ...], tuple[str, str, str, str] | None]


class Authorizer:
    """Turns credentials into the Authorization headers that registries ask for."""

    def __init__(self, transport: Transport, clock: Callable[[], float]) -> None:
        """*clock* returns monotonic seconds."""
        self._transport = transport
        self._clock = clock
        self._tokens: dict[_Key, tuple[float, str]] = {}
        self._challenges: dict[tuple[str, str], Challenge] = {}

    def known(self, endpoint: RegistryEndpoint, scope: str, credential: Credential | None) -> str | None:
        """Return the header that *endpoint* will want for *scope*, as far as it is known without asking anyone."""
        if credential is not None and credential.registry_token:
            return f"Bearer {credential.registry_token}"
        challenge = self._challenges.get((endpoint.url, scope))
        if challenge is None:
            return None
        if challenge.scheme == "basic":
            return _basic(credential)
        expires, header = self._tokens.get(_key(challenge, scope, credential), (0.0, ""))
        return header if expires > self._clock() else None

    async def answer(
        self,
        endpoint: RegistryEndpoint,
        refusal: Answer,
        scope: str,
        credential: Credential | None,
        subject: Subject,
    ) -> str:
        """Return the header with which a request that was answered with *refusal* (401) is sent again.

        A token that was used for it is forgotten. Raises the errors of ``Transport.send``, RegistryUnauthorized when
        *credential* (None: nobody) is of no use or is refused, and what else the token server's answer means.
        """
        challenge = choose_challenge(parse_challenges(refusal.challenges))
        if challenge is None:
            what = "it wants authentication of a kind that is not known here (HTTP 401)"
            raise RegistryUnauthorized(what, subject, status=401)
        _remember(self._challenges, (endpoint.url, scope), challenge)
        if challenge.scheme == "basic":
            header = _basic(credential)
            if header is None:
                what = "it wants a user name and a password (HTTP 401)"
                raise RegistryUnauthorized(what, subject, status=401, hint=source_hint(credential))
            return header
        key = _key(challenge, scope, credential)
        self._tokens.pop(key, None)
        plain_http = refusal.url.startswith("http://")
        try:
            wanted = token_request(challenge, credential, key[2], plain_http=plain_http)
            token = parse_token(await self._fetch(endpoint, wanted, credential, subject))
        except TokenProblem as problem:
            raise RegistryProtocol(str(problem), subject) from None
        header = f"Bearer {token.value}"
        expires = self._clock() + token.lifetime - min(_SLACK, token.lifetime / 5)
        _remember(self._tokens, key, (expires, header))
        return header

    async def _fetch(
        self, endpoint: RegistryEndpoint, wanted: TokenRequest, credential: Credential | None, subject: Subject
    ) -> bytes:
        """Return the body of the token server's answer, or raise what its refusal means."""
        subject = replace(subject, registry=urlsplit(wanted.url).netloc)
        request = Request(
            url=wanted.url,
            subject=subject,
            limit=_MAX_ANSWER,
            headers={"Content-Type": "application/x-www-form-urlencoded"} if wanted.form else {},
            authorization=wanted.authorization,
            form=wanted.form,
            may_leave=False,
        )
        answer = await self._transport.send(endpoint, request)
        if answer.ok:
            return answer.body
        if answer.status in (404, 405, 410):
            what = f"the token server that the registry names does not know such requests (HTTP {answer.status})"
            raise RegistryProtocol(what, subject, status=answer.status)
        # Some say 400 to a refresh token that is not valid, and some 403 to nobody.
        refused = answer.status in (401, 403) or (answer.status == 400 and credential is not None)
        raise error_for_answer(
            401 if refused else answer.status,
            answer.headers,
            answer.body,
            subject,
            now=datetime.now(UTC),
            hint=source_hint(credential) if refused else None,
        )


def source_hint(credential: Credential | None) -> str | None:
    """Return what to say of refused credentials: where they came from, or that there were none."""
    if credential is None:
        return "no credentials were sent; give some, or check the name: what does not exist may look the same"
    return f"the credentials that were refused are those of {credential.source}"


def _basic(credential: Credential | None) -> str | None:
    if credential is None or not (credential.username or credential.password):
        return None
    return basic_authorization(credential.username, credential.password)


def _key(challenge: Challenge, scope: str, credential: Credential | None) -> _Key:
    parameters = challenge.parameters
    return (
        parameters.get("realm", ""),
        parameters.get("service", ""),
        token_scopes(challenge, scope),
        None if credential is None else credential.secret,
    )


def _remember(table: dict[_K, _V], key: _K, value: _V) -> None:
    """Keep *value* in *table*, which forgets its oldest entry when it is full."""
    table.pop(key, None)
    if len(table) >= _MAX_ENTRIES:
        del table[next(iter(table))]
    table[key] = value
