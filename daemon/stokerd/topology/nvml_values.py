"""What `nvml_probe` prints, as GPUs. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from stoker.fabrics.foreign import Unread, Unreadable, plain
from stokerd.topology.accelerators import Accelerator, FabricState, NvLinks
from stokerd.topology.addresses import pci_address

LONGEST = 4 << 20
_MOST_GPUS, _MOST_LINKS = 256, 36
_SLOWED = {
    0x08: "hw_slowdown", 0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown",
}  # fmt: skip
"""Reasons for lower clocks; a GPU that is idle, works hard, or was told to work less is not slowed down by anything."""
_RECOVERIES = {
    1: "GPU Reset", 2: "Node Reboot", 3: "Drain P2P", 4: "Drain and Reset", 5: "Recover IMEX Domain", 6: "Bus Reset",
    7: "System Reboot",
}  # fmt: skip
_FABRIC_STATES = {0: "", 1: "Not Started", 2: "In Progress", 3: "Completed"}
_HEALTH = {1: "Healthy", 2: "Unhealthy", 3: "Limited Capacity"}
_ENDS: Mapping[int, str] = {0: "gpu", 2: "switch"}
_NO_DRIVER = 9
# Of the mask of a fabric's health: each question's place and width, and the answers that are good ones.
_QUESTIONS = ((0, 0x3, {0, 2}), (2, 0x3, {0, 2}), (4, 0x3, {0, 2}), (6, 0x3, {0, 2}), (8, 0xF, {0, 1}))


class NvmlReport(msgspec.Struct, frozen=True):
    """What one call says. ``problem``: why there is nothing; ``no_driver``: since no driver is loaded."""

    driver: str = ""
    gpus: tuple[Accelerator, ...] = ()
    lost: tuple[str, ...] = ()
    """Of GPUs that the driver counts and cannot reach, why."""
    unread: Unread = Unread()
    problem: str = ""
    no_driver: bool = False


def parse(data: bytes) -> NvmlReport:
    """Return the GPUs that the probe printed. Never raises."""
    unread = Unreadable()
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return NvmlReport(problem="its answer is cut off")
    if not isinstance(document, dict):
        return NvmlReport(problem="its answer is none")
    if "error" in document:
        return NvmlReport(problem=plain(str(document["error"]), 160), no_driver=document.get("code") == _NO_DRIVER)
    gpus: dict[str, Accelerator] = {}
    for values in _list(document.get("gpus"))[:_MOST_GPUS]:
        address = pci_address(_text(values.get("bus"))) if isinstance(values, dict) else ""
        if not address or address in gpus:
            unread.add(f"GPU {plain(str(values), 60)}")
        else:
            gpus[address] = _gpu(address, values)
    lost = [
        f"GPU {each.get('index')}: {plain(_text(each.get('why')), 80)}"
        for each in _list(document.get("lost"))[:_MOST_GPUS]
        if isinstance(each, dict)
    ]
    return NvmlReport(plain(_text(document.get("driver")), 32), tuple(gpus.values()), tuple(lost), unread.total)


def _gpu(address: str, values: Mapping[str, Any]) -> Accelerator:
    number = {name: value for name, value in values.items() if isinstance(value, int) and value >= 0}
    slowed = number.get("slowed", 0)
    links, down = _links(_list(values.get("links")))
    return Accelerator(
        address=address,
        model=plain(_text(values.get("name"))),
        uuid=plain(_text(values.get("uuid")), 64),
        serial=plain(_text(values.get("serial")), 32),
        minor=number.get("minor"),
        memory_bytes=number.get("memory"),
        memory_used=number.get("used"),
        busy_percent=number.get("busy"),
        mig={0: "Disabled", 1: "Enabled"}.get(number.get("mig", -1), ""),
        numa=number.get("numa"),
        link_generation=number.get("generation"),
        link_generation_max=number.get("generationMax"),
        link_width=number.get("width"),
        link_width_max=number.get("widthMax"),
        ecc_uncorrected=number.get("uncorrected"),
        remap_pending=_yes(number.get("remapPending")),
        remap_failed=_yes(number.get("remapFailed")),
        recovery=_RECOVERIES.get(number.get("recovery", 0), ""),
        throttled=tuple(word for bit, word in _SLOWED.items() if slowed & bit),
        clock_mhz=number.get("clock"),
        clock_max_mhz=number.get("clockMax"),
        memory_clock_mhz=number.get("memoryClock"),
        fabric=_fabric(values.get("fabric")),
        nvlinks=links,
        nvlinks_down=down,
    )


def _links(found: list[Any]) -> tuple[tuple[NvLinks, ...], int]:
    """Return how many links lead to whom, in the order of the links, and how many are down."""
    ends: dict[tuple[str, str], int] = {}
    down = 0
    for link in found[:_MOST_LINKS]:
        if not isinstance(link, list) or len(link) != 4:
            continue
        _, up, kind, place = link
        if not up:
            down += 1
            continue
        end = (_ENDS.get(kind, "other") if isinstance(kind, int) else "other", pci_address(_text(place)))
        ends[end] = ends.get(end, 0) + 1
    return tuple(NvLinks(kind, peer, count) for (kind, peer), count in ends.items()), down


def _fabric(values: Any) -> FabricState:
    if not isinstance(values, dict) or not isinstance(values.get("state"), int):
        return FabricState()
    state = _FABRIC_STATES.get(values["state"], str(values["state"]))
    if not state:
        return FabricState()
    status, clique = values.get("status"), values.get("clique")
    return FabricState(
        state=state,
        status="Success" if status == 0 else f"error {status}",
        clique=clique if isinstance(clique, int) else None,
        cluster=_uuid(_text(values.get("cluster"))),
        health=_health(values.get("summary"), values.get("mask")),
    )


def _health(summary: Any, mask: Any) -> str:
    """Return the health in one word: the driver's own, or, of drivers before they had one, that of its parts."""
    if isinstance(summary, int) and summary in _HEALTH:
        return _HEALTH[summary]
    if not isinstance(mask, int) or mask <= 0:
        return ""
    return "Healthy" if all(mask >> place & width in good for place, width, good in _QUESTIONS) else "Unhealthy"


def _uuid(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return ""


def nvlinks_between(gpus: tuple[Accelerator, ...]) -> dict[tuple[str, str], str]:
    """Return ``NV18`` by the addresses of two GPUs: by direct links, or through the switches that both hang on."""
    to_switches = {gpu.address: sum(end.links for end in gpu.nvlinks if end.kind == "switch") for gpu in gpus}
    direct = {(gpu.address, end.peer): end.links for gpu in gpus for end in gpu.nvlinks if end.kind == "gpu"}
    found = {}
    for one in gpus:
        for other in gpus:
            if one is not other:
                pair = (one.address, other.address)
                count = direct.get(pair, 0) or min(to_switches[pair[0]], to_switches[pair[1]])
                if count:
                    found[pair] = f"NV{count}"
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _yes(value: int | None) -> bool | None:
    return None if value is None else bool(value)
