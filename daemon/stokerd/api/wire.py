"""JSON and query strings in, JSON out; everything strict and with the place of the fault in the message."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from stokerd.api.errors import BodyTimeout, BodyTooLarge, UnsupportedMedia
from stokerd.errors import InvalidInput

T = TypeVar("T")

_PLACE = re.compile(r"^(?P<what>.*?) - at `(?P<path>[^`]*)`$", re.DOTALL)
_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}


def decode(raw: bytes, kind: type[T]) -> T:
    """Return *raw* JSON as a *kind*; InvalidInput names the JSON path (``$.images[3]``) and what is wrong there."""
    if not raw.strip():
        raise InvalidInput("$: the body is empty", hint="send a JSON object")
    try:
        decoded = msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        place = _PLACE.match(str(error))
        what, path = (place["what"], place["path"]) if place else (str(error), "$")
        raise InvalidInput(f"{path}: {what[:1].lower()}{what[1:]}") from None
    return decoded


async def read_body(request: web.Request, kind: type[T], *, timeout: float) -> T:
    """Read and decode the request's body.

    UnsupportedMedia: not ``application/json`` in UTF-8, or compressed. BodyTooLarge: over the server's limit.
    BodyTimeout: it did not arrive within *timeout* seconds. InvalidInput: not a *kind*.
    """
    _check_media(request)
    try:
        async with asyncio.timeout(timeout):
            raw = await request.read()
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {timeout:g} s") from None
    except web.HTTPRequestEntityTooLarge:
        raise BodyTooLarge("the body is larger than this API accepts", hint="send several smaller requests") from None
    return decode(raw, kind)


def _check_media(request: web.Request) -> None:
    # A missing content type is let through: there is only one that it could be.
    if "Content-Type" in request.headers and request.content_type != "application/json":
        raise UnsupportedMedia(
            f"content type {request.content_type!r} is not supported",
            hint="send Content-Type: application/json",
        )
    if (request.charset or "utf-8").lower() not in {"utf-8", "utf8"}:
        raise UnsupportedMedia(f"charset {request.charset!r} is not supported", hint="send UTF-8")
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding != "identity":
        raise UnsupportedMedia(f"content encoding {encoding!r} is not supported", hint="send the body uncompressed")


class Query:
    """The query string of one request; parameters that are unknown or given twice are refused."""

    def __init__(self, request: web.Request, allowed: frozenset[str]) -> None:
        """InvalidInput when there is a parameter that is not in *allowed*, or the same one twice."""
        self._values: Mapping[str, str] = request.query
        for name in request.query:
            if name not in allowed:
                known = ", ".join(sorted(allowed)) or "none"
                raise InvalidInput(f"unknown query parameter {name!r}", hint=f"known here: {known}")
            if len(request.query.getall(name)) > 1:
                raise InvalidInput(f"query parameter {name!r} is given more than once")

    def required(self, name: str) -> str:
        """Return a parameter that must be there and not be empty."""
        value = self._values.get(name, "")
        if not value:
            raise InvalidInput(f"query parameter {name!r} is missing")
        return value

    def optional(self, name: str) -> str | None:
        """Return a parameter, None when it is missing or empty."""
        return self._values.get(name) or None

    def flag(self, name: str) -> bool:
        """Return a parameter that is 1, true, 0 or false; missing is false."""
        value = self._values.get(name, "0").lower()
        if value not in _BOOLEANS:
            raise InvalidInput(f"query parameter {name!r} is {value!r}, not 1 or 0")
        return _BOOLEANS[value]

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """Return a whole number from *low* to *high*."""
        value = self._values.get(name, str(default))
        if not (value.isascii() and value.isdigit() and len(value) < 10 and low <= int(value) <= high):
            raise InvalidInput(f"query parameter {name!r} is {value!r}, not a whole number from {low} to {high}")
        return int(value)


def json_response(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return *value* (an object type of ``stoker.objects`` or a list of them) as a JSON response."""
    return web.Response(
        status=status,
        body=msgspec.json.encode(value),
        content_type="application/json",
        headers=headers,
    )


def lines_response(lines: Iterable[str]) -> web.Response:
    """Return JSON documents, a line each."""
    body = "".join(f"{line}\n" for line in lines)
    return web.Response(body=body.encode("utf-8", "replace"), content_type="application/x-ndjson")
