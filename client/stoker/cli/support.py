"""What a support bundle holds: every part is asked for at once, and one that cannot be had does not spoil the rest."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import platform
import shutil
import socket
import tarfile
from collections.abc import Awaitable, Callable
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stoker.cli.console import complete
from stoker.cli.doctor import report_lines
from stoker.cli.text import Style
from stoker.client import Client
from stoker.errors import ClientError
from stoker.redaction import names_secret, redact
from stoker.service.children import communicate, start

_PART_SECONDS = 20.0
_HISTORY_LINES = 1000
_JOURNAL_LINES = 20_000
_REMOVED = "[removed]"
_PACKAGES = ("stoker", "aiohttp", "click", "grpcio", "msgspec", "protobuf")


class Part(NamedTuple):
    """One file of the bundle."""

    file: str
    what: str
    """For people."""
    data: bytes
    missing: str = ""
    """Why it could not be had; empty when it could."""


class Source(NamedTuple):
    """Where a part comes from."""

    file: str
    what: str
    get: Callable[[Client], Awaitable[bytes]]


async def collect(client: Client, *, since: float, now: datetime) -> list[Part]:
    """Return all parts; *since*: seconds back from *now* that logs are asked for."""
    sources = [*_SOURCES, Source("logs.ndjson", "stokerd's last log lines", _logs(now.timestamp() - since))]
    parts = await asyncio.gather(*[_part(client, source) for source in sources], _journal(now.timestamp() - since))
    return list(parts)


async def _part(client: Client, source: Source) -> Part:
    try:
        async with asyncio.timeout(_PART_SECONDS):
            return Part(source.file, source.what, await source.get(client))
    except TimeoutError:
        return Part(source.file, source.what, b"", f"no answer within {_PART_SECONDS:g} s")
    except ClientError as error:
        return Part(source.file, source.what, b"", redact(error.message))


def as_json(value: Any) -> bytes:
    """Return objects as JSON for people, without secrets."""
    plain = json.loads(msgspec.json.encode(complete(value)))
    return json.dumps(without_secrets(plain), indent=2, ensure_ascii=False).encode() + b"\n"


def without_secrets(value: Any) -> Any:
    """Return plain values with every text redacted; what annotations say is left out, for manifests stand in them."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [without_secrets(one) for one in value]
    if not isinstance(value, dict):
        return value
    clean: dict[str, Any] = {}
    for key, one in value.items():
        if key == "annotations" and isinstance(one, dict):
            clean[key] = dict.fromkeys(one, _REMOVED)
        elif isinstance(one, str) and one and names_secret(key):
            clean[key] = _REMOVED
        else:
            clean[key] = without_secrets(one)
    return clean


# ---------------------------------------------------------------------------------------------- parts


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


