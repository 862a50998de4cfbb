"""NodePort with settable answers."""

from __future__ import annotations

import asyncio

from stoker.objects.containers import ReloadResult
from stoker.objects.images import SpaceNeed
from stoker.objects.node import Advice, CapabilityStatus, Health, NodeInfo

GIB = 1024**3


class FakeNode:
    """NodePort with settable answers."""

    def __init__(self) -> None:
        self.health_answer = Health(ok=True, parts={"runtime": "ok"})
        self.ready_answer = Health(ok=True)
        self.hang = False
        self.failure: Exception | None = None
        self.reloaded = ReloadResult()
        self.logs: list[str] = []
        self.node = NodeInfo(
            version="0.1.0",
            pid=812,
            uptime_seconds=273600.0,
            resident_bytes=43_000_000,
            endpoint="/run/containerd/containerd.sock",
            runtime_ready=True,
            runtime_name="containerd",
            runtime_version="1.7.24",
            runtime_root="/var/lib/containerd",
            snapshotter="overlayfs",
            storage_fs="ext4",
            runc_version="1.1.15",
            cgroup_mode="v2",
            capabilities=[
                CapabilityStatus(name="pin", available=True, detail="the runtime honours pinned images"),
                CapabilityStatus(name="lazy-restore", available=False, detail="criu is not installed"),
            ],
            space=SpaceNeed(path="/var/lib/containerd", free_bytes=212 * GIB, reserve_bytes=10 * GIB),
            advice=[
                Advice(
                    severity="warning",
                    subject="registry mirror",
                    message="no mirror is configured for docker.io",
                    remedy="add /etc/containerd/certs.d/docker.io/hosts.toml",
                )
            ],
        )

    async def info(self) -> NodeInfo:
        if self.failure is not None:
            raise self.failure
        return self.node

    async def health(self) -> Health:
        if self.hang:
            await asyncio.Event().wait()
        return self.health_answer

    async def readiness(self) -> Health:
        return self.ready_answer

    async def reload(self) -> ReloadResult:
        if self.failure is not None:
            raise self.failure
        return self.reloaded

    def settings(self) -> dict[str, dict[str, object]]:
        return {"api": {"group": "stoker", "socket": "/run/stoker/stokerd.sock"}, "images": {"max_parallel": 2}}

    def recent_logs(self) -> list[str]:
        return self.logs
