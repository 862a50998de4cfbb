"""Machines that do not exist: what is in them, where it is, and what their NICs hang on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

NVIDIA, AMD, MELLANOX, BROADCOM, INTEL = 0x10DE, 0x1002, 0x15B3, 0x14E4, 0x8086
CLUSTER = "7e3a9c51-2f0d-4b6e-9a51-0c1d2e3f4a5b"
ZERO = "00000000-0000-0000-0000-000000000000"
Path = tuple[str, ...]


@dataclass(frozen=True)
class FakeGpu:
    """A GPU; ``fabric`` is state, status, clique, cluster and health, as its driver says them."""

    path: Path
    numa: int
    model: str
    vendor: int = NVIDIA
    device: int = 0x2330
    kind: int = 0x030200
    memory_mib: int = 81559
    width: int = 16
    uncorrected: int = 0
    serial: str = "1650000000000"
    lost: bool = False
    """Its driver no longer reaches it, though it is on PCIe."""
    slowed: int = 0
    """Reasons for lower clocks, as the driver's bits; 0x01 is idleness, 0x40 heat."""
    links: tuple[tuple[str, str], ...] = ()
    """Where its NVLinks lead: what kind of end (``gpu``, ``switch``, ``down``) and its PCI address."""
    fabric: tuple[str, str, str, str, str] = ("N/A", "N/A", "N/A", "N/A", "N/A")

    @property
    def address(self) -> str:
        return self.path[-1]


@dataclass(frozen=True)
class Switch:
    """What a port hangs on: ``chassis`` is a MAC address, or the GUID of a switch of InfiniBand."""

    name: str
    chassis: str
    port: str
    bridge: bool = True


@dataclass(frozen=True)
class FakeNic:
    """A function of a network adapter. ``rdma`` or ``netdev`` is empty where it has none."""

    rdma: str
    netdev: str
    path: Path
    numa: int
    gbps: float
    layer: str = "InfiniBand"
    speed: str = "NDR"
    width: int = 4
    number: int = 0
    vendor: int = MELLANOX
    device: int = 0x1021
    up: bool = True
    lanes: int = 16
    default_route: bool = False
    switch: Switch | None = None
    port_guid: str = ""
    """Of its port, if that is not the adapter's own."""
    ecn: tuple[int, ...] | None = None
    """Priorities for which its driver shows congestion control in files."""
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return self.path[-1]

    @property
    def guid(self) -> str:
        return f"{0xA088C20300AB0000 + self.number * 0x10:016x}"

    @property
    def mac(self) -> str:
        return f"a0:88:c2:ab:00:{self.number:02x}"


@dataclass(frozen=True)
class FakeDisk:
    """A disk; ``path`` is where it hangs on PCIe."""

    name: str
    path: Path
    numa: int = 0
    model: str = "SAMSUNG MZWLO3T8HCLS-00A07"
    gigabytes: int = 3840
    rotational: bool = False


@dataclass(frozen=True)
class Machine:
    name: str
    cpus: tuple[str, ...]
    """The CPUs of each socket; the second half of each are the other threads of the first half's cores."""
    cpu_model: str = "Intel(R) Xeon(R) Platinum 8480C"
    memory_gib: int = 2048
    disks: tuple[FakeDisk, ...] = ()
    gpus: tuple[FakeGpu, ...] = ()
    nics: tuple[FakeNic, ...] = ()
    nvlink: str = ""
    driver: str = ""
    narrow_bridge: str = ""
    """A bridge whose link has half of its lanes."""
    metadata: str = ""


def leaf(number: int, port: str) -> Switch:
    """Return a port of an Ethernet switch."""
    return Switch(f"leaf-{number:02}", f"0c:29:ef:00:00:{number:02x}", port)


def ib_leaf(number: int, port: int) -> Switch:
    """Return a port of a switch of InfiniBand."""
    return Switch(f"MF0;ibleaf-{number:02}:MQM9700/U1", f"{0x2C5EAB0300B80000 + number:016x}", str(port))


