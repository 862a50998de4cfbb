"""The part of a report that is about the machine as a whole: CPUs, memory, disks, and what is on it. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec

from stoker.fabrics.foreign import plain
from stoker.objects.topology import (
    CpuInfo,
    Disk,
    ImageOnNode,
    ImagesOnNode,
    MemoryInfo,
    PodOnNode,
    PodsOnNode,
    TopologyReport,
)
from stokerd.topology.facts import Observation

MOST_BYTES = 60_000
"""Of a report as JSON; it is to be at most 64 KiB, and its times may grow a little."""
_MOST_DISKS, _MOST_IMAGES, _MOST_PODS = 32, 96, 128
_SOURCE, _CONTENTS = "sysfs.machine", "runtime"


def cpu(seen: Observation, now: datetime) -> CpuInfo | None:
    """Return the CPUs."""
    found = seen.hardware.cpu
    if found is None:
        return None
    return CpuInfo(
        source=_SOURCE, since=now, model=found.model, sockets=found.sockets, cores=found.cores, threads=found.threads
    )


def memory(seen: Observation, now: datetime) -> MemoryInfo | None:
    """Return the memory, and how much of it is kept as huge pages."""
    found = seen.hardware.memory
    if found is None:
        return None
    pages = {_size(kib): count for kib, count in sorted(found.huge_pages.items())}
    return MemoryInfo(source=_SOURCE, since=now, bytes=found.total, swap_bytes=found.swap, huge_pages=pages)


def _size(kib: int) -> str:
    for unit, factor in (("GiB", 1 << 20), ("MiB", 1 << 10)):
        if kib % factor == 0:
            return f"{kib // factor}{unit}"
    return f"{kib}KiB"


def disks(seen: Observation, now: datetime) -> list[Disk]:
    """Return the disks."""
    return [
        Disk(
            source=_SOURCE, since=now, name=each.name, model=each.model, bytes=each.size, rotational=each.rotational,
            pcie=each.address, numa=each.numa,
        )
        for each in seen.hardware.disks[:_MOST_DISKS]
    ]  # fmt: skip


def images(seen: Observation, now: datetime) -> ImagesOnNode | None:
    """Return the images on the node, the largest first: those that take longest to bring are worth most."""
    if seen.contents is None:
        return None
    found = sorted(seen.contents.images, key=lambda each: (-each.size, each.name))
    items = [ImageOnNode(name=plain(each.name, 160), digest=plain(each.digest, 80), bytes=each.size) for each in found]
    total = sum(each.size for each in found)
    return ImagesOnNode(source=_CONTENTS, since=now, total=len(found), bytes=total, items=items[:_MOST_IMAGES])


def pods(seen: Observation, now: datetime) -> PodsOnNode | None:
    """Return the pods on the node, by namespace and name."""
    if seen.contents is None:
        return None
    found = sorted(seen.contents.pods, key=lambda each: (each.namespace, each.name, each.uid))
    items = [
        PodOnNode(
            namespace=plain(each.namespace, 64), name=plain(each.name, 128), uid=plain(each.uid, 64),
            phase=plain(each.phase, 16), containers=each.containers,
        )
        for each in found[:_MOST_PODS]
    ]  # fmt: skip
    containers = sum(each.containers for each in found)
    return PodsOnNode(source=_CONTENTS, since=now, total=len(found), containers=containers, items=items)


def fitted(report: TopologyReport) -> TopologyReport:
    """Return the report with as many images and pods as there is room for; their totals stay."""
    size = len(msgspec.json.encode(report))
    while size > MOST_BYTES:
        longest = max((report.images, report.pods), key=lambda each: len(each.items) if each is not None else 0)
        if longest is None or not longest.items:
            break
        del longest.items[len(longest.items) // 2 :]
        size = len(msgspec.json.encode(report))
    return report
