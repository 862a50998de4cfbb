"""What a node can do, and why not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from stokerd.checkpoints import checking
from stokerd.checkpoints.capabilities import Checked, capabilities, problem_of, remedy
from stokerd.checkpoints.errors import CheckpointError
from stokerd.checkpoints.nodes import Ended
from stokerd.images.space import Margins
from stokerd.node.advice import Findings, advise
from stokerd.node.service import with_capabilities
from stokerd.runtime.types import Capability, CgroupMode, RuntimeInfo

INFO = RuntimeInfo(
    endpoint="/run/containerd/containerd.sock",
    name="containerd",
    version="2.1.9",
    api_version="v1",
    pid=7,
    root="/var/lib/containerd",
    state="/run/containerd",
    host_root="",
    snapshotter="overlayfs",
    storage_fs="ext4",
    criu_version="4.2.1",
    runc_version="1.3.6",
    cgroup_mode=CgroupMode.UNIFIED,
    decompressors=("igzip",),
    capabilities=(Capability("pull", available=True), Capability("checkpoint", available=True, detail="CRIU")),
)
GOOD = Checked(lazy=True)


def row(name: str, info: RuntimeInfo = INFO, kernel: str = "6.12.1-amd64", checked: Checked = GOOD) -> Capability:
    return next(each for each in capabilities(info, kernel, checked) if each.name == name)


def test_all_is_there() -> None:
    assert [each.available for each in capabilities(INFO, "6.12", GOOD)] == [True] * 4
    assert row("checkpoint").detail == "CRIU 4.2.1"
    assert remedy(INFO, GOOD) == ""


@pytest.mark.parametrize(
    ("change", "checked", "word"),
    [
        ({"criu_version": ""}, Checked(), "no criu"),
        ({"criu_version": "3.15"}, GOOD, "older than 3.16.0"),
        ({"criu_version": "3.17"}, Checked("unknown vDSO"), "does not work on this kernel: unknown vDSO"),
        ({"snapshotter": "devmapper"}, GOOD, "not on devmapper"),
    ],
)
def test_what_is_missing(change: dict[str, Any], checked: Checked, word: str) -> None:
    info = replace(INFO, **change)
    for name in ("checkpoint", "clone", "clone-lazy"):
        found = row(name, info, checked=checked)
        assert not found.available
        assert word in found.detail
    assert row("commit", info).available
    assert remedy(info, checked)


def test_what_is_there_in_part() -> None:
    old = replace(INFO, criu_version="4.1.1")
    assert "stand longer" in row("checkpoint", old).detail
    assert "no sockets" not in row("checkpoint", old).detail
    assert "no sockets of kernel 6.18" in row("checkpoint", old, "6.18.0").detail
    assert row("clone", checked=Checked(lazy=False)).available
    assert not row("clone-lazy", checked=Checked(lazy=False)).available
    assert row("commit", replace(INFO, snapshotter="zfs")).detail


@pytest.mark.parametrize(
    ("status", "output", "problem"),
    [
        (0, "Looks good.", ""),
        (1, "Warn (criu/x.c:1): eh\nError (criu/vdso.c:643): vdso: Unsupported layout\n", "vdso: Unsupported layout"),
        (1, "odd\n", "odd"),
        (2, "", "it ended with 2"),
        (-11, "", "it was killed by signal 11"),
        (
            1,
            "Error (criu/x.c:179): 2: ptrace(PTRACE_TRACEME) failed: Operation not permitted\nError (criu/y.c:1): no",
            "",
        ),
    ],
)
def test_in_its_own_words(status: int, output: str, problem: str) -> None:
    assert problem_of(status, output) == problem


async def test_asking_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []
    answers = [Ended(0, b"Looks good.", b""), Ended(1, b"", b"no")]

    async def run(_info: RuntimeInfo, argv: Sequence[str], **_: Any) -> Ended:
        asked.append(argv)
        if not answers:
            raise CheckpointError("criu did not end within 10 s")
        return answers.pop(0)

    monkeypatch.setattr(checking, "run_on_node", run)
    assert await checking.check(INFO) == Checked(lazy=False)
    assert await checking.check(INFO) == Checked("criu did not end within 10 s", known=False)
    assert await checking.check(replace(INFO, criu_version="")) == Checked()
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("ended", "checked"),
    [
        (
            Ended(1, b"", b"nsenter: cannot open /proc/7/ns/net: No such file or directory\n"),
            Checked("nsenter", known=False),
        ),
        (Ended(-9, b"", b""), Checked("criu was killed by signal 9", known=False)),
        (Ended(1, b"", b"Error (criu/x.c:1): no\n"), Checked("no")),
    ],
)
@pytest.mark.parametrize("answered", [0, 1])
async def test_what_is_no_answer_of_its_own(
    monkeypatch: pytest.MonkeyPatch, ended: Ended, checked: Checked, answered: int
) -> None:
    answers = [*[Ended(0, b"Looks good.", b"")] * answered, ended]

    async def run(_info: RuntimeInfo, _argv: Sequence[str], **_: Any) -> Ended:
        return answers.pop(0)

    monkeypatch.setattr(checking, "run_on_node", run)
    found = await checking.check(INFO)
    assert found.known is checked.known
    if checked.known and answered:
        assert found == Checked(lazy=False)
    else:
        assert found.problem.startswith(checked.problem)


@pytest.mark.parametrize(("problem", "word"), [("", "has not said yet"), ("no time", "could not be asked.*: no time")])
def test_what_is_not_known_is_not_offered(problem: str, word: str) -> None:
    checked = Checked(problem, known=False)
    for name in ("checkpoint", "clone", "clone-lazy"):
        assert not row(name, checked=checked).available
        assert re.search(word, row(name, checked=checked).detail)
    assert "asks it again" in remedy(INFO, checked)


def test_the_table_and_the_advice() -> None:
    checked = Checked("vdso: Unsupported layout")
    info = with_capabilities(INFO, capabilities(INFO, "6.18", checked))
    assert [each.name for each in info.capabilities] == ["pull", "checkpoint", "clone", "clone-lazy", "commit"]
    margins = Margins(0, 0, 0, 0)
    found = advise(Findings(info, None, margins, 0.0, criu_remedy=remedy(INFO, checked)))
    (advice,) = [each for each in found if each.subject == "CRIU"]
    assert (advice.severity, "Unsupported layout" in advice.message) == ("warning", True)
    assert advice.remedy == "install the package criu, 4.2 or later"
    none = replace(INFO, criu_version="")
    info = with_capabilities(none, capabilities(none, "6.18", Checked()))
    (advice,) = [each for each in advise(Findings(info, None, margins, 0.0)) if each.subject == "CRIU"]
    assert advice.severity == "info"
