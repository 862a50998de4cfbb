"""A node's topology as a picture (SVG): NUMA nodes with their GPUs, the NICs next to them, and what these hang on.

Pure: a report goes in, text comes out. The picture needs no script and no font of its own, and reads on white and on
dark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from stoker.cli.text import clean
from stoker.objects.topology import Gpu, Nic, NicPort, TopologyReport
from stoker.topology_view import neighbour

_ROW, _GAP, _MARGIN = 34, 10, 20
_GPU_X, _NIC_X, _SWITCH_X = 40, 330, 700
_GPU_WIDTH, _NIC_WIDTH, _SWITCH_WIDTH = 250, 290, 300
_WIDTH = _SWITCH_X + _SWITCH_WIDTH + 2 * _MARGIN
_LONGEST = {"gpu": 36, "nic": 44, "switch": 44}
_NEAR = frozenset(("PIX", "PXB"))
_STYLE = """
.bg{fill:#ffffff}.numa{fill:#f4f6f8;stroke:#c5ccd3}
.box{stroke-width:1.5}.gpu{fill:#e8f5e9;stroke:#43a047}
.nic{fill:#e3f2fd;stroke:#1e88e5}.switch{fill:#fff8e1;stroke:#ffa000}.healthy{stroke:#43a047}.degraded{stroke:#fb8c00}
.down{stroke:#e53935;stroke-dasharray:5 4}.unknown{stroke:#9e9e9e;stroke-dasharray:2 4}.link{stroke-width:2;fill:none}
.near{stroke:#78909c;stroke-width:1.5;fill:none}text{font:12px system-ui,sans-serif;fill:#1c2733}.title{font-weight:600}
.small{font-size:10.5px;fill:#5b6975}.fault{fill:#c62828}
@media (prefers-color-scheme:dark){
.bg{fill:#12181f}.numa{fill:#1a222b;stroke:#33404d}.gpu{fill:#17321a}.nic{fill:#12283b}
.switch{fill:#382c0d}text{fill:#e3e9ef}.small{fill:#93a3b3}.fault{fill:#ff8a80}}
"""


@dataclass
class _Row:
    """A line of the picture: a GPU, a NIC, or both beside each other."""

    gpu: Gpu | None = None
    nic: Nic | None = None


@dataclass
class _Group:
    title: str
    rows: list[_Row] = field(default_factory=list)


def svg(report: TopologyReport) -> str:
    """Return the picture of a report."""
    painter = _Painter(report)
    painter.paint()
    return painter.document()


def _groups(report: TopologyReport) -> Iterator[_Group]:
    nics = {nic.name: nic for nic in report.nics}
    shown: set[str] = set()
    numbers: list[int | None] = [node.id for node in report.numa]
    numbers += sorted({gpu.pcie.numa for gpu in report.gpus if gpu.pcie.numa is not None} - set(numbers))
    for number in (*numbers, None):
        group = _Group("no NUMA node" if number is None else f"NUMA {number}")
        for gpu in report.gpus:
            if gpu.pcie.numa == number:
                near = [
                    nics[name] for name in gpu.nics if gpu.nic_distance in _NEAR and name in nics and name not in shown
                ]
                shown |= {nic.name for nic in near}
                group.rows.append(_Row(gpu, near[0] if near else None))
                group.rows += [_Row(None, nic) for nic in near[1:]]
        beside = {name for gpu in report.gpus if gpu.nic_distance in _NEAR for name in gpu.nics}
        for nic in report.nics:
            place = nic.pcie.numa if nic.pcie is not None else None
            if place == number and nic.name not in shown and nic.name not in beside:
                shown.add(nic.name)
                group.rows.append(_Row(None, nic))
        if group.rows:
            yield group


class _Painter:
    def __init__(self, report: TopologyReport) -> None:
        self._report = report
        self._boxes: list[str] = []
        self._lines: list[str] = []
        self._y = _MARGIN + 30
        self._switch_of: dict[str, list[tuple[int, str]]] = {}
        self._bottom_of_switches = 0

    def paint(self) -> None:
        for group in _groups(self._report):
            height = len(group.rows) * (_ROW + _GAP) + _GAP + 20
            width = _NIC_X + _NIC_WIDTH + _MARGIN - _GPU_X + _MARGIN
            self._boxes.append(
                f'<rect class="numa" x="{_MARGIN}" y="{self._y}" width="{width}" height="{height}" rx="8"/>'
            )
            self._text(_MARGIN + 12, self._y + 18, group.title, "title")
            self._y += 20 + _GAP
            for row in group.rows:
                self._row(row)
            self._y += _GAP
        self._switches()
        self._y = max(self._y, self._bottom_of_switches) + _GAP
        self._findings()

    def _row(self, row: _Row) -> None:
        middle = self._y + _ROW // 2
        if row.gpu is not None:
            memory = f" {row.gpu.memory_bytes / 2**30:.0f} GiB" if row.gpu.memory_bytes else ""
            self._box("gpu", _GPU_X, self._y, _GPU_WIDTH, row.gpu.name, f"{row.gpu.model}{memory}")
        if row.nic is not None:
            nic = row.nic
            rail = f", rail {nic.rail}" if nic.rail is not None else ""
            speed = next((f", {port.gbps:g} Gb/s" for port in nic.ports if port.gbps), "")
            self._box("nic", _NIC_X, self._y, _NIC_WIDTH, nic.name, f"{nic.use}{rail}{speed}")
            if row.gpu is not None:
                self._lines.append(f'<path class="near" d="M{_GPU_X + _GPU_WIDTH} {middle}H{_NIC_X}"/>')
                self._text(_GPU_X + _GPU_WIDTH + 6, middle - 4, row.gpu.nic_distance, "small")
            for port in nic.ports:
                self._port(port, middle)
        self._y += _ROW + _GAP

    def _port(self, port: NicPort, middle: int) -> None:
        state = port.health.state
        switches = [each for each in port.neighbours if each.kind != "self"]
        for each in switches:
            self._switch_of.setdefault(_switch(neighbour(each), each.port), []).append((middle, state))
        if not switches:
            start = _NIC_X + _NIC_WIDTH
            self._lines.append(f'<path class="link {state}" d="M{start} {middle}h40"/>')

    def _switches(self) -> None:
        """Draw each switch once, at the height of the middle of its links, none above another."""
        bottom = _MARGIN + 30
        for name, links in sorted(self._switch_of.items(), key=lambda item: sum(y for y, _ in item[1]) / len(item[1])):
            y = max(bottom, sum(y for y, _ in links) // len(links) - _ROW // 2)
            self._box("switch", _SWITCH_X, y, _SWITCH_WIDTH, name, "")
            for start, state in links:
                x, middle = _NIC_X + _NIC_WIDTH, y + _ROW // 2
                bend = (_SWITCH_X - x) // 2
                curve = f"M{x} {start}C{x + bend} {start} {_SWITCH_X - bend} {middle} {_SWITCH_X} {middle}"
                self._lines.append(f'<path class="link {state}" d="{curve}"/>')
            bottom = y + _ROW + _GAP
        self._bottom_of_switches = bottom

    def _findings(self) -> None:
        for finding in self._report.findings:
            self._y += 18
            self._text(_MARGIN, self._y, f"{', '.join(finding.subjects)}: {finding.message}", "fault", 150)

    def _box(self, kind: str, x: int, y: int, width: int, title: str, small: str) -> None:
        self._boxes.append(f'<rect class="box {kind}" x="{x}" y="{y}" width="{width}" height="{_ROW}" rx="5"/>')
        self._text(x + 10, y + (15 if small else 21), title, "title", _LONGEST[kind])
        if small:
            self._text(x + 10, y + 28, small, "small", _LONGEST[kind])

    def _text(self, x: int, y: int, text: str, kind: str, longest: int = 80) -> None:
        text = clean(text)
        text = text if len(text) <= longest else f"{text[: longest - 1]}…"
        self._lines.append(f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>')

    def document(self) -> str:
        """Return the whole picture."""
        height = self._y + _MARGIN
        title = escape(clean(self._report.node))
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
                f'height="{height}" role="img" aria-label="topology of {title}">',
                f"<style>{_STYLE}</style>",
                f'<rect class="bg" width="{_WIDTH}" height="{height}"/>',
                f'<text class="title" x="{_MARGIN}" y="{_MARGIN + 12}">{title}</text>',
                *self._boxes,
                *self._lines,
                "</svg>\n",
            ]
        )


def _switch(label: str, port: str) -> str:
    """Return a switch's name without the port: links to several ports of one lead to one box."""
    return label.removesuffix(f" {clean(port)}") if port else label
