"""What procfs says of CPUs, memory and pressure. Pure.

Source: kernel Documentation/filesystems/proc.rst, Documentation/accounting/psi.rst.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stoker.fabrics.foreign import plain

_MODEL = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)
_IMPLEMENTER = re.compile(r"^CPU implementer\s*:\s*(0x[0-9a-f]{1,4})\s*$", re.MULTILINE)
_PART = re.compile(r"^CPU part\s*:\s*(0x[0-9a-f]{1,4})\s*$", re.MULTILINE)
_ARM = {
    ("0x41", "0xd4f"): "Arm Neoverse-V2",
    ("0x41", "0xd40"): "Arm Neoverse-V1",
    ("0x41", "0xd0c"): "Arm Neoverse-N1",
}
_MEMORY = re.compile(r"^(\w+):\s+(\d{1,15}) kB$", re.MULTILINE)
_PRESSURE = re.compile(r"^(some|full) avg10=(\d{1,3}\.\d\d) avg60=(\d{1,3}\.\d\d) ", re.MULTILINE)
_DISK_DEVICES = ("/dev/",)
_NO_DISKS = ("/dev/loop", "/dev/fuse")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def cpu_model(cpuinfo: str) -> str:
    """Return the model of the first CPU; ARM's are told by numbers."""
    named = _MODEL.search(cpuinfo)
    if named is not None:
        return plain(named[1], 64)
    maker, part = _IMPLEMENTER.search(cpuinfo), _PART.search(cpuinfo)
    if maker is None or part is None:
        return ""
    return _ARM.get((maker[1], part[1]), f"Arm {maker[1]}:{part[1]}")


def memory(meminfo: str) -> dict[str, int]:
    """Return the sizes in /proc/meminfo, in bytes."""
    return {name: int(kib) << 10 for name, kib in _MEMORY.findall(meminfo)}


def pressure(text: str) -> dict[str, tuple[float, float]]:
    """Return the shares of 10 s and 60 s, in percent, in which ``some`` tasks or all (``full``) waited."""
    return {kind: (float(short), float(long)) for kind, short, long in _PRESSURE.findall(text)}


def load_averages(text: str) -> tuple[float, float] | None:
    """Return the load of the last minute and of the last 15 minutes."""
    words = text.split()[:3]
    try:
        return (float(words[0]), float(words[2])) if len(words) == 3 else None
    except ValueError:
        return None


def cpu_times(stat: str) -> tuple[int, int] | None:
    """Return how long all CPUs together were busy, and how long there were any, in the kernel's ticks."""
    words = stat.partition("\n")[0].split()
    numbers = [int(word) for word in words[1:9] if word.isascii() and word.isdigit()]
    if words[:1] != ["cpu"] or len(numbers) < 5:
        return None
    idle = numbers[3] + numbers[4]  # waiting for a disk is idleness, too
    return sum(numbers) - idle, sum(numbers)


def file_systems(mounts: str) -> Mapping[str, str]:
    """Return where each disk's file system is mounted, by its device: the shortest place of several."""
    found: dict[str, str] = {}
    for line in mounts.split("\n"):
        words = line.split(" ")
        if len(words) < 4 or not words[0].startswith(_DISK_DEVICES) or words[0].startswith(_NO_DISKS):
            continue
        place = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), words[1])
        if words[0] not in found or len(place) < len(found[words[0]]):
            found[words[0]] = place
    return found