def behind_switch(bus: int, slot: int, *, cascade: bool = False, function: int = 0) -> Path:
    """Return a place behind the PCIe switch of the host bridge at *bus*; *cascade*: behind a second switch there."""
    path: Path = (
        f"pci0000:{bus:02x}",
        f"0000:{bus:02x}:01.0",
        f"0000:{bus + 1:02x}:00.0",
        f"0000:{bus + 2:02x}:{slot:02x}.0",
    )
    below = bus + 3 + slot
    if cascade:
        path += (f"0000:{below:02x}:00.0", f"0000:{below + 1:02x}:00.0")
        below += 2
    return (*path, f"0000:{below:02x}:00.{function}")


def at_root(bus: int, port: int = 1, function: int = 0) -> Path:
    """Return a place right below a root port of the host bridge at *bus*."""
    return (f"pci0000:{bus:02x}", f"0000:{bus:02x}:{port:02x}.0", f"0000:{bus + port:02x}:00.{function}")


def nvswitches(*counts: int) -> tuple[tuple[str, str], ...]:
    """Return NVLinks to the switches of a board, as many to each as given."""
    return tuple(
        ("switch", f"0000:{0x05 + number:02x}:00.0") for number, count in enumerate(counts) for _ in range(count)
    )


def _nvme(count: int, bus: int) -> tuple[FakeDisk, ...]:
    return tuple(FakeDisk(f"nvme{index}n1", at_root(bus, 2 + index), index % 2) for index in range(count))


_BUSES = (0x10, 0x20, 0x30, 0x40, 0x90, 0xA0, 0xB0, 0xC0)
_SOCKETS = ("0-55,112-167", "56-111,168-223")


def _management(count: int, bus: int, start: int) -> tuple[FakeNic, ...]:
    return tuple(
        FakeNic(
            rdma="", netdev=f"eno{index + 1}", path=at_root(bus, 1, index), numa=0, gbps=25, layer="Ethernet",
            number=start + index, vendor=INTEL, device=0x1593, default_route=index == 0,
            switch=leaf(40 + index, "Ethernet7"),
        )
        for index in range(count)
    )  # fmt: skip


def h100(name: str = "h100-01") -> Machine:
    """Eight H100 with a NIC of InfiniBand each, on eight rails; two for storage, two for management."""
    gpus = tuple(
        FakeGpu(
            behind_switch(bus, 0),
            index // 4,
            "NVIDIA H100 80GB HBM3",
            fabric=("Completed", "Success", "0", ZERO, "N/A"),
            links=nvswitches(4, 5, 5, 4),
        )
        for index, bus in enumerate(_BUSES)
    )
    rails = tuple(
        FakeNic(
            f"mlx5_{index}", f"ibp{index}", behind_switch(bus, 1), index // 4, 400, number=index,
            switch=ib_leaf(index + 1, 17),
        )
        for index, bus in enumerate(_BUSES)
    )  # fmt: skip
    storage = tuple(
        FakeNic(
            f"mlx5_{8 + index}", f"ens{index}f0np0", at_root(bus), index, 200, "Ethernet", "HDR", number=8 + index,
            device=0x101D, switch=leaf(20 + index, "Ethernet12"),
        )
        for index, bus in enumerate((0x50, 0xD0))
    )  # fmt: skip
    nics = (*rails, *storage, *_management(2, 0x60, 10))
    return Machine(
        name, _SOCKETS, disks=_nvme(4, 0x70), gpus=gpus, nics=nics, nvlink="NV18", driver="580.105.08"
    )  # fmt: skip


def h100_roce(name: str = "roce-01") -> Machine:
    """Eight H100 with a NIC of RoCE each, a switch for each rail; two NICs for storage and one for management.

    Their names are short, so that real network devices can have them.
    """
    base = h100(name)
    rails = tuple(
        replace(
            nic, rdma=f"mlx5_{index}", netdev=f"rail{index}", layer="Ethernet", speed="NDR", ecn=(3,),
            switch=leaf(index + 1, "Ethernet17"),
        )
        for index, nic in enumerate(base.nics[:8])
    )  # fmt: skip
    storage = tuple(
        replace(nic, netdev=f"store{index}", switch=leaf(20, f"Ethernet{12 + index}"))
        for index, nic in enumerate(base.nics[8:10])
    )
    management = replace(base.nics[10], netdev="manage0", switch=leaf(40, "Ethernet7"))
    return replace(base, nics=(*rails, *storage, management))


