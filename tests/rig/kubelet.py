"""A kubelet for tests: it starts the next attempt of each of its containers that has exited, and does nothing else.

As the real one it works from the configuration that it keeps itself, looks at the runtime once a period, waits longer
after each crash, and keeps one dead container of a name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

from cri_stubs.cri.v1 import runtime_pb2 as cri
from tests.rig import bundled
from tests.rig.pods import SLEEP, BareCri, RigPod, Seen, own_pids

_POD = "io.kubernetes.pod"
_CONTAINER = "io.kubernetes.container"


class FakeKubelet:
    """Its pods carry a kubelet's labels. `run` looks after them until it is cancelled."""

    def __init__(self, bare: BareCri, *, period: float = 0.1, backoff: float = 0.0) -> None:
        """*period*: seconds between two looks; *backoff*: seconds before the first restart, doubled by each."""
        self._cri = bare
        self._period = period
        self._backoff = backoff
        self._wanted: dict[tuple[str, str], tuple[RigPod, cri.ContainerConfig]] = {}
        self.restarts: dict[str, int] = {}
        self.paused = False

    async def pod(self, name: str, *, namespace: str = "default", uid: str = "") -> RigPod:
        uid = uid or f"uid-{name}"
        labels = {f"{_POD}.name": name, f"{_POD}.namespace": namespace, f"{_POD}.uid": uid}
        annotations = {"kubernetes.io/config.source": "api", "kubernetes.io/config.seen": "2026-01-01T00:00:00Z"}
        return await self._cri.run_pod(name, namespace=namespace, uid=uid, labels=labels, annotations=annotations)

    async def container(
        self,
        pod: RigPod,
        name: str,
        *,
        command: Sequence[str] = SLEEP,
        pre_stop: Mapping[str, Any] | None = None,
        grace: int = 30,
    ) -> str:
        """Start a container and look after it from now on."""
        meta = pod.config.metadata
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name),
            image=cri.ImageSpec(image=bundled.BUSYBOX_REFERENCE),
            command=list(command),
            log_path=f"{name}.log",
            linux=own_pids(),
            labels={
                f"{_POD}.name": meta.name,
                f"{_POD}.namespace": meta.namespace,
                f"{_POD}.uid": meta.uid,
                f"{_CONTAINER}.name": name,
            },
            annotations={
                f"{_CONTAINER}.hash": "1",
                f"{_CONTAINER}.restartCount": "0",
                f"{_POD}.terminationGracePeriod": str(grace),
            },
        )
        if pre_stop is not None:
            config.annotations[f"{_CONTAINER}.preStopHandler"] = json.dumps(pre_stop)
        made = await self._cri.run(pod, name, config=config)
        self._wanted[pod.id, name] = pod, config
        return made

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.run(), name="fake kubelet")
            yield
            task.cancel()

    async def run(self) -> None:
        while True:
            if not self.paused:
                for pod, config in list(self._wanted.values()):
                    with suppress(grpc.aio.AioRpcError):  # containerd may be away: the next look comes
                        await self._look_after(pod, config)
            await asyncio.sleep(self._period)

    async def _look_after(self, pod: RigPod, config: cri.ContainerConfig) -> None:
        name = config.metadata.name
        seen = await self._cri.list(pod, name)
        if any(each.running for each in seen):
            return
        count = self.restarts.get(name, 0)
        if self._backoff:
            await asyncio.sleep(self._backoff * 2**count)
        attempt = max((each.attempt for each in seen), default=-1) + 1
        again = cri.ContainerConfig()
        again.CopyFrom(config)
        again.metadata.attempt = attempt
        again.annotations[f"{_CONTAINER}.restartCount"] = str(attempt)
        await self._cri.run(pod, name, config=again)
        self.restarts[name] = count + 1
        await self._collect(seen)

    async def _collect(self, seen: list[Seen]) -> None:
        for old in seen[:-1]:
            await self._cri.remove(old.id)