async def _versions(client: Client) -> bytes:
    """The node's own part does not need stokerd."""
    found: dict[str, Any] = {
        "packages": {name: _installed(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "system": _system_name(),
    }
    try:
        info = await client.node()
    except ClientError as error:
        found["stokerd"] = f"unknown: {error.message}"
    else:
        found |= {"stokerd": info.version, "runtime": f"{info.runtime_name} {info.runtime_version}"}
        found |= {"runc": info.runc_version, "criu": info.criu_version}
    return as_json(found)


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


async def _health(client: Client) -> bytes:
    return as_json({"healthz": complete(await client.health()), "readyz": complete(await client.readiness())})


async def _doctor(client: Client) -> bytes:
    return "".join(f"{redact(line)}\n" for line in report_lines(await client.node(), Style())).encode()


async def _metrics(client: Client) -> bytes:
    return redact(await client.metrics()).encode()


def _json_of(ask: Callable[[Client], Awaitable[Any]]) -> Callable[[Client], Awaitable[bytes]]:
    async def get(client: Client) -> bytes:
        return as_json(await ask(client))

    return get


def _logs(oldest: float) -> Callable[[Client], Awaitable[bytes]]:
    async def get(client: Client) -> bytes:
        lines = [_log_line(line, oldest) for line in await client.logs()]
        return "".join(f"{line}\n" for line in lines if line).encode()

    return get


def _log_line(line: str, oldest: float) -> str:
    """Return a log line without secrets; empty when it is older than *oldest*."""
    try:
        entry = json.loads(line)
    except ValueError:
        return redact(line)
    if not isinstance(entry, dict):
        return redact(line)
    try:
        if datetime.fromisoformat(str(entry.get("timestamp"))).timestamp() < oldest:
            return ""
    except ValueError:
        pass  # a line whose age nobody knows is kept
    return json.dumps(without_secrets(entry), ensure_ascii=False)


_SOURCES = (
    Source("versions.json", "versions of the programs and of the system", _versions),
    Source("health.json", "what the probes say", _health),
    Source("node.json", "what stokerd found out about the node", _json_of(lambda client: client.node())),
    Source("doctor.txt", "the same as a check list", _doctor),
    Source("settings.json", "the settings that hold", _json_of(lambda client: client.settings())),
    Source("metrics.txt", "metrics", _metrics),
    Source("topology.json", "what the node is made of and hangs on", _json_of(lambda client: client.topology())),
    Source("topology-load.json", "what its links carry", _json_of(lambda client: client.topology_load())),
    Source("images.json", "images on the node", _json_of(lambda client: client.images())),
    Source("pins.json", "pins", _json_of(lambda client: client.pins())),
    Source("keeps.json", "kept images", _json_of(lambda client: client.keeps())),
    Source("jobs.json", "jobs that stokerd knows", _json_of(lambda client: client.jobs())),
    Source("history.json", "past pulls", _json_of(lambda client: client.history(limit=_HISTORY_LINES))),
    Source("pods.json", "pods and containers, without annotations", _json_of(lambda client: client.pods())),
    Source("recreates.json", "requests to recreate containers", _json_of(lambda client: client.recreates())),
    Source(
        "operations.json",
        "checkpoints, clones and commits that were asked for",
        _json_of(lambda client: client.operations()),
    ),
    Source("checkpoints.json", "checkpoints, without what is in them", _json_of(lambda client: client.checkpoints())),
    Source("clones.json", "clones", _json_of(lambda client: client.clones())),
)


async def _journal(oldest: float) -> Part:
    """The unit's lines in systemd's journal; they are there when stokerd is not."""
    file, what = "journal.txt", "stokerd's lines in systemd's journal"
    try:
        text = await _ask_journal(oldest)
    except (OSError, _NoJournal) as error:
        return Part(file, what, b"", redact(str(error)))
    return Part(file, what, redact(text).encode())


class _NoJournal(Exception):
    """Why the journal cannot be had."""


async def _ask_journal(oldest: float) -> str:
    program = shutil.which("journalctl")
    if program is None:
        raise _NoJournal("journalctl is not installed")
    arguments = ["--unit=stokerd", f"--since=@{int(oldest)}", f"--lines={_JOURNAL_LINES}"]
    process = await start(
        program,
        *arguments,
        "--no-pager",
        "--output=short-iso-precise",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_PART_SECONDS):
            out, err = await communicate(process)
    except TimeoutError:
        raise _NoJournal(f"journalctl did not end within {_PART_SECONDS:g} s") from None
    if process.returncode:
        why = err.decode("utf-8", "replace").strip().partition("\n")[0]
        raise _NoJournal(why or f"journalctl ended with {process.returncode}")
    text = out.decode("utf-8", "replace")
    if text.startswith("-- No entries --"):
        raise _NoJournal("it has none of that time")
    return text


# ---------------------------------------------------------------------------------------------- the archive


def host_name() -> str:
    """Return this machine's name as a part of a file name."""
    name = socket.gethostname().partition(".")[0]
    return "".join(char if char.isascii() and (char.isalnum() or char in "-_") else "-" for char in name) or "node"


def index_of(parts: list[Part], *, since: float, now: datetime) -> dict[str, Any]:
    """Return what the bundle says of itself."""
    return {
        "createdAt": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "host": host_name(),
        "logsSinceSeconds": since,
        "parts": [
            {"file": part.file, "what": part.what}
            | ({"missing": part.missing} if part.missing else {"bytes": len(part.data)})
            for part in parts
        ],
    }


def archive(parts: list[Part], *, directory: str, index: dict[str, Any], now: datetime) -> bytes:
    """Return the bundle: a tar.gz of one *directory*; the same parts at the same time are the same bytes."""
    buffer = io.BytesIO()
    stamp = int(now.timestamp())
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=stamp) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        files = [("index.json", json.dumps(index, indent=2).encode() + b"\n")]
        files += [(part.file, part.data) for part in parts if not part.missing]
        for name, data in files:
            member = tarfile.TarInfo(f"{directory}/{name}")
            member.size, member.mtime, member.mode = len(data), stamp, 0o600
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def directory_name(path: Path) -> str:
    """Return the name of the directory in the bundle *path*."""
    return path.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz") or "stoker-support"
