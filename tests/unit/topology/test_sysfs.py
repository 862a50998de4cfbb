"""Reading sysfs: real captures, hostile trees, and files that vanish while they are read."""

from __future__ import annotations

import os
import tarfile
from datetime import timedelta
from functools import partial
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from stokerd.topology.facts import Hardware, Observation, natural
from stokerd.topology.read_amd import read_amd
from stokerd.topology.read_hardware import read_hardware, read_with
from stokerd.topology.read_network import read_rdma
from stokerd.topology.report import build
from stokerd.topology.sysfs import Sysfs
from tests.rig.hardware.files import FakeFiles, MemorySysfs
from tests.rig.hardware.machines import Machine, cpu_node, gb200, h100, mi300
from tests.rig.hardware.tree import files_of, lay_out, port_folder, set_link
from tests.unit.topology.captures import capture_path
from tests.unit.topology.nodes import THEN, observe

LATER = THEN + timedelta(minutes=5)


def test_a_real_capture_is_read(tmp_path: Path) -> None:
    with tarfile.open(capture_path("sysfs/class-infiniband.tar")) as archive:
        archive.extractall(tmp_path, filter="data")
    files = Sysfs(tmp_path)
    devices = {device.name: device for device in read_rdma(files)}
    assert list(devices) == ["hfi1_0", "mlx4_0", "mlx5_0"]
    assert [port.number for port in devices["mlx4_0"].ports] == [1, 2]
    first, second = devices["mlx4_0"].ports
    assert (first.rate.gbps, first.rate.width, first.rate.speed) == (40, 4, "QDR")
    assert (first.counters["port_xmit_wait"], second.counters["port_xmit_wait"]) == (3599, 3846)
    assert (
        devices["mlx5_0"].guid == ""
    )  # the capture has something behind it: what is no GUID is not believed to be one
    assert "out_of_sequence" in devices["mlx5_0"].ports[0].counters
    assert "lifespan" not in devices["mlx5_0"].ports[0].counters
    assert files.lost.count == 0


def in_memory(machine: Machine) -> Hardware:
    files = files_of(machine)
    return read_with(lambda: MemorySysfs(files))


def test_a_fake_machine_is_read_completely(tmp_path: Path) -> None:
    machine = h100()
    hardware = read_hardware(lay_out(machine, tmp_path))
    assert hardware == in_memory(machine)
    assert [device.place.path for device in hardware.pci if device.is_gpu] == [gpu.path for gpu in machine.gpus]
    assert {device.address for device in hardware.rdma} == {nic.address for nic in machine.nics if nic.rdma}
    assert [net.name for net in hardware.nets if net.default_route] == ["eno1"]
    assert [(node.id, node.cpus) for node in hardware.numa] == list(enumerate(machine.cpus))
    assert hardware.rdma[0].ports[0].guid == machine.nics[0].guid
    assert hardware.rdma[0].ports[0].netdev == "ibp0"
    assert {unread.count for unread in hardware.unread.values()} == {0}


def test_other_domains_and_accelerators() -> None:
    hardware = in_memory(gb200())
    assert [device.place.address for device in hardware.pci if device.is_gpu][-1] == "0019:01:00.0"
    hardware = in_memory(mi300())
    assert sum(device.is_gpu for device in hardware.pci) == 8


def test_network_devices_that_hang_on_no_pcie() -> None:
    files = files_of(cpu_node())
    for path, name in (("sys/devices/LNXSYSTM:00/VMBUS:00/f8b3781b/net", "eth9"), ("sys/devices/virtual/net", "lo")):
        files.put(f"{path}/{name}", {"carrier": "1", "speed": "100000", "address": "00:0d:3a:00:00:01"})
        files.link(f"sys/class/net/{name}", f"../../{path.removeprefix('sys/')}/{name}")
    files.link("sys/devices/LNXSYSTM:00/VMBUS:00/f8b3781b/net/eth9/device", "../../../f8b3781b")
    report = build(Observation("vm", read_with(lambda: MemorySysfs(files))), THEN)
    assert [(nic.name, nic.pcie is None) for nic in report.nics] == [("eth0", False), ("eth1", False), ("eth9", True)]
    assert report.nics[2].ports[0].gbps == 100


