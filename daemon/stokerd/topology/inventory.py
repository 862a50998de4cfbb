"""Puts together what several sources say of the same GPU or the same network adapter. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stokerd.topology.accelerators import Accelerator
from stokerd.topology.classes import Decision, Traits, UseRule, decide, keep, partner_of
from stokerd.topology.distances import Nearest, Place, nearest, rails
from stokerd.topology.facts import GPU_VENDORS, NetDevice, Observation, PciDevice, RdmaDevice, RdmaPort, natural
from stokerd.topology.health import PortReading, speed_problems


class GpuItem(msgspec.Struct, frozen=True):
    """A GPU: its place, and what its driver says if there is one."""

    name: str
    index: int
    pci: PciDevice
    driver: Accelerator | None = None


class PortItem(msgspec.Struct, frozen=True):
    """A port of an adapter: its RDMA side, its network device, or both."""

    number: int
    rdma: RdmaPort | None = None
    net: NetDevice | None = None

    @property
    def up(self) -> bool | None:
        """Say whether its link is up; None where nobody says. RDMA over Ethernet needs a carrier."""
        if self.rdma is not None and self.rdma.state != "unknown":
            return self.rdma.state == "active" and not self.without_carrier
        return self.net.up if self.net is not None else None

    @property
    def without_carrier(self) -> bool:
        """Say whether its network device has lost the carrier."""
        return self.layer == "ethernet" and self.net is not None and self.net.up is False

    @property
    def gbps(self) -> float:
        """Return what it carries; 0 where its link is down or nobody says."""
        if self.up is False:
            return 0.0
        rate = self.rdma.rate.gbps if self.rdma is not None else 0.0
        return rate or (self.net.gbps if self.net is not None else 0.0)

    @property
    def layer(self) -> str:
        """Return ``infiniband`` or ``ethernet``."""
        if self.rdma is not None and self.rdma.layer:
            return self.rdma.layer
        return self.net.layer if self.net is not None else ""


class NicItem(msgspec.Struct, frozen=True):
    """A network adapter's function, and what was concluded about it."""

    name: str
    pci: PciDevice | None = None
    rdma: RdmaDevice | None = None
    ports: tuple[PortItem, ...] = ()
    nearest: Nearest = Nearest()
    decision: Decision = Decision("unknown", "")
    rail: int | None = None


class Inventory(msgspec.Struct, frozen=True):
    gpus: tuple[GpuItem, ...] = ()
    nics: tuple[NicItem, ...] = ()
    numa_nodes: int = 1

    @property
    def gpu_places(self) -> dict[str, Place]:
        """Return where the GPUs are, by name."""
        return {gpu.name: gpu.pci.place for gpu in self.gpus}


def take(seen: Observation, before: Mapping[str, Decision] | None = None) -> Inventory:
    """Return the GPUs and network adapters of a node, each once.

    *before*: what each adapter was for as of the last report; it holds while a link is down.
    """
    numa_nodes = max(len(seen.hardware.numa), len({device.place.numa for device in seen.hardware.pci} - {None}), 1)
    gpus = _gpus(seen)
    places = {gpu.name: gpu.pci.place for gpu in gpus}
    nics = [
        msgspec.structs.replace(nic, nearest=nearest(nic.pci.place, places, numa_nodes=numa_nodes)) if nic.pci else nic
        for nic in _nics(seen)
    ]
    traits = [_traits(nic) for nic in nics]
    nics = [
        msgspec.structs.replace(nic, decision=_decision(own, traits, seen.rules, (before or {}).get(nic.name)))
        for nic, own in zip(nics, traits, strict=True)
    ]
    partners = {own.name: its.name for own in traits if (its := partner_of(own, traits)) is not None}
    compute = {
        nic.name: nic.pci.place
        for nic in nics
        if nic.decision.use == "compute" and nic.pci is not None and nic.name not in partners
    }
    rail_of = rails(compute, list(places.values()), numa_nodes=numa_nodes)
    rail_of |= {own: rail_of[its] for own, its in partners.items() if its in rail_of}
    placed = tuple(msgspec.structs.replace(nic, rail=rail_of.get(nic.name)) for nic in nics)
    return Inventory(gpus, placed, numa_nodes)


def _decision(own: Traits, traits: Sequence[Traits], rules: Sequence[UseRule], before: Decision | None) -> Decision:
    new = decide(own, traits, rules)
    return keep(new, before, rules) if own.gbps == 0 and before is not None else new


