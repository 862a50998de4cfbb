"""CPUs, memory and disks from procfs and sysfs; and how busy they are just now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stoker.fabrics.foreign import integer, plain
from stoker.objects.topology import FileSystemLoad, MachineLoad, Pressure
from stokerd.topology import machine_values as values
from stokerd.topology.addresses import numa_node, pci_path
from stokerd.topology.facts import CpuFacts, DiskFacts, MemoryFacts, natural
from stokerd.topology.sysfs import Sysfs

_CPUS, _BLOCK, _HUGE = "sys/devices/system/cpu", "sys/block", "sys/kernel/mm/hugepages"
_MOST_CPUS, _MOST_DISKS, _MOST_FILE_SYSTEMS, _SECTOR = 4096, 64, 16, 512


def read_cpu(files: Sysfs) -> CpuFacts | None:
    """Return the CPUs that are switched on; None where there are no such files."""
    places: list[tuple[str, str]] = []
    for name in files.names(_CPUS)[:_MOST_CPUS]:
        if name.startswith("cpu") and name[3:].isdigit():
            base = f"{_CPUS}/{name}/topology"
            package = files.text(f"{base}/physical_package_id")
            if package is not None:
                places.append((package, files.text(f"{base}/core_id") or ""))
    model = values.cpu_model(files.text("proc/cpuinfo", 2048) or "")
    if not places and not model:
        return None
    return CpuFacts(model, len({package for package, _ in places}), len(set(places)), len(places))


def read_memory(files: Sysfs) -> MemoryFacts | None:
    """Return the machine's memory; None where there are no such files."""
    found = values.memory(files.text("proc/meminfo") or "")
    if "MemTotal" not in found:
        return None
    pages: dict[int, int] = {}
    for name in files.names(_HUGE):
        size = integer(name.removeprefix("hugepages-").removesuffix("kB"))
        count = integer(files.text(f"{_HUGE}/{name}/nr_hugepages"))
        if size and count:
            pages[size] = count
    return MemoryFacts(found["MemTotal"], found.get("SwapTotal", 0), dict(sorted(pages.items())))


def read_disks(files: Sysfs) -> tuple[DiskFacts, ...]:
    """Return the disks that have hardware beneath them and a size."""
    return tuple(sorted(_disks(files), key=lambda disk: natural(disk.name)))


def _disks(files: Sysfs) -> Iterator[DiskFacts]:
    names = [name for name in files.names(_BLOCK) if not name.startswith(("loop", "ram", "zram"))]
    for name in names[:_MOST_DISKS]:
        base = f"{_BLOCK}/{name}"
        sectors = integer(files.text(f"{base}/size"))
        if not sectors or not files.exists(f"{base}/device"):
            continue
        path = pci_path(files.target(base))
        address = path[-1] if path else ""
        yield DiskFacts(
            name=plain(name, 32),
            model=plain(files.text(f"{base}/device/model") or "", 64),
            size=sectors * _SECTOR,
            rotational=files.text(f"{base}/queue/rotational") == "1",
            address=address,
            numa=numa_node(files.text(f"sys/bus/pci/devices/{address}/numa_node")) if address else None,
        )


class LoadReader:
    """How busy the machine is. CPU time is that since the last reading."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def read(self, root: Path) -> MachineLoad:
        """Return what can be read. Blocking: a file system may hang."""
        files = Sysfs(root)
        averages = values.load_averages(files.text("proc/loadavg") or "")
        memory = values.memory(files.text("proc/meminfo") or "")
        swap = memory.get("SwapTotal")
        return MachineLoad(
            cpu_percent=self._cpu(values.cpu_times(files.text("proc/stat", 4096) or "")),
            load1=averages[0] if averages else None,
            load15=averages[1] if averages else None,
            memory_available_bytes=memory.get("MemAvailable"),
            swap_used_bytes=swap - memory.get("SwapFree", 0) if swap is not None else None,
            pressure={name: found for name in ("cpu", "memory", "io") if (found := _pressure(files, name)) is not None},
            file_systems=list(_file_systems(files, root)),
        )

    def _cpu(self, times: tuple[int, int] | None) -> float | None:
        before, self._before = self._before, times
        if times is None or before is None or times[1] <= before[1]:
            return None
        return round(100 * max(times[0] - before[0], 0) / (times[1] - before[1]), 1)


def _pressure(files: Sysfs, name: str) -> Pressure | None:
    found = values.pressure(files.text(f"proc/pressure/{name}") or "")
    if not found:
        return None
    return Pressure(*found.get("some", (0.0, 0.0)), *found.get("full", (0.0, 0.0)))


def _file_systems(files: Sysfs, root: Path) -> Iterator[FileSystemLoad]:
    # Process 1 is of the host, where another root stands for it.
    whose = "self" if root == Path("/") else "1"
    mounts = values.file_systems(files.text(f"proc/{whose}/mounts", 1 << 18) or "")
    for device, place in sorted(mounts.items(), key=lambda item: item[1])[:_MOST_FILE_SYSTEMS]:
        try:
            state = os.statvfs(f"{str(root).rstrip('/')}{place}" or "/")
        except OSError:
            continue
        yield FileSystemLoad(
            plain(place), plain(device, 64), state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
        )
