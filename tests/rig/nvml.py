"""A library that answers as NVIDIA's does for machines that do not exist: built from C, loaded as the driver's is."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from tests.rig import paths
from tests.rig.hardware.machines import NVIDIA, FakeGpu, Machine
from tests.rig.processes import run

SOURCE = Path(__file__).with_name("hardware") / "nvml.c"
_NEWEST_FABRIC = 3
_STATES = {"N/A": 0, "Not Started": 1, "In Progress": 2, "Completed": 3}
_HEALTH = {"N/A": 0, "Healthy": 1, "Unhealthy": 2}
_KINDS = {"gpu": 0, "switch": 2, "down": 9}


def library() -> Path:
    """Return the library, compiled when its source has changed."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    built = paths.CACHE / "nvml" / f"libnvidia-ml-{digest}.so.1"
    if not built.is_file():
        built.parent.mkdir(parents=True, exist_ok=True)
        aside = built.with_name(f".{os.getpid()}.so")
        flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libnvidia-ml.so.1")
        run([paths.tool("cc", "gcc"), *flags, "-o", aside, SOURCE])
        aside.replace(built)
    return built


class FakeNvml:
    """The library of one machine in a directory; what it answers can be changed while it is asked."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "libnvidia-ml.so.1"
        # A copy: the library looks for its answers beside itself.
        shutil.copyfile(library(), self.path)
        self._answers = self.path.with_name("machine.nvml")
        self.answer(machine)

    def answer(self, machine: Machine, *more: str, without: str = "") -> None:
        """Answer for *machine*; *more*: lines such as ``hang nvmlDeviceGetName``; *without*: what no GPU supports."""
        gpus = [gpu for gpu in machine.gpus if gpu.vendor == NVIDIA]
        more += tuple(f"{index}.lost 1" for index, gpu in enumerate(gpus) if gpu.lost)
        lines = [*more, f"driver {machine.driver}", f"count {len(gpus)}"]
        for index, gpu in enumerate(gpus):
            lines += [f"{index}.{name} {value}" for name, value in _answers(index, gpu).items() if name != without]
        aside = self._answers.with_name(".machine.nvml")
        aside.write_text("\n".join(lines) + "\n", encoding="ascii")
        aside.replace(self._answers)


def _answers(index: int, gpu: FakeGpu) -> dict[str, object]:
    state, status, clique, cluster, health = gpu.fabric
    fabric = (
        _NEWEST_FABRIC, _STATES[state], 0 if status == "Success" else 999, clique if clique.isdigit() else 0,
        cluster.replace("-", "") if "-" in cluster else "0" * 32, 0, _HEALTH[health],
    )  # fmt: skip
    links = {f"link{number}": f"{_KINDS[kind]} {place or '-'}" for number, (kind, place) in enumerate(gpu.links)}
    return {
        "place": f"0000{gpu.address.upper()}",
        "name": gpu.model,
        "uuid": f"GPU-5ca1ab1e-0000-4000-8000-{index:012}",
        "serial": gpu.serial,
        "minor": index,
        "memory": gpu.memory_mib << 20,
        "used": 4 << 30,
        "busy": 37,
        "numa": gpu.numa,
        "mig": 0,
        "generation": 5,
        "generation_max": 5,
        "width": gpu.width,
        "width_max": 16,
        "uncorrected": gpu.uncorrected,
        "remap_pending": 0,
        "remap_failed": 0,
        "recovery": 0,
        "slowed": gpu.slowed | 1,
        "clock": 345,
        "clock_max": 1980,
        "memory_clock": 2619,
        "fabric": " ".join(map(str, fabric)),
        **links,
    }
