"""Plain values about containerd's own containers, tasks and mounts. None of them knows gRPC."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

TaskState = Literal["created", "running", "paused", "pausing", "stopped", "unknown"]


class AnyValue(msgspec.Struct, frozen=True):
    """A typed value, passed on as it came: ``type`` is the type's URL, ``value`` its bytes."""

    type: str
    value: bytes

    def __repr__(self) -> str:
        return f"AnyValue({self.type!r}, [{len(self.value)} bytes])"


class Mount(msgspec.Struct, frozen=True):
    """How a snapshot is to be mounted; paths are those that containerd sees."""

    type: str
    source: str
    options: tuple[str, ...] = ()


class ContainerRecord(msgspec.Struct, frozen=True):
    """A container of containerd's metadata store: what is to run, whether or not it runs.

    ``spec`` is the OCI runtime spec as JSON bytes; it holds the environment, so the repr shows none of it. ``options``
    are the runtime's own, ``extensions`` other clients' data.
    """

    id: str
    image: str
    runtime: str
    spec: AnyValue
    snapshotter: str = ""
    snapshot_key: str = ""
    options: AnyValue | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    extensions: dict[str, AnyValue] = msgspec.field(default_factory=dict)
    created_at: datetime | None = None
    updated_at: datetime | None = None

    def document(self) -> dict[str, Any]:
        """Return the runtime spec as values."""
        found: dict[str, Any] = msgspec.json.decode(self.spec.value, type=dict[str, Any])
        return found


class Task(msgspec.Struct, frozen=True):
    """A container brought to life. ``exit_code`` and ``exited_at`` mean something once it is ``stopped``."""

    container_id: str
    pid: int
    state: TaskState
    exit_code: int = 0
    exited_at: datetime | None = None


class Exit(msgspec.Struct, frozen=True):
    """How a task ended; ``at`` is None when containerd does not say."""

    code: int
    at: datetime | None = None


class DumpOptions(msgspec.Struct, frozen=True):
    """What `Tasks.checkpoint` does beside writing CRIU's images to a directory.

    ``leave_running`` or else the processes are gone afterwards; the others allow what CRIU refuses by default.
    """

    leave_running: bool = True
    open_tcp: bool = False
    external_unix_sockets: bool = False
    terminal: bool = False
    file_locks: bool = False
    empty_namespaces: tuple[str, ...] = ()


class Restore(msgspec.Struct, frozen=True):
    """Where CRIU's images are that a task is restored from, and where CRIU may write meanwhile (its log too)."""

    image_path: str
    work_path: str


class Stdio(msgspec.Struct, frozen=True):
    """Where a task's standard streams go: paths of FIFOs or URLs as containerd takes them; "" is nowhere."""

    stdin: str = ""
    stdout: str = ""
    stderr: str = ""
    terminal: bool = False
