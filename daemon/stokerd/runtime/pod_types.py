"""Plain values about pods and containers that the runtime room hands out. None of them knows gRPC."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

PodState = Literal["ready", "notready"]
ContainerState = Literal["created", "running", "exited", "unknown"]
ContainerEventKind = Literal["created", "started", "stopped", "deleted"]


class Blueprint(msgspec.Struct, frozen=True):
    """A container's configuration as CRI's verbose status has it: the JSON of CRI's ContainerConfig, names unchanged.

    Environment values in ``envs`` are plain text. They may be secrets, so the repr shows none of it, and nobody logs
    or journals one. Treat ``config`` as read-only; `stokerd.runtime.blueprints.renewed` makes changed copies.
    """

    config: dict[str, Any]

    def __repr__(self) -> str:
        return f"Blueprint({self.config.get('metadata')!r}, [redacted])"


class PodBlueprint(msgspec.Struct, frozen=True):
    """A pod sandbox's configuration as CRI's verbose status has it: the JSON of CRI's PodSandboxConfig."""

    config: dict[str, Any]
    runtime_handler: str = ""

    def __repr__(self) -> str:
        return f"PodBlueprint({self.config.get('metadata')!r}, [redacted])"


class Pod(msgspec.Struct, frozen=True):
    """A pod sandbox as a listing shows it."""

    id: str
    name: str
    namespace: str
    uid: str
    attempt: int
    state: PodState
    created_at: datetime | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    runtime_handler: str = ""


class PodStatus(msgspec.Struct, frozen=True):
    """A pod sandbox looked at alone. ``ips``: the primary one first; ``pid`` of the pause process, 0 when unknown."""

    pod: Pod
    ips: tuple[str, ...]
    pid: int
    netns: str
    blueprint: PodBlueprint


class Container(msgspec.Struct, frozen=True):
    """A container as a listing shows it. ``image`` as it was asked for, ``image_ref`` as CRI resolved it."""

    id: str
    pod_id: str
    name: str
    attempt: int
    image: str
    image_ref: str
    state: ContainerState
    created_at: datetime | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class ContainerMount(msgspec.Struct, frozen=True):
    container_path: str
    host_path: str
    readonly: bool


class ContainerStatus(msgspec.Struct, frozen=True):
    """A container looked at alone. ``exit_code`` and ``reason`` mean something once it has exited; ``pid`` is 0 when it
    does not run; ``spec`` is the OCI runtime spec."""

    container: Container
    blueprint: Blueprint
    pid: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    log_path: str = ""
    mounts: tuple[ContainerMount, ...] = ()
    spec: dict[str, Any] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"ContainerStatus({self.container!r}, pid={self.pid}, exit_code={self.exit_code}, reason={self.reason!r})"
        )


class ExecResult(msgspec.Struct, frozen=True):
    """How a command inside a container ended."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""


class ContainerEvent(msgspec.Struct, frozen=True):
    """Something happened to a container or to a pod sandbox, and asking CRI now shows it.

    ``id`` is the container's, or the sandbox's own when it is the sandbox that changed; ``pod_id`` may be empty where
    the runtime does not say.
    """

    kind: ContainerEventKind
    id: str
    pod_id: str = ""
