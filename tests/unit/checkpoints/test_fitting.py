"""What cannot be restored on a node is told before CRIU tries."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stokerd.checkpoints.fitting import misfits
from stokerd.checkpoints.manifest import Node

MADE = Node("6.1.0", "x86_64", "avx2 fpu ibrs md_clear sse4_2", "4.1.1", "1.1.15", "1.7.24")


@pytest.mark.parametrize(
    ("here", "word"),
    [
        (MADE, ""),
        (replace(MADE, kernel="6.18.0", runc="1.3.6", containerd="2.1.9", criu="4.2.1"), ""),
        (replace(MADE, criu="4.1"), ""),
        (replace(MADE, cpu_features="avx2 fpu sse4_2 avx512f"), ""),  # mitigations do not count
        (replace(MADE, cpu_features=""), ""),
        (replace(MADE, criu=""), "no criu"),
        (replace(MADE, criu="3.15"), "too old"),
        (replace(MADE, criu="4.0"), "by CRIU 4.1.1"),
        (replace(MADE, criu="3.17.1"), "install CRIU 4.1"),
        (replace(MADE, architecture="aarch64"), "made on x86_64, this node is aarch64"),
        (replace(MADE, cpu_features="fpu sse4_2"), "avx2"),
    ],
)
def test_table(here: Node, word: str) -> None:
    found = misfits(MADE, here)
    assert bool(found) is bool(word)
    assert word in " ".join(f"{each.message} {each.hint}" for each in found)


def test_what_is_not_known_of_it_is_no_obstacle() -> None:
    assert misfits(Node("", "", "", "", "", ""), MADE) == ()


def test_on_arm_all_features_count() -> None:
    made = replace(MADE, architecture="aarch64", cpu_features="asimd sve")
    (found,) = misfits(made, replace(made, cpu_features="asimd"))
    assert "sve" in found.message
