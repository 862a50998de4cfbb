"""What of checkpoints this node can do, and why not when it cannot. Pure; `checking` asks CRIU."""

from __future__ import annotations

import re

import msgspec

from stokerd.checkpoints.criu import LEAST, can_skip_network_lock, parse_version
from stokerd.runtime.types import Capability, RuntimeInfo

CHECKPOINT = "checkpoint"
_SOCKETS_UNKNOWN_TO_CRIU_BEFORE = (4, 2, 0)
_SINCE_KERNEL = (6, 16)
_ERROR = re.compile(r"Error \([^)]*\): *(.*)")
_FENCED = re.compile(r"ptrace.*Operation not permitted")
"""stokerd's service may trace no process, and so a CRIU that stokerd starts may not: that says nothing about one that
containerd starts. What the kernel lacks is told before that."""
_INSTALL = "install the package criu, 4.2 or later"
_WAIT = "wait a minute: stokerd asks it again by itself"


class Checked(msgspec.Struct, frozen=True):
    """What CRIU says of itself on this kernel. ``problem``: why ``criu check`` failed, "" when it did not; ``lazy``:
    whether it can bring memory back later, None when it cannot be asked. It is not ``known`` while it was not asked, or
    where it could not be: then ``problem`` says why."""

    problem: str = ""
    lazy: bool | None = None
    known: bool = True


def problem_of(status: int, output: str) -> str:
    """Return why CRIU does not work here, in its own words, from how ``criu check`` ended."""
    if status == 0 or _FENCED.search(output):
        return ""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [match.group(1) for line in lines if (match := _ERROR.search(line))]
    if status < 0:
        return f"it was killed by signal {-status}"
    return (errors or lines or [f"it ended with {status}"])[0][:200]


def capabilities(info: RuntimeInfo, kernel: str, checked: Checked) -> tuple[Capability, ...]:
    """Return the rows of the table; *kernel* is the release of the machine's."""
    obstacle = _obstacle(info, checked)
    version = parse_version(info.criu_version)
    notes = [f"CRIU {info.criu_version}"]
    if version.parts < _SOCKETS_UNKNOWN_TO_CRIU_BEFORE and _release(kernel) >= _SINCE_KERNEL:
        notes.append(f"it knows no sockets of kernel {kernel}: programs that hold some cannot be checkpointed")
    if not can_skip_network_lock(version):
        notes.append("containers stand longer than with 4.2, which leaves the network as it is")
    works = not obstacle
    lazy = works and checked.lazy is not False
    overlay = info.snapshotter == "overlayfs"
    return (
        Capability(CHECKPOINT, works, "; ".join(notes) if works else obstacle),
        Capability("clone", works, "" if works else obstacle),
        Capability("clone-lazy", lazy, "" if lazy else obstacle or "the kernel has no userfaultfd that CRIU can use"),
        Capability(
            "commit",
            available=True,
            detail="" if overlay else f"all of the root is compared with its image, since it is on {info.snapshotter}",
        ),
    )


def remedy(info: RuntimeInfo, checked: Checked) -> str:
    """Return what to do so that this node can checkpoint; "" when it can."""
    if not _obstacle(info, checked):
        return ""
    if info.criu_version and not checked.known:
        return _WAIT
    if info.criu_version and info.snapshotter != "overlayfs":
        return "set containerd's snapshotter to overlayfs"
    return _INSTALL


def _obstacle(info: RuntimeInfo, checked: Checked) -> str:
    if not info.criu_version:
        return "no criu on containerd's PATH"
    if parse_version(info.criu_version).parts < LEAST:
        return f"CRIU {info.criu_version} is older than {'.'.join(map(str, LEAST))}, the oldest that runc takes"
    if not checked.known:
        if not checked.problem:
            return f"CRIU {info.criu_version} has not said yet whether it works on this kernel"
        return f"CRIU {info.criu_version} could not be asked whether it works on this kernel: {checked.problem}"
    if checked.problem:
        return f"CRIU {info.criu_version} does not work on this kernel: {checked.problem}"
    if info.snapshotter != "overlayfs":
        return f"the root filesystem of checkpoints must be on overlayfs, not on {info.snapshotter}"
    return ""


def _release(kernel: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", kernel)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)
