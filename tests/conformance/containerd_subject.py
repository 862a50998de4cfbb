"""Real containerd, of one of the rig's nodes, as a subject. Images are pulled through the fault proxy."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from stokerd.runtime.containerd import Containerd
from stokerd.settings import RuntimeSettings
from tests.conformance.subject import (
    DEADLINE,
    Generation,
    Made,
    MadeLayer,
    blobs_of,
    eventually,
    records_of,
    snapshots_of,
)
from tests.rig import bundled, images
from tests.rig.exchange import RequestRecord
from tests.rig.faultproxy import FaultProxy
from tests.rig.faults import Gate, Hold, Status
from tests.rig.layers import LayerSpec
from tests.rig.node import Node
from tests.rig.registry import Registry
from tests.rig.tokenauth import TokenAuth

GENERATIONS: dict[str, Generation] = {"bookworm": "1.6", "trixie": "1.7", "forky": "2.1"}


class ProxyBarrier:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def reached(self) -> None:
        await self._gate.reached()

    def release(self) -> None:
        self._gate.release()


class ContainerdSubject:
    """`Subject` over a node, the registry behind the proxy, and the connection that the daemon would make."""

    refused = "127.0.0.1:1/none:v1"
    unknown_host = "nowhere.invalid/none:v1"

    def __init__(self, node: Node, registry: Registry, proxy: FaultProxy) -> None:
        self.generation = GENERATIONS[node.suite]
        self.runtime = Containerd(RuntimeSettings(endpoint=str(node.endpoint), connect_backoff_max=0.5), _observe)
        self._node, self._registry, self._proxy = node, registry, proxy
        self._gates: list[Gate] = []

    async def make_image(
        self,
        name: str,
        sizes: Sequence[int] = (100_000,),
        *,
        tag: str = "v1",
        seed: str = "",
        index: bool = False,
        foreign: bool = False,
    ) -> Made:
        return await asyncio.to_thread(self._make, f"conformance/{name}", sizes, tag, seed or name, index, foreign)

    def _make(self, repository: str, sizes: Sequence[int], tag: str, seed: str, index: bool, foreign: bool) -> Made:
        layers = tuple(
            LayerSpec(size=size, seed=f"{seed} {number}", directory=f"layer{number}")
            for number, size in enumerate(sizes)
        )
        platform = images.Platform.foreign() if foreign else images.Platform.own()
        image = images.build(images.ImageSpec(layers=layers, platform=platform, config={"Labels": {"seed": seed}}))
        whole = images.index([image], attested=True) if index else image
        self._registry.push(repository, whole, tag=tag)
        return Made(
            f"{self._proxy.address}/{repository}:{tag}",
            whole.digest,
            image.manifest,
            image.digest,
            image.config,
            image.config_digest,
            tuple(MadeLayer(layer.digest, layer.size) for layer in image.layers),
        )

    def absent(self, name: str = "absent") -> str:
        return f"{self._proxy.address}/conformance/{name}:none"

    def hold(self, made: Made, layer: int, after: int) -> ProxyBarrier:
        gate = Gate()
        self._gates.append(gate)
        self._proxy.rule(Hold(gate, after=after), path=made.layers[layer].digest)
        return ProxyBarrier(gate)

    def answer(self, made: Made, status: int, layer: int | None = None) -> None:
        self._proxy.rule(Status(status), path=_path(made) if layer is None else made.layers[layer].digest)

    def require_auth(self, made: Made, username: str, password: str) -> None:
        self._proxy.auth = TokenAuth(username, password)

    def clear(self) -> None:
        self._proxy.clear()
        self._proxy.auth = None
        for gate in self._gates:
            gate.release()

    def fetched(self, digest: str) -> int:
        return self._proxy.bytes_sent(digest)

    def forget(self) -> None:
        self._proxy.forget()

    async def runnable(self) -> str:
        await asyncio.to_thread(self._node.import_image, bundled.busybox_archive())
        return bundled.BUSYBOX_REFERENCE

    async def cdi_device(self) -> str:
        device = {"path": "/dev/stoker-cdi", "hostPath": "/dev/zero", "type": "c", "major": 1, "minor": 5}
        edits = {"deviceNodes": [device], "env": ["CDI=1"]}
        devices = [{"name": "zero", "containerEdits": edits}]
        spec = json.dumps({"cdiVersion": "0.5.0", "kind": "stoker.dev/test", "devices": devices})
        file = self._node.artifacts_dir / "cdi.json"
        file.write_text(spec, encoding="utf-8")
        await asyncio.to_thread(self._node.run, "install", "-D", "-m", "644", file, "/var/run/cdi/stoker.json")
        return "stoker.dev/test=zero"

    def directory(self, name: str) -> str:
        path = self._node.artifacts_dir / "conformance" / name
        path.mkdir(parents=True, exist_ok=True)
        return str(path)

    async def quiet(self) -> None:
        await asyncio.to_thread(self._proxy.wait_until, "all transfers to end", _all_done)

    async def crash(self) -> None:
        await asyncio.to_thread(self._node.kill_containerd)
        await eventually("the loss to be noticed", self._is_down)

    async def restart(self) -> None:
        await asyncio.to_thread(self._node.start_containerd)

    def nudge(self) -> None:
        """containerd collects by itself."""

    def free_bytes(self) -> tuple[int, int]:
        info = self.runtime.info
        state = os.statvfs(f"{info.host_root}{info.root}")
        return state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize

    async def _is_down(self) -> bool:
        return not self.runtime.ready

    # ------------------------------------------------------------------------------------------ around a test

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Run the connection, and leave the node as it was found."""
        supervision = asyncio.create_task(self.runtime.run())
        try:
            await asyncio.wait_for(self.runtime.wait_ready(), DEADLINE)
            await self._collect()
            before = await self._state()
            yield
            self.clear()
            if not self.runtime.ready:
                await self.restart()
                await asyncio.wait_for(self.runtime.wait_ready(), DEADLINE)
            for pod in await self.runtime.pods.list():
                await self.runtime.pods.remove(pod.id)
            await self._put_back(*before)
            await self.quiet()
        finally:
            supervision.cancel()
            await asyncio.gather(supervision, return_exceptions=True)

    async def _collect(self) -> None:
        """Let containerd collect its garbage now: what the import of an archive leaves, for example."""
        await self.runtime.leases.create("stoker.dev/collect", {})
        await self.runtime.leases.delete("stoker.dev/collect", sync=True)

    async def _state(self) -> tuple[set[str], set[str], set[str]]:
        return await records_of(self), await blobs_of(self), await snapshots_of(self)

    async def _put_back(self, records: set[str], blobs: set[str], snapshots: set[str]) -> None:
        async def as_before() -> bool:
            for name in await records_of(self) - records:
                await self.runtime.images.delete(name)
            for lease in await self.runtime.leases.list():
                await self.runtime.leases.delete(lease.id)
            return await self._state() == (records, blobs, snapshots) and not await self.runtime.content.ingests()

        await eventually("the node to be as it was found", as_before)


def _path(made: Made) -> str:
    """What the paths of this image's repository begin with."""
    return f"/v2/{made.reference.partition('/')[2].rpartition(':')[0]}/"


def _all_done(records: list[RequestRecord]) -> bool:
    return all(record.done for record in records)


def _observe(_call: str, _status: str, _seconds: float) -> None:
    """Nobody counts here."""
