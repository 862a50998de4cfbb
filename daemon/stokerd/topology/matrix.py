"""The table that ``nvidia-smi topo -m`` prints: read, and written. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from stoker.fabrics.foreign import Unread, Unreadable, decode, plain

_DEVICE = re.compile(r"(?:GPU|NIC|mlx\d+_|bnxt_re|rocep|ibp|hfi1_)\w*", re.IGNORECASE)
_CELL = re.compile(r"X|NV\d+|C2C|XGMI|PIX|PXB|PHB|NODE|SYS|SOC|N/A")
_LEGEND = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)")
_MOST_DEVICES = 512


class Matrix(msgspec.Struct, frozen=True):
    """How far devices are from each other, row by row; ``names`` has what a NIC's number stands for."""

    devices: tuple[str, ...] = ()
    rows: Mapping[str, tuple[str, ...]] = {}
    cpus: Mapping[str, str] = {}
    numa: Mapping[str, str] = {}
    names: Mapping[str, str] = {}
    unread: Unread = Unread()

    def between(self, one: str, other: str) -> str:
        """Return the class of the way between two devices; empty where the table does not say."""
        row = self.rows.get(one, ())
        place = self.devices.index(other) if other in self.devices else len(row)
        return row[place] if place < len(row) else ""


def parse(data: bytes | str) -> Matrix:
    """Return the table that a text holds, with or without its tabs. Never raises."""
    reader = _Reader()
    for line in decode(data).split("\n"):
        if line.strip():
            reader.take(line)
    return Matrix(
        reader.devices, reader.rows, reader.cpus, reader.numa, reader.names, reader.unread.total
    )  # fmt: skip


class _Reader:
    def __init__(self) -> None:
        self.devices: tuple[str, ...] = ()
        self.extra: tuple[str, ...] = ()
        self.rows: dict[str, tuple[str, ...]] = {}
        self.cpus: dict[str, str] = {}
        self.numa: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.unread = Unreadable()
        self._legend = False

    def take(self, line: str) -> None:
        legend = _LEGEND.fullmatch(line.rstrip())
        words = line.split()
        if legend is not None:
            self.names[legend[1]] = plain(legend[2], 64)
        elif not self.devices and words and _DEVICE.fullmatch(words[0]) and len(words) <= _MOST_DEVICES:
            self._head(line)
        elif self._legend or line.rstrip().endswith("Legend:"):
            self._legend = True
        elif self.devices and words[0] in self.devices:
            self._row(words)
        else:
            self.unread.add(line)

    def _head(self, line: str) -> None:
        names = [name.strip() for name in line.split("\t") if name.strip()] if "\t" in line else line.split()
        count = next((place for place, name in enumerate(names) if not _DEVICE.fullmatch(name)), len(names))
        # Without tabs, "GPU NUMA ID" at the end begins as a device does; two words before it do not.
        self.devices, self.extra = tuple(names[:count]), tuple(names[count:])

    def _row(self, words: list[str]) -> None:
        cells = words[1 : 1 + len(self.devices)]
        if len(cells) < len(self.devices) or not all(_CELL.fullmatch(cell) for cell in cells):
            self.unread.add(" ".join(words))
            return
        self.rows[words[0]] = tuple(cells)
        rest = words[1 + len(cells) :]
        if rest:
            self.cpus[words[0]] = plain(rest[0], 64)
        if len(rest) > 1:
            self.numa[words[0]] = plain(rest[1], 16)


def render(matrix: Matrix) -> str:
    """Return the table as ``nvidia-smi topo -m`` prints it, legend of the NICs included."""
    head = [*matrix.devices]
    if matrix.cpus or matrix.numa:
        head += ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    lines = ["\t" + "\t".join(head)]
    for device in matrix.devices:
        cells = [" X " if cell == "X" else cell for cell in matrix.rows.get(device, ())]
        line = "\t".join([device, *cells])
        if device in matrix.cpus or device in matrix.numa:
            line += f"\t{matrix.cpus.get(device, '')}\t{matrix.numa.get(device, 'N/A')}\t\tN/A"
        lines.append(line)
    if matrix.names:
        lines += ["", "NIC Legend:", "", *(f"  {nic}: {name}" for nic, name in matrix.names.items())]
    return "\n".join(lines) + "\n"
