"""The report of a node, from what was observed. Pure, and the same for the same observation: no time but *now*."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from stoker.fabrics.fabric import Fabric, FabricLink, FabricNode
from stoker.fabrics.foreign import Unread, plain
from stoker.objects.topology import (
    VERSION,
    DistanceMatrix,
    FabricSummary,
    Gpu,
    GpuXid,
    Nic,
    NicPort,
    NumaNode,
    NvlinkDomain,
    NvlinkPeer,
    PcieInfo,
    PortHealth,
    PortNeighbour,
    TopologyReport,
    TopologySource,
)
from stokerd.topology import health, machine
from stokerd.topology.accelerators import Accelerator, domains, refusal
from stokerd.topology.addresses import PcieLink, generation_speed
from stokerd.topology.classes import Decision
from stokerd.topology.distances import Place, distance, nearest
from stokerd.topology.facts import MODELS, Observation, PciDevice, SourceReport, Xid
from stokerd.topology.findings import findings
from stokerd.topology.inventory import GpuItem, Inventory, NicItem, PortItem, readings, take, vendor_of
from stokerd.topology.neighbours import kind_of
from stokerd.topology.settling import settle

_MOST_LABELS, _MOST_NEIGHBOURS, _MOST_ADDRESSES, _LONGEST_NAME, _MOST_XIDS = 64, 4, 2, 64, 8
_FABRIC_KINDS = {"switch": "switch", "adapter": "host"}


def build(seen: Observation, now: datetime, before: TopologyReport | None = None) -> TopologyReport:
    """Return the report of what was *seen*. Facts that are as they were in *before* keep the time since when they are.

    If nothing changed, *before* itself is returned.
    """
    inventory = take(seen, uses_of(before))
    report = _Builder(seen, inventory, now, before).build()
    report.findings = findings(report, seen.gpus_lost, seen.young)
    return settle(machine.fitted(report), before)


def uses_of(report: TopologyReport | None) -> dict[str, Decision]:
    """Return what each network adapter is for, as a report has it."""
    return {nic.name: Decision(nic.use, nic.use_reason) for nic in report.nics} if report is not None else {}


class _Builder:
    def __init__(
        self, seen: Observation, inventory: Inventory, now: datetime, before: TopologyReport | None = None
    ) -> None:
        self._seen = seen
        self._inventory = inventory
        self._now = now
        self._readings = readings(inventory)
        self._own_macs = {net.mac for net in seen.hardware.nets if net.mac}
        self._fabric = {node.guid: node for node in seen.fabric.nodes} if seen.fabric is not None else {}
        # Where a dump knows a node by its GUID, and sysfs has the port's (or the other way round).
        self._by_port = {link.guid: (node, link) for node in self._fabric.values() for link in node.links if link.guid}
        old = before.nics if before is not None else []
        self._before = {(nic.name, port.number): port for nic in old for port in nic.ports}
        self._name_of_gpu = {gpu.pci.place.address: gpu.name for gpu in inventory.gpus}

    def build(self) -> TopologyReport:
        seen, now = self._seen, self._now
        numa = [
            NumaNode(source="sysfs.numa", since=now, id=node.id, cpus=node.cpus, memory_bytes=node.memory_bytes)
            for node in seen.hardware.numa
        ]
        labels = sorted(seen.labels.items())[:_MOST_LABELS]
        return TopologyReport(
            version=VERSION,
            node=seen.node,
            since=now,
            sources=[self._source(source) for source in _sources(seen)],
            labels={plain(key, 63): plain(value, 63) for key, value in labels},
            placement=dict(sorted(seen.placement.facts.items())),
            cpu=machine.cpu(seen, now),
            memory=machine.memory(seen, now),
            numa=numa,
            disks=machine.disks(seen, now),
            gpus=[self._gpu(gpu) for gpu in self._inventory.gpus],
            nics=[self._nic(nic) for nic in self._inventory.nics],
            domains=self._domains(),
            matrix=matrix_of(self._inventory, seen),
            fabric=self._summary(seen.fabric),
            images=machine.images(seen, now),
            pods=machine.pods(seen, now),
        )

    def _source(self, source: SourceReport) -> TopologySource:
        return TopologySource(
            name=source.name,
            state=source.state,
            since=self._now,
            reason=plain(source.reason, 200),
            unread=source.unread.count,
            samples=list(source.unread.samples),
        )

    def _gpu(self, gpu: GpuItem) -> Gpu:
        driver = gpu.driver or Accelerator(gpu.pci.place.address)
        rdma = {
            nic.name: nic.pci.place
            for nic in self._inventory.nics
            if nic.rdma is not None and nic.pci is not None and not nic.pci.virtual_of
        }
        near = nearest(gpu.pci.place, rdma, numa_nodes=self._inventory.numa_nodes)
        fabric, ids = driver.fabric, (gpu.pci.vendor, gpu.pci.device)
        return Gpu(
            source=self._seen.gpu_source if gpu.driver is not None else "sysfs.pci",
            since=self._now,
            name=gpu.name,
            index=gpu.index,
            pcie=_pcie(gpu.pci, driver),
            model=driver.model or MODELS.get(ids) or f"{ids[0]:04x}:{ids[1]:04x}",
            vendor=vendor_of(gpu),
            uuid=driver.uuid,
            serial=driver.serial if self._seen.serials else "",
            memory_bytes=driver.memory_bytes,
            clock_max_mhz=driver.clock_max_mhz,
            mig=driver.mig,
            ecc_uncorrected=driver.ecc_uncorrected,
            remap_pending=driver.remap_pending,
            remap_failed=driver.remap_failed,
            recovery=driver.recovery,
            throttled=list(driver.throttled),
            xids=[GpuXid(xid=each.number, count=each.count, last=each.last) for each in self._xids(driver.address)],
            nvlinks=[
                NvlinkPeer(kind=end.kind, peer=self._name_of_gpu.get(end.peer, end.peer), links=end.links)  # type: ignore[arg-type]
                for end in driver.nvlinks
            ],
            nvlinks_down=driver.nvlinks_down,
            domain="" if refusal(fabric) else f"{fabric.cluster.lower()}.{fabric.clique}",
            nics=list(near.names),
            nic_distance=near.distance if near.names else "",
        )

    def _xids(self, address: str) -> list[Xid]:
        return [each for each in self._seen.xids if each.address == address][-_MOST_XIDS:]

    def _domains(self) -> list[NvlinkDomain]:
        return [
            NvlinkDomain(
                source=self._seen.gpu_source,
                since=self._now,
                name=found.name,
                cluster=found.cluster,
                clique=None if found.refused else found.clique,
                gpus=[self._name_of_gpu.get(address, address) for address in found.addresses],
                refused=found.refused,
            )
            for found in domains([gpu for gpu in self._seen.gpus if gpu.vendor == "nvidia"])
        ]

    def _nic(self, nic: NicItem) -> Nic:
        return Nic(
            source="sysfs.rdma" if nic.rdma is not None else "sysfs.net" if nic.ports else "sysfs.pci",
            since=self._now,
            name=nic.name,
            use=nic.decision.use,
            use_reason=nic.decision.reason if nic.ports else "it has no network or RDMA device on this node",
            pcie=_pcie(nic.pci) if nic.pci is not None else None,
            rdma=nic.rdma is not None,
            model=nic.rdma.model if nic.rdma is not None else "",
            firmware=nic.rdma.firmware if nic.rdma is not None else "",
            guid=nic.rdma.guid if nic.rdma is not None else "",
            rail=nic.rail,
            gpus=list(nic.nearest.names),
            gpu_distance=nic.nearest.distance if nic.nearest.names else "",
            virtual_of=nic.pci.virtual_of if nic.pci is not None else "",
            virtual_functions=nic.pci.virtual_functions if nic.pci is not None else 0,
            ports=[self._port(nic, port) for port in nic.ports],
        )

    def _port(self, nic: NicItem, port: PortItem) -> NicPort:
        rdma, net = port.rdma, port.net
        found = NicPort(
            source=_port_source(port),
            since=self._now,
            number=port.number,
            state=rdma.state if rdma is not None else {True: "active", False: "down", None: "unknown"}[port.up],
            health=self._health(nic.name, port),
            layer=port.layer,
            gbps=port.gbps,
            neighbours=self._neighbours(nic, port),
        )
        if rdma is not None:
            found.physical, found.guid = rdma.physical, rdma.guid
            if port.without_carrier and rdma.state == "active":
                found.state, found.physical = "down", "no carrier"
            found.width, found.speed = rdma.rate.width, rdma.rate.speed
            found.lid, found.sm_lid = rdma.lid, rdma.sm_lid
            found.gids = [each.gid for each in rdma.gids]
            found.roce = sorted({each.kind for each in rdma.gids if each.kind.startswith("v")})
        if net is not None:
            found.netdev, found.mac, found.mtu = net.name, net.mac, net.mtu
            found.bond, found.vlans = net.bond, list(net.vlans)
            found.pfc = None if net.pfc is None else list(net.pfc)
            found.ecn = None if net.ecn is None else list(net.ecn)
        if health.FLAPPING in found.health.reasons:
            _hold(found, self._before.get((nic.name, port.number)), up=port.up is True)
        return found

    def _health(self, nic: str, port: PortItem) -> PortHealth:
        known = self._seen.health.get((nic, port.number))
        if known is None:
            known = health.observe(health.PortHealth(), self._readings[nic, port.number], 0.0)
        return PortHealth(
            source=_port_source(port),
            since=self._now,
            state=known.state,
            reasons=list(known.reasons),
            flaps=known.flaps,
        )

    def _neighbours(self, nic: NicItem, port: PortItem) -> list[PortNeighbour]:
        neighbours = self._ethernet(port.net.name) if port.net is not None else []
        if port.layer == "infiniband" and nic.rdma is not None and port.rdma is not None:
            neighbours += self._infiniband(nic.name, nic.rdma.guid, port.rdma.guid, port.number)
        order = {"switch": 0, "unknown": 1, "host": 2, "virtual": 3, "self": 4}
        return sorted(neighbours, key=lambda each: (order[each.kind], each.chassis, each.port))[:_MOST_NEIGHBOURS]

    def _ethernet(self, interface: str) -> list[PortNeighbour]:
        found = []
        for heard in self._seen.neighbours.get(interface, ()):
            its = heard.neighbour
            kind, reason = kind_of(its, self._own_macs)
            found.append(
                PortNeighbour(
                    source=heard.source,
                    since=self._now,
                    kind=kind,
                    reason=reason,
                    chassis=plain(its.chassis, _LONGEST_NAME),
                    port=plain(its.port, _LONGEST_NAME),
                    name=plain(its.name, _LONGEST_NAME),
                    port_description=plain(its.port_description, _LONGEST_NAME),
                    management=[plain(address, _LONGEST_NAME) for address in its.management[:_MOST_ADDRESSES]],
                    vlan=its.vlan,
                    aggregate=its.aggregate,
                    frame_size=its.frame_size,
                )
            )
        return found

    def _infiniband(self, device: str, node_guid: str, port_guid: str, number: int) -> list[PortNeighbour]:
        asked = self._seen.asked.get((device, number))
        if asked is not None:
            kind, reason = _FABRIC_KINDS.get(asked.kind, "unknown"), f"it answers that it is a {asked.kind}"
            return [self._on_fabric("smpquery", kind, reason, asked.guid, str(asked.port or ""), asked.name)]
        link = self._own_link(node_guid, port_guid, number)
        if link is None or not (link.peer or link.peer_name):
            return []
        peer = self._fabric.get(link.peer) or FabricNode(link.peer, "switch", link.peer_name)
        kind, reason = _FABRIC_KINDS.get(peer.kind, "unknown"), f"the fabric's dump calls it a {peer.kind}"
        name = peer.name or link.peer_name
        return [self._on_fabric("fabric", kind, reason, link.peer, str(link.peer_port), name)]

    def _on_fabric(self, *words: str) -> PortNeighbour:
        source, kind, reason, guid, port, name = words
        return PortNeighbour(
            source=source, since=self._now, kind=kind, reason=reason, chassis=guid, port=port, name=name  # type: ignore[arg-type]
        )  # fmt: skip

    def _own_link(self, node_guid: str, port_guid: str, number: int) -> FabricLink | None:
        if port_guid in self._by_port:
            return self._by_port[port_guid][1]
        for known in (port_guid, node_guid):  # reports of ports know adapters by the GUIDs of their ports
            node = self._fabric.get(known) if known else None
            link = next((link for link in node.links if link.port == number), None) if node is not None else None
            if link is not None:
                return link
        return None

    def _summary(self, fabric: Fabric | None) -> FabricSummary | None:
        if fabric is None:
            return None
        adapters = fabric.of_kind("adapter")
        return FabricSummary(
            source="fabric",
            since=self._now,
            form=fabric.form,
            switches=len(fabric.of_kind("switch")),
            adapters=len(adapters),
            unnamed=sum(not node.host for node in adapters),
            down=sum(link.state == "down" for node in fabric.nodes for link in node.links),
        )


def _hold(port: NicPort, before: NicPort | None, *, up: bool) -> None:
    """Leave a port that is flapping as it was when it was up: a flap is an event and a number, not ten reports."""
    port.state = health.FLAPPING
    if not up and before is not None:
        for name in _LOST_WITH_THE_LINK:
            setattr(port, name, getattr(before, name))


_LOST_WITH_THE_LINK = ("physical", "gbps", "width", "speed", "lid", "sm_lid", "gids", "roce", "mtu", "neighbours")


def _port_source(port: PortItem) -> str:
    return "sysfs.rdma" if port.rdma is not None else "sysfs.net"


def _pcie(device: PciDevice, driver: Accelerator | None = None) -> PcieInfo:
    link = device.link
    if driver is not None and link == PcieLink():
        link = PcieLink(
            generation_speed(driver.link_generation),
            generation_speed(driver.link_generation_max),
            driver.link_width,
            driver.link_width_max,
        )
    return PcieInfo(
        address=device.place.address,
        path=list(device.place.path),
        numa=device.place.numa,
        # An idle GPU lowers its speed, and raises it again: only what it could be is a fact that stays.
        speed=None if device.is_gpu else link.speed,
        speed_max=link.speed_max,
        width=link.width,
        width_max=link.width_max,
        narrowest=device.narrowest,
        driver=device.driver,
        iommu_group=device.iommu_group,
        acs_redirects=device.acs_redirects,
    )


def matrix_of(inventory: Inventory, seen: Observation) -> DistanceMatrix:
    """Return the distances of GPUs and RDMA interfaces; between GPUs, NVLink and XGMI stand before PCIe."""
    places: dict[str, Place] = inventory.gpu_places
    for nic in inventory.nics:
        if nic.rdma is not None and nic.pci is not None and not nic.pci.virtual_of:
            places[nic.name] = nic.pci.place
    names: Sequence[str] = list(places)
    rows = [" ".join(_cell(places[one], places[other], seen, inventory.numa_nodes) for other in names) for one in names]
    return DistanceMatrix(devices=list(names), rows=rows)


def _cell(one: Place, other: Place, seen: Observation, numa_nodes: int) -> str:
    link = seen.gpu_links.get((one.address, other.address)) or seen.gpu_links.get((other.address, one.address))
    return link or distance(one, other, numa_nodes=numa_nodes)


def _sources(seen: Observation) -> list[SourceReport]:
    """Return all sources, each once, by name, with what they could not read."""
    found = {source.name: source for source in seen.sources}
    unread = dict(seen.hardware.unread)
    used = {heard.source for group in seen.neighbours.values() for heard in group}
    used |= {seen.gpu_source} if seen.gpus else set()
    used |= {"smpquery"} if seen.asked else set()
    used |= {"kernel-log"} if seen.xids else set()
    used |= {"runtime"} if seen.contents is not None else set()
    used |= {"placement"} if seen.placement.facts else set()
    unread |= dict.fromkeys(used, Unread())
    if seen.fabric is not None:
        unread["fabric"] = seen.fabric.unread
    if seen.placement.unread.count:
        unread["placement"] = seen.placement.unread
    for name, lost in unread.items():
        known = found.get(name, SourceReport(name))
        found[name] = SourceReport(known.name, known.state, known.reason, _most(known.unread, lost))
    return [found[name] for name in sorted(found)]


def _most(one: Unread, other: Unread) -> Unread:
    return one if one.count >= other.count else other
