"""The Python client of stokerd's local API (asyncio).

    async with Client() as client:
        job = await client.warm(WarmRequest(images=["docker.io/library/nginx:1.27"]))
        async for event in client.follow(job.id):
            ...

Every method raises ClientError when stokerd refuses or fails, and DaemonUnreachable (a ClientError) when it cannot be
talked to.
"""

from __future__ import annotations

from typing import Any

from stoker.client_archives import ArchiveCalls
from stoker.client_checkpoints import CheckpointCalls
from stoker.client_containers import ContainerCalls
from stoker.client_images import ImageCalls
from stoker.client_topology import TopologyCalls
from stoker.defaults import DEFAULT_SOCKET
from stoker.errors import ClientError, DaemonUnreachable
from stoker.objects.containers import ReloadResult
from stoker.objects.node import Health, NodeInfo

__all__ = ["DEFAULT_SOCKET", "Client", "ClientError", "DaemonUnreachable"]


class Client(ImageCalls, ContainerCalls, CheckpointCalls, ArchiveCalls, TopologyCalls):
    """A client of the stokerd behind *socket*. Use it as an async context manager, or call ``close``."""

    async def node(self) -> NodeInfo:
        """Return what stokerd found out about its node."""
        return await self._call("GET", "/v1/node", NodeInfo)

    async def health(self) -> Health:
        """Return whether stokerd is alive and its runtime answers; a bad state is a value, not an error."""
        return await self._call("GET", "/healthz", Health, also=503)

    async def readiness(self) -> Health:
        """Return whether stokerd has finished starting; a bad state is a value, not an error."""
        return await self._call("GET", "/readyz", Health, also=503)

    async def metrics(self) -> str:
        """Return stokerd's metrics in Prometheus' text format."""
        return await self._text("/metrics")

    async def reload(self) -> ReloadResult:
        """Have the configuration file read again; ClientError leaves everything as it was."""
        return await self._call("POST", "/v1/reload", ReloadResult)

    async def settings(self) -> dict[str, dict[str, Any]]:
        """Return the settings that hold, by table and key."""
        return await self._call("GET", "/v1/settings", dict[str, dict[str, Any]])

    async def logs(self) -> list[str]:
        """Return stokerd's last log lines, each a JSON document, oldest first."""
        return [line for line in (await self._text("/v1/logs")).split("\n") if line]
