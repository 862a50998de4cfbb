"""``stoker apply``."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from stoker.cli import exits
from stoker.objects.containers import PlannedStep, RecreateStatus
from stoker.objects.images import ImagePlan, Plan
from stokerd import errors
from tests.unit.api.fake_containers import broken, container, done, pod
from tests.unit.api.fakes import failed, normal
from tests.unit.client.commands import Outcome, Run
from tests.unit.client.served import Served

WEB = "default/web-0"
RESTART = """\
apiVersion: apps.kruise.io/v1beta1
kind: ContainerRecreateRequest
metadata: {name: restart, namespace: default}
spec:
  podName: web-0
  containers: [{name: main}, {name: side}]
"""
JOB = """\
apiVersion: apps.kruise.io/v1beta1
kind: ImagePullJob
metadata: {name: base}
spec: {image: nginx, parallelism: 2}
"""


@pytest.fixture(autouse=True)
def node(daemon: Served) -> None:
    daemon.api.containers.all_pods = [pod(WEB, container("main", WEB, attempt=2), container("side", WEB))]


@pytest.fixture
def both(tmp_path: Path) -> str:
    file = tmp_path / "both.yaml"
    file.write_text(f"{RESTART}---\n{JOB}")
    return str(file)


def play(daemon: Served, *, fail: str = "") -> None:
    def go(status: RecreateStatus) -> None:
        ended = [broken(one, hint="look") if one.name == fail else done(one) for one in status.containers]
        daemon.api.containers.finish(status.id, "Failed" if fail else "Succeeded", *ended)

    daemon.api.containers.on_follow = go


def test_a_line_for_each_object(daemon: Served, run: Run, both: str) -> None:
    result = run("apply", "-f", both)
    assert result.code == 0
    assert result.lines == [
        "ContainerRecreateRequest 'restart'  request r0001: default/web-0, 2 containers",
        "ImagePullJob 'base'  job j0001: 1 image",
    ]
    assert result.err.startswith(f"stoker: warning: {both}:11: ImagePullJob 'base': spec.parallelism is not honoured")
    assert run("apply", "-f", both).lines[0] == result.lines[0]  # the same request
    documents = run("apply", "-f", both, "--json").out
    assert [json.loads(part)["id"] for part in documents.replace("}\n{", "}\n\0{").split("\0")] == ["r0001", "j0003"]


def test_waiting(daemon: Served, run: Run, both: str) -> None:
    play(daemon)
    daemon.api.images.on_follow = daemon.api.images.succeed_all
    result = run("apply", "-f", both, "--wait")
    assert result.code == 0
    assert sorted(result.lines[2:]) == [
        "✓ ContainerRecreateRequest 'restart'  succeeded",
        "✓ ImagePullJob 'base'  succeeded",
    ]


def test_waiting_for_what_fails(daemon: Served, run: Run, both: str) -> None:
    play(daemon, fail="side")
    daemon.api.images.on_follow = lambda job: daemon.api.images.update(job.id, failed("nginx"))
    result = run("apply", "-f", both, "--wait")
    assert result.code == exits.FAILED
    text = "\n".join(result.lines[2:])
    assert (
        "✗ ContainerRecreateRequest 'restart'  failed\n"
        "  ✗ side  ExitedEarly: it ended with exit code 1; rolled back, attempt 0 → 2, down 420ms\n"
        "      hint: look"
    ) in text
    assert f"✗ ImagePullJob 'base'  failed\n  ✗ {normal('nginx')}  NotFound: no such image (3 attempts)" in text
    documents = run("apply", "-f", both, "--wait", "--json").out
    assert documents.count('"state": "Failed"') == 1
    assert documents.count('"result": "Failed"') == 1


def test_an_object_that_is_refused_does_not_keep_the_others_back(daemon: Served, run: Run, both: str) -> None:
    daemon.api.containers.failures["recreate"] = errors.Conflict("restart is another request", hint="rename it")
    result = run("apply", "-f", both)
    assert result.code == exits.REFUSED
    assert result.lines == ["ImagePullJob 'base'  job j0001: 1 image"]
    assert (
        f"stoker: {both}:2: ContainerRecreateRequest 'restart': restart is another request\nhint: rename it\n"
    ) in result.err


def test_nothing_is_applied_when_a_file_is_malformed(daemon: Served, run: Run, both: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("kind: Pod\n")
    result = run("apply", "-f", both, "-f", str(bad))
    assert (result.code, result.out) == (exits.USAGE, "")
    assert f"cannot read {bad}:1:7: kind is 'Pod'" in result.err
    assert daemon.api.containers.calls == []


def test_dry_run(daemon: Served, run: Run, both: str) -> None:
    daemon.api.containers.steps = [PlannedStep(container="main", action="stop", detail="attempt 2")]
    result = run("apply", "-f", both, "--dry-run")
    assert result.code == 0
    assert result.lines[0] == "ContainerRecreateRequest 'restart':"
    assert result.lines[3] == "1  main       stop  attempt 2"
    assert result.lines[4:6] == ["", "ImagePullJob 'base':"]
    assert "it fits" in result.lines[-1]
    assert result.err.endswith("nothing was done\n")
    assert daemon.api.images.jobs_by_id == {}
    assert daemon.api.containers.by_id == {}
    missing = ImagePlan(image="nginx", reference=normal("nginx"), reason="NotFound", message="no such tag")
    daemon.api.images.plan_result = Plan(images=[missing])
    assert run("apply", "-f", both, "--dry-run").code == exits.NOT_FOUND
    assert '"steps"' in run("apply", "-f", both, "--dry-run", "--json").out


def test_standard_input_and_usage(run: Run, both: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(RESTART.encode())))
    assert run("apply", "-f", "-").lines == [
        "ContainerRecreateRequest 'restart'  request r0001: default/web-0, 2 containers"
    ]
    assert "Missing option '-f'" in run("apply").err
    assert "exclude each other" in run("apply", "-f", both, "--wait", "--dry-run").err
    assert run("apply", "-f", "-", "-f", "-") == Outcome(
        exits.USAGE, "", "stoker: standard input can be read only once\nhint: stoker apply --help\n"
    )


def test_without_a_daemon(run: Run, both: str) -> None:
    assert run("apply", "-f", both, "--socket", "/nonexistent").code == exits.UNREACHABLE
