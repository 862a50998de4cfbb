"""CPUs, memory, disks, pressure; images and pods of the node."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.objects.containers import ContainerInfo, PodInfo
from stoker.objects.images import ImageStatus
from stokerd.errors import StokerError
from stokerd.settings import TopologySettings
from stokerd.topology import machine_values as values
from stokerd.topology.contents import read_contents
from stokerd.topology.facts import Contents, CpuFacts, ImageFacts, MemoryFacts, PodFacts
from stokerd.topology.outcomes import Outcome
from stokerd.topology.read_machine import LoadReader, read_cpu, read_disks, read_memory
from stokerd.topology.report import build
from stokerd.topology.sources import Sources
from stokerd.topology.sysfs import Sysfs
from tests.rig.hardware.files import MemorySysfs
from tests.rig.hardware.machines import Machine, cpu_node, gb200, h100
from tests.rig.hardware.tree import files_of, lay_out
from tests.unit.topology.nodes import THEN, observe
from tests.unit.topology.test_report import told


def of(machine: Machine) -> MemorySysfs:
    return MemorySysfs(files_of(machine))


def test_cpus_memory_and_disks() -> None:
    assert read_cpu(of(h100())) == CpuFacts("Intel(R) Xeon(R) Platinum 8480C", 2, 112, 224)
    assert read_cpu(of(gb200())) == CpuFacts("Arm Neoverse-V2", 2, 144, 144)
    assert read_memory(of(h100())) == MemoryFacts(2048 << 30, 0, {2048: 1024})
    disks = [(disk.name, disk.rotational, disk.size, disk.numa) for disk in read_disks(of(cpu_node()))]
    assert disks == [("nvme0n1", False, 3840 * 10**9, 0), ("sda", True, 16000 * 10**9, 0)]
    assert [disk.address for disk in read_disks(of(h100()))] == [f"0000:7{2 + n}:00.0" for n in range(4)]


def test_a_machine_without_files_has_none(tmp_path: Path) -> None:
    files = Sysfs(tmp_path)
    assert (read_cpu(files), read_memory(files), read_disks(files)) == (None, None, ())
    load = LoadReader().read(tmp_path)
    assert (load.cpu_percent, load.load1, load.memory_available_bytes, load.pressure, load.file_systems) == (
        None, None, None, {}, [],
    )  # fmt: skip


def test_this_machine_has_some() -> None:
    files = Sysfs(Path("/"))
    cpu, memory = read_cpu(files), read_memory(files)
    assert cpu is not None
    assert memory is not None
    assert memory.total > 1 << 28
    load = LoadReader().read(Path("/"))
    assert load.memory_available_bytes is not None
    assert load.load1 is not None


def test_how_busy_a_machine_is(tmp_path: Path) -> None:
    lay_out(cpu_node(), tmp_path)
    (tmp_path / "proc/1").mkdir()
    (tmp_path / "proc/1/mounts").write_text(
        "/dev/sda1 / ext4 rw 0 0\n/dev/sda1 /var/lib/a\\040b ext4 rw 0 0\nproc /proc proc rw 0 0\n"
        "/dev/loop3 /snap squashfs ro 0 0\n/dev/sdb1 /gone xfs rw 0 0\n",
        encoding="ascii",
    )
    reader = LoadReader()
    first = reader.read(tmp_path)
    assert (first.cpu_percent, first.load1, first.load15) == (None, 12.5, 8.75)
    assert first.memory_available_bytes == 128 << 30
    assert first.pressure["io"].some10 == 1.5
    assert first.pressure["memory"].full60 == 0.25
    assert [(each.mount, each.device) for each in first.file_systems] == [("/", "/dev/sda1")]
    (tmp_path / "proc/stat").write_text("cpu  1100 0 600 8600 700 0 0 0 0 0\n", encoding="ascii")
    assert reader.read(tmp_path).cpu_percent == 20.0


@given(st.text(max_size=200))
def test_whatever_procfs_says_nothing_raises(text: str) -> None:
    values.cpu_model(text), values.memory(text), values.pressure(text), values.load_averages(text)
    values.cpu_times(text), values.cpu_times(f"cpu {text}"), values.file_systems(f"/dev/sda {text}")


@dataclass
class Told:
    """What other rooms would say."""

    listed: list[ImageStatus] = field(default_factory=list)
    running: list[PodInfo] = field(default_factory=list)
    problem: StokerError | None = None

    async def images(self) -> list[ImageStatus]:
        if self.problem is not None:
            raise self.problem
        return self.listed

    async def pods(self) -> list[PodInfo]:
        return self.running


ALPINE = ImageStatus(id="sha256:1", references=["a/alpine:3"], digests=["a/alpine@sha256:2"], size=7)
BARE = ImageStatus(id="sha256:3", size=9)
POD = PodInfo(
    id="p", name="web", namespace="shop", uid="u", phase="Ready",
    containers=[ContainerInfo(id="c", name="c", pod_id="p", phase="Running")],
)  # fmt: skip


async def test_images_and_pods_are_what_other_rooms_list() -> None:
    assert await read_contents(Told([ALPINE, BARE], [POD]), 5) == Contents(
        (ImageFacts("a/alpine:3", "sha256:2", 7), ImageFacts("sha256:3", "sha256:3", 9)),
        (PodFacts("shop", "web", "u", "Ready", 1),),
    )


async def test_a_runtime_that_is_not_there_is_no_fault_of_the_topology() -> None:
    told_by = Told(problem=StokerError("containerd does not answer"))
    settings = TopologySettings(nvidia_library="", nvidia_smi="", lldpcli="")
    sources = Sources(settings, lambda: 0.0, contents=told_by)
    assert await sources.collect("contents") == Outcome("absent", "containerd does not answer")
    assert await Sources(settings, lambda: 0.0).collect("contents") == Outcome("absent")


def contents(images: int, pods: int) -> Contents:
    return Contents(
        tuple(
            ImageFacts(f"registry.example/team/image-{n:04}:{'v' * 80}", f"sha256:{n:064x}", n) for n in range(images)
        ),
        tuple(PodFacts(f"namespace-{n % 7}", f"{'long' * 20}-{n:04}", f"{n:036}", "Ready", 2) for n in range(pods)),
    )


@pytest.mark.parametrize(("images", "pods"), [(0, 0), (3, 2), (40, 110), (900, 700)])
def test_however_much_there_is_the_report_stays_small_and_says_how_much(images: int, pods: int) -> None:
    report = build(msgspec.structs.replace(observe(h100()), contents=contents(images, pods)), THEN)
    assert report.images is not None
    assert report.pods is not None
    assert (report.images.total, report.pods.total, report.pods.containers) == (images, pods, 2 * pods)
    assert report.images.bytes == sum(range(images))
    assert len(msgspec.json.encode(report)) <= 64 << 10
    sizes = [item.bytes for item in report.images.items]
    assert sizes == sorted(range(images), reverse=True)[: len(sizes)]  # what takes longest to bring is kept
    assert len(sizes) >= min(images, 24)


def test_a_pod_that_starts_is_a_small_change() -> None:
    before = msgspec.structs.replace(observe(h100()), contents=contents(3, 2))
    after = msgspec.structs.replace(before, contents=Contents(contents(4, 0).images, contents(0, 3).pods))
    old = build(before, THEN)
    found = told(old, build(after, THEN, old))
    assert ("changed", "pod", "total", "2", "3") in found
    assert ("added", f"pod namespace-2/{'long' * 20}-0002", "", "", f"{'long' * 20}-0002") in found
    assert len(found) == 6
    assert replace(h100()) == h100()