def h200(name: str = "h200-01") -> Machine:
    """Eight H200 and twelve NICs; GPU and NIC are behind two PCIe switches each. Its matrix has been published."""
    gpus = tuple(
        FakeGpu(
            behind_switch(bus, 0),
            index // 4,
            "NVIDIA H200",
            device=0x2335,
            memory_mib=143771,
            links=nvswitches(4, 5, 5, 4),
        )
        for index, bus in enumerate(_BUSES)
    )
    places = []
    for socket, storage in ((0, 0x50), (1, 0xD0)):
        own = _BUSES[socket * 4 : socket * 4 + 4]
        places += [behind_switch(own[0], 1, cascade=True), at_root(storage, 1, 0), at_root(storage, 1, 1)]
        places += [behind_switch(bus, 1, cascade=True) for bus in own[1:]]
    nics = tuple(
        FakeNic(f"mlx5_{index}", f"ibp{index}", path, index // 6, 200 if len(path) == 3 else 400, number=index,
                speed="HDR" if len(path) == 3 else "NDR")
        for index, path in enumerate(places)
    )  # fmt: skip
    return Machine(name, _SOCKETS, gpus=gpus, nics=nics, nvlink="NV18", driver="580.105.08")


def gb200(name: str = "gb200-01") -> Machine:
    """A compute tray of a GB200 rack: four GPUs of one NVLink domain, four NICs; each has a host bridge of its own."""
    gpus = tuple(
        FakeGpu(
            (f"pci{domain:04x}:00", f"{domain:04x}:00:00.0", f"{domain:04x}:01:00.0"), index // 2, "NVIDIA GB200",
            device=0x2941, memory_mib=189471, fabric=("Completed", "Success", "2", CLUSTER, "Healthy"),
            links=(("switch", ""),) * 18,
        )
        for index, domain in enumerate((0x08, 0x09, 0x18, 0x19))
    )  # fmt: skip
    nics = tuple(
        FakeNic(
            f"mlx5_{index}", f"ibp{index}", (f"pci{domain:04x}:00", f"{domain:04x}:00:00.0", f"{domain:04x}:03:00.0"),
            index // 2, 400, number=index, switch=ib_leaf(index + 1, 9),
        )
        for index, domain in enumerate((0x00, 0x02, 0x10, 0x12))
    )  # fmt: skip
    management = FakeNic(
        "", "enP6p3s0f0", ("pci0006:00", "0006:00:00.0", "0006:03:00.0"), 0, 25, "Ethernet", number=4,
        default_route=True, switch=leaf(40, "Ethernet3"),
    )  # fmt: skip
    return Machine(
        name, ("0-71", "72-143"), "", 960, gpus=gpus, nics=(*nics, management), nvlink="NV18", driver="580.173.02"
    )  # fmt: skip


def gb200_rack(trays: int = 18, name: str = "gb200") -> tuple[Machine, ...]:
    """A rack of compute trays: one NVLink domain, and a switch of InfiniBand for each of the four rails."""
    return tuple(_in_rack(gb200(f"{name}-{tray:02}"), tray) for tray in range(1, trays + 1))


def _in_rack(machine: Machine, tray: int) -> Machine:
    nics = []
    for nic in machine.nics:
        switch = nic.switch
        if switch is not None and nic.layer == "InfiniBand":
            switch = replace(switch, port=str(tray))
        nics.append(replace(nic, number=tray * 8 + nic.number, switch=switch))
    return replace(machine, nics=tuple(nics))


def renamed(machine: Machine, prefix: str) -> Machine:
    """Return a machine whose network devices have names of their own, for devices that are to be real here."""
    nics = tuple(replace(nic, netdev=f"{prefix}{nic.netdev}") if nic.netdev else nic for nic in machine.nics)
    return replace(machine, nics=nics)


