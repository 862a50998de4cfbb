"""The other side of each comparison: bare CRI, and containerd's own ctr."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import grpc

from cri_stubs.cri.v1 import runtime_pb2
from cri_stubs.cri.v1.runtime_pb2_grpc import ImageServiceStub
from stoker.client import Client
from stoker.objects.images import JobEvent, WarmRequest
from tests.rig.node import Node


class BareCri:
    """PullImage over one open channel, as the kubelet calls it."""

    def __init__(self, node: Node) -> None:
        self._channel = grpc.aio.insecure_channel(
            f"unix:{node.endpoint}", options=[("grpc.default_authority", "localhost")]
        )
        self._images = ImageServiceStub(self._channel)

    async def pull(self, reference: str) -> float:
        """Return the seconds that one pull took."""
        started = time.perf_counter()
        await self._images.PullImage(runtime_pb2.PullImageRequest(image=runtime_pb2.ImageSpec(image=reference)))
        return time.perf_counter() - started

    async def pull_all(self, references: Sequence[str]) -> float:
        """Return the seconds for all, one after another."""
        return sum([await self.pull(reference) for reference in references])

    async def close(self) -> None:
        await self._channel.close()


class Stoker:
    """A warm request over the local API, until the job has ended."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def warm(self, *references: str) -> float:
        started = time.perf_counter()
        job = await self._client.warm(WarmRequest(images=list(references)))
        if job.state == "Active":
            async for event in self._client.follow(job.id):
                if isinstance(event, JobEvent):
                    job = event.job
        took = time.perf_counter() - started
        if job.state != "Succeeded":
            raise RuntimeError(f"warming failed: {[item.message for item in job.items if item.message]}")
        return took


async def ctr_pull(node: Node, reference: str) -> float:
    """Return the seconds of one ``ctr images pull``, unpacking included, without its own start in a namespace."""
    hosts = str(node.certs_dir)
    started = time.perf_counter()
    await asyncio.to_thread(node.ctr, "images", "pull", "--hosts-dir", hosts, reference)
    return time.perf_counter() - started


async def clear(node: Node, prefixes: Sequence[str]) -> None:
    """Take images away, collect, and let the disk come to rest, so that each run starts alike."""

    def work() -> None:
        names = node.ctr("images", "ls", "-q").stdout.split()
        ids = [name for name in names if name.startswith("sha256:")]
        doomed = [name for name in names if any(name.startswith(prefix) for prefix in prefixes)]
        if doomed:
            node.ctr("images", "rm", "--sync", *doomed, *ids)

    await asyncio.to_thread(work)
    process = await asyncio.create_subprocess_exec("sync")
    await process.wait()
