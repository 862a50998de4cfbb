from __future__ import annotations

import os
from pathlib import Path

import pytest

from stokerd.images.pressure import PressureGauge, file_system, io_pressure, io_stall_seconds


def psi(path: Path, *, total: int = 0, avg10: str = "12.34") -> Path:
    path.write_text(
        f"some avg10={avg10} avg60=1.00 avg300=0.50 total={total}\nfull avg10=9.99 avg60=9.99 avg300=9.99 total=999\n"
    )
    return path


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_what_the_kernel_says(tmp_path: Path) -> None:
    path = psi(tmp_path / "io", total=2_500_000)
    assert io_pressure(path) == 12.34
    assert io_stall_seconds(path) == 2.5
    assert io_pressure(psi(path, avg10="0.00")) == 0.0
    assert io_pressure(psi(path, avg10="100.00")) == 100.0


@pytest.mark.parametrize(
    "text", ["", "full avg10=1.00 avg60=0 avg300=0 total=5\n", "garbage\n", "some avg10= total=\n"]
)
def test_a_kernel_that_says_something_else_is_not_guessed_at(tmp_path: Path, text: str) -> None:
    path = tmp_path / "io"
    path.write_text(text)
    assert io_pressure(path) is None
    assert io_stall_seconds(path) is None


async def test_a_kernel_without_pressure_information(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        assert io_pressure(path) is None
        assert io_stall_seconds(path) is None
        assert await PressureGauge(path).read() is None


async def test_the_gauge_begins_with_the_kernels_average_and_goes_on_with_what_it_saw_itself(tmp_path: Path) -> None:
    path, clock = psi(tmp_path / "io", total=0, avg10="80.00"), Clock()
    gauge = PressureGauge(path, clock)
    assert await gauge.read() == 80.0
    clock.now += 1.0
    psi(path, total=250_000, avg10="80.00")
    assert await gauge.read() == 25.0  # a quarter of the last second: the average is an echo
    clock.now += 2.0
    assert await gauge.read() == 0.0


async def test_two_looks_in_quick_succession_are_one(tmp_path: Path) -> None:
    path, clock = psi(tmp_path / "io", total=0), Clock()
    gauge = PressureGauge(path, clock)
    await gauge.read()
    clock.now += 1.0
    psi(path, total=500_000)
    assert await gauge.read() == 50.0
    clock.now += 0.01
    psi(path, total=510_000)
    assert await gauge.read() == 50.0


async def test_a_gauge_that_was_not_read_for_long_begins_anew(tmp_path: Path) -> None:
    path, clock = psi(tmp_path / "io", total=0), Clock()
    gauge = PressureGauge(path, clock)
    await gauge.read()
    clock.now += 60.0
    psi(path, total=60_000_000, avg10="3.00")
    assert await gauge.read() == 3.0
    clock.now += 1.0
    psi(path, total=62_000_000)
    assert await gauge.read() == 100.0  # never more than all of the time


def test_the_state_of_a_file_system(tmp_path: Path) -> None:
    found = file_system(str(tmp_path))
    state = os.statvfs(tmp_path)
    assert found.path == str(tmp_path)
    assert 0 < found.free_bytes <= found.total_bytes == state.f_blocks * state.f_frsize
    assert 0 <= found.free_inodes <= found.total_inodes == state.f_files


def test_a_file_system_is_seen_through_the_runtimes_root(tmp_path: Path) -> None:
    (tmp_path / "var/lib/containerd").mkdir(parents=True)
    found = file_system("/var/lib/containerd", host_root=str(tmp_path))
    assert found.path == "/var/lib/containerd"
    assert found.total_bytes > 0


def test_a_file_system_that_cannot_be_asked_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file_system(str(tmp_path / "missing"))
