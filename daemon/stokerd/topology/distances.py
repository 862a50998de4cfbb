"""How far devices are from each other, by the tree of PCIe. Pure.

The classes are those of ``nvidia-smi topo -m``:

PIX   one PCIe switch (or one bridge) between them
PXB   more than one, and no host bridge
PHB   through one host bridge
NODE  between host bridges of one NUMA node
SYS   between NUMA nodes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

Distance = Literal["X", "PIX", "PXB", "PHB", "NODE", "SYS"]
ORDER: tuple[Distance, ...] = ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
NEAR: frozenset[Distance] = frozenset(("PIX", "PXB"))
"""Where traffic between a GPU and a NIC stays below the CPU."""


class Place(msgspec.Struct, frozen=True):
    """Where a device is: the way from its host bridge down to itself, and its NUMA node (None: nobody says)."""

    path: tuple[str, ...]
    numa: int | None = None

    @property
    def address(self) -> str:
        """Return the device's own address."""
        return self.path[-1] if self.path else ""


def distance(one: Place, other: Place, *, numa_nodes: int = 2) -> Distance:
    """Return how far two devices are from each other, on a machine of so many NUMA nodes."""
    if one.path and one.path == other.path:
        return "X"
    shared = common(one, other)
    if shared >= 2:
        # Each way down from the last bridge in common: at most its own downstream port within that one switch.
        below = max(len(one.path), len(other.path)) - shared - 1
        return "PIX" if below <= 1 else "PXB"
    if shared == 1:
        return "PHB"
    if numa_nodes <= 1 or (one.numa is not None and one.numa == other.numa):
        return "NODE"
    return "SYS"


def common(one: Place, other: Place) -> int:
    """Return how many steps from the root two ways have in common; functions of one device share all but the last."""
    shared = 0
    for mine, theirs in zip(one.path[:-1], other.path[:-1], strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared


def table(places: Mapping[str, Place], *, numa_nodes: int = 2) -> dict[str, tuple[Distance, ...]]:
    """Return the distances of all devices from each other, row by row, in the order of *places*."""
    return {
        name: tuple(
            "X" if name == other else distance(place, its, numa_nodes=numa_nodes) for other, its in places.items()
        )
        for name, place in places.items()
    }


class Nearest(msgspec.Struct, frozen=True):
    """Which devices of the other kind are nearest, and how far they are."""

    names: tuple[str, ...] = ()
    distance: Distance = "SYS"


def nearest(place: Place, others: Mapping[str, Place], *, numa_nodes: int = 2) -> Nearest:
    """Return which of *others* are nearest to *place*; none if all are across NUMA nodes."""
    ranked = {name: ORDER.index(distance(place, its, numa_nodes=numa_nodes)) for name, its in others.items()}
    best = min(ranked.values(), default=len(ORDER) - 1)
    if best == len(ORDER) - 1:
        return Nearest()
    return Nearest(tuple(name for name, rank in ranked.items() if rank == best), ORDER[best])


def rails(nics: Mapping[str, Place], gpus: Sequence[Place], *, numa_nodes: int = 2) -> dict[str, int]:
    """Return the rail of each of the (compute) *nics*; functions of one device (its ports) share one.

    Where each GPU has its own NIC, a NIC's rail is its GPU's index, so that a NIC that is missing moves no other. Where
    NICs and GPUs form groups (two of each behind a switch), a group's rails follow those of the groups before it.
    """
    by_name = {str(index): gpu for index, gpu in enumerate(gpus)}
    served = {
        name: tuple(int(index) for index in nearest(place, by_name, numa_nodes=numa_nodes).names)
        for name, place in nics.items()
    }
    groups: dict[tuple[int, ...], set[str]] = {}
    for name, group in served.items():
        groups.setdefault(group, set()).add(_device(nics[name]))
    most = max((len(devices) for group, devices in groups.items() if group), default=1)
    size = max((len(group) for group in groups), default=1) or 1
    rail_of = {}
    for name, group in served.items():
        first = min(group, default=len(gpus))  # far from all GPUs: behind all others
        rail_of[name] = first * most // size + sorted(groups[group]).index(_device(nics[name]))
    return rail_of


def _device(place: Place) -> str:
    """Return the address without the function: the ports of one adapter are functions of one device."""
    return place.address.rpartition(".")[0] or place.address
