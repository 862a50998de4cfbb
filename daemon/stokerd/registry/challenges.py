"""How a registry asks for authentication, and what a token server is asked then. Pure.

Sources: RFC 9110 section 11 for the header; the distribution project's token and OAuth2 documents for the rest.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

import msgspec

from stokerd.registry.credentials import Credential

CLIENT_ID = "stoker"
DEFAULT_LIFETIME = 60.0
"""Seconds that a token lives whose server does not say."""
MAX_LIFETIME = 86_400.0

_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_ENDS = r"(?=[ \t]*(?:,|$))"
_SEPARATORS = re.compile(r"[ \t,]*")
_SCHEME = re.compile(rf"({_NAME})(?=[ \t,]|$)(?:[ \t]+[A-Za-z0-9._~+/-]+=*{_ENDS})?")
_PARAMETER = re.compile(rf'({_NAME})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_NAME})){_ENDS}')
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Challenge:
    """One challenge of WWW-Authenticate; ``scheme`` and the names of ``parameters`` are in lower case."""

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A request for a bearer token: a GET with ``authorization``, or a POST of ``form``."""

    url: str
    authorization: str | None = field(default=None, repr=False)
    form: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token and how long it lives, in seconds."""

    value: str = field(repr=False)
    lifetime: float


class TokenProblem(ValueError):
    """The challenge or the token server's answer cannot be used; the text says why and holds no secret."""


class _TokenAnswer(msgspec.Struct):
    token: str | None = None
    access_token: str | None = None
    expires_in: float | None = None


def parse_challenges(headers: Iterable[str]) -> tuple[Challenge, ...]:
    """Return the challenges in the values of WWW-Authenticate, in their order.

    One value may hold several. Reading stops where a value is malformed; what stood before is kept.
    """
    return tuple(challenge for header in headers for challenge in _parse_header(header))


def _parse_header(header: str) -> list[Challenge]:
    challenges: list[Challenge] = []
    parameters: dict[str, str] = {}
    at = 0
    while match := _SEPARATORS.match(header, at):
        at = match.end()
        if challenges and (parameter := _PARAMETER.match(header, at)):
            name, quoted, plain = parameter.groups()
            parameters[name.lower()] = plain if quoted is None else _ESCAPE.sub(r"\1", quoted)
            at = parameter.end()
        elif scheme := _SCHEME.match(header, at):
            parameters = {}
            challenges.append(Challenge(scheme[1].lower(), parameters))
            at = scheme.end()
        else:
            break
    return challenges


def choose_challenge(challenges: Iterable[Challenge]) -> Challenge | None:
    """Return the challenge that is answered: a bearer token before a password, None if neither is asked for."""
    known = {challenge.scheme: challenge for challenge in reversed(tuple(challenges))}
    return known.get("bearer") or known.get("basic")


def basic_authorization(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode("ascii")


def token_scopes(challenge: Challenge, own: str) -> tuple[str, ...]:
    """Return what a token is asked for: what the challenge says, and of the same resources what *own* says.

    *own* has the repository that is meant, ``repository:<path>:<actions>``, and maybe others, which are always asked
    for. So one token serves all requests of a push, where each challenge names only what its request needs.
    """
    asked = _scopes(challenge.parameters.get("scope", ""))
    meant = _scopes(own)
    first = next(iter(meant))
    found = {name: actions | meant.get(name, frozenset()) for name, actions in asked.items()}
    found |= {name: actions for name, actions in meant.items() if name not in found and (name != first or not asked)}
    return tuple(sorted(f"{name}:{','.join(sorted(actions))}" if actions else name for name, actions in found.items()))


def _scopes(text: str) -> dict[str, frozenset[str]]:
    """Read ``type:name:actions ...``; what has no actions is kept as it is."""
    found: dict[str, frozenset[str]] = {}
    for scope in text.split():
        name, colon, actions = scope.rpartition(":")
        if not colon or ":" not in name:
            name, actions = scope, ""
        found[name] = found.get(name, frozenset()) | frozenset(filter(None, actions.split(",")))
    return found


def token_request(
    challenge: Challenge, credential: Credential | None, scopes: tuple[str, ...], *, plain_http: bool
) -> TokenRequest:
    """Return the request that turns *credential* (None: nobody) into a token for *scopes*.

    An identity token is posted as a refresh token; a name and a password go with a GET. *plain_http* says that the
    registry itself was asked without TLS: only then may its token server be asked without. Raises TokenProblem.
    """
    realm = challenge.parameters.get("realm", "")
    _check_realm(realm, plain_http=plain_http)
    service = challenge.parameters.get("service", "")
    if credential is not None and credential.identity_token:
        fields = {
            "grant_type": "refresh_token",
            "service": service,
            "client_id": CLIENT_ID,
            "scope": " ".join(scopes),
            "refresh_token": credential.identity_token,
        }
        return TokenRequest(realm, form=urlencode(fields).encode())
    query = [("service", service)] if service else []
    query += [("scope", scope) for scope in scopes]
    url = f"{realm}{'&' if urlsplit(realm).query else '?'}{urlencode(query)}"
    if credential is None:
        return TokenRequest(url)
    return TokenRequest(url, authorization=basic_authorization(credential.username, credential.password))


def _check_realm(realm: str, *, plain_http: bool) -> None:
    try:
        parts = urlsplit(realm)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        raise TokenProblem("the address of its token server is not a URL") from None
    if not usable or parts.fragment or "@" in parts.netloc or any(not "!" <= c <= "~" for c in realm):
        raise TokenProblem("the address of its token server is not a plain http or https URL")
    if parts.scheme == "http" and not plain_http:
        raise TokenProblem("it names a token server without TLS, which would expose credentials")


def parse_token(body: bytes) -> Token:
    """Read the token server's answer: ``token`` or ``access_token``, and ``expires_in`` in seconds.

    The lifetime counts from now, whatever ``issued_at`` says: that is another machine's clock. Raises TokenProblem.
    """
    try:
        answer = msgspec.json.decode(body, type=_TokenAnswer, strict=False)
    except (msgspec.MsgspecError, RecursionError):
        # "from None": the cause could quote the token.
        raise TokenProblem("its token server's answer is not the JSON of a token") from None
    value = answer.token or answer.access_token or ""
    if not value:
        raise TokenProblem("its token server's answer has no token")
    if any(not "!" <= c <= "~" for c in value):
        raise TokenProblem("its token server's token has characters that no header may have")
    lifetime = DEFAULT_LIFETIME if answer.expires_in is None else answer.expires_in
    return Token(value, min(max(lifetime, 0.0), MAX_LIFETIME))
