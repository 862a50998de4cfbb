"""NVIDIA's GPUs: by their management library in a process of its own, or else by nvidia-smi or what it printed."""

from __future__ import annotations

import sys
from pathlib import Path

from stokerd.settings import TopologySettings
from stokerd.topology import matrix, nvidia_xml, nvml_values
from stokerd.topology.accelerators import Accelerator
from stokerd.topology.commands import Command, CommandFailed, find
from stokerd.topology.files import FileSources
from stokerd.topology.knowledge import Nvidia
from stokerd.topology.outcomes import Absent

_PROBE = Path(__file__).with_name("nvml_probe.py")
"""Not imported: what it needs is of no use here."""
_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64",
    "/usr/local/nvidia/lib64", "/run/nvidia/driver/usr/lib/x86_64-linux-gnu", "/run/nvidia/driver/usr/lib64",
)  # fmt: skip
"""Where a library that is given by its name alone is looked for; the last three are those of containers."""


class AskNvidia:
    """Both ways to ask; one of them is used, and the other has nothing to say."""

    def __init__(self, files: FileSources) -> None:
        self._files = files
        self._probe, self._smi, self._topo = Command(), Command(), Command()

    async def library(self, settings: TopologySettings) -> Nvidia:
        """Ask the library; Absent, CommandFailed."""
        path = _library(settings)
        if not path:
            named = settings.nvidia_library and not settings.nvidia_file
            raise Absent(f"{settings.nvidia_library} is not installed" if named else "")
        options = ["--serials"] if settings.serial_numbers == "told" else []
        argv = [sys.executable, "-I", str(_PROBE), path, *options]
        printed = await self._probe.output(argv, timeout=settings.read_timeout, most=nvml_values.LONGEST)
        found = nvml_values.parse(printed)
        if found.no_driver:
            raise Absent("the library is there, but no driver is loaded")
        if found.problem:
            raise CommandFailed(found.problem)
        return Nvidia(found.gpus, nvml_values.nvlinks_between(found.gpus), found.unread, found.lost, asked=True)

    async def tool(self, settings: TopologySettings) -> Nvidia:
        """Run nvidia-smi, or read what it printed; Absent where the library is asked."""
        if settings.nvidia_file:
            return await self._printed(settings)
        if _library(settings):
            raise Absent
        program = find(settings.nvidia_smi) if settings.nvidia_smi else ""
        if not program:
            raise Absent("nvidia-smi is not installed" if settings.nvidia_smi else "")
        limit = settings.read_timeout
        document = await self._smi.output([program, "-q", "-x"], timeout=limit, most=nvidia_xml.LONGEST)
        found = nvidia_xml.parse(document)
        table = matrix.Matrix()
        if len(found.gpus) >= 2:
            table = matrix.parse(await self._topo.output([program, "topo", "-m"], timeout=limit, most=1 << 20))
        return _told(found, table)

    async def _printed(self, settings: TopologySettings) -> Nvidia:
        read = self._files.of(settings.nvidia_file, nvidia_xml.LONGEST, nvidia_xml.parse)
        found, table = await read(settings.read_timeout), matrix.Matrix()
        if settings.nvidia_matrix_file:
            table = await self._files.of(settings.nvidia_matrix_file, 1 << 20, matrix.parse)(settings.read_timeout)
        return _told(found, table)


def _library(settings: TopologySettings) -> str:
    """Return the path of the library that is asked; empty if there is none, or something else is to be used."""
    name = settings.nvidia_library
    if not name or settings.nvidia_file:
        return ""
    places = [Path(name)] if "/" in name else [Path(folder) / name for folder in _LIBRARIES]
    return next((str(place) for place in places if place.exists()), "")


def _told(found: nvidia_xml.NvidiaReport, table: matrix.Matrix) -> Nvidia:
    return Nvidia(found.gpus, gpu_links(found.gpus, table), found.unread)


def gpu_links(gpus: tuple[Accelerator, ...], table: matrix.Matrix) -> dict[tuple[str, str], str]:
    """Return how GPUs are linked with each other, of a table in which they have the driver's numbers."""
    names = {f"GPU{number}": gpu.address for number, gpu in enumerate(gpus)}
    return {
        (names[one], names[other]): cell
        for one in names
        for other in names
        if one != other and (cell := table.between(one, other)).startswith("NV")
    }
