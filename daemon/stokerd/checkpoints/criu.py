"""What CRIU is told, by the version of it that the node has. Pure.

CRIU reads a configuration file that runc hands on: the one that the container's annotation ``org.criu.config`` names,
else ``/etc/criu/runc.conf`` of the node. It is the only way to options that containerd has no field for.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

CONFIG_ANNOTATION = "org.criu.config"
NODE_CONFIG = "/etc/criu/runc.conf"

Step = Literal["dump", "restore"]
TcpMode = Literal["refuse", "close", "established"]

GHOST_LIMIT = 256 << 20
"""Deleted files that are still open are kept up to this size each; CRIU's own limit of 1 MiB refuses many programs."""

_NUMBER = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
LEAST = (3, 16, 0)
"""runc takes none older."""
_TCP_CLOSE_SINCE = (4, 0, 0)
_SKIP_LOCK_SINCE = (4, 2, 0)
"""``network-lock`` in a file that comes over RPC kills 4.1 with a segmentation fault; 4.2 takes it."""


class Version(msgspec.Struct, frozen=True, order=True):
    """CRIU's version; (0, 0, 0) where none was found."""

    major: int = 0
    minor: int = 0
    sub: int = 0

    @property
    def parts(self) -> tuple[int, int, int]:
        return self.major, self.minor, self.sub

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + (f".{self.sub}" if self.sub else "")


def parse_version(text: str) -> Version:
    """Read the version that a program prints; (0, 0, 0) when there is none in it."""
    match = _NUMBER.search(text)
    return Version(*(int(part or 0) for part in match.groups())) if match else Version()


class Tuning(msgspec.Struct, frozen=True):
    """What is wanted beside CRIU's defaults.

    ``tcp``: ``refuse`` fails on established connections, ``close`` leaves them out (the restored process sees them
    closed), ``established`` keeps their state, which only helps where the other side and the address stay.
    ``skip_network_lock`` saves two runs of iptables; right where nobody talks to the container meanwhile, or where
    connections are closed anyway. ``ghost_limit`` is the size up to which deleted files that are still open are kept.
    """

    tcp: TcpMode = "refuse"
    skip_network_lock: bool = False
    lazy_pages: bool = False
    external_unix_sockets: bool = False
    ghost_limit: int = 0
    link_remap: bool = False


def can_skip_network_lock(version: Version) -> bool:
    return version.parts >= _SKIP_LOCK_SINCE


def config(version: Version, step: Step, tuning: Tuning) -> str:
    """Return the content of CRIU's configuration file for one step; "" when its defaults are right.

    ``lazy-pages`` belongs to restores alone: a dump that sees it waits for a page client until its deadline.
    """
    lines: list[str] = []
    if tuning.skip_network_lock and can_skip_network_lock(version):
        lines.append("network-lock skip")
    if tuning.tcp == "close" and version.parts >= _TCP_CLOSE_SINCE:
        lines.append("tcp-close")
    elif tuning.tcp == "established":
        lines.append("tcp-established")
    if step == "restore":  # what the dump was allowed to take, which containerd hands on for the dump alone
        lines.append("file-locks")
        if tuning.external_unix_sockets:
            lines.append("ext-unix-sk")
        if tuning.lazy_pages:
            lines.append("lazy-pages")
    if step == "dump" and tuning.ghost_limit:
        lines.append(f"ghost-limit {tuning.ghost_limit}")
    if step == "dump" and tuning.link_remap:
        lines.append("link-remap")
    return "".join(f"{line}\n" for line in lines)


def tcp_closed_by(text: str) -> bool:
    """Say whether a configuration file makes CRIU leave established connections out."""
    return any(line.split("#")[0].strip() == "tcp-close" for line in text.splitlines())
