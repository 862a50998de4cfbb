"""``stoker recreate``: the action, and the commands that share its name."""

from __future__ import annotations

import io
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest
from msgspec.structs import replace

from stoker.cli import exits
from stoker.objects.containers import EnvVar, PlannedStep, RecreateRequest, RecreateStatus, RecreateStrategy
from stokerd import errors
from tests.unit.api.fake_containers import broken, busy, container, done, long_id, pod
from tests.unit.client.commands import Ago, Outcome, Run, complete, runner
from tests.unit.client.served import Served

WEB, LS = "default/web-0", "default/ls"


@pytest.fixture(autouse=True)
def node(daemon: Served) -> None:
    daemon.api.containers.all_pods = [
        pod(WEB, container("main", WEB, attempt=2), container("side", WEB)),
        pod(LS, container("only", LS), owner="kubelet"),
    ]


def request_of(daemon: Served) -> RecreateRequest:
    """The last request that arrived."""
    (*_, request) = [argument for name, argument in daemon.api.containers.calls if name == "recreate"]
    assert isinstance(request, RecreateRequest)
    return request


def play(daemon: Served, *, fail: str = "", reason: str = "ExitedEarly") -> None:
    """Have the next request go its way as soon as it is followed; the container *fail* fails."""
    containers = daemon.api.containers

    def go(status: RecreateStatus) -> None:
        ended = []
        for target in status.containers:
            containers.update(status.id, busy(target, "Creating"))
            containers.update(status.id, busy(target, "Stopping"))
            ended.append(broken(target, reason, "read its log") if target.name == fail else done(target))
            containers.update(status.id, ended[-1])
        containers.finish(status.id, "Failed" if fail else "Succeeded", *ended)

    containers.on_follow = go


def test_plain_lines(daemon: Served, run: Run) -> None:
    play(daemon)
    result = run("recreate", WEB, "main", "side")
    assert (result.code, result.err) == (0, "")
    assert result.lines[:-1] == [
        "request r0001: default/web-0, 2 containers",
        "main: creating attempt 3",
        "main: stopping attempt 2",
        "main: recreated, attempt 2 → 3, down 420ms",
        "side: creating attempt 1",
        "side: stopping attempt 0",
        "side: recreated, attempt 0 → 1, down 420ms",
    ]
    assert result.lines[-1].startswith("default/web-0: 2 containers recreated in ")


def test_options_arrive(daemon: Served, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(daemon)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"password-hush\n")))
    monkeypatch.setenv("OWN_TOKEN", "own-hush")
    file = tmp_path / "env"
    file.write_text("FROM_FILE=file-hush\n")
    options = "--ordered --force --grace 10s --min-started 5s --unready-grace 500ms --deadline 10m --name update"
    options += f" --image main=quay.io/a/b:2 --env main:MODE=typed-hush --env side:OWN_TOKEN --env-file main:{file}"
    options += " --unset-env main:OLD --probe-tcp main:80 --failure-policy ignore --username me --password-stdin"
    result = run("recreate", *options.split(), "--probe-exec", "side:test -e /ready", "web-0", "main", "side")
    assert result.code == 0, result.err
    request = request_of(daemon)
    assert (request.pod, request.name, request.all, request.active_deadline_seconds) == ("web-0", "update", False, 600)
    assert request.strategy == RecreateStrategy(
        failure_policy="Ignore",
        ordered_recreate=True,
        force_recreate=True,
        termination_grace_period_seconds=10,
        unready_grace_period_seconds=0.5,
        min_started_seconds=5,
    )
    main, side = request.containers
    assert (main.image, main.probe and main.probe.tcp_port) == ("quay.io/a/b:2", 80)
    assert main.env == [
        EnvVar(name="FROM_FILE", value="file-hush"),
        EnvVar(name="MODE", value="typed-hush"),
        EnvVar(name="OLD", value=None),
    ]
    assert side.env == [EnvVar(name="OWN_TOKEN", value="own-hush")]
    assert side.probe is not None
    assert side.probe.exec == ["test", "-e", "/ready"]
    (auth,) = request.auths
    assert (auth.registry, auth.username, auth.password) == ("quay.io", "me", "password-hush")
    assert "hush" not in result.out + result.err


