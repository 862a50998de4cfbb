"""What people see of a topology: the tree, the matrix, why two devices are so far apart, what changed."""

from __future__ import annotations

from datetime import timedelta
from xml.parsers import expat

import msgspec
import pytest

from stoker import topology_view as view
from stoker.cli.text import Style, width_of
from stoker.objects.topology import TopologyReport
from stoker.topology_svg import svg
from stokerd.topology import matrix as topo
from stokerd.topology.facts import Observation
from stokerd.topology.report import build
from stokerd.topology.settling import changes
from tests.rig.hardware.machines import h100, with_fault
from tests.unit.topology.nodes import CASES, THEN, observe, report_of

PLAIN, ASCII, COLOR = Style(), Style(unicode=False), Style(color=True)


def line_of(report: TopologyReport, word: str) -> str:
    (line,) = [line for line in view.tree(report, PLAIN) if f"{word}  " in line]
    return line.strip("│├└─ ")


def test_the_tree_of_a_node() -> None:
    lines = view.tree(report_of("gb200"), PLAIN)
    assert lines == [
        "gb200-01  4 GPUs · 5 NICs · 2 NUMA nodes · 2 x Arm Neoverse-V2",
        "├─ NUMA 0  CPUs 0-71 · 1008 GiB",
        "│  ├─ GPU0  NVIDIA GB200 · 185 GiB · x16",
        "│  ├─ GPU1  NVIDIA GB200 · 185 GiB · x16",
        "│  ├─ mlx5_0  compute rail 0 · ibp0 400 Gb/s → MF0;ibleaf-01:MQM9700/U1 9",
        "│  ├─ mlx5_1  compute rail 1 · ibp1 400 Gb/s → MF0;ibleaf-02:MQM9700/U1 9",
        "│  └─ enP6p3s0f0  management · 25 Gb/s → leaf-40 Ethernet3",
        "├─ NUMA 1  CPUs 72-143 · 1008 GiB",
        "│  ├─ GPU2  NVIDIA GB200 · 185 GiB · x16",
        "│  ├─ GPU3  NVIDIA GB200 · 185 GiB · x16",
        "│  ├─ mlx5_2  compute rail 2 · ibp2 400 Gb/s → MF0;ibleaf-03:MQM9700/U1 9",
        "│  └─ mlx5_3  compute rail 3 · ibp3 400 Gb/s → MF0;ibleaf-04:MQM9700/U1 9",
        "└─ NVLink domain  all GPUs · 7e3a9c51-2f0d-4b6e-9a51-0c1d2e3f4a5b.2",
    ]


@pytest.mark.parametrize("case", CASES)
def test_every_device_is_in_the_tree_once(case: str) -> None:
    report = report_of(case)
    lines = view.tree(report, PLAIN)
    for name in [*(gpu.name for gpu in report.gpus), *(nic.name for nic in report.nics)]:
        assert sum(f" {name}  " in line for line in lines) == 1, name


def test_nics_stand_below_the_gpu_that_they_are_next_to() -> None:
    lines = view.tree(report_of("h100"), PLAIN)
    place = next(place for place, line in enumerate(lines) if "GPU5" in line)
    assert lines[place + 1].startswith("│  │  └─ PIX mlx5_5  compute rail 5")


@pytest.mark.parametrize(
    ("fault", "device", "words"),
    [
        ("link-down", "mlx5_2", "ibp2 down"),
        ("half-lanes", "mlx5_5", "(2 of 4 lanes, 200 Gb/s, its peers 400)"),
        ("pcie-half-width", "GPU3", "x8 of x16"),
        ("bridge-half-width", "GPU2", "x8 of x16"),
        ("gpu-fault", "GPU0", "4 memory errors"),
    ],
)
def test_faults_are_seen_where_they_are(fault: str, device: str, words: str) -> None:
    assert words in line_of(report_of(f"h100+{fault}"), device)


@pytest.mark.parametrize("case", [case for case in CASES if "+" in case])
def test_faults_are_told_below_with_what_to_do(case: str) -> None:
    report = report_of(case)
    text = "\n".join(view.tree(report, PLAIN))
    for finding in report.findings:
        assert finding.message in text
        assert finding.remedy in text


def test_lines_are_as_wide_as_they_may_be() -> None:
    report = report_of("h100+nic-misplaced")
    assert max(width_of(line) for line in view.tree(report, COLOR, 60)) <= 60


def test_without_unicode_and_with_colour() -> None:
    report = report_of("h100+link-down")
    assert all(line.isascii() for line in view.tree(report, ASCII))
    assert any("\x1b[31mdown\x1b[0m" in line for line in view.tree(report, COLOR))


def test_names_from_the_wire_cannot_draw_on_the_terminal() -> None:
    report = report_of("h100")
    port = report.nics[0].ports[0].neighbours[0]
    port.name, port.port, report.node = "leaf\x1b[2J\x07", "1\n2", "node\x1b[0m"
    assert not any(char in line for line in view.tree(report, PLAIN) for char in "\x1b\x07\n")


