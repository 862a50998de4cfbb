"""What ``amd-smi static --json`` and ``amd-smi list --json`` print. Pure.

Both are a list of GPUs, or an object with such a list as ``gpu_data``, or one GPU alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stoker.fabrics.foreign import Unread, Unreadable, decode, plain
from stokerd.topology.accelerators import Accelerator
from stokerd.topology.addresses import pci_address

LONGEST = 8 << 20
_MOST_GPUS = 256
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


class AmdSmi(msgspec.Struct, frozen=True):
    """What the tool says of GPUs, in the order of their addresses."""

    gpus: tuple[Accelerator, ...] = ()
    unread: Unread = Unread()


def parse(static: bytes, listed: bytes = b"[]") -> AmdSmi:
    """Return the GPUs in both outputs. Never raises."""
    unread = Unreadable()
    uuids = {address: _text(gpu.get("uuid"), 64) for address, gpu in _gpus(listed, unread)}
    found = {address: _gpu(address, gpu, uuids.get(address, "")) for address, gpu in _gpus(static, unread)}
    return AmdSmi(tuple(found[address] for address in sorted(found)), unread.total)


def _gpus(data: bytes, unread: Unreadable) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        document = msgspec.json.decode(decode(data[:LONGEST]))
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        unread.add(f"not JSON: {error}")
        return
    if isinstance(document, dict):
        document = document.get("gpu_data", [document])
    for gpu in document[:_MOST_GPUS] if isinstance(document, list) else [document]:
        place = gpu.get("bdf") or _part(gpu, "bus").get("bdf") if isinstance(gpu, dict) else None
        address = pci_address(place) if isinstance(place, str) else ""
        if address:
            yield address, gpu
        elif gpu:
            unread.add(f"a GPU without a place: {gpu}")


def _gpu(address: str, gpu: Mapping[str, Any], uuid: str) -> Accelerator:
    asic = _part(gpu, "asic")
    return Accelerator(
        address=address,
        model=_text(asic.get("market_name")),
        vendor="amd",
        uuid=uuid,
        serial=_text(asic.get("asic_serial"), 32),
        memory_bytes=_size(_part(gpu, "vram").get("size")),
    )


def _part(gpu: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = gpu.get(name)
    return part if isinstance(part, dict) else {}


def _size(size: Any) -> int | None:
    if not isinstance(size, dict):
        return None
    value, unit = size.get("value"), _UNITS.get(str(size.get("unit")))
    return value * unit if isinstance(value, int) and not isinstance(value, bool) and value > 0 and unit else None


def _text(value: Any, limit: int = 128) -> str:
    text = plain(value, limit) if isinstance(value, str) else ""
    return "" if text.upper() == "N/A" else text


def merged(by_kernel: tuple[Accelerator, ...], by_tool: tuple[Accelerator, ...]) -> tuple[Accelerator, ...]:
    """Return the kernel's GPUs with what the tool adds: their market's name, UUID and serial number."""
    told = {gpu.address: gpu for gpu in by_tool}
    if not by_kernel:
        return by_tool
    return tuple(
        msgspec.structs.replace(
            gpu,
            model=its.model or gpu.model,
            uuid=its.uuid,
            serial=its.serial,
            memory_bytes=gpu.memory_bytes if gpu.memory_bytes is not None else its.memory_bytes,
        )
        if (its := told.get(gpu.address)) is not None
        else gpu
        for gpu in by_kernel
    )
