"""Nodes that are not there: many of them in one process, speaking the real protocol of the link over a few sockets.

``python -m bench.simulator --address 127.0.0.1:7422 --nodes 5000 --first 0``. It prints one JSON line when all nodes
are connected, then does what lines on its standard input say:

    flap NUMBER     a port of that node's goes down, or comes up again; the moment is in the report
    quit
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import grpc
import msgspec

from stoker import link_documents as documents
from stoker.objects import link
from stoker.objects.images import ItemStatus, JobCounts, JobStatus, Progress, WarmRequest
from stoker.objects.link import (
    Delta,
    Desired,
    Full,
    Heartbeat,
    Hello,
    Known,
    Probe,
    Result,
    Results,
    Resync,
    Welcome,
    Wish,
)
from stoker.objects.topology import (
    Gpu,
    Nic,
    NicPort,
    NvlinkDomain,
    PcieInfo,
    PortHealth,
    PortNeighbour,
    TopologyReport,
    TopologySource,
)

SINCE = datetime(2026, 11, 30, tzinfo=UTC)
NODES_PER_RACK = 32
RAILS = 8
RACKS_PER_POD = 16
PULL_SECONDS = 2.0
_CONNECTING, _AT_ONCE = 64, 100


def name_of(number: int) -> str:
    return f"sim-{number:05d}"


def report_of(number: int, *, down: str = "") -> documents.Plain:
    """Return the topology of a node: 8 GPUs, each with an adapter to its rail's leaf switch, and one for storage.

    *down*: why the first port is down; it says when that happened, for who measures how long that takes to be known.
    """
    rack = number // NODES_PER_RACK
    gpus = [_gpu(index) for index in range(RAILS)]
    nics = [_nic(number, rack, rail, down if rail == 0 else "") for rail in range(RAILS)]
    nics.append(_storage(number, rack))
    report = TopologyReport(
        version=1,
        node=name_of(number),
        since=SINCE,
        sources=[TopologySource(name=each, state="ok", since=SINCE) for each in ("sysfs.net", "sysfs.rdma", "lldpd")],
        labels={"rack": f"r{rack}"},
        gpus=gpus,
        nics=nics,
        domains=[
            NvlinkDomain(
                source="nvml",
                since=SINCE,
                name=f"nvl-{number}.0",
                cluster=f"nvl-{number}",
                clique=0,
                gpus=[gpu.name for gpu in gpus],
            )
        ],
    )
    return documents.plain(report)


def _gpu(index: int) -> Gpu:
    return Gpu(
        source="nvml", since=SINCE, name=f"GPU{index}", index=index, model="NVIDIA H100 80GB HBM3", vendor="nvidia",
        uuid=f"GPU-{index:08x}", memory_bytes=80 << 30, nics=[f"mlx5_{index}"], nic_distance="PIX",
        pcie=PcieInfo(address=f"0000:{0x14 + index:02x}:00.0", numa=index // 4, speed=32.0, width=16),
    )  # fmt: skip


def _nic(number: int, rack: int, rail: int, down: str) -> Nic:
    guid = f"{(0xA088C2 << 40) + number * 16 + rail:016x}"
    pod = rack // RACKS_PER_POD
    neighbour = PortNeighbour(
        source="fabric", since=SINCE, kind="switch", reason="the fabric's dump calls it a switch",
        chassis=f"{(0x2C5EAB << 40) + rack * RAILS + rail:016x}", port=str(1 + number % NODES_PER_RACK),
        name=f"leaf-p{pod}-r{rack}-{rail}",
    )  # fmt: skip
    port = NicPort(
        source="sysfs.rdma", since=SINCE, number=1, state="down" if down else "active",
        health=PortHealth(
            source="sysfs.rdma", since=SINCE, state="down" if down else "healthy", reasons=[down] if down else []
        ),
        physical="disabled" if down else "linkup", layer="infiniband", gbps=400.0, width=4, speed="NDR", guid=guid,
        neighbours=[neighbour],
    )  # fmt: skip
    return Nic(
        source="sysfs.rdma", since=SINCE, name=f"mlx5_{rail}", use="compute", use_reason="near a GPU", rdma=True,
        model="MT4129", firmware="28.43.2026", guid=guid, rail=rail, gpus=[f"GPU{rail}"], gpu_distance="PIX",
        pcie=PcieInfo(address=f"0000:{0x40 + rail:02x}:00.0", numa=rail // 4, speed=32.0, width=16), ports=[port],
    )  # fmt: skip


def _storage(number: int, rack: int) -> Nic:
    neighbour = PortNeighbour(
        source="lldpd", since=SINCE, kind="switch", reason="bridge",
        chassis=f"0c:29:ef:00:{rack >> 8:02x}:{rack & 255:02x}",
        port=f"swp{1 + number % NODES_PER_RACK}", name=f"storage-{rack}",
    )  # fmt: skip
    port = NicPort(
        source="sysfs.net", since=SINCE, number=1, state="active", layer="ethernet", gbps=100.0, netdev="ens1",
        health=PortHealth(source="sysfs.net", since=SINCE, state="healthy"), neighbours=[neighbour],
    )  # fmt: skip
    return Nic(source="sysfs.net", since=SINCE, name="ens1", use="storage", use_reason="a rule", ports=[port])


class SimulatedNode:
    """One of them."""

    __slots__ = ("_call", "_digest", "_down", "_resync", "_sequence", "_started", "_writing", "number", "ready")

    def __init__(self, number: int) -> None:
        self.number = number
        self.ready = asyncio.Event()
        self._call: Any = None
        self._sequence = 0
        self._digest = ""
        self._down = ""
        self._started: dict[str, int] = {}
        self._writing = asyncio.Lock()
        self._resync = False

    async def keep(self, channel: grpc.aio.Channel, group: asyncio.TaskGroup) -> None:
        """Keep a stream, whatever happens to it."""
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._run(channel, group)
            self.ready.clear()
            await asyncio.sleep(1.0 + 2.0 * random.random())

    async def _run(self, channel: grpc.aio.Channel, group: asyncio.TaskGroup) -> None:
        """Connect, and answer what comes until the stream ends."""
        self._call = channel.stream_stream(link.CONNECT)()
        await self._say(
            Hello(
                node=name_of(self.number),
                boot_id=f"boot-{self.number}",
                machine_id=f"machine-{self.number}",
                instance=f"run-{self.number}-{time.monotonic_ns()}",
                version="0.1.0",
                runtime="containerd 2.1.4",
                capabilities={"criu": "", "overlayfs": ""},
            )
        )
        while (data := await self._call.read()) is not grpc.aio.EOF:
            match link.decode_down(cast("bytes", data)):
                case Welcome() as welcome:
                    await self._greeted(welcome.known)
                case Desired() as desired:
                    self._take(desired, group)
                case Resync():
                    await self._full()
                case Probe(nonce):
                    await self._say(Heartbeat(nonce=nonce))
                case _:
                    pass

    async def _greeted(self, known: list[Known]) -> None:
        text = documents.canonical(report_of(self.number, down=self._down))
        self._digest, self._sequence = documents.digest_of(text), 0
        if self._digest not in {each.digest for each in known}:
            await self._full()
        self.ready.set()

    async def _full(self) -> None:
        text = documents.canonical(report_of(self.number, down=self._down))
        self._digest = documents.digest_of(text)
        self._sequence += 1
        await self._say(
            Full(document="topology", sequence=self._sequence, digest=self._digest, body=documents.pack(text))
        )

    async def beat(self) -> None:
        if self.ready.is_set():
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._say(Heartbeat(free_bytes=1 << 40))

    async def flap(self) -> None:
        """Lose the link of the first port, or have it again."""
        before = report_of(self.number, down=self._down)
        self._down = "" if self._down else f"lost at {time.monotonic()}"
        after = report_of(self.number, down=self._down)
        base, text = self._digest, documents.canonical(after)
        self._digest = documents.digest_of(text)
        self._sequence += 1
        body = documents.pack(documents.canonical(documents.compare(before, after)))
        await self._say(Delta(document="topology", sequence=self._sequence, base=base, digest=self._digest, body=body))

    def _take(self, desired: Desired, group: asyncio.TaskGroup) -> None:
        for wish in desired.wishes:
            if wish.kind == "warm" and self._started.get(wish.uid, -1) < wish.generation:
                self._started[wish.uid] = wish.generation
                group.create_task(self._pull(wish), name=f"pull on {self.number}")
        wanted = {wish.uid for wish in desired.wishes}
        for uid in [uid for uid in self._started if uid not in wanted]:
            del self._started[uid]

    async def _pull(self, wish: Wish) -> None:
        request = msgspec.msgpack.decode(wish.spec, type=WarmRequest)
        await self._result(wish, request, "Running", 0.0)
        await asyncio.sleep(PULL_SECONDS)
        await self._result(wish, request, "Succeeded", 100.0)

    async def _result(self, wish: Wish, request: WarmRequest, phase: Any, percent: float) -> None:
        done = phase == "Succeeded"
        item = ItemStatus(
            image=request.images[0],
            reference=request.images[0],
            phase="Succeeded" if done else "Pulling",
            reason="Pulled" if done else "",
            progress=Progress(bytes_total=1 << 30, bytes_done=int(percent / 100 * (1 << 30)), percent=percent),
        )
        job = JobStatus(id="sim", state="Succeeded" if done else "Active", counts=JobCounts(desired=1), items=[item])
        detail = msgspec.Raw(msgspec.msgpack.encode(job))
        result = Result(uid=wish.uid, generation=wish.generation, kind=wish.kind, phase=phase, detail=detail)
        await self._say(Results(results=[result]))

    async def _say(self, message: Any) -> None:
        async with self._writing:
            await self._call.write(link.encode(message))


async def simulate(address: str, first: int, count: int, sockets: int, heartbeat: float) -> None:
    """Be so many nodes until told to quit."""
    channels = [
        grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1), ("socket", number)))
        for number in range(sockets)
    ]
    nodes = [SimulatedNode(first + number) for number in range(count)]
    async with asyncio.TaskGroup() as group:
        beating = group.create_task(_beat(nodes, heartbeat), name="heartbeats")
        for begin in range(0, count, _CONNECTING):
            some = nodes[begin : begin + _CONNECTING]
            for node in some:
                group.create_task(node.keep(channels[node.number % sockets], group), name=name_of(node.number))
            await asyncio.gather(*(node.ready.wait() for node in some))
        print(json.dumps({"connected": count}), flush=True)
        await _obey(nodes)
        beating.cancel()
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()


async def _beat(nodes: list[SimulatedNode], heartbeat: float) -> None:
    """Have all nodes say that they are there, evenly over the interval."""
    began, said = time.monotonic(), 0
    rounds = _endless(nodes)
    while True:
        due = int((time.monotonic() - began) / heartbeat * len(nodes))
        await asyncio.gather(*(next(rounds).beat() for _ in range(min(due - said, _AT_ONCE))))
        said = max(said + _AT_ONCE, due - len(nodes)) if due - said > _AT_ONCE else due
        await asyncio.sleep(0.02)


def _endless(nodes: list[SimulatedNode]) -> Iterator[SimulatedNode]:
    while True:
        yield from nodes


async def _obey(nodes: list[SimulatedNode]) -> None:
    by_number = {node.number: node for node in nodes}
    while line := await asyncio.to_thread(sys.stdin.readline):
        match line.split():
            case ["flap", number] if int(number) in by_number:
                await by_number[int(number)].flap()
            case ["quit"]:
                return
            case _:
                pass


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.simulator", description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--sockets", type=int, default=4)
    parser.add_argument("--heartbeat", type=float, default=10.0)
    arguments = parser.parse_args()
    try:
        asyncio.run(
            simulate(arguments.address, arguments.first, arguments.nodes, arguments.sockets, arguments.heartbeat)
        )
    except (asyncio.CancelledError, KeyboardInterrupt):
        return


if __name__ == "__main__":
    main()