def test_there_is_nothing(tmp_path: Path) -> None:
    hardware = read_hardware(tmp_path / "nowhere")
    assert (hardware.pci, hardware.rdma, hardware.nets, hardware.numa) == ((), (), (), ())
    assert {unread.count for unread in hardware.unread.values()} == {0}


def test_this_machine_can_be_read() -> None:
    report = build(Observation("this", read_hardware()), THEN)
    folder = Path("/sys/class/net")
    real = {entry.name for entry in (folder.iterdir() if folder.exists() else ()) if (entry / "device").exists()}
    assert real <= {port.netdev for nic in report.nics for port in nic.ports}
    assert len(report.numa) >= 1


def test_links_change_between_two_readings(tmp_path: Path) -> None:
    machine = gb200()
    lay_out(machine, tmp_path)
    set_link(tmp_path, machine.nics[3], up=False)
    (port,) = read_hardware(tmp_path).rdma[3].ports
    assert (port.state, port.physical) == ("down", "polling")
    set_link(tmp_path, machine.nics[3], up=True)
    assert read_hardware(tmp_path).rdma[3].ports[0].state == "active"


class Vanishing(MemorySysfs):
    """A tree in which a device is gone from the reading number *after* on."""

    def __init__(self, files: FakeFiles, after: int) -> None:
        super().__init__(files)
        self._left = after
        self._gone = ""

    def _is_gone(self, path: str) -> bool:
        self._left -= 1
        if self._left == 0:
            self._gone = "/".join(path.split("/")[:4])
        return bool(self._gone) and path.startswith(self._gone)

    def data(self, path: str, limit: int = 4096) -> bytes | None:
        return None if self._is_gone(path) else super().data(path, limit)

    def names(self, path: str) -> list[str]:
        return [] if self._is_gone(path) else super().names(path)

    def target(self, path: str) -> str:
        return "" if self._is_gone(path) else super().target(path)


def test_devices_vanish_while_they_are_read() -> None:
    """Whenever a device goes: the others are read, and nothing raises."""
    files = files_of(gb200())
    everything = read_rdma(MemorySysfs(files))
    for after in range(2, 180):
        found = {device.name: device for device in read_rdma(Vanishing(files, after))}
        assert sum(device == found.get(device.name) for device in everything) >= len(everything) - 1
    for after in range(1, 60):
        assert read_with(partial(Vanishing, files, after)).rdma is not None


def test_files_are_cut_empty_or_of_another_kind(tmp_path: Path) -> None:
    machine = gb200()
    lay_out(machine, tmp_path)
    port = port_folder(tmp_path, machine.nics[0])
    (port / "rate").write_bytes(b"\xff\xfe\x00")
    (port / "state").write_text("")
    (port / "counters/symbol_error").write_text("N/A (no PMA)\n")
    (port / "gids/0").unlink()
    (port / "link_layer").unlink()
    (port / "link_layer").mkdir()
    (port / "lid").unlink()
    os.mkfifo(port / "lid")
    (port / "sm_lid").write_text("x" * 100_000)
    (read,) = read_hardware(tmp_path).rdma[0].ports
    assert (read.state, read.layer, read.lid, read.sm_lid, read.gids) == ("unknown", "", 0, 0, ())
    assert read.rate.gbps == 0
    assert "symbol_error" not in read.counters


