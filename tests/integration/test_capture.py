"""Upper directories of real overlay mounts, copied and packed. Needs root, and no node."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The mounts are gone with the namespace that they are made in."""
    scene = [sys.executable, "-m", "tests.integration.overlay_scene", str(tmp_path_factory.mktemp("overlay"))]
    argv = ["unshare", "--mount", "--propagation", "private", *scene]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_copy_means_the_same_on_the_same_parents(outcome: dict[str, Any]) -> None:
    assert outcome["copied"] == []
    assert outcome["merged"] == []
    assert outcome["entries"] > 20
    assert outcome["sparse"] < 1 << 20


def test_a_layer_makes_the_same_tree_of_the_image(outcome: dict[str, Any]) -> None:
    assert outcome["packed"] == []
    assert outcome["stacked"] == []
    assert outcome["skipped"] == ["socket"]
    assert outcome["linked"]


def test_what_overlay_keeps_in_its_own_way_is_told(outcome: dict[str, Any]) -> None:
    redirect, metacopy = outcome["refused"]
    assert "redirect" in redirect
    assert "metacopy" in metacopy
