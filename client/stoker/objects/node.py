"""Objects about the node and the daemon, as the local API speaks them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import field

from stoker.objects.images import SpaceNeed, Wire


class ErrorBody(Wire):
    """Body of every answer that is not 2xx."""

    reason: str
    message: str
    hint: str = ""


class CapabilityStatus(Wire):
    name: str
    available: bool
    detail: str = ""


class Advice(Wire):
    """Something that would make this node faster or safer."""

    severity: Literal["error", "warning", "info"]
    subject: str
    message: str
    remedy: str = ""


class CoordinatorLink(Wire):
    """How the node stands with its coordinator. ``reason``, ``message`` and ``hint`` say why it is away."""

    address: str
    connected: bool
    since: datetime
    reason: str = ""
    message: str = ""
    hint: str = ""
    certificate_expires: datetime | None = None


class NodeInfo(Wire):
    """``GET /v1/node``: what stokerd found out about the node; the source of `stoker doctor`."""

    version: str = ""
    pid: int = 0
    uptime_seconds: float = 0.0
    resident_bytes: int = 0
    endpoint: str = ""
    endpoint_tried: list[str] = field(default_factory=list)
    runtime_ready: bool = False
    runtime_message: str = ""
    runtime_name: str = ""
    runtime_version: str = ""
    runtime_root: str = ""
    snapshotter: str = ""
    storage_fs: str = ""
    runc_version: str = ""
    criu_version: str = ""
    cgroup_mode: str = ""
    capabilities: list[CapabilityStatus] = field(default_factory=list)
    space: SpaceNeed = field(default_factory=SpaceNeed)
    advice: list[Advice] = field(default_factory=list)
    coordinator: CoordinatorLink | None = None
    """None: the node has none."""


class Health(Wire):
    """``GET /healthz`` and ``/readyz``."""

    ok: bool
    message: str = ""
    parts: dict[str, str] = field(default_factory=dict)
