"""Lays a machine out as the files of sysfs and procfs below a root."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.rig.hardware.files import FakeFiles
from tests.rig.hardware.machines import AMD, BROADCOM, INTEL, MELLANOX, NVIDIA, FakeDisk, FakeGpu, FakeNic, Machine

_BRIDGE, _ETHERNET, _INFINIBAND = 0x060400, 0x020000, 0x020700
_DRIVERS = {
    (0x03, NVIDIA): "nvidia", (0x12, AMD): "amdgpu", (0x02, MELLANOX): "mlx5_core", (0x02, BROADCOM): "bnxt_en",
    (0x02, INTEL): "ice", (0x01, INTEL): "nvme",
}  # fmt: skip
_GRACE = "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f"
_GENERATION = "32.0 GT/s PCIe"
COUNTERS = (
    "symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "port_xmit_discards", "port_xmit_wait",
    "port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets",
)  # fmt: skip
HW_COUNTERS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rp_cnp_handled",
    "np_ecn_marked_roce_packets",
)


def files_of(machine: Machine) -> FakeFiles:
    """Return the files of *machine*."""
    layer = _Layer(machine)
    for gpu in machine.gpus:
        layer.gpu(gpu)
    for nic in machine.nics:
        layer.nic(nic)
    for disk in machine.disks:
        layer.disk(disk)
    layer.nodes()
    layer.processors()
    layer.compute_nodes()
    layer.routes()
    return layer.files


def lay_out(machine: Machine, root: Path) -> Path:
    """Write the files of *machine* below *root*, which need not exist; return *root*."""
    return files_of(machine).write(root)


def port_folder(root: Path, nic: FakeNic) -> Path:
    """Return where the values of an RDMA port are, to be changed."""
    return root / "sys/class/infiniband" / nic.rdma / "ports/1"


def use_real_carriers(root: Path, devices: Iterable[str]) -> None:
    """Have network devices that are laid out below *root* show the carrier of this machine's devices of that name."""
    for device in devices:
        for name in ("carrier", "operstate", "carrier_down_count"):
            path = root / "sys/class/net" / device / name
            path.unlink(missing_ok=True)
            path.symlink_to(f"/sys/class/net/{device}/{name}")


def set_link(root: Path, nic: FakeNic, *, up: bool) -> None:
    """Take the link of a NIC that is laid out below *root* down, or bring it up again."""
    values: dict[Path, str] = {}
    if nic.rdma:
        port = port_folder(root, nic)
        values |= {port / "state": _state(up=up), port / "phys_state": _physical(up=up)}
    if nic.netdev:
        folder = root / "sys/class/net" / nic.netdev
        values |= {folder / "carrier": str(int(up)), folder / "operstate": "up" if up else "down"}
    for path, value in values.items():
        path.write_text(f"{value}\n", encoding="ascii")


