"""How nodes come to be let in, by HTTP: join tokens, the certificate that nodes know the coordinator by, exclusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec
from aiohttp import web
from msgspec import Struct

from stoker_coordinator.api.handlers import JSON, check_allowed, json_response, read_body
from stoker_coordinator.errors import Invalid

_TOKEN = "JoinToken"  # noqa: S105 - the name of a kind


class JoinToken(Protocol):
    """What is known of a token."""

    @property
    def id(self) -> str: ...
    @property
    def created_at(self) -> float: ...
    @property
    def expires_at(self) -> float: ...
    @property
    def uses_left(self) -> int: ...
    @property
    def node(self) -> str: ...
    @property
    def revoked(self) -> bool: ...
    @property
    def note(self) -> str: ...


class Door(Protocol):
    """Who lets nodes in."""

    @property
    def authority(self) -> bytes: ...
    async def create_token(self, *, seconds: float, uses: int, node: str, note: str) -> str: ...
    async def list_tokens(self) -> Sequence[JoinToken]: ...
    async def revoke_token(self, identity: str) -> None: ...
    async def revoke_node(self, node: str) -> None: ...


class _Wish(Struct, forbid_unknown_fields=True):
    seconds: float = 3600.0
    uses: int = 1
    node: str = ""
    note: str = ""


class Joining:
    """Routes under /v1."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def routes(self) -> tuple[web.RouteDef, ...]:
        """Return all routes."""
        return (
            web.get("/v1/authority", self._authority),
            web.post("/v1/join-tokens", self._create),
            web.get("/v1/join-tokens", self._list),
            web.delete("/v1/join-tokens/{id}", self._revoke),
            web.delete("/v1/nodes/{name}/certificate", self._exclude),
        )

    async def _authority(self, request: web.Request) -> web.Response:
        check_allowed(request, "get", "Authority")
        return web.Response(body=self._door.authority, content_type="application/x-pem-file")

    async def _create(self, request: web.Request) -> web.Response:
        check_allowed(request, "create", _TOKEN)
        try:
            wish = msgspec.convert(await read_body(request, JSON), _Wish)
        except msgspec.ValidationError as error:
            raise Invalid(str(error).replace("$.", "")) from None
        check_allowed(request, "create", _TOKEN, name=wish.node[:100])
        text = await self._door.create_token(seconds=wish.seconds, uses=wish.uses, node=wish.node, note=wish.note)
        return json_response(msgspec.json.encode({"token": text}), 201)

    async def _list(self, request: web.Request) -> web.Response:
        check_allowed(request, "list", _TOKEN)
        return json_response(msgspec.json.encode({"items": [_shown(each) for each in await self._door.list_tokens()]}))

    async def _revoke(self, request: web.Request) -> web.Response:
        identity = request.match_info["id"]
        check_allowed(request, "delete", _TOKEN, name=identity[:100])
        await self._door.revoke_token(identity)
        return json_response(b"{}")

    async def _exclude(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        check_allowed(request, "delete", "NodeCertificate", name=name[:100])
        await self._door.revoke_node(name)
        return json_response(b"{}")


def _shown(token: JoinToken) -> Mapping[str, Any]:
    return {
        "id": token.id,
        "createdAt": datetime.fromtimestamp(token.created_at, UTC),
        "expiresAt": datetime.fromtimestamp(token.expires_at, UTC),
        "usesLeft": token.uses_left,
        "node": token.node,
        "revoked": token.revoked,
        "note": token.note,
    }
