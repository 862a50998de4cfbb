"""What would make this node faster or safer. Pure: from what was found out to advice with remedies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from stoker.objects.node import Advice, CoordinatorLink
from stoker.units import brief_duration
from stokerd.images.space import FileSystem, Margins, human
from stokerd.runtime.types import RuntimeInfo

if TYPE_CHECKING:  # loaded when the topology is
    from stoker.objects.topology import TopologyFinding

_MOST_FINDINGS = 20
_OLDEST_CONTAINERD = (1, 6)
_SMALL_DISK = 20 << 30
_AWAY = timedelta(minutes=1)
"""A coordinator that starts anew is back by then."""
_LAST_DAYS = timedelta(days=3)
"""A certificate is renewed long before that."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What advice is given on. Problems are lines for people, without secrets."""

    info: RuntimeInfo | None
    disk: FileSystem | None
    margins: Margins
    pressure: float | None
    """I/O pressure in percent, None where the kernel does not tell it."""
    credential_problems: tuple[str, ...] = ()
    journal_problem: str = ""
    criu_remedy: str = ""
    group: str = ""
    group_exists: bool = True
    config_problem: str = ""
    topology: Sequence[TopologyFinding] = ()
    coordinator: tuple[CoordinatorLink, datetime] | None = None
    """How the node stands with it, and what time it is; None: it has none."""


def advise(findings: Findings) -> list[Advice]:
    """Return advice, the gravest first."""
    found: list[Advice] = []
    if findings.info is not None:
        found += _on_runtime(findings.info)
        found += _on_criu(findings.info, findings.criu_remedy)
    if findings.disk is not None:
        found += _on_disk(findings.disk, findings.margins)
    if findings.pressure is None:
        found.append(
            Advice(
                severity="info",
                subject="I/O pressure",
                message="the kernel does not tell I/O pressure, so pulls do not make way for busy disks",
                remedy="boot with psi=1",
            )
        )
    for problem in findings.credential_problems:
        found.append(Advice(severity="warning", subject="credentials", message=problem))
    if findings.journal_problem:
        found.append(Advice(severity="error", subject="journal", message=findings.journal_problem))
    if findings.config_problem:
        found.append(
            Advice(
                severity="error",
                subject="configuration",
                message=findings.config_problem,
                remedy="stokerd --check-config --config FILE lists the errors; then stoker reload",
            )
        )
    if findings.coordinator is not None:
        found += _on_coordinator(*findings.coordinator)
    if findings.group and not findings.group_exists:
        found.append(
            Advice(
                severity="info",
                subject="group",
                message=f"group {findings.group!r} does not exist: only root may use stoker on this node",
                remedy=f"groupadd --system {findings.group}",
            )
        )
    found += [
        Advice(
            severity=each.severity,
            subject=", ".join(["topology", *each.subjects]),
            message=each.message,
            remedy=each.remedy,
        )
        for each in findings.topology[:_MOST_FINDINGS]
    ]
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda entry: order[entry.severity])


def _on_runtime(info: RuntimeInfo) -> list[Advice]:
    found = []
    if info.version_tuple() < _OLDEST_CONTAINERD:
        found.append(
            Advice(
                severity="error",
                subject="containerd",
                message=f"containerd {info.version} is older than 1.6, the oldest that is supported",
                remedy="upgrade containerd",
            )
        )
    if not info.decompressors:
        found.append(
            Advice(
                severity="warning",
                subject="unpacking",
                message="containerd unpacks gzip layers with its slow built-in code",
                remedy="put igzip (package isal) or unpigz (package pigz) on containerd's PATH and restart it",
            )
        )
    if not info.capability("pin").available:
        found.append(
            Advice(
                severity="warning",
                subject="pins",
                message=info.capability("pin").detail,
                remedy="upgrade containerd to 1.7 or later, or keep images (stoker image keep)",
            )
        )
    if info.snapshotter != "overlayfs":
        found.append(
            Advice(
                severity="info",
                subject="snapshotter",
                message=f"snapshotter {info.snapshotter}: progress of unpacking may be coarse",
            )
        )
    return found


def _on_criu(info: RuntimeInfo, remedy: str) -> list[Advice]:
    """A node without CRIU works; one whose CRIU does not is wrong."""
    found = info.capability("checkpoint")
    if found.available:
        return []
    installed = bool(info.criu_version)
    return [
        Advice(
            severity="warning" if installed else "info",
            subject="CRIU",
            message=found.detail if installed else "CRIU is not installed: containers cannot be checkpointed",
            remedy=remedy or "install the package criu",
        )
    ]


def _on_coordinator(link: CoordinatorLink, now: datetime) -> list[Advice]:
    """What a node can do without its coordinator is not wrong, but what the coordinator wishes waits."""
    found = []
    if not link.connected and now - link.since > _AWAY:
        since, why = brief_duration((now - link.since).total_seconds()), link.message or "it was not tried yet"
        what = f"{link.address} is away for {since}, and what it wishes waits: {why}"
        found.append(Advice(severity="warning", subject="coordinator", message=what, remedy=link.hint))
    expires = link.certificate_expires
    if expires is not None and expires - now < _LAST_DAYS:
        what = f"the node's certificate {'expires' if expires > now else 'has expired'}: {expires:%Y-%m-%d %H:%M} UTC"
        remedy = "it is renewed over the connection; without one, put a new join token into uplink.token_file"
        found.append(Advice(severity="warning", subject="coordinator", message=what, remedy=remedy))
    return found


def _on_disk(disk: FileSystem, margins: Margins) -> list[Advice]:
    found = []
    if disk.free_bytes < margins.floor_bytes:
        found.append(
            Advice(
                severity="error",
                subject="disk",
                message=f"{disk.path} has only {human(disk.free_bytes)} free: nothing is pulled under "
                f"{human(margins.floor_bytes)}",
                remedy="remove images (stoker image ls, stoker image rm) or make the file system larger",
            )
        )
    elif disk.free_bytes < margins.reserve_bytes:
        found.append(
            Advice(
                severity="warning",
                subject="disk",
                message=f"{disk.path} has {human(disk.free_bytes)} free, less than the reserve of "
                f"{human(margins.reserve_bytes)}: no new image will be let in",
                remedy="remove images, make the file system larger, or lower images.disk_reserve",
            )
        )
    if disk.total_bytes < _SMALL_DISK:
        found.append(
            Advice(
                severity="info",
                subject="disk",
                message=f"{disk.path} has {human(disk.total_bytes)} in all: AI images often need that much alone",
                remedy="put containerd's root on a larger disk",
            )
        )
    if disk.total_inodes and disk.free_inodes < margins.reserve_inodes:
        found.append(
            Advice(
                severity="warning",
                subject="disk",
                message=f"{disk.path} has only {disk.free_inodes} inodes free",
                remedy="make the file system anew with more inodes (mkfs -N)",
            )
        )
    return found
