"""What a checkpoint is asked for with, and what is written down before anything is frozen. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from stokerd.checkpoints.criu import TcpMode
from stokerd.runtime.task_types import DumpOptions

CHECKPOINT_LABEL = "stoker.dev/checkpoint"
OWNER_LABEL = "stoker.dev/daemon"
GC_ROOT_LABEL = "containerd.io/gc.root"

PodInfo = tuple[str, str, str]

Tell = Callable[[str], None]
"""Is given the name of each step as it begins; what it does with it may take no time."""


def untold(_step: str) -> None:
    """Tell nobody."""


class Wish(msgspec.Struct, frozen=True):
    """How a checkpoint is to be made. ``timeout`` is for the dump, in seconds: so long the container may stand."""

    name: str = ""
    leave_running: bool = True
    tcp: TcpMode = "refuse"
    file_locks: bool = True
    external_unix_sockets: bool = False
    timeout: float = 300.0
    labels: dict[str, str] = msgspec.field(default_factory=dict)

    def ended_by_criu(self, together: int = 1) -> bool:
        """Say whether CRIU itself ends the container after the dump, and not stokerd when all is on the disk.

        Only so nobody is told that the connections have ended. But should stokerd die before the checkpoint is
        complete, the container is lost with it.
        """
        return not self.leave_running and self.tcp == "established" and together == 1

    def dump_options(self, together: int = 1) -> DumpOptions:
        return DumpOptions(
            leave_running=not self.ended_by_criu(together),
            open_tcp=self.tcp == "established",
            external_unix_sockets=self.external_unix_sockets,
            file_locks=self.file_locks,
        )


class Intent(msgspec.Struct, frozen=True):
    """Written and flushed before the freeze: enough to thaw the container and to clear up, whoever died meanwhile.

    ``was_paused``: somebody else had frozen it before, and it is to stay so. ``stop``: once the checkpoint is complete,
    the container is to end. ``group``: what it is complete with.
    """

    id: str
    container_id: str
    created_at: datetime
    was_paused: bool = False
    stop: bool = False
    group: str = ""


class Pause(msgspec.Struct, frozen=True):
    """A container that somebody asked to be frozen. ``pausing``: the freeze was begun and never answered for."""

    container_id: str
    state: Literal["pausing", "paused"]
    since: datetime


def active_key(checkpoint: str) -> str:
    """Return the name of the snapshot that the root filesystem is copied into."""
    return f"stoker-checkpoint-{checkpoint}-active"


def root_name(checkpoint: str) -> str:
    """Return the name of the committed one."""
    return f"stoker-checkpoint-{checkpoint}"


def snapshot_labels(checkpoint: str, owner: str, now: datetime) -> dict[str, str]:
    """Return what protects a snapshot from the garbage collector, and tells whose it is."""
    return {GC_ROOT_LABEL: now.isoformat(timespec="seconds"), CHECKPOINT_LABEL: checkpoint, OWNER_LABEL: owner}


def shared_memory(spec: Mapping[str, Any]) -> str:
    """Return the directory behind the container's /dev/shm when it is its pod's own, else "".

    CRIU leaves it out, since it is mounted from outside. The machine's own is nobody's to copy.
    """
    for mount in spec.get("mounts") or []:
        if mount.get("destination") == "/dev/shm" and mount.get("type") == "bind":  # noqa: S108 - a name in the spec
            source = str(mount.get("source", ""))
            return "" if source.rstrip("/") in {"", "/dev/shm"} else source  # noqa: S108
    return ""


def has_own_pids(spec: Mapping[str, Any]) -> bool:
    """Say whether the runtime spec gives the container a PID namespace that it shares with nobody."""
    for namespace in (spec.get("linux") or {}).get("namespaces") or []:
        if namespace.get("type") == "pid":
            return not namespace.get("path")
    return False