def test_all_containers(daemon: Served, run: Run) -> None:
    play(daemon)
    assert run("recreate", "--all", WEB).code == 0
    assert (request_of(daemon).all, request_of(daemon).containers) == (True, [])
    assert request_of(daemon).strategy == RecreateStrategy()


@pytest.mark.parametrize("name", [LS, long_id(LS)[:13], long_id(f"{LS}/only/0")[:13], "ls/only"])
def test_a_pod_with_one_container_and_a_container_by_itself(daemon: Served, run: Run, name: str) -> None:
    play(daemon)
    assert run("recreate", name, "--image", "nginx:2").code == 0
    request = request_of(daemon)
    assert (request.pod, [one.name for one in request.containers]) == (long_id(LS), ["only"])


def test_which_container_is_meant_has_to_be_said(daemon: Served, run: Run) -> None:
    assert run("recreate", "web-0") == Outcome(
        exits.USAGE,
        "",
        "stoker: name containers of web-0, or say --all: it has main, side\nhint: stoker recreate --help\n",
    )
    daemon.api.containers.all_pods[0].containers = []
    assert "it has none" in run("recreate", "web-0").err
    assert run("recreate", "nope").err.startswith("stoker: there is no pod 'nope'")
    assert run("recreate", "nope", "main").code == exits.NOT_FOUND


def test_failure(daemon: Served, run: Run) -> None:
    play(daemon, fail="side")
    result = run("recreate", WEB, "main", "side")
    assert result.code == exits.FAILED
    assert result.lines[-3:-1] == [
        "side: failed: ExitedEarly: it ended with exit code 1; rolled back, attempt 0 → 2, down 420ms",
        "  hint: read its log",
    ]
    assert result.lines[-1].startswith("default/web-0: 1 of 2 containers recreated, 1 failed, after ")
    play(daemon, fail="main", reason="DiskTooSmall")
    assert run("recreate", WEB, "main").code == exits.NO_SPACE
    play(daemon, fail="main", reason="ManifestNotFound")
    assert run("recreate", WEB, "main").code == exits.NOT_FOUND


def test_cancelled_by_somebody_else(daemon: Served, run: Run) -> None:
    containers = daemon.api.containers
    containers.on_follow = lambda status: containers.finish(status.id, "Cancelled", message="cancelled by request")
    result = run("recreate", WEB, "main")
    assert result.code == exits.FAILED
    assert "0 of 1 container recreated, cancelled, after" in result.lines[-1]


def test_refusals(daemon: Served, run: Run) -> None:
    daemon.api.containers.failures["recreate"] = errors.Conflict("update is another request", hint="choose a name")
    assert run("recreate", WEB, "main") == Outcome(
        exits.REFUSED, "", "stoker: update is another request\nhint: choose a name\n"
    )

    class DiskTooSmall(errors.StokerError):
        reason: ClassVar[str] = "DiskTooSmall"

    daemon.api.containers.failures["recreate"] = DiskTooSmall("12 GiB needed")
    assert run("recreate", WEB, "main").code == exits.NO_SPACE


def test_json(daemon: Served, run: Run) -> None:
    play(daemon)
    document = json.loads(run("--json", "recreate", WEB, "main").out)
    assert (document["phase"], document["result"], document["waitingFor"]) == ("Completed", "Succeeded", "")
    result = run("recreate", "--json", "--watch", WEB, "main")
    events = [json.loads(line) for line in result.lines]
    assert {event["type"] for event in events} == {"recreate"}
    assert events[-1]["recreate"]["containers"][0]["newAttempt"] == 3
    assert (result.code, result.err) == (0, "")


def test_without_waiting(daemon: Served, run: Run) -> None:
    assert run("recreate", WEB, "main", "--no-wait") == Outcome(0, "r0001\n", "")
    assert run("recreate", "--detach", WEB, "main").out == "r0002\n"
    assert json.loads(run("recreate", WEB, "main", "--no-wait", "--json").out)["id"] == "r0003"


