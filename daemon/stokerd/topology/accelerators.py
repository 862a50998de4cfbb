"""GPUs as their drivers describe them, and what makes them one NVLink domain. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class FabricState(msgspec.Struct, frozen=True):
    """What a GPU's driver says of the NVLink fabric. Empty where it does not say."""

    state: str = ""
    status: str = ""
    clique: int | None = None
    cluster: str = ""
    health: str = ""
    bandwidth: str = ""


class NvLinks(msgspec.Struct, frozen=True):
    """NVLinks of a GPU that are up and lead to one end: ``gpu``, ``switch`` or ``other``; ``peer`` may be empty."""

    kind: str
    peer: str = ""
    links: int = 1


class Accelerator(msgspec.Struct, frozen=True):
    """One GPU. Numbers are None where nobody says."""

    address: str
    model: str = ""
    vendor: str = "nvidia"
    uuid: str = ""
    serial: str = ""
    minor: int | None = None
    memory_bytes: int | None = None
    memory_used: int | None = None
    busy_percent: int | None = None
    mig: str = ""
    numa: int | None = None
    link_generation: int | None = None
    link_generation_max: int | None = None
    link_width: int | None = None
    link_width_max: int | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery: str = ""
    throttled: tuple[str, ...] = ()
    clock_mhz: int | None = None
    clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    fabric: FabricState = FabricState()
    nvlinks: tuple[NvLinks, ...] = ()
    nvlinks_down: int = 0


class Domain(msgspec.Struct, frozen=True):
    """An NVLink domain that this node is a part of, or why it is of none."""

    cluster: str = ""
    clique: int = 0
    addresses: tuple[str, ...] = ()
    refused: str = ""

    @property
    def name(self) -> str:
        """Return the domain as schedulers name it; empty if there is none."""
        return f"{self.cluster}.{self.clique}" if self.cluster else ""


def refusal(fabric: FabricState) -> str:
    """Return why a GPU's fabric state makes no domain; empty if it makes one.

    Drivers say ``Completed`` with an all-zero UUID on machines whose NVLink ends at the board: such a domain would hold
    every one of them.
    """
    if not fabric.state:
        return "the driver says nothing about a fabric"
    if fabric.state.lower() != "completed":
        return f"its fabric is {fabric.state!r}, not 'Completed'"
    if fabric.status.lower() != "success":
        return f"its fabric's status is {fabric.status!r}, not 'Success'"
    if not _UUID.fullmatch(fabric.cluster.lower()):
        return f"its cluster's UUID {fabric.cluster!r} is none"
    if not fabric.cluster.strip("0-"):
        return "its cluster's UUID is all zero: NVLink ends at this board"
    if fabric.clique is None:
        return "it is in no clique"
    if fabric.health.lower() != "healthy":
        said = f"{fabric.health!r}" if fabric.health else "not reported"
        return f"its fabric's health is {said}, not 'Healthy'"
    return ""


def domains(gpus: Sequence[Accelerator]) -> tuple[Domain, ...]:
    """Return the NVLink domains of a node's GPUs, and one entry for each reason why others are in none."""
    members: dict[tuple[str, int], list[str]] = {}
    refused: dict[str, list[str]] = {}
    for gpu in gpus:
        reason = refusal(gpu.fabric)
        if reason:
            refused.setdefault(reason, []).append(gpu.address)
        else:
            assert gpu.fabric.clique is not None
            members.setdefault((gpu.fabric.cluster.lower(), gpu.fabric.clique), []).append(gpu.address)
    found = [Domain(cluster, clique, tuple(sorted(who))) for (cluster, clique), who in sorted(members.items())]
    none = [Domain(addresses=tuple(sorted(who)), refused=reason) for reason, who in sorted(refused.items())]
    return (*found, *none)
