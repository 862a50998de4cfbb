"""Asks the node at the other end of each of our own ports of InfiniBand who it is, by smpquery of infiniband-diags."""

from __future__ import annotations

import asyncio

from stoker.fabrics.foreign import Unreadable
from stokerd.settings import TopologySettings
from stokerd.topology import smpquery
from stokerd.topology.commands import Command, CommandFailed, find
from stokerd.topology.facts import AskedPeers, FabricPeer, Ports
from stokerd.topology.outcomes import Absent

_PACKET_MS = "200"
"""How long one packet is waited for; it is sent three times."""


class AskFabric:
    """Asks one port after another: it is two packets for each, and a queue of them would be in their own way."""

    def __init__(self) -> None:
        self._query = Command()

    async def peers(self, settings: TopologySettings, ports: Ports) -> AskedPeers:
        """Return who is at the other ends; Absent where there is nobody or no tool, CommandFailed if nobody answers."""
        own = ports_of(ports)
        if not own or not settings.smpquery:
            raise Absent
        program = find(settings.smpquery)
        if not program:
            raise Absent("smpquery is not installed (infiniband-diags)")
        found: dict[tuple[str, int], FabricPeer] = {}
        unread = Unreadable()
        problem = ""
        async with asyncio.timeout(settings.read_timeout):
            for device, port in own:
                try:
                    peer = await self._peer(program, device, port, settings.read_timeout)
                except CommandFailed as error:
                    problem, peer = str(error), None
                if peer is None:
                    unread.add(f"{device} port {port}: {problem or 'its answer was not understood'}")
                else:
                    found[device, port] = peer
        if problem and not found:
            raise CommandFailed(problem)
        return AskedPeers(found, unread.total)

    async def _peer(self, program: str, device: str, port: int, timeout: float) -> FabricPeer | None:
        said = []
        for what in ("nodeinfo", "nodedesc"):
            way = ("-C", device, "-P", str(port), "-t", _PACKET_MS, "-D", what, f"0,{port}")
            said.append(await self._query.output([program, *way], timeout=timeout, most=smpquery.LONGEST))
        return smpquery.parse(*said)


def ports_of(ports: Ports) -> tuple[tuple[str, int], ...]:
    """Return the ports of InfiniBand whose link is up, with or without a subnet manager."""
    return tuple(
        (device.name, port.number)
        for device in ports.rdma
        for port in device.ports
        if port.layer == "infiniband" and port.physical in {"linkup", "unknown"} and port.state != "down"
    )
