"""Operations and requests, as values."""

from __future__ import annotations

from dataclasses import replace as with_settings
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.objects.checkpoints import CheckpointInfo, CheckpointRequest, CloneFile, CloneRequest, CommitRequest
from stoker.objects.containers import EnvVar
from stokerd.checkpoints import asking, operations
from stokerd.checkpoints.errors import CheckpointRefused
from stokerd.checkpoints.retaining import limits_of
from stokerd.checkpoints.retention import Limits
from stokerd.checkpoints.targets import Target, shown
from stokerd.errors import InvalidInput, LimitExceeded, StokerError
from stokerd.settings import CheckpointSettings

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
INFO = CheckpointInfo(id="cp-1")


def begun(kind: Any = "Checkpoint", desired: int = 1) -> Any:
    made = operations.new("op-1", kind, request="", subject="web", now=NOW, desired=desired)
    return operations.begun(made, NOW)


def test_steps() -> None:
    one = operations.at_step(begun(), "freezing", NOW)
    assert operations.at_step(one, "freezing", NOW) is one
    two = operations.at_step(one, "dumping", NOW + timedelta(seconds=1))
    assert [step.name for step in two.steps] == ["freezing", "dumping"]
    assert not operations.ended(two)


def test_a_failure_has_all_of_the_error() -> None:
    error = CheckpointRefused("no", causes=("one", "two"), hint="do that")
    told = operations.failed(begun(), error, NOW)
    assert (told.phase, told.reason, told.causes, told.hint) == (
        "Failed",
        "CheckpointRefused",
        ["one", "two"],
        "do that",
    )


@given(st.lists(st.text(min_size=4), min_size=1), st.text())
def test_no_secret_is_in_a_message(secrets: list[str], around: str) -> None:
    error = StokerError(around.join(secrets), hint="".join(secrets))
    told = operations.failed(begun("Clone"), error, NOW, secrets)
    shown = told.message.replace("[hidden]", "\0") + told.hint.replace("[hidden]", "\0")
    longest = max(secrets, key=len)
    assert longest not in shown or longest in around


@pytest.mark.parametrize(
    ("kind", "desired", "cancelled", "found", "phase", "reason"),
    [
        ("Checkpoint", 1, False, 1, "Succeeded", ""),
        ("Checkpoint", 1, True, 1, "Succeeded", ""),
        ("Checkpoint", 1, False, 0, "Failed", "Interrupted"),
        ("Checkpoint", 2, False, 1, "Failed", "Interrupted"),
        ("Checkpoint", 2, False, 2, "Succeeded", ""),
        ("Checkpoint", 1, True, 0, "Failed", "Cancelled"),
        ("Commit", 1, False, 0, "Failed", "Interrupted"),
        ("Clone", 3, False, 0, "Failed", "Interrupted"),
    ],
)
def test_what_stokerd_did_not_see_the_end_of(
    kind: Any, desired: int, cancelled: bool, found: int, phase: str, reason: str
) -> None:
    operation = begun(kind, desired)
    operation.cancelled = cancelled
    told = operations.recovered(operation, [INFO] * found, NOW)
    assert (told.phase, told.reason, told.finished_at) == (phase, reason, NOW)


CHECKPOINTS: list[dict[str, Any]] = [
    {"name": "a/b"},
    {"name": " a"},
    {"name": "a\x1b[2J"},
    {"name": "a" * 300},
    {"request": "a/b"},
    {"containers": ["a", "a"]},
    {"containers": [""]},
    {"labels": {"": "a"}},
    {"labels": {"stoker.dev/operation": "op-1"}},
    {"labels": {"a": "b" * 2000}},
    {"labels": {str(number): "" for number in range(100)}},
    {"timeout_seconds": 0.0},
    {"timeout_seconds": float("nan")},
]
CLONES: list[dict[str, Any]] = [
    {"checkpoint": ""},
    {"count": 0},
    {"hostname": "a b"},
    {"hostname": "a" * 64},
    {"env": [EnvVar(name="A=B", value="hush")]},
    {"env": [EnvVar(name="A")]},
    {"env": [EnvVar(name="A", value="hush\0")]},
    {"env": [EnvVar(name="A", value="hush"), EnvVar(name="A", value="hush")]},
    {"files": [CloneFile(path="a", content=b"")]},
    {"files": [CloneFile(path="/a/../../b", content=b"")]},
    {"files": [CloneFile(path="/a/", content=b"")]},
    {"files": [CloneFile(path="/a\0", content=b"")]},
    {"hook": ["a\0"]},
]


@pytest.mark.parametrize("wrong", CHECKPOINTS)
def test_checkpoints_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        asking.check_checkpoint(CheckpointRequest(pod="web", **wrong))


@pytest.mark.parametrize("wrong", CLONES)
def test_clones_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        asking.check_clone(CloneRequest(**({"checkpoint": "a"} | wrong)), 10)
    assert "hush" not in caught.value.message


def test_what_makes_sense() -> None:
    asking.check_checkpoint(CheckpointRequest(pod="web", name="first", labels={"a": "b"}, timeout_seconds=10))
    good = CloneRequest(checkpoint="a", count=2, hostname="agent", env=[EnvVar(name="A", value="")])
    asking.check_clone(good, 10)
    assert [asking.hostname_of(good, number) for number in (1, 2)] == ["agent-1", "agent-2"]
    with pytest.raises(LimitExceeded):
        asking.check_clone(good, 1)
    with pytest.raises(InvalidInput):
        asking.check_commit(CommitRequest(container="a", image="b", message="c" * 5000))


def test_digests_tell_content_apart_and_nothing_else() -> None:
    one, other = CheckpointRequest(pod="a"), CheckpointRequest(pod="b")
    assert asking.digest_of("Checkpoint", one, b"x" * 8) == asking.digest_of("Checkpoint", one, b"x" * 8)
    several = {
        asking.digest_of("Checkpoint", one, b"x" * 8),
        asking.digest_of("Checkpoint", other, b"x" * 8),
        asking.digest_of("Verify", one, b"x" * 8),
        asking.digest_of("Checkpoint", one, b"y" * 8),
    }
    assert len(several) == 4


def test_names_for_people() -> None:
    one, two = Target("1", "a", "web", "ns"), Target("2", "b", "web", "ns")
    assert shown([one]) == "ns/web/a"
    assert shown([one, two]) == "ns/web: a, b"
    assert shown([one, Target("3")]) == "a, 3"
    assert Target("3").shown == "3"


def test_limits() -> None:
    settings = CheckpointSettings()
    assert limits_of(settings) == Limits()
    assert limits_of(with_settings(settings, keep_for=60.0, keep_count=2, keep_bytes=3)) == Limits(
        timedelta(minutes=1), 2, 3
    )