def test_dry_run(daemon: Served, run: Run) -> None:
    daemon.api.containers.steps = [
        PlannedStep(container="only", action="stop", detail="attempt 0, 30 s of grace"),
        PlannedStep(container="only", action="wait", detail="for the kubelet's attempt 1"),
    ]
    daemon.api.containers.plan_warnings = ["an image cannot be changed under a kubelet"]
    result = run("recreate", "--dry-run", LS)
    assert result.code == 0
    assert result.lines == [
        f"default/ls ({long_id(LS)[:13]}), a kubelet's pod: the kubelet starts the new containers",
        "   CONTAINER  STEP  DETAIL",
        "1  only       stop  attempt 0, 30 s of grace",
        "2  only       wait  for the kubelet's attempt 1",
    ]
    assert result.err == "stoker: warning: an image cannot be changed under a kubelet\nnothing was done\n"
    assert daemon.api.containers.by_id == {}
    assert len(json.loads(run("recreate", "--dry-run", LS, "--json").out)["steps"]) == 2
    daemon.api.containers.steps = []
    assert "there is nothing to do" in run("recreate", "--dry-run", LS).err


USAGE = [
    ("recreate --all web-0 main", "name containers or say --all, not both"),
    ("recreate --all web-0 --image nginx", "are for containers that are named, not for --all"),
    ("recreate --all web-0 --env A=secret", "are for containers that are named, not for --all"),
    ("recreate web-0 main side --env A=secret", "--env main:..."),
    ("recreate web-0 main --watch", "--watch goes with --json"),
    ("recreate web-0 main --grace soon", "'soon' is not a duration"),
    ("recreate web-0 main --failure-policy retry", "'retry' is not one of"),
    ("recreate web-0 main --username me --password-stdin", "--username is for new images"),
    ("recreate --frobnicate web-0", "No such option"),
    ("recreate show", "Missing argument 'REQUEST'"),
    ("recreate cancel", "Missing argument 'REQUEST...'"),
    ("recreate --env-file /nonexistent web-0 main", "cannot read /nonexistent: No such file"),
]