def test_links_that_lead_nowhere_or_in_circles(tmp_path: Path) -> None:
    lay_out(gb200(), tmp_path)
    devices = tmp_path / "sys/bus/pci/devices"
    (devices / "0000:aa:00.0").symlink_to("0000:aa:00.0")
    (devices / "0000:bb:00.0").symlink_to("../../../devices/nothing")
    (tmp_path / "sys/class/net/gone0").symlink_to("../../devices/pci0000:00/0000:00:00.0/net/gone0")
    hardware = read_hardware(tmp_path)
    assert sum(device.is_gpu for device in hardware.pci) == 4
    assert "gone0" not in {net.name for net in hardware.nets}
    assert hardware.unread["sysfs.pci"].count == 1  # the circle


def test_what_may_not_be_read_is_counted() -> None:
    class Forbidden(MemorySysfs):
        def data(self, path: str, limit: int = 4096) -> bytes | None:
            if path.endswith("/rate"):
                self._note(path, PermissionError(13, "Permission denied"))
                return None
            return super().data(path, limit)

    files = Forbidden(files_of(gb200()))
    assert len(read_rdma(files)) == 4
    assert files.lost.count == 4
    assert "Permission denied" in files.lost.samples[0]


def test_numbers_in_names_count() -> None:
    assert sorted(["mlx5_10", "mlx5_2", "eth0", "mlx5_1"], key=natural) == ["eth0", "mlx5_1", "mlx5_2", "mlx5_10"]


@given(st.data())
@settings(max_examples=40)
def test_whatever_the_files_hold_there_is_a_report(data: st.DataObject) -> None:
    """Drivers write what they like: the report is there, small, and the same when it is made again."""
    files = files_of(data.draw(st.sampled_from([gb200, cpu_node]))())
    paths = data.draw(st.lists(st.sampled_from(paths_of(files)), max_size=60, unique=True))
    junk = st.sampled_from(
        ["", "-1", "99999999999999999999", "0x", "Unknown", "N/A", "\x00\xff", "4: ACTIVE", "a" * 5000]
    )
    for path in paths:
        folder, _, name = path.rpartition("/")
        files.put(folder, {name: data.draw(junk)})
    hardware = read_with(lambda: MemorySysfs(files))
    report = build(Observation("node", hardware), THEN)
    assert len(msgspec.json.encode(report)) <= 64 << 10
    assert build(Observation("node", hardware), LATER, report) is report


def paths_of(files: FakeFiles) -> list[str]:
    def walk(path: str) -> list[str]:
        node = files.find(path, follow=False)
        if isinstance(node, dict):
            return [found for name in sorted(node) for found in walk(f"{path}/{name}")]
        return [path] if isinstance(node, str) else []

    return walk("sys/devices")


# ---------------------------------------------------------------------------------------------- AMD


def test_the_gpus_of_amd_and_their_links() -> None:
    machine = mi300()
    found = read_amd(MemorySysfs(files_of(machine)))
    assert [gpu.address for gpu in found.gpus] == [gpu.address for gpu in machine.gpus]
    assert {(gpu.vendor, gpu.model, gpu.ecc_uncorrected) for gpu in found.gpus} == {("amd", "AMD Instinct MI300X", 0)}
    assert found.gpus[0].memory_bytes == 196592 << 20
    assert len(found.links) == 8 * 7
    report = build(observe(machine), THEN)
    assert report.matrix.rows[0].split()[:9] == ["X", *["XGMI"] * 7, "PIX"]
    assert report.domains == []


def test_no_amd_driver() -> None:
    assert read_amd(MemorySysfs(files_of(gb200()))).gpus == ()


@given(
    st.dictionaries(st.sampled_from(["simd_count", "location_id", "domain", "type", "node_to"]), st.text(max_size=24))
)
@settings(max_examples=60)
def test_whatever_the_compute_driver_writes(values: dict[str, str]) -> None:
    files = files_of(cpu_node())
    text = "\n".join(f"{name} {value}" for name, value in values.items())
    files.put("sys/class/kfd/kfd/topology/nodes/1", {"properties": f"simd_count 1\n{text}"})
    files.put("sys/class/kfd/kfd/topology/nodes/1/io_links/0", {"properties": text})
    assert len(read_amd(MemorySysfs(files)).gpus) <= 1