def _gpus(seen: Observation) -> tuple[GpuItem, ...]:
    drivers = {gpu.address: gpu for gpu in seen.gpus}
    devices = {device.place.address: device for device in seen.hardware.pci if device.is_gpu and not device.virtual_of}
    for address in drivers.keys() - devices.keys():
        devices[address] = PciDevice(Place((address,)))  # the driver's word, without a tree
    return tuple(
        GpuItem(f"GPU{index}", index, device, drivers.get(address))
        for index, (address, device) in enumerate(sorted(devices.items()))
    )


def vendor_of(gpu: GpuItem) -> str:
    """Return who made a GPU."""
    return gpu.driver.vendor if gpu.driver is not None else GPU_VENDORS.get(gpu.pci.vendor, "")


def _nics(seen: Observation) -> list[NicItem]:
    devices = {device.place.address: device for device in seen.hardware.pci if device.is_network}
    nets: dict[str, list[NetDevice]] = {}
    for net in seen.hardware.nets:
        nets.setdefault(net.address, []).append(net)
    items = []
    taken: set[str] = set()
    for rdma in seen.hardware.rdma:
        beside = nets.get(rdma.address, []) if rdma.address else []
        ports = tuple(PortItem(port.number, port, _net_of(port, beside, len(rdma.ports))) for port in rdma.ports)
        taken |= {port.net.name for port in ports if port.net is not None}
        items.append(NicItem(rdma.name, devices.get(rdma.address), rdma, ports))
    for net in seen.hardware.nets:
        if net.name not in taken:
            items.append(NicItem(net.name, devices.get(net.address), None, (PortItem(1, net=net),)))
    known = {nic.pci.place.address for nic in items if nic.pci is not None}
    items += [NicItem(address, device) for address, device in devices.items() if address not in known]
    return sorted(items, key=lambda nic: (nic.rdma is None, not nic.ports, natural(nic.name)))


def _net_of(port: RdmaPort, beside: Sequence[NetDevice], ports: int) -> NetDevice | None:
    named = next((net for net in beside if net.name == port.netdev), None)
    if named is not None:
        return named
    # RDMA over a bond names the bond; the device beside it is one of those that it is made of.
    members = [net for net in beside if port.netdev and net.bond == port.netdev]
    if members or port.netdev:
        return members[0] if members else None
    if ports == 1 and len(beside) == 1:
        return beside[0]
    return next((net for net in beside if net.port == port.number - 1), None)


def _traits(nic: NicItem) -> Traits:
    nets = [port.net for port in nic.ports if port.net is not None]
    return Traits(
        name=nic.name,
        netdevs=tuple(net.name for net in nets),
        rdma=nic.rdma is not None,
        layer=nic.ports[0].layer if nic.ports else "",
        model=f"{nic.pci.vendor:04x}:{nic.pci.device:04x}" if nic.pci is not None else "",
        gbps=max((port.gbps for port in nic.ports), default=0.0),
        vlans=tuple(vlan for net in nets for vlan in net.vlans),
        networks=tuple(network for net in nets for network in net.networks),
        gpus=nic.nearest.names,
        gpu_distance=nic.nearest.distance,
        default_route=any(net.default_route for net in nets),
        virtual=nic.pci is not None and bool(nic.pci.virtual_of),
        bond=next((net.bond for net in nets if net.bond), ""),
    )


def readings(inventory: Inventory) -> dict[tuple[str, int], PortReading]:
    """Return what health is judged by, of each port by its NIC's name and its number.

    A port's peers are those for the same use, of the same link layer.
    """
    found: dict[tuple[str, int], PortReading] = {}
    for nic in inventory.nics:
        for port in nic.ports:
            peers = _peers(inventory, nic, port)
            rate = port.rdma.rate if port.rdma is not None else None
            width, speed = (rate.width, rate.speed) if rate is not None else (0, "")
            widest = max((its.rdma.rate.width for its in peers if its.rdma and its.rdma.rate.speed == speed), default=0)
            degraded = speed_problems(width, port.gbps, widest, tuple(its.gbps for its in peers)) if port.up else ()
            found[nic.name, port.number] = PortReading(
                up=port.up,
                counters=_counters(port),
                downs=port.net.losses if port.net is not None else _counters(port).get("link_downed"),
                degraded=degraded,
            )
    return found


def _peers(inventory: Inventory, nic: NicItem, port: PortItem) -> list[PortItem]:
    if nic.decision.use == "unknown":
        return []
    return [
        other
        for its in inventory.nics
        if its.decision.use == nic.decision.use
        for other in its.ports
        if other.layer == port.layer
    ]


def _counters(port: PortItem) -> Mapping[str, int]:
    nets = port.net.counters if port.net is not None else {}
    return {**nets, **(port.rdma.counters if port.rdma is not None else {})}