@pytest.mark.parametrize(("line", "message"), USAGE)
def test_usage_errors(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = runner(capsys)(*line.split())
    assert (result.code, result.out) == (exits.USAGE, "")
    assert message in result.err
    assert "secret" not in result.err


# ---------------------------------------------------------------------------------------------- ls, show, watch, cancel


def test_pods_that_are_called_like_a_command(daemon: Served, run: Run) -> None:
    assert run("recreate", "ls") == Outcome(0, "", "nothing was recreated yet\n")
    for number, words in enumerate((["--", "ls"], [LS], [long_id(LS)[:6]], ["--no-wait", "ls"]), start=1):
        result = run("recreate", "--json", *(["--no-wait"] if "--no-wait" not in words else []), *words)
        assert json.loads(result.out)["id"] == f"r{number:04d}"
    assert len(json.loads(run("recreate", "--json", "ls").out)) == 4


def test_ls_and_show(daemon: Served, run: Run, ago: Ago) -> None:
    play(daemon, fail="side")
    run("recreate", WEB, "main", "side", "--name", "update")
    status = daemon.api.containers.by_id["r0001"]
    status.created_at = ago(seconds=125)
    status.finished_at = status.created_at + timedelta(seconds=5)
    run("recreate", LS, "--no-wait")
    assert [line.split("  ")[0] for line in run("recreate", "ls").lines] == ["REQUEST", "r0002", "r0001"]
    assert run("recreate", "ls").lines[2].split() == [
        "r0001",
        "update",
        "default/web-0",
        "1/2",
        "Failed",
        "2m5s",
        "ago",
        "5s",
    ]
    assert run("recreate", "show", "update").lines == [
        "request r0001 'update': Failed, default/web-0, started 2m5s ago",
        "  Stoker's own pod",
        "CONTAINER  PHASE      STEP  ATTEMPT  DOWN   REASON",
        "main       Succeeded  -     2 → 3    420ms  Recreated",
        "side       Failed     -     0 → 2    420ms  ExitedEarly: it ended with exit code 1; rolled back",
    ]
    assert run("recreate", "show", "update").err == "hint: side: read its log\n"
    assert json.loads(run("recreate", "show", "r0001", "--json").out)["name"] == "update"
    assert run("recreate", "show", "nope").code == exits.NOT_FOUND


def test_show_what_is_under_way(daemon: Served, run: Run, ago: Ago) -> None:
    run("recreate", LS, "--no-wait")
    containers = daemon.api.containers
    (target,) = containers.by_id["r0001"].containers
    containers.by_id["r0001"] = replace(
        containers.by_id["r0001"],
        waiting_for="r0000",
        message="the pod is busy",
        deadline_at=ago(seconds=-61),
        containers=[busy(target, "PreStop")],
    )
    lines = run("recreate", "show", "r0001").lines
    assert lines[2:5] == [
        "  waits for r0000, which is at the same pod",
        "  the pod is busy",
        "  its deadline is in 1m1s",
    ]
    assert lines[-1].split() == ["only", "Recreating", "PreStop", "0", "-", "-"]


def test_watch_and_cancel(daemon: Served, run: Run) -> None:
    run("recreate", WEB, "main", "--no-wait")
    play(daemon, fail="main")
    result = run("recreate", "watch", "r0001")
    assert result.code == exits.FAILED
    assert result.lines[0] == "request r0001: default/web-0, 1 container"
    assert [json.loads(line)["recreate"]["result"] for line in run("recreate", "watch", "r0001", "--json").lines] == [
        "Failed"
    ]
    assert run("recreate", "watch", "nope").code == exits.NOT_FOUND
    run("recreate", WEB, "main", "--no-wait")
    result = run("recreate", "cancel", "r0002", "r0001")
    assert result == Outcome(
        exits.REFUSED, "r0002 cancelled: 0 of 1 containers were recreated\n", "stoker: r0001 is over\n"
    )


def test_cancelling_takes_time_or_comes_too_late(daemon: Served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("recreate", WEB, "main", "side", "--no-wait")
    containers = daemon.api.containers

    async def as_it_is(request_id: str) -> RecreateStatus:
        return containers.recreate_status(request_id)

    monkeypatch.setattr(containers, "cancel_recreate", as_it_is)
    assert run("recreate", "cancel", "r0001").out == "r0001 is being cancelled: 0 of 2 containers were recreated\n"
    containers.by_id["r0001"] = replace(containers.by_id["r0001"], phase="Completed", result="Failed")
    assert run("recreate", "cancel", "r0001").out == (
        "r0001 was over before (failed): 0 of 2 containers were recreated\n"
    )


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    run = runner(capsys)
    text = run("recreate", "--help").out
    assert text.startswith("Usage: stoker recreate [OPTIONS] POD [CONTAINER]...\n")
    listed = [line.split()[0] for line in text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()]
    assert listed == ["ls", "show", "watch", "cancel"]
    assert "..." not in text.partition("Commands:\n")[2].partition("\n\n")[0]
    assert run("recreate", "web-0", "--help").out == text
    assert run("recreate") == Outcome(exits.USAGE, "", text)
    assert "Usage: stoker recreate show" in run("recreate", "show", "-h").out


def test_completion(daemon: Served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("recreate", WEB, "main", "--no-wait")
    assert complete(monkeypatch, "recreate ") == ["ls", "show", "watch", "cancel", WEB, LS]
    assert complete(monkeypatch, "recreate web") == ["web-0"]
    assert complete(monkeypatch, f"recreate {WEB} ") == ["main", "side"]
    assert complete(monkeypatch, f"recreate --force {WEB} side m") == ["main"]
    assert complete(monkeypatch, "recreate --im") == ["--image"]
    assert complete(monkeypatch, "recreate cancel ") == ["r0001"]
    assert complete(monkeypatch, "recreate --json show r") == ["r0001"]
