"""preStop hooks and graces as the kubelet leaves them in a container's annotations. Pure.

Annotations are written by whoever made the container: what is not exactly as it should be is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

PRE_STOP = "io.kubernetes.container.preStopHandler"
GRACE = "io.kubernetes.pod.terminationGracePeriod"
PORTS = "io.kubernetes.container.ports"
_MAX_TEXT = 64 << 10
_MAX_GRACE = 7 * 86_400.0
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]{0,4096}")
_PATH = re.compile(r"/?[\x21-\x7e]{0,4096}")


class HookError(Exception):
    """The annotation holds no hook that can be run; the text says why."""


class ExecHook(msgspec.Struct, frozen=True):
    argv: tuple[str, ...]


class HttpHook(msgspec.Struct, frozen=True):
    port: int
    path: str
    tls: bool
    headers: tuple[tuple[str, str], ...]


class TcpHook(msgspec.Struct, frozen=True):
    port: int


class SleepHook(msgspec.Struct, frozen=True):
    seconds: float


Hook = ExecHook | HttpHook | TcpHook | SleepHook


def grace_of(annotations: Mapping[str, str], default: float) -> float:
    """Return the pod's grace, *default* where the annotation says nothing sensible."""
    text = annotations.get(GRACE, "")
    if not re.fullmatch(r"[0-9]{1,9}", text):
        return default
    return min(float(text), _MAX_GRACE)


def pre_stop(annotations: Mapping[str, str], ips: tuple[str, ...] = ()) -> Hook | None:
    """Return the preStop hook, None without one; HookError when there is one that cannot be run.

    Hooks over the network go to the pod's own addresses, *ips*, and nowhere else.
    """
    text = annotations.get(PRE_STOP)
    if text is None:
        return None
    handler = _json(text)
    if not isinstance(handler, dict):
        raise HookError("it is no JSON object")
    given = {key: value for key, value in handler.items() if value is not None}
    if len(given) != 1:
        raise HookError("it does not have exactly one action")
    ((kind, body),) = given.items()
    parse = {"exec": _exec, "httpGet": _http, "tcpSocket": _tcp, "sleep": _sleep}.get(kind)
    if parse is None:
        raise HookError("its kind is unknown")
    if not isinstance(body, dict):
        raise HookError(f"{kind} is no JSON object")
    return parse(body, annotations, ips)


def _json(text: str) -> Any:
    if len(text) > _MAX_TEXT:
        raise HookError("it is too long")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise HookError("it is no JSON") from None


def _exec(body: dict[str, Any], _annotations: Mapping[str, str], _ips: tuple[str, ...]) -> Hook:
    argv = body.get("command")
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) and "\0" not in word for word in argv):
        raise HookError("exec has no command")
    return ExecHook(tuple(argv))


def _http(body: dict[str, Any], annotations: Mapping[str, str], ips: tuple[str, ...]) -> Hook:
    _own_host(body, ips)
    path = body.get("path") or "/"
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise HookError("httpGet has no sound path")
    scheme = body.get("scheme") or "HTTP"
    if scheme not in {"HTTP", "HTTPS"}:
        raise HookError("httpGet has an unknown scheme")
    headers = body.get("httpHeaders") or []
    if not isinstance(headers, list) or len(headers) > 100:
        raise HookError("httpGet has unsound headers")
    return HttpHook(
        _port(body.get("port"), annotations),
        path if path.startswith("/") else f"/{path}",
        scheme == "HTTPS",
        tuple(_header(entry) for entry in headers),
    )


def _header(entry: Any) -> tuple[str, str]:
    if isinstance(entry, dict):
        name, value = entry.get("name"), entry.get("value", "")
        strings = (name, value) if isinstance(name, str) and isinstance(value, str) else None
        if strings is not None and _HEADER_NAME.fullmatch(strings[0]) and _HEADER_VALUE.fullmatch(strings[1]):
            return strings
    raise HookError("httpGet has an unsound header")


def _tcp(body: dict[str, Any], annotations: Mapping[str, str], ips: tuple[str, ...]) -> Hook:
    _own_host(body, ips)
    return TcpHook(_port(body.get("port"), annotations))


def _sleep(body: dict[str, Any], _annotations: Mapping[str, str], _ips: tuple[str, ...]) -> Hook:
    seconds = body.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 <= seconds <= _MAX_GRACE:
        raise HookError("sleep has no sound number of seconds")
    return SleepHook(float(seconds))


def _own_host(body: dict[str, Any], ips: tuple[str, ...]) -> None:
    host = body.get("host") or ""
    if host and host not in ips:
        raise HookError("its host is not the pod itself")


def _port(value: Any, annotations: Mapping[str, str]) -> int:
    """Ports are numbers or, as everywhere in a Pod, names of the container's ports."""
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"[0-9]{1,5}", value) else _named_port(value, annotations)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65_535:
        raise HookError("it has no sound port")
    return value


def _named_port(name: str, annotations: Mapping[str, str]) -> Any:
    ports = _json(annotations.get(PORTS, "[]"))
    for entry in ports if isinstance(ports, list) else []:
        if isinstance(entry, dict) and entry.get("name") == name:
            return entry.get("containerPort")
    return None
