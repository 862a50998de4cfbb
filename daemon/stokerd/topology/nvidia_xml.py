"""``nvidia-smi -q -x``. Pure.

Read as a stream, so that what stands before the place where a document breaks off counts. Entities are refused:
nvidia-smi writes none, and a hostile document could grow without limit with them.
"""

from __future__ import annotations

import re
from xml.parsers import expat

import msgspec

from stoker.fabrics.foreign import Unread, Unreadable, integer, leading_number, plain
from stokerd.topology.accelerators import Accelerator, FabricState
from stokerd.topology.addresses import pci_address

LONGEST = 32 << 20
_MOST_GPUS, _MOST_DEPTH, _LONGEST_VALUE = 256, 64, 4096
_NOTHING = {
    "n/a", "[n/a]", "none", "unknown error", "[not supported]", "not supported",
    "requested functionality has been deprecated",
}  # fmt: skip
_THROTTLES = re.compile(r"clocks_(?:event|throttle)_reasons/clocks_(?:event|throttle)_reason_(\w+)")
# What a GPU that works hard, or is told to work less, always says; it comes and goes all the time.
_HARMLESS = {"gpu_idle", "applications_clocks_setting", "sync_boost", "display_clocks_setting", "sw_power_cap"}
_UNCORRECTED = re.compile(r"ecc_errors/volatile/\w*uncorrectable\w*")


class NvidiaReport(msgspec.Struct, frozen=True):
    """What one document says. GPUs are in the driver's order."""

    driver: str = ""
    gpus: tuple[Accelerator, ...] = ()
    unread: Unread = Unread()


def parse(data: bytes) -> NvidiaReport:
    """Return the GPUs in a document of ``nvidia-smi -q -x``. Never raises."""
    reader = _Reader()
    if len(data) > LONGEST:
        reader.unread.add(f"a document of {len(data)} bytes is too long")
    else:
        reader.read(data)
    return NvidiaReport(reader.driver, tuple(reader.gpus), reader.unread.total)


class _Refused(ValueError):
    """The document has something that nvidia-smi never writes."""


class _Reader:
    def __init__(self) -> None:
        self.driver = ""
        self.gpus: list[Accelerator] = []
        self.unread = Unreadable()
        self._path: list[str] = []
        self._values: dict[str, str] | None = None
        self._id = ""
        self._text: list[str] = []
        self._length = 0

    def read(self, data: bytes) -> None:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.EntityDeclHandler = self._refuse
        try:
            parser.Parse(data, True)
        except (expat.ExpatError, _Refused, ValueError, LookupError) as error:
            self.unread.add(f"the document breaks off: {error}")
            self._finish_gpu(cut=True)

    def _refuse(self, *_: object) -> None:
        raise _Refused("it declares an entity")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        self._text, self._length = [], 0
        if len(self._path) > _MOST_DEPTH:
            raise _Refused("it is nested too deeply")
        if len(self._path) == 2 and name == "gpu":
            self._values, self._id = {}, attributes.get("id", "")

    def _end(self, name: str) -> None:
        value = "".join(self._text).strip()
        if self._values is not None and len(self._path) > 2 and value:
            self._values.setdefault("/".join(self._path[2:]), value)
        elif self._path[1:] == ["driver_version"]:
            self.driver = plain(value, 32)
        if len(self._path) == 2 and name == "gpu":
            self._finish_gpu()
        self._path.pop()
        self._text, self._length = [], 0

    def _characters(self, text: str) -> None:
        if self._length < _LONGEST_VALUE:
            self._text.append(text[:_LONGEST_VALUE])
            self._length += len(text)

    def _finish_gpu(self, *, cut: bool = False) -> None:
        values, self._values = self._values, None
        if values is None:
            return
        address = pci_address(self._id) or pci_address(values.get("pci/pci_bus_id"))
        if not address or len(self.gpus) >= _MOST_GPUS or any(gpu.address == address for gpu in self.gpus):
            self.unread.add(f"GPU {self._id!r}")
            return
        if cut:
            self.unread.add(f"GPU {address} is not complete")
        self.gpus.append(_gpu(address, values))


def _gpu(address: str, values: dict[str, str]) -> Accelerator:
    uncorrected = [integer(value) for path, value in values.items() if _UNCORRECTED.fullmatch(path)]
    throttled = (
        found[1]
        for path, value in values.items()
        if value == "Active" and (found := _THROTTLES.fullmatch(path)) is not None
    )
    memory = leading_number(values.get("fb_memory_usage/total"))
    link = "pci/pci_gpu_link_info/"
    return Accelerator(
        address=address,
        model=_known(values, "product_name"),
        uuid=_known(values, "uuid"),
        serial=_known(values, "serial"),
        minor=integer(values.get("minor_number")),
        memory_bytes=None if memory is None else int(memory) << 20,
        mig=_known(values, "mig_mode/current_mig"),
        link_generation=_number(values, f"{link}pcie_gen/current_link_gen"),
        link_generation_max=_number(values, f"{link}pcie_gen/max_link_gen"),
        link_width=_number(values, f"{link}link_widths/current_link_width"),
        link_width_max=_number(values, f"{link}link_widths/max_link_width"),
        ecc_uncorrected=sum(filter(None, uncorrected)) if uncorrected else None,
        remap_pending=_yes(values, "remapped_rows/remapped_row_pending"),
        remap_failed=_yes(values, "remapped_rows/remapped_row_failure"),
        recovery=_known(values, "gpu_recovery_action"),
        throttled=tuple(sorted(set(throttled) - _HARMLESS)),
        fabric=FabricState(
            state=_known(values, "fabric/state"),
            status=_known(values, "fabric/status"),
            clique=integer(values.get("fabric/cliqueId")),
            cluster=_known(values, "fabric/clusterUuid").lower(),
            health=_known(values, "fabric/health/summary"),
            bandwidth=_known(values, "fabric/health/bandwidth"),
        ),
    )


def _known(values: dict[str, str], path: str) -> str:
    value = plain(values.get(path, ""))
    return "" if value.lower() in _NOTHING else value


def _number(values: dict[str, str], path: str) -> int | None:
    value = leading_number(values.get(path))
    return None if value is None else int(value)


def _yes(values: dict[str, str], path: str) -> bool | None:
    return {"yes": True, "no": False}.get(values.get(path, "").lower())
