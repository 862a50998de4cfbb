"""``stoker doctor``: what stokerd found out about the node, as a check list."""

from __future__ import annotations

import contextlib
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.text import Style, clean
from stoker.errors import ClientError, DaemonUnreachable
from stoker.units import brief_duration, format_size

if TYPE_CHECKING:
    from pathlib import Path

    from stoker.client import Client
    from stoker.objects.node import Advice, NodeInfo

_TOPOLOGY_SECONDS = 20.0
"""For the first look at the topology; without it there is no advice on it, and that is all."""


@click.command(epilog=exits.HELP)
@global_options
@pass_console
def doctor(console: Console) -> int:
    """Check the node and the daemon, and give advice.

    Exits with 1 when something keeps Stoker from working, or is broken in this machine; with 3 when stokerd cannot be
    reached.
    """
    try:
        info = console.call(_examine)
    except DaemonUnreachable as error:
        if console.json:
            raise
        for line in unreachable_lines(console.socket, error, console.style()):
            console.say(line)
        return exits.UNREACHABLE
    if console.json:
        console.document(info)
    else:
        for line in report_lines(info, console.style()):
            console.say(line)
    return exits.FAILED if _errors(info) else exits.OK


async def _examine(client: Client) -> NodeInfo:
    """Return what stokerd knows. It looks at the topology when it is asked for it, and then has advice on it, too."""
    import asyncio  # late, like the client

    with contextlib.suppress(ClientError, TimeoutError):
        async with asyncio.timeout(_TOPOLOGY_SECONDS):
            await client.topology()
    return await client.node()


def _errors(info: NodeInfo) -> int:
    """Count what keeps Stoker from working; a runtime that is down counts whether or not stokerd advises on it."""
    advised = sum(advice.severity == "error" for advice in info.advice)
    return max(advised, 0 if info.runtime_ready else 1)


def report_lines(info: NodeInfo, style: Style) -> list[str]:
    """Return the check list."""
    lines = [
        _check(
            style.ok,
            f"stokerd {clean(info.version) or '(unknown version)'}",
            f"pid {info.pid}, up {brief_duration(info.uptime_seconds)}, {format_size(info.resident_bytes)} of memory",
        ),
        *_runtime_lines(info, style),
        *_space_lines(info, style),
        *_coordinator_lines(info, style, datetime.now(UTC)),
    ]
    if info.capabilities:
        lines += ["", style.paint("What this node can do", "bold")]
        lines += [
            _check(style.ok if item.available else style.none, clean(item.name), clean(item.detail))
            for item in info.capabilities
        ]
    if info.advice:
        lines += ["", style.paint("Advice", "bold")]
        for advice in sorted(info.advice, key=lambda item: ("error", "warning", "info").index(item.severity)):
            lines += _advice_lines(advice, style)
    lines += ["", _verdict(info, style)]
    return lines


def _runtime_lines(info: NodeInfo, style: Style) -> list[str]:
    name = " ".join(part for part in (clean(info.runtime_name) or "the runtime", clean(info.runtime_version)) if part)
    if not info.endpoint:
        tried = ", ".join(clean(path) for path in info.endpoint_tried) or "nothing"
        return [_check(style.bad, "no container runtime", f"tried {tried}")]
    lines = [
        _check(style.ok, name, clean(info.endpoint))
        if info.runtime_ready
        else _check(style.bad, name, f"{clean(info.endpoint)}: {clean(info.runtime_message) or 'not ready'}")
    ]
    if info.snapshotter:
        places = [part for part in (clean(info.storage_fs), clean(info.runtime_root)) if part]
        lines.append(_check(style.ok, f"snapshotter {clean(info.snapshotter)}", " at ".join(places)))
    if info.runc_version:
        lines.append(_check(style.ok, f"runc {clean(info.runc_version)}"))
    if info.criu_version:
        lines.append(_check(style.ok, f"CRIU {clean(info.criu_version)}"))
    if info.cgroup_mode:
        lines.append(_check(style.ok, f"cgroup {clean(info.cgroup_mode)}"))
    return lines


def _space_lines(info: NodeInfo, style: Style) -> list[str]:
    space = info.space
    if not space.path:
        return []
    enough = space.free_bytes > space.reserve_bytes
    if space.reserve_inodes:
        enough = enough and space.free_inodes > space.reserve_inodes
    detail = f"on {clean(space.path)}, {format_size(space.reserve_bytes)} of it to stay free"
    if space.free_inodes and space.reserve_inodes:
        detail += f"; {space.free_inodes} inodes, {space.reserve_inodes} to stay free"
    return [_check(style.ok if enough else style.warning, f"{format_size(space.free_bytes)} free", detail)]


def _coordinator_lines(info: NodeInfo, style: Style, now: datetime) -> list[str]:
    link = info.coordinator
    if link is None:
        return []
    since = brief_duration((now - link.since).total_seconds())
    if not link.connected:
        return [_check(style.warning, f"coordinator {clean(link.address)}", f"away for {since}; work goes on")]
    expires = link.certificate_expires
    until = f", certificate until {expires:%Y-%m-%d %H:%M} UTC" if expires is not None else ""
    return [_check(style.ok, f"coordinator {clean(link.address)}", f"connected for {since}{until}")]


def _advice_lines(advice: Advice, style: Style) -> list[str]:
    mark = {"error": style.bad, "warning": style.warning, "info": style.none}[advice.severity]
    lines = [f"  {mark} {clean(advice.subject)}: {clean(advice.message)}"]
    if advice.remedy:
        lines.append(f"      {clean(advice.remedy)}")
    return lines


def _verdict(info: NodeInfo, style: Style) -> str:
    errors = _errors(info)
    warnings = sum(advice.severity == "warning" for advice in info.advice)
    if errors:
        return f"{style.bad} {errors} {'thing is' if errors == 1 else 'things are'} wrong"
    if warnings:
        return f"{style.warning} it works; {warnings} {'thing' if warnings == 1 else 'things'} could be better"
    return f"{style.ok} all is well"


def _check(mark: str, what: str, detail: str = "") -> str:
    return f"  {mark} {what}" + (f"  ({detail})" if detail else "")


def unreachable_lines(socket: Path, error: DaemonUnreachable, style: Style) -> list[str]:
    """Return what can be said without stokerd."""
    lines = [_check(style.bad, "stokerd cannot be reached", clean(error.message))]
    if error.hint:
        lines.append(f"      {clean(error.hint)}")
    lines.append(_socket_line(socket, style))
    return lines


def _socket_line(socket: Path, style: Style) -> str:
    try:
        found = socket.lstat()
    except FileNotFoundError:
        state = "" if socket.parent.exists() else f", and no directory {socket.parent}"
        return _check(style.bad, f"there is no {socket}{state}")
    except OSError as error:
        return _check(style.bad, f"cannot look at {socket}", error.strerror or str(error))
    if not stat.S_ISSOCK(found.st_mode):
        return _check(style.bad, f"{socket} is not a socket")
    return _check(style.ok, f"{socket} is a socket", f"mode {stat.S_IMODE(found.st_mode):o}, gid {found.st_gid}")