class _Layer:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.files = FakeFiles()
        for folder in ("bus/pci/devices", "class/infiniband", "class/net", "devices/system/node"):
            self.files.folder(f"sys/{folder}")

    def gpu(self, gpu: FakeGpu) -> None:
        device = self._device(gpu.path, gpu.numa, gpu.kind, gpu.vendor, gpu.device)
        self.files.put(device, _link(gpu.width))

    def nic(self, nic: FakeNic) -> None:
        kind = _INFINIBAND if nic.layer == "InfiniBand" else _ETHERNET
        device = self._device(nic.path, nic.numa, kind, nic.vendor, nic.device)
        self.files.put(device, {**_link(nic.lanes), "sriov_numvfs": "0"})
        if nic.rdma:
            self._rdma(nic, device)
        if nic.netdev:
            self._net(nic, device)

    def _device(self, path: tuple[str, ...], numa: int, kind: int, vendor: int, number: int) -> str:
        folder = f"sys/devices/{path[0]}"
        for address in path[1:]:
            folder = f"{folder}/{address}"
            if not self.files.folder(folder):
                self.files.link(f"sys/bus/pci/devices/{address}", f"../../../{folder.removeprefix('sys/')}")
                width = 8 if address == self._machine.narrow_bridge else 16
                ids = {"class": f"0x{_BRIDGE:06x}", "vendor": "0x1000", "device": "0xc030", "numa_node": str(numa)}
                self.files.put(folder, {**ids, **_link(width)})
        group = int(path[-1].split(":")[1], 16)
        self.files.link(f"{folder}/iommu_group", "../" * (len(path) + 1) + f"kernel/iommu_groups/{group}")
        ids = {"class": f"0x{kind:06x}", "vendor": f"0x{vendor:04x}", "device": f"0x{number:04x}"}
        self.files.put(folder, {**ids, "numa_node": str(numa)})
        driver = _DRIVERS.get((kind >> 16, vendor))
        if driver:
            self.files.link(f"{folder}/driver", "../" * (len(path) + 1) + f"bus/pci/drivers/{driver}")
        return folder

    def _rdma(self, nic: FakeNic, device: str) -> None:
        folder = f"{device}/infiniband/{nic.rdma}"
        port = f"{folder}/ports/1"
        self._enter("infiniband", folder, device)
        words, port_words = (
            ":".join(guid[at : at + 4] for at in range(0, 16, 4)) for guid in (nic.guid, nic.port_guid or nic.guid)
        )
        self.files.put(
            folder, {"node_guid": words, "sys_image_guid": words, "fw_ver": "28.43.2026", "hca_type": "MT4129"}
        )
        ethernet = nic.layer == "Ethernet"
        rate = f"{nic.gbps:g} Gb/sec ({nic.width}X {nic.speed})"
        values = {
            "state": _state(up=nic.up),
            "phys_state": _physical(up=nic.up),
            "link_layer": nic.layer,
            "rate": rate if nic.up else "2.5 Gb/sec (1X SDR)",
            "lid": "0x0" if ethernet or not nic.up else hex(0x100 + nic.number),
            "sm_lid": "0x0" if ethernet else "0x1",
        }
        self.files.put(port, values)
        address = (
            f"0000:0000:0000:0000:0000:ffff:0a00:{nic.number + 1:04x}"
            if ethernet
            else f"fe80:0000:0000:0000:{port_words}"
        )
        self.files.put(f"{port}/gids", {"0": address, "1": "0000:0000:0000:0000:0000:0000:0000:0000"})
        self.files.put(f"{port}/gid_attrs/types", {"0": "RoCE v2" if ethernet else "IB"})
        self.files.put(f"{port}/gid_attrs/ndevs", {"0": nic.netdev})
        self.files.put(f"{port}/counters", {name: str(nic.counters.get(name, 0)) for name in COUNTERS})
        self.files.put(
            f"{port}/hw_counters", {name: str(nic.counters.get(name, 0)) for name in (*HW_COUNTERS, "lifespan")}
        )

    def _net(self, nic: FakeNic, device: str) -> None:
        folder = f"{device}/net/{nic.netdev}"
        self._enter("net", folder, device)
        values = {
            "address": nic.mac,
            "carrier": str(int(nic.up)),
            "operstate": "up" if nic.up else "down",
            "mtu": "4092" if nic.layer == "InfiniBand" else "9000",
            "type": "32" if nic.layer == "InfiniBand" else "1",
            "dev_port": "0",
            "carrier_down_count": "0",
            "speed": str(int(nic.gbps * 1000)) if nic.up else "-1",
        }
        self.files.put(folder, values)
        self.files.put(f"{folder}/statistics", dict.fromkeys(("rx_bytes", "tx_bytes", "rx_errors", "tx_errors"), "0"))

        for side in ("roce_np", "roce_rp") if nic.ecn is not None else ():
            states = {str(priority): str(int(priority in (nic.ecn or ()))) for priority in range(8)}
            self.files.put(f"{folder}/ecn/{side}/enable", states)

    def disk(self, disk: FakeDisk) -> None:
        """Write a disk, as the child of the device that it hangs on."""
        device = self._device(disk.path, disk.numa, 0x010802, INTEL, 0x0A54)
        self.files.put(device, _link(4) | {"max_link_width": "4"})
        folder = f"{device}/block/{disk.name}"
        self.files.put(f"{folder}/device", {"model": disk.model})
        self.files.put(f"{folder}/queue", {"rotational": str(int(disk.rotational))})
        self.files.put(folder, {"size": str(disk.gigabytes * 10**9 // 512)})
        self.files.link(f"sys/block/{disk.name}", f"../{folder.removeprefix('sys/')}")

    def processors(self) -> None:
        """Write CPUs and memory; the model of ARM's CPUs is told by numbers."""
        machine = self._machine
        for socket, cpus in enumerate(machine.cpus):
            numbers = _numbers(cpus)
            ranges = cpus.count(",") + 1
            for place, number in enumerate(numbers):
                core = place % (len(numbers) // ranges)
                folder = f"sys/devices/system/cpu/cpu{number}/topology"
                self.files.put(folder, {"physical_package_id": str(socket), "core_id": str(core)})
        model = f"model name\t: {machine.cpu_model}" if machine.cpu_model else _GRACE
        kib = machine.memory_gib << 20
        memory = f"MemTotal:       {kib} kB\nMemFree:        {kib // 4} kB\nMemAvailable:   {kib // 2} kB\n"
        stall = "some avg10=1.50 avg60=0.75 avg300=0.10 total=123456\nfull avg10=0.50 avg60=0.25 avg300=0.00 total=6543"
        self.files.put(
            "proc",
            {
                "cpuinfo": f"processor\t: 0\n{model}",
                "meminfo": f"{memory}SwapTotal:      0 kB\nSwapFree:       0 kB",
                "loadavg": "12.50 10.25 8.75 3/2048 12345",
                "stat": "cpu  1000 0 500 8000 500 0 0 0 0 0",
            },
        )
        self.files.put("proc/pressure", dict.fromkeys(("cpu", "memory", "io"), stall))
        self.files.put("sys/kernel/mm/hugepages/hugepages-2048kB", {"nr_hugepages": "1024"})

    def _enter(self, kind: str, folder: str, device: str) -> None:
        name = folder.rpartition("/")[2]
        self.files.link(f"{folder}/device", f"../../../{device.rpartition('/')[2]}")
        self.files.link(f"sys/class/{kind}/{name}", f"../../{folder.removeprefix('sys/')}")

    def nodes(self) -> None:
        for number, cpus in enumerate(self._machine.cpus):
            folder = f"sys/devices/system/node/node{number}"
            memory = f"Node {number} MemTotal:       1056469876 kB\nNode {number} MemFree:        104857600 kB"
            self.files.put(folder, {"cpulist": cpus, "meminfo": memory})

    def compute_nodes(self) -> None:
        """Write what AMD's compute driver shows: a node for each socket, then one for each GPU, all linked by XGMI."""
        gpus = [gpu for gpu in self._machine.gpus if gpu.vendor == AMD]
        first = len(self._machine.cpus)
        base = "sys/class/kfd/kfd/topology/nodes"
        for number in range(first if gpus else 0):
            self.files.put(f"{base}/{number}", {"properties": "cpu_cores_count 96\nsimd_count 0\nlocation_id 0"})
        for place, gpu in enumerate(gpus):
            bus = int(gpu.address.split(":")[1], 16)
            ids = f"vendor_id {gpu.vendor}\ndevice_id {gpu.device}\nlocation_id {bus << 8}\ndomain 0"
            folder = f"{base}/{first + place}"
            self.files.put(folder, {"gpu_id": str(1000 + place), "properties": f"simd_count 1216\n{ids}"})
            self._io_link(folder, 0, 2, first + place, gpu.numa)
            others = [other for other in range(len(gpus)) if other != place]
            for link, other in enumerate(others, start=1):
                self._io_link(folder, link, 11, first + place, first + other)
            device = f"sys/bus/pci/devices/{gpu.address}"
            real = f"sys/devices/{'/'.join(gpu.path)}"
            assert self.files.find(device) is not None
            self.files.put(real, {"mem_info_vram_total": str(gpu.memory_mib << 20)})
            self.files.put(f"{real}/ras", {"umc_err_count": f"ue: {gpu.uncorrected}\nce: 3"})

    def _io_link(self, folder: str, number: int, kind: int, start: int, end: int) -> None:
        text = f"type {kind}\nversion_major 0\nnode_from {start}\nnode_to {end}\nweight 15"
        self.files.put(f"{folder}/io_links/{number}", {"properties": text})

    def routes(self) -> None:
        lines = ["Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"]
        for nic in self._machine.nics:
            if nic.default_route:
                lines.append(f"{nic.netdev}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0")
        self.files.put("proc/net", {"route": "\n".join(lines)})


def _numbers(cpus: str) -> list[int]:
    """Return the CPUs of ``0-55,112-167``."""
    found: list[int] = []
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _state(*, up: bool) -> str:
    return "4: ACTIVE" if up else "1: DOWN"


def _physical(*, up: bool) -> str:
    return "5: LinkUp" if up else "2: Polling"


def _link(width: int) -> dict[str, str]:
    return {
        "current_link_speed": _GENERATION,
        "max_link_speed": _GENERATION,
        "current_link_width": str(width),
        "max_link_width": "16",
    }