def mi300(name: str = "mi300-01") -> Machine:
    """Eight MI300X with a NIC of RoCE each, and two NICs for management."""
    gpus = tuple(
        FakeGpu(
            behind_switch(bus, 0), index // 4, "", AMD, 0x74A1, 0x120000, 196592,
        )
        for index, bus in enumerate(_BUSES)
    )  # fmt: skip
    nics = tuple(
        FakeNic(
            f"bnxt_re{index}", f"enp{bus + 4}s0np0", behind_switch(bus, 1), index // 4, 400, "Ethernet", "NDR",
            number=index, vendor=BROADCOM, device=0x1760, switch=leaf(index + 1, "Ethernet1/5"),
        )
        for index, bus in enumerate(_BUSES)
    )  # fmt: skip
    nics = (*nics, *_management(2, 0x60, 10))
    return Machine(name, ("0-95", "96-191"), "AMD EPYC 9654 96-Core Processor", gpus=gpus, nics=nics)


def cpu_node(name: str = "cpu-01") -> Machine:
    """A node without GPUs: two NICs of Ethernet on two switches, one NUMA node."""
    nics = tuple(
        FakeNic(
            "", f"eth{index}", at_root(0x10, 1, index), 0, 25, "Ethernet", number=index, vendor=INTEL, device=0x1593,
            default_route=index == 0, switch=leaf(50 + index, "Ethernet21"),
        )
        for index in range(2)
    )  # fmt: skip
    disks = (
        FakeDisk("sda", at_root(0x20), 0, "ST16000NM001G", 16000, rotational=True),
        FakeDisk("nvme0n1", at_root(0x20, 2)),
    )
    return Machine(name, ("0-63",), "AMD EPYC 9334 32-Core Processor", 256, disks, nics=nics)


MACHINES = {"h100": h100, "h100-roce": h100_roce, "h200": h200, "gb200": gb200, "mi300": mi300, "cpu": cpu_node}


# ---------------------------------------------------------------------------------------------- faults


def _nic(machine: Machine, place: int, **changes: object) -> Machine:
    nics = list(machine.nics)
    nics[place] = replace(nics[place], **changes)  # type: ignore[arg-type]
    return replace(machine, nics=tuple(nics))


def _gpu(machine: Machine, place: int, **changes: object) -> Machine:
    gpus = list(machine.gpus)
    gpus[place] = replace(gpus[place], **changes)  # type: ignore[arg-type]
    return replace(machine, gpus=tuple(gpus))


FAULTS: dict[str, Callable[[Machine], Machine]] = {
    "pcie-half-width": lambda machine: _gpu(machine, 3, width=8),
    "bridge-half-width": lambda machine: replace(machine, narrow_bridge=machine.gpus[2].path[2]),
    "link-down": lambda machine: _nic(machine, 2, up=False, switch=None),
    "half-lanes": lambda machine: _nic(machine, 5, gbps=200, width=2),
    "slow-link": lambda machine: _nic(machine, 5, gbps=200, speed="HDR"),
    "nic-misplaced": lambda machine: _nic(machine, 3, path=at_root(0xE0), numa=1),
    "rails-crossed": lambda machine: _nic(machine, 6, switch=machine.nics[1].switch),
    "neighbour-missing": lambda machine: _nic(machine, 4, switch=None),
    "domain-unhealthy": lambda machine: _gpu(machine, 1, fabric=("Completed", "Success", "2", CLUSTER, "Unhealthy")),
    "gpu-lost": lambda machine: _gpu(machine, 6, lost=True),
    "gpu-hot": lambda machine: _gpu(machine, 5, slowed=0x48),
    "flow-control": lambda machine: _nic(machine, 3, ecn=()),
    "gpu-fault": lambda machine: _gpu(machine, 0, uncorrected=4),
}
"""Faults by name; each makes of a healthy machine one that has it."""
NVML_FAULTS: dict[str, Callable[[Machine], Machine]] = {
    "nvlinks-down": lambda machine: _gpu(machine, 4, links=(*nvswitches(4, 5, 5, 2), *(("down", ""),) * 2)),
}
"""Those that NVIDIA's library alone tells of."""


def with_fault(machine: Machine, fault: str) -> Machine:
    """Return *machine* with a named fault."""
    return (FAULTS | NVML_FAULTS)[fault](machine)
