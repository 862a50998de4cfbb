"""The token dance of registries: 401 with a Bearer challenge, a token for user and password, the request again."""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs

TOKEN_PATH = "/token"
SERVICE = "rig"


@dataclass
class TokenAuth:
    """Gives tokens to whoever knows the password, and lets requests with a good token through."""

    user: str
    password: str
    expires_in: int = 300
    # Whether a token may be had without a password.
    anonymous: bool = False
    # Whether POST with a form is answered too; else 405, and the client falls back to GET.
    oauth: bool = False
    given: int = 0
    refused: int = 0
    _tokens: dict[str, tuple[frozenset[str], float]] = field(default_factory=dict)

    def challenge(self, path: str, base: str) -> str:
        words = f'Bearer realm="{base}{TOKEN_PATH}",service="{SERVICE}"'
        repository = repository_of(path)
        return f'{words},scope="repository:{repository}:pull"' if repository else words

    def admits(self, path: str, authorization: str) -> bool:
        kind, _, token = authorization.partition(" ")
        if kind.lower() != "bearer" or token not in self._tokens:
            return False
        repositories, expires = self._tokens[token]
        wanted = repository_of(path)
        return time.monotonic() < expires and (wanted == "" or wanted in repositories)

    def revoke(self) -> None:
        """No token given so far is good any more."""
        self._tokens.clear()

    def answer(self, method: str, query: str, authorization: str, form: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """The answer of the token endpoint."""
        asked = parse_qs(query if method == "GET" else form.decode(errors="replace"))
        if method == "POST":
            if not self.oauth:
                return 405, {}, b""
            given = (asked.get("username", [""])[0], asked.get("password", [""])[0])
        else:
            given = _basic(authorization)
        if given != (self.user, self.password) and not (self.anonymous and given == ("", "")):
            self.refused += 1
            return 401, {}, b'{"errors":[{"code":"UNAUTHORIZED","message":"wrong user or password"}]}'
        self.given += 1
        scopes = " ".join(asked.get("scope", []))
        token = secrets.token_hex(16)
        repositories = frozenset(re.findall(r"repository:([^:]+):", scopes))
        self._tokens[token] = (repositories, time.monotonic() + self.expires_in)
        body = {"token": token, "access_token": token, "expires_in": self.expires_in}
        return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()


def repository_of(path: str) -> str:
    found = re.match(r"/v2/(.+)/(?:manifests|blobs|tags|referrers)/", path)
    return found.group(1) if found else ""


def _basic(authorization: str) -> tuple[str, str]:
    kind, _, word = authorization.partition(" ")
    if kind.lower() != "basic":
        return "", ""
    try:
        user, _, password = base64.b64decode(word).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return user, password
