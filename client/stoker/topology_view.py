"""A node's topology as lines of text: a tree, the matrix of distances, why two devices are so far apart, what changed.

Pure functions of a report; nothing here knows a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.cli.text import Color, Style, clean, shorten_end
from stoker.objects.topology import (
    Disk,
    Gpu,
    Nic,
    NicPort,
    PcieInfo,
    PortNeighbour,
    TopologyChange,
    TopologyFinding,
    TopologyReport,
)
from stoker.units import format_size

_NEAR = frozenset(("PIX", "PXB"))
_MEANINGS = {
    "X": "it is the same device",
    "PIX": "one PCIe switch (or bridge) is between them",
    "PXB": "several PCIe switches are between them, but no CPU",
    "PHB": "traffic goes through the CPU's PCIe host bridge",
    "NODE": "traffic goes from one host bridge to another, within a NUMA node",
    "SYS": "traffic goes from one NUMA node to another",
}
_COLORS: dict[str, Color] = {"healthy": "green", "degraded": "yellow", "down": "red", "unknown": "dim"}
_LEGEND = (
    ("X", "Self"),
    ("SYS", "between NUMA nodes"),
    ("NODE", "between the PCIe host bridges of a NUMA node"),
    ("PHB", "through a PCIe host bridge"),
    ("PXB", "through several PCIe bridges, and no host bridge"),
    ("PIX", "through one PCIe bridge"),
    ("NV#", "by # bonded NVLinks"),
    ("XGMI", "by an XGMI link"),
)


class UnknownDevice(LookupError):
    """The report has no device of that name."""


class _Item:
    """A line of the tree, and what is below it."""

    def __init__(self, text: str, below: Iterable[_Item] = ()) -> None:
        self.text = text
        self.below = list(below)


# ---------------------------------------------------------------------------------------------- the tree


def tree(report: TopologyReport, style: Style, width: int | None = None) -> list[str]:
    """Return the node as a tree: NUMA nodes, their GPUs with the NICs next to these, the other NICs; then its faults.

    *width*: columns that a line may have; None: as many as it takes.
    """
    lines = [_head(report, style)]
    items = [*_numa_items(report, style), *_domain_items(report, style), *_content_items(report, style)]
    for place, item in enumerate(items):
        lines += _drawn(item, "", last=place == len(items) - 1, style=style)
    if report.findings:
        lines += ["", *findings(report.findings, style)]
    return [shorten_end(line, width, style) if width else line for line in lines]


def _head(report: TopologyReport, style: Style) -> str:
    counts = (
        (len(report.gpus), "GPU"),
        (len(report.nics), "NIC"),
        (len(report.numa), "NUMA node"),
    )
    parts = [f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts if count]
    if report.cpu is not None and report.cpu.model:
        parts.append(f"{report.cpu.sockets or 1} x {clean(report.cpu.model)}")
    parts += [f"{key} {clean(value)}" for key, value in (*report.placement.items(), *report.labels.items())]
    return f"{style.paint(clean(report.node), 'bold')}  {style.separator.join(parts)}".rstrip()


def _numa_items(report: TopologyReport, style: Style) -> list[_Item]:
    """Return an item for each NUMA node, and one for what belongs to none."""
    with_gpus = {nic.name: nic for nic in report.nics if nic.gpu_distance in _NEAR}
    numbers: list[int | None] = [node.id for node in report.numa]
    numbers += sorted({number for gpu in report.gpus if (number := gpu.pcie.numa) is not None} - set(numbers))
    items = []
    for number in (*numbers, None):
        gpus = [gpu for gpu in report.gpus if gpu.pcie.numa == number]
        nics = [nic for nic in report.nics if _numa(nic) == number and nic.name not in with_gpus]
        if number is None and not gpus and not nics and not any(disk.numa is None for disk in report.disks):
            continue
        drawn: set[str] = set()
        below = []
        for gpu in gpus:
            beside = [with_gpus[name] for name in gpu.nics if name in with_gpus and name not in drawn]
            drawn |= {nic.name for nic in beside}
            below.append(_Item(_gpu_text(gpu, style), (_Item(_nic_text(nic, style, gpu)) for nic in beside)))
        below += [_Item(_nic_text(nic, style)) for nic in nics]
        below += [_Item(text) for text in _disk_texts(report.disks, number, style)]
        # NICs near a GPU of which the report says that others are nearer.
        shown = {name for gpu in report.gpus for name in gpu.nics}
        below += [_Item(_nic_text(nic, style)) for nic in with_gpus.values()
                  if _numa(nic) == number and nic.name not in shown]  # fmt: skip
        items.append(_Item(_numa_text(report, number, style), below))
    return items


def _disk_texts(disks: Sequence[Disk], number: int | None, style: Style) -> list[str]:
    """Return a line for each kind of disk of a NUMA node."""
    kinds: dict[tuple[str, int, bool], list[str]] = {}
    for disk in disks:
        if disk.numa == number:
            kinds.setdefault((clean(disk.model), disk.bytes, disk.rotational), []).append(clean(disk.name))
    return [
        f"{style.paint(', '.join(names), 'cyan')}  {style.separator.join(filter(None, (format_size(size), model)))}"
        for (model, size, _), names in kinds.items()
    ]


def _numa(nic: Nic) -> int | None:
    return nic.pcie.numa if nic.pcie is not None else None


def _numa_text(report: TopologyReport, number: int | None, style: Style) -> str:
    if number is None:
        return style.paint("no NUMA node", "bold")
    node = next((node for node in report.numa if node.id == number), None)
    parts = [f"CPUs {node.cpus}", format_size(node.memory_bytes)] if node is not None else []
    return f"{style.paint(f'NUMA {number}', 'bold')}  {style.separator.join(filter(None, parts))}".rstrip()


def _gpu_text(gpu: Gpu, style: Style) -> str:
    parts = [
        clean(gpu.model),
        format_size(gpu.memory_bytes) if gpu.memory_bytes else "",
        _lanes(gpu.pcie, style),
        f"MIG {gpu.mig.lower()}" if gpu.mig and gpu.mig != "Disabled" else "",
        _nvlinks(gpu, style),
        style.paint(f"{gpu.ecc_uncorrected} memory errors", "red") if gpu.ecc_uncorrected else "",
        style.paint(", ".join(f"Xid {each.xid}" for each in gpu.xids), "yellow") if gpu.xids else "",
        style.paint(", ".join(gpu.throttled), "yellow") if gpu.throttled else "",
    ]
    return f"{style.paint(gpu.name, 'cyan')}  {style.separator.join(filter(None, parts))}"


def _nvlinks(gpu: Gpu, style: Style) -> str:
    links = sum(end.links for end in gpu.nvlinks)
    if gpu.nvlinks_down:
        return style.paint(f"{links} of {links + gpu.nvlinks_down} NVLinks", "yellow")
    return f"{links} NVLinks" if links else ""


def _lanes(place: PcieInfo, style: Style) -> str:
    if place.width is None:
        return ""
    if place.width_max and place.width < place.width_max:
        return style.paint(f"x{place.width} of x{place.width_max}", "yellow")
    return style.paint(f"behind {place.narrowest}", "yellow") if place.narrowest else f"x{place.width}"


def _nic_text(nic: Nic, style: Style, gpu: Gpu | None = None) -> str:
    distance = f"{gpu.nic_distance} " if gpu is not None else ""
    parts = [
        nic.use + (f" rail {nic.rail}" if nic.rail is not None else ""),
        _lanes(nic.pcie, style) if nic.pcie is not None and (nic.pcie.width or 16) < (nic.pcie.width_max or 0) else "",
        f"virtual function of {nic.virtual_of}" if nic.virtual_of else "",
        *(_port_text(nic, port, style) for port in nic.ports),
    ]
    if not nic.ports:
        parts.append(style.paint(nic.use_reason, "yellow"))
    name = style.paint(clean(nic.name), "cyan")
    return f"{style.paint(distance, 'dim')}{name}  {style.separator.join(filter(None, parts))}"


def _port_text(nic: Nic, port: NicPort, style: Style) -> str:
    netdev = f"{port.netdev} " if port.netdev and port.netdev != nic.name else ""
    number = f"port {port.number} " if len(nic.ports) > 1 else ""
    speed = f"{port.gbps:g} Gb/s" if port.gbps else port.state
    health = ", ".join(port.health.reasons)
    state = style.paint(speed, _COLORS[port.health.state]) + (f" ({clean(health)})" if health else "")
    neighbours = ", ".join(neighbour(each) for each in port.neighbours)
    return f"{number}{netdev}{state}" + (f" {style.arrow} {neighbours}" if neighbours else "")


def neighbour(found: PortNeighbour) -> str:
    """Return what to call whoever is at the other end: a switch by its name and port, others with what they are."""
    name = clean(found.name or found.chassis)
    port = f" {clean(found.port)}" if found.port else ""
    return f"{name}{port}" + ("" if found.kind == "switch" else f" [{found.kind}]")


def _domain_items(report: TopologyReport, style: Style) -> list[_Item]:
    items = []
    for domain in report.domains:
        gpus = _range(domain.gpus, report)
        text = f"none: {clean(domain.refused)}" if domain.refused else clean(domain.name)
        items.append(_Item(f"{style.paint('NVLink domain', 'bold')}  {gpus}{style.separator}{text}"))
    return items


def _content_items(report: TopologyReport, style: Style) -> list[_Item]:
    """Return what is on the node already, in numbers."""
    if report.images is None or report.pods is None:
        return []
    images, pods = report.images, report.pods
    text = style.separator.join(
        (
            f"{images.total} image{'' if images.total == 1 else 's'} ({format_size(images.bytes)})",
            f"{pods.total} pod{'' if pods.total == 1 else 's'}",
        )
    )
    return [_Item(f"{style.paint('on it', 'bold')}  {text}")]


def _range(names: Sequence[str], report: TopologyReport) -> str:
    return "all GPUs" if len(names) == len(report.gpus) and len(names) > 1 else ", ".join(names)


def _drawn(item: _Item, indent: str, *, last: bool, style: Style) -> list[str]:
    if style.unicode:
        branch, below = ("└─ ", "   ") if last else ("├─ ", "│  ")
    else:
        branch, below = ("`- ", "   ") if last else ("|- ", "|  ")
    lines = [f"{indent}{branch}{item.text}"]
    for place, child in enumerate(item.below):
        lines += _drawn(child, indent + below, last=place == len(item.below) - 1, style=style)
    return lines


def findings(found: Sequence[TopologyFinding], style: Style) -> list[str]:
    """Return the faults, each with what to do."""
    marks = {"error": style.bad, "warning": style.warning, "info": style.none}
    lines = []
    for each in found:
        subjects = ", ".join(each.subjects)
        lines.append(f"{marks[each.severity]} {style.paint(clean(subjects), 'bold')}: {clean(each.message)}")
        if each.remedy:
            lines.append(f"  {style.paint(clean(each.remedy), 'dim')}")
    return lines


# ---------------------------------------------------------------------------------------------- distances


def matrix(report: TopologyReport) -> list[str]:
    """Return the table of distances as ``nvidia-smi topo -m`` prints it, with its legends."""
    gpus = {gpu.name: gpu for gpu in report.gpus}
    nics = [name for name in report.matrix.devices if name not in gpus]
    short = {name: f"NIC{place}" for place, name in enumerate(nics)}
    names = [short.get(name, name) for name in report.matrix.devices]
    lines = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity"])]
    cpus = {node.id: node.cpus for node in report.numa}
    for device, name, row in zip(report.matrix.devices, names, report.matrix.rows, strict=True):
        cells = [" X " if cell == "X" else cell for cell in row.split()]
        line = "\t".join([name, *cells])
        if device in gpus:
            numa = gpus[device].pcie.numa
            line += f"\t{cpus.get(numa, 'N/A') if numa is not None else 'N/A'}\t{'N/A' if numa is None else numa}"
        lines.append(line)
    lines += ["", "Legend:", "", *(f"  {cell:<4} = {meaning}" for cell, meaning in _LEGEND)]
    if nics:
        lines += ["", "NIC Legend:", "", *(f"  {short[name]}: {name}" for name in nics)]
    return lines


def explain(report: TopologyReport, one: str, other: str) -> list[str]:
    """Return why two devices are as far apart as they are, step by step; UnknownDevice."""
    places = _places(report)
    for name in (one, other):
        if name not in places:
            raise UnknownDevice(f"there is no {name} here; there are: {', '.join(places)}")
    mine, its = places[one], places[other]
    cell = _cell(report, one, other)
    lines = [f"{one} - {other}: {cell}" if cell else f"{one} - {other}"]
    if cell.startswith("NV"):
        lines.append(f"  {cell[2:]} NVLinks join them; by PCIe:")
    elif cell == "XGMI":
        lines.append("  an XGMI link joins them; by PCIe:")
    elif cell in _MEANINGS:
        lines.append(f"  {_MEANINGS[cell]}")
    shared = 0
    while shared < min(len(mine.path), len(its.path)) and mine.path[shared] == its.path[shared]:
        shared += 1
    if shared:
        lines.append(f"  in common  {' > '.join(mine.path[:shared])}")
    width = max(len(one), len(other), len("in common"))
    for name, place in ((one, mine), (other, its)):
        rest = place.path[shared:]
        numa = "" if place.numa is None else f"  (NUMA node {place.numa})"
        lines.append(f"  {name:<{width}}  {' > '.join(rest) if rest else 'the last of these'}{numa}")
    lines += _remarks(report, one, other)
    return lines


def _remarks(report: TopologyReport, one: str, other: str) -> list[str]:
    """Return what else is to be known of the way between two devices."""
    remarks = []
    for name, place in _places(report).items():
        if name in {one, other}:
            if place.acs_redirects:
                remarks.append(f"  access control on the way to {name} sends traffic up to the CPU")
            if place.narrowest:
                remarks.append(f"  the bridge {place.narrowest} is on the way to {name}")
    for nic in report.nics:
        if nic.name in {one, other}:
            remarks.append(f"  {nic.name} is for {nic.use}: {clean(nic.use_reason)}")
    for gpu in report.gpus:
        if gpu.name in {one, other} and gpu.nics:
            remarks.append(f"  nearest to {gpu.name}: {', '.join(gpu.nics)} ({gpu.nic_distance})")
    return remarks


def _places(report: TopologyReport) -> dict[str, PcieInfo]:
    places = {gpu.name: gpu.pcie for gpu in report.gpus}
    for nic in report.nics:
        if nic.pcie is not None:
            places[nic.name] = nic.pcie
            for port in nic.ports:
                if port.netdev:
                    places.setdefault(port.netdev, nic.pcie)
    return places


def distance(report: TopologyReport, one: str, other: str) -> str:
    """Return the class of the way between two devices; empty where the matrix does not have both."""
    return _cell(report, one, other)


def _cell(report: TopologyReport, one: str, other: str) -> str:
    devices = report.matrix.devices
    names = {port.netdev: nic.name for nic in report.nics for port in nic.ports if port.netdev}
    one, other = names.get(one, one), names.get(other, other)
    if one not in devices or other not in devices:
        return ""
    return report.matrix.rows[devices.index(one)].split()[devices.index(other)]


# ---------------------------------------------------------------------------------------------- changes


def change_line(change: TopologyChange, style: Style) -> str:
    """Return one change as a line, for whoever watches."""
    at = change.at.astimezone().strftime("%H:%M:%S")
    subject = style.paint(clean(change.subject), "cyan")
    if change.kind == "added":
        text = f"{style.paint('+', 'green')} {subject}" + (f"  {clean(change.after)}" if change.after else "")
    elif change.kind == "removed":
        text = f"{style.paint('-', 'red')} {subject}" + (f"  {clean(change.before)}" if change.before else "")
    else:
        before, after = clean(change.before) or style.none, clean(change.after) or style.none
        values = f" {before} {style.arrow} {after}" if change.before or change.after else " changed"
        text = f"{style.paint('~', 'yellow')} {subject} {change.field}{values}"
    return f"{style.paint(at, 'dim')} {text}"
