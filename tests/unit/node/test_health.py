"""Health and readiness from the state of the parts."""

from __future__ import annotations

import pytest

from stokerd.node.health import Part, health_of, readiness_of

FINE = {"images": Part(), "containers": Part()}
LEFT = "what earlier runs left is still being gone through"


@pytest.mark.parametrize(
    ("runtime", "parts", "healthy", "ready"),
    [
        ("", FINE, True, True),
        ("no containerd", FINE, False, False),
        ("", {"images": Part(reconciled=False)}, True, False),
        ("", {"images": Part(failure="failed: ValueError")}, True, False),
        ("", {"images": Part(problem="the journal cannot be written")}, True, True),
        ("", {"images": Part(), "containers": Part(reconciled=False)}, True, False),
        ("no containerd", {"images": Part(failure="failed: ValueError")}, False, False),
    ],
)
def test_what_makes_it_healthy_and_ready(runtime: str, parts: dict[str, Part], healthy: bool, ready: bool) -> None:
    assert health_of(runtime, parts).ok is healthy
    assert readiness_of(runtime, parts).ok is ready


def test_each_part_is_told() -> None:
    parts = {
        "images": Part(failure="failed: ValueError: x", problem="the journal cannot be written"),
        "containers": Part(reconciled=False),
        "sandboxes": Part(problem="no CRIU"),
        "topology": Part(),
    }
    health = health_of("", parts)
    assert health.parts == {
        "runtime": "ok",
        "images": "failed: ValueError: x",
        "containers": "ok",
        "sandboxes": "no CRIU",
        "topology": "ok",
    }
    ready = readiness_of("", parts)
    assert ready.parts == {**health.parts, "containers": LEFT}
    assert ready.message == f"images: failed: ValueError: x; containers: {LEFT}"


def test_an_absent_runtime_is_the_first_thing_to_say() -> None:
    ready = readiness_of("no containerd answers", {"images": Part(reconciled=False)})
    assert ready.message == "no containerd answers"
    assert ready.parts["runtime"] == "no containerd answers"
