"""Distances by the tree of PCIe, rails, and what each interface is for."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.topology import matrix
from stokerd.topology.classes import Decision, Traits, UseRule, decide, keep, ruled
from stokerd.topology.distances import ORDER, Nearest, Place, distance, nearest, rails, table
from stokerd.topology.inventory import take
from stokerd.topology.matrix import Matrix
from stokerd.topology.report import matrix_of
from tests.rig.hardware.machines import h200
from tests.unit.topology.captures import capture
from tests.unit.topology.nodes import observe

ROOT, UP = ("pci0000:10", "0000:10:01.0"), "0000:11:00.0"
GPU = Place((*ROOT, UP, "0000:12:00.0", "0000:13:00.0"), 0)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (GPU, "X"),
        (Place((*ROOT, UP, "0000:12:01.0", "0000:14:00.0"), 0), "PIX"),
        (Place((*ROOT, UP, "0000:12:00.0", "0000:13:00.1"), 0), "PIX"),
        (Place((*ROOT, UP, "0000:12:01.0", "0000:14:00.0", "0000:15:00.0", "0000:16:00.0"), 0), "PXB"),
        (Place(("pci0000:10", "0000:10:02.0", "0000:17:00.0"), 0), "PHB"),
        (Place(("pci0000:20", "0000:20:01.0", "0000:21:00.0"), 0), "NODE"),
        (Place(("pci0000:90", "0000:90:01.0", "0000:91:00.0"), 1), "SYS"),
        (Place(("pci0000:90", "0000:90:01.0", "0000:91:00.0"), None), "SYS"),
    ],
)
def test_the_classes_of_distance(other: Place, expected: str) -> None:
    assert distance(GPU, other) == expected
    assert distance(other, GPU) == expected


def test_with_one_numa_node_nothing_is_across() -> None:
    one, other = Place(("pci0000:10", "0000:10:01.0")), Place(("pci0000:20", "0000:20:01.0"))
    assert distance(one, other, numa_nodes=1) == "NODE"


steps = st.lists(st.integers(0, 2), min_size=1, max_size=6)
places = st.builds(
    lambda path, numa: Place((f"pci{path[0]}", *(f"{depth}.{step}" for depth, step in enumerate(path))), numa),
    steps,
    st.none() | st.integers(0, 1),
)


@given(places, places)
def test_distance_is_the_same_both_ways(one: Place, other: Place) -> None:
    assert distance(one, other) == distance(other, one)
    assert distance(one, other) in ORDER


@given(st.dictionaries(st.text("abc", min_size=1), places, max_size=6))
def test_the_table_is_symmetric_with_selves_on_the_diagonal(named: dict[str, Place]) -> None:
    rows = table(named)
    names = list(named)
    for one, other in itertools.product(range(len(names)), repeat=2):
        assert rows[names[one]][other] == rows[names[other]][one]
        assert (rows[names[one]][other] == "X") >= (one == other)


def test_the_computed_matrix_is_the_published_one() -> None:
    """A machine built like a real H200 gives the matrix that the real one printed, byte for byte."""
    published = capture("topo/nvidia-smi-topo-m-h200-12nic.txt").decode()
    machine = h200()
    seen = observe(machine)
    computed = matrix_of(take(seen), seen)
    names = {name: f"NIC{place}" for place, name in enumerate(computed.devices[8:])}
    devices = tuple(names.get(name, name) for name in computed.devices)
    gpus = devices[:8]
    rows = {device: tuple(row.split()) for device, row in zip(devices, computed.rows, strict=True)}
    cpus = {gpu: machine.cpus[machine.gpus[place].numa] for place, gpu in enumerate(gpus)}
    numa = {gpu: str(machine.gpus[place].numa) for place, gpu in enumerate(gpus)}
    printed = matrix.render(Matrix(devices, rows, cpus, numa))
    assert printed.split("\n")[:21] == published.split("\n")[:21]


def test_rails_follow_the_gpus() -> None:
    def behind(bus: int, slot: int, function: int = 0) -> Place:
        return Place(
            (f"pci0000:{bus}", f"0000:{bus}:01.0", f"0000:{bus + 1}:00.0", f"0000:{bus + 2}:0{slot}.0",
             f"0000:{bus + 3 + slot}:00.{function}"), 0,
        )  # fmt: skip

    gpus = [behind(10, 0), behind(20, 0), behind(30, 0)]
    nics = {"z": behind(10, 1), "b": behind(30, 1), "a": behind(20, 1, 0), "a2": behind(20, 1, 1)}
    assert rails(nics, gpus) == {"z": 0, "a": 1, "a2": 1, "b": 2}
    assert rails({}, gpus) == {}
    assert rails({"b": behind(30, 1)}, gpus) == {"b": 2}  # one that is missing moves no other


def test_rails_of_groups() -> None:
    def behind(bus: int, slot: int) -> Place:
        return Place((f"pci0000:{bus}", f"0000:{bus}:01.0", f"0000:{bus + 1}:00.0", f"0000:{bus + 2}:0{slot}.0",
                      f"0000:{bus + 3 + slot}:00.0"), 0)  # fmt: skip

    shared = [behind(10, 0), behind(10, 1), behind(20, 0), behind(20, 1)]
    two_of_each = {"a": behind(10, 2), "b": behind(10, 3), "c": behind(20, 2), "d": behind(20, 3)}
    assert rails(two_of_each, shared) == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert rails({"a": behind(10, 2), "c": behind(20, 2)}, shared) == {"a": 0, "c": 1}
    single = [behind(10, 0), behind(20, 0)]
    assert rails(two_of_each, single) == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_the_nearest_of_others() -> None:
    near = Place((*ROOT, UP, "0000:12:01.0", "0000:14:00.0"), 0)
    far = Place(("pci0000:90", "0000:90:01.0", "0000:91:00.0"), 1)
    assert nearest(GPU, {"near": near, "far": far}) == Nearest(("near",), "PIX")
    assert nearest(GPU, {"far": far}) == Nearest()
    assert nearest(GPU, {}) == Nearest()


# ---------------------------------------------------------------------------------------------- what for


NEAR = Traits("mlx5_0", ("ib0",), rdma=True, gbps=400, gpus=("GPU0",), gpu_distance="PIX")
FAR = Traits("mlx5_8", ("ens1",), rdma=True, gbps=400, gpus=("GPU0", "GPU1"), gpu_distance="NODE")
SLOW = Traits("eth0", ("eth0",), gbps=25, default_route=True, networks=("10.0.0.5/24",), vlans=(146,))


@pytest.mark.parametrize(
    ("traits", "use", "words"),
    [
        (NEAR, "compute", "GPU0 (PIX)"),
        (FAR, "storage", "mlx5_0 are next to one"),
        (SLOW, "management", "default route"),
        (Traits("eth1", gbps=10), "management", "without RDMA"),
        (Traits("eth1", gbps=100), "unknown", "a rule"),
        (Traits("mlx5_9", rdma=True, virtual=True), "unknown", "virtual"),
        (Traits("mlx5_1", rdma=True, gbps=0, gpus=("GPU1",), gpu_distance="PIX"), "compute", "GPU1 (PIX)"),
    ],
)
def test_what_the_hardware_tells(traits: Traits, use: str, words: str) -> None:
    decision = decide(traits, [NEAR, FAR, SLOW, traits])
    assert decision.use == use
    assert words in decision.reason


def test_without_a_nic_near_a_gpu_the_fastest_are_for_compute() -> None:
    assert decide(FAR, [FAR, SLOW]).use == "compute"
    slower = Traits("mlx5_1", rdma=True, gbps=100, gpus=("GPU0",), gpu_distance="NODE")
    assert decide(slower, [FAR, slower]).use == "unknown"


@pytest.mark.parametrize(
    ("rule", "matching"),
    [
        (UseRule("storage", name="mlx5_*"), {"mlx5_0", "mlx5_8"}),
        (UseRule("storage", name="ens?"), {"mlx5_8"}),
        (UseRule("storage", vlan=146), {"eth0"}),
        (UseRule("storage", least_gbps=100), {"mlx5_0", "mlx5_8"}),
        (UseRule("storage", most_gbps=100), {"eth0"}),
        (UseRule("storage", subnet="10.0.0.0/16"), {"eth0"}),
        (UseRule("storage", subnet="not a subnet"), set()),
        (UseRule("storage", near_gpu=True), {"mlx5_0"}),
        (UseRule("storage", near_gpu=False), {"mlx5_8", "eth0"}),
        (UseRule("storage"), {"mlx5_0", "mlx5_8", "eth0"}),
    ],
)
def test_rules_come_first(rule: UseRule, matching: set[str]) -> None:
    everything = [NEAR, FAR, SLOW]
    ruled = {each.name for each in everything if decide(each, everything, [rule]).reason.startswith("rule 1")}
    assert ruled == matching


def test_the_first_rule_that_matches_counts() -> None:
    decision = decide(NEAR, [NEAR], [UseRule("storage", vlan=1), UseRule("management", name="ib0"), UseRule("storage")])
    assert decision.use == "management"
    assert decision.reason == "rule 2 of the configuration: name ib0"


HARDWARE, OTHER = Decision("compute", "as the hardware tells"), Decision("unknown", "nothing tells what it is for")
FAST, ANY = UseRule("storage", least_gbps=100), UseRule("management")


@pytest.mark.parametrize(
    ("new", "before", "rules", "expected"),
    [
        (OTHER, HARDWARE, (), HARDWARE),
        (HARDWARE, OTHER, (), HARDWARE),
        (ruled(1, ANY), HARDWARE, (ANY,), ruled(1, ANY)),
        (ruled(2, ANY), ruled(1, FAST), (FAST, ANY), ruled(1, FAST)),
        (ruled(1, ANY), ruled(2, FAST), (ANY, FAST), ruled(1, ANY)),
        (OTHER, ruled(1, FAST), (), OTHER),
    ],
)
def test_what_a_link_that_is_down_was_for(
    new: Decision, before: Decision, rules: tuple[UseRule, ...], expected: Decision
) -> None:
    assert keep(new, before, rules) == expected
