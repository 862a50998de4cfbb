"""Small conversations with a container over the network: a port that answers, an HTTP request for a hook.

The other side is whoever runs in the pod: everything has a deadline and a limit, and nothing of it is believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl

from stokerd.containers.hooks import HttpHook

_MOST_HEAD = 16 << 10
USER_AGENT = "stoker"


async def connects(host: str, port: int, *, timeout: float) -> str:
    """Return "" when the port accepts a connection, else why it does not."""
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"port {port} did not answer within {timeout:g} s"
    except OSError as error:
        return f"port {port}: {_why(error)}"
    await _close(writer)
    return ""


async def get(host: str, hook: HttpHook, *, timeout: float) -> str:
    """Make one request; return "" for an answer with a status from 200 to 399, else what was wrong."""
    try:
        async with asyncio.timeout(timeout):
            return await _get(host, hook)
    except TimeoutError:
        return f"port {hook.port} did not answer within {timeout:g} s"
    except ssl.SSLError as error:
        return f"port {hook.port}: TLS failed ({error.reason or 'no reason given'})"
    except OSError as error:
        return f"port {hook.port}: {_why(error)}"


async def _get(host: str, hook: HttpHook) -> str:
    reader, writer = await asyncio.open_connection(
        host, hook.port, ssl=_trusting() if hook.tls else None, limit=_MOST_HEAD
    )
    try:
        writer.write(_request(host, hook))
        await writer.drain()
        try:
            line = await reader.readline()
        except ValueError:
            return "the answer is no HTTP"
        version, _, rest = line.decode("latin-1").partition(" ")
        status = rest[:3]
        if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdigit()):
            return "the answer is no HTTP"
        return "" if 200 <= int(status) < 400 else f"it was answered with status {status}"
    finally:
        await _close(writer)


def _why(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else "the connection broke"


def _request(host: str, hook: HttpHook) -> bytes:
    shown = f"[{host}]" if ":" in host else host
    given = {name.lower() for name, _ in hook.headers}
    headers = [(name, value) for name, value in hook.headers if name.lower() != "connection"]
    for name, value in (("Host", f"{shown}:{hook.port}"), ("User-Agent", USER_AGENT), ("Accept", "*/*")):
        if name.lower() not in given:
            headers.append((name, value))
    lines = [f"GET {hook.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _trusting() -> ssl.SSLContext:
    """A pod's own certificate is signed by nobody: as the kubelet does, none is checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
