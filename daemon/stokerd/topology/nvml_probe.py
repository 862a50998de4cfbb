"""Asks NVIDIA's management library once, and prints what it says as JSON: a program of its own.

It runs apart from stokerd since a driver may hang in a call that nothing can break off, and since whoever keeps the
library open keeps the driver from being unloaded and GPUs from being reset. What the values mean is decided in
`nvml_values`. It imports nothing of stokerd, so that it starts quickly.

    python nvml_probe.py LIBRARY [--serials]
"""

# ruff: noqa: T201 - a program

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

_MOST_LINKS = 36
_LOST = (15, 16)
"""What the library says of a GPU that is gone, or that must be reset: there is no sense in asking on."""


class _Lost(Exception):
    """The GPU has gone while it was asked."""


class Asker:
    """Asks of one GPU; what the driver does not know is None."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return what a function of the library says; None where it does not; _Lost."""
        try:
            return getattr(self._nvml, f"nvmlDevice{name}")(self._handle, *arguments)
        except self._nvml.NVMLError as error:
            if getattr(error, "value", 0) in _LOST:
                raise _Lost(str(error)) from None
        except (AttributeError, ValueError, UnicodeDecodeError):
            pass  # a function that this version does not have, or an answer that is no text
        return None


def main(argv: list[str]) -> int:
    """Print one JSON object: what there is, or an ``error`` with its ``code``."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return _print({"error": "the Python package nvidia-ml-py is not installed"})
    try:
        pynvml.nvmlLib = ctypes.CDLL(argv[0])
    except OSError as error:
        return _print({"error": str(error)})
    try:
        pynvml.nvmlInit()
        found = {"driver": pynvml.nvmlSystemGetDriverVersion(), **_gpus(pynvml, serials="--serials" in argv)}
    except pynvml.NVMLError as error:
        return _print({"error": str(error), "code": getattr(error, "value", None)})
    return _print(found)


def _print(answer: dict[str, Any]) -> int:
    print(json.dumps(answer))
    return 0


def _gpus(nvml: Any, *, serials: bool) -> dict[str, Any]:
    found, lost = [], []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            found.append({"index": index, **_gpu(nvml, Asker(nvml, handle), serials=serials)})
        except (_Lost, nvml.NVMLError) as error:
            lost.append({"index": index, "why": str(error)})
    return {"gpus": found, "lost": lost}


def _gpu(nvml: Any, gpu: Asker, *, serials: bool) -> dict[str, Any]:
    ask = gpu.ask
    memory, place, use = ask("GetMemoryInfo"), ask("GetPciInfo"), ask("GetUtilizationRates")
    rows, mig = ask("GetRemappedRows") or (None,) * 4, ask("GetMigMode")
    return {
        "bus": _text(place.busId) if place is not None else "",
        "name": ask("GetName"),
        "uuid": ask("GetUUID"),
        "serial": ask("GetSerial") if serials else None,
        "minor": ask("GetMinorNumber"),
        "memory": memory.total if memory is not None else None,
        "used": memory.used if memory is not None else None,
        "busy": use.gpu if use is not None else None,
        "numa": _numa(ask("GetMemoryAffinity", 2, nvml.NVML_AFFINITY_SCOPE_NODE)),
        "mig": mig[0] if mig else None,
        "generation": ask("GetCurrPcieLinkGeneration"),
        "generationMax": ask("GetMaxPcieLinkGeneration"),
        "width": ask("GetCurrPcieLinkWidth"),
        "widthMax": ask("GetMaxPcieLinkWidth"),
        "uncorrected": ask("GetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        "remapPending": rows[2],
        "remapFailed": rows[3],
        "recovery": _field(nvml, gpu, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
        "slowed": _first(ask("GetCurrentClocksEventReasons"), lambda: ask("GetCurrentClocksThrottleReasons")),
        "clock": ask("GetClockInfo", nvml.NVML_CLOCK_SM),
        "clockMax": ask("GetMaxClockInfo", nvml.NVML_CLOCK_SM),
        "memoryClock": ask("GetClockInfo", nvml.NVML_CLOCK_MEM),
        "fabric": _fabric(nvml, gpu),
        "links": list(_links(gpu)),
    }


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value or "")


def _first(value: Any, other: Callable[[], Any]) -> Any:
    return other() if value is None else value


def _numa(words: Any) -> int | None:
    """Return the one NUMA node in a set of them."""
    if words is None:
        return None
    bits = sum(word << 64 * place for place, word in enumerate(words))
    return bits.bit_length() - 1 if bits and bits & (bits - 1) == 0 else None


def _field(nvml: Any, gpu: Asker, number: int) -> int | None:
    values = gpu.ask("GetFieldValues", [number])
    return None if values is None or values[0].nvmlReturn != nvml.NVML_SUCCESS else int(values[0].value.uiVal)


def _fabric(nvml: Any, gpu: Asker) -> dict[str, Any] | None:
    """Return the state of the NVLink fabric; ``summary`` and ``mask`` are None where the driver is older than they."""
    for kind in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        info = getattr(nvml, kind)()
        if gpu.ask("GetGpuFabricInfoV", ctypes.byref(info)) is not None:
            return {
                "state": info.state,
                "status": info.status,
                "clique": info.cliqueId,
                "cluster": bytes(info.clusterUuid).hex(),
                "mask": info.healthMask,
                "summary": getattr(info, "healthSummary", None),
            }
    return None


def _links(gpu: Asker) -> Iterator[list[Any]]:
    """Yield each NVLink that the GPU has: its number, whether it is up, what is at its end, and where that is."""
    for number in range(_MOST_LINKS):
        state = gpu.ask("GetNvLinkState", number)
        if state is not None:
            place = gpu.ask("GetNvLinkRemotePciInfo", number) if state else None
            kind = gpu.ask("GetNvLinkRemoteDeviceType", number) if state else None
            yield [number, state, kind, _text(place.busId) if place is not None else ""]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