def test_a_node_without_anything() -> None:
    assert view.tree(build(Observation("bare"), THEN), PLAIN) == ["bare"]


def test_the_matrix_is_what_nvidia_smi_would_print() -> None:
    report = report_of("h200")
    read = topo.parse("\n".join(view.matrix(report)))
    assert read.devices[:9] == (*(f"GPU{index}" for index in range(8)), "NIC0")
    assert read.between("GPU0", "NIC0") == "PXB"
    assert read.between("GPU0", "GPU1") == "NV18"
    assert read.cpus["GPU7"] == "56-111,168-223"
    assert read.names["NIC11"] == "mlx5_11"
    assert read.unread.count == 0


def test_why_two_devices_are_so_far_apart() -> None:
    assert view.explain(report_of("h200"), "GPU0", "mlx5_0") == [
        "GPU0 - mlx5_0: PXB",
        "  several PCIe switches are between them, but no CPU",
        "  in common  pci0000:10 > 0000:10:01.0 > 0000:11:00.0",
        "  GPU0       0000:12:00.0 > 0000:13:00.0  (NUMA node 0)",
        "  mlx5_0     0000:12:01.0 > 0000:14:00.0 > 0000:15:00.0 > 0000:16:00.0  (NUMA node 0)",
        "  mlx5_0 is for compute: RDMA, with no CPU between it and GPU0 (PXB)",
        "  nearest to GPU0: mlx5_0 (PXB)",
    ]


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("GPU0", "GPU1", "18 NVLinks"),
        ("GPU0", "mlx5_6", "from one NUMA node to another"),
        ("GPU0", "mlx5_3", "within a NUMA node"),
        ("GPU0", "GPU0", "the same device"),
        ("ibp0", "GPU0", "several PCIe switches"),
    ],
)
def test_each_kind_of_way_is_explained(one: str, other: str, words: str) -> None:
    assert words in "\n".join(view.explain(report_of("h200"), one, other))


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(view.UnknownDevice, match=r"no GPU9 here; there are: GPU0, .*mlx5_11"):
        view.explain(report_of("h200"), "GPU9", "mlx5_0")


def test_what_lies_on_the_way_is_told() -> None:
    report = report_of("h100")
    report.gpus[0].pcie = msgspec.structs.replace(report.gpus[0].pcie, acs_redirects=True, narrowest="0000:11:00.0 x8")
    text = "\n".join(view.explain(report, "GPU0", "mlx5_0"))
    assert "access control on the way to GPU0" in text
    assert "0000:11:00.0 x8 is on the way to GPU0" in text


def test_changes_are_lines() -> None:
    old = build(observe(h100()), THEN)
    new = build(observe(with_fault(h100(), "link-down")), THEN + timedelta(minutes=1), old)
    lines = [view.change_line(change, PLAIN) for change in changes(old, new)]
    assert any("~ nic mlx5_2 port 1 state active → down" in line for line in lines)
    assert any("- nic mlx5_2 port 1 neighbour" in line for line in lines)
    assert any("+ finding LinkDown mlx5_2  port 1 of mlx5_2 (compute) is down" in line for line in lines)
    assert max(map(len, lines)) < 200


# ---------------------------------------------------------------------------------------------- the picture


def texts(picture: str) -> list[str]:
    """Return the texts of a picture, which must be well-formed."""
    found: list[str] = []
    parser = expat.ParserCreate()
    inside: list[str] = []
    parser.StartElementHandler = lambda name, _: inside.append(name)
    parser.EndElementHandler = lambda _: inside.pop()
    parser.CharacterDataHandler = lambda text: found.append(text) if inside[-1] == "text" else None
    parser.buffer_text = True
    parser.Parse(picture, True)
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_picture_has_every_device_and_every_switch_once(case: str) -> None:
    report = report_of(case)
    shown = texts(svg(report))
    for name in [*(gpu.name for gpu in report.gpus), *(nic.name for nic in report.nics)]:
        assert shown.count(name) == 1, name
    switches = {each.name for nic in report.nics for port in nic.ports for each in port.neighbours}
    for name in switches:
        assert shown.count(name) == 1, name
    assert sum(": " in text for text in shown) == len(report.findings)


def test_a_link_that_is_down_is_drawn_so() -> None:
    assert 'class="link down"' in svg(report_of("h100+link-down"))
    assert 'class="link down"' not in svg(report_of("h100"))


def test_names_from_the_wire_cannot_draw_in_the_picture() -> None:
    report = report_of("h100")
    report.nics[0].ports[0].neighbours[0].name = "</text><script>alert(1)</script>&\x1b\x00"
    picture = svg(report)
    assert "<script" not in picture
    assert any("<script>" in text for text in texts(picture))


def test_the_picture_of_a_node_without_anything() -> None:
    assert texts(svg(build(Observation("bare"), THEN))) == ["bare"]
