"""``stoker checkpoint``, ``clone``, ``restore``, ``pause``, ``resume``, ``commit`` and ``operations``."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stoker.cli import exits
from stoker.objects.checkpoints import (
    CheckpointRequest,
    CloneFile,
    CloneRequest,
    CommitRequest,
    Operation,
    PauseRequest,
    RestoreRequest,
)
from stoker.objects.containers import EnvVar
from stokerd import errors
from tests.unit.api.fake_checkpoints import checkpoint, clone
from tests.unit.client.commands import Run, complete
from tests.unit.client.conftest import Start
from tests.unit.client.served import Served

GOLDEN = "cp-20260301-120000-abc123"
SECRET = "hush-hush-5c9a"


def play(daemon: Served) -> None:
    """Have operations succeed as soon as they are followed."""
    fake = daemon.api.checkpoints

    def go(operation: Operation) -> None:
        fake.step(operation.id, "dumping")
        fake.succeed(operation)

    fake.on_follow = go


def fail(daemon: Served, reason: str, message: str = "no", hint: str = "", *causes: str) -> None:
    fake = daemon.api.checkpoints

    def go(operation: Operation) -> None:
        fake.update(operation.id, phase="Failed", reason=reason, message=message, hint=hint, causes=list(causes))

    fake.on_follow = go


class TestCheckpoint:
    def test_create(self, daemon: Served, run: Run) -> None:
        play(daemon)
        result = run(
            *("checkpoint", "create", "default/web", "app", "tool", "--name", "first", "--stop", "--tcp", "close"),
            *("--no-file-locks", "--external-unix-sockets", "--label", "a=1", "--label", "b=", "--timeout", "90s"),
        )
        assert (result.code, result.err) == (0, "")
        assert daemon.api.checkpoints.asked("create_checkpoint") == CheckpointRequest(
            pod="default/web",
            containers=["app", "tool"],
            name="first",
            stop=True,
            tcp="close",
            file_locks=False,
            external_unix_sockets=True,
            timeout_seconds=90,
            labels={"a": "1", "b": ""},
        )
        assert result.lines[:2] == ["operation op-0000000000: checkpoint of default/web", "dumping"]
        assert result.lines[2].startswith(f"✓ {GOLDEN}  app: 3.0 MiB, 2.0 MiB of it memory; frozen 42ms, in ")

    def test_why_it_failed(self, daemon: Served, run: Run) -> None:
        fail(daemon, "CheckpointRefused", "CRIU cannot take it", "switch it off", "io_uring", "2 TCP connections")
        result = run("checkpoint", "create", "web")
        assert result.code == exits.REFUSED
        assert result.err.splitlines() == [
            "stoker: CRIU cannot take it",
            "  - io_uring",
            "  - 2 TCP connections",
            "hint: switch it off",
        ]

    @pytest.mark.parametrize(
        ("reason", "code"), [("CheckpointNoSpace", exits.NO_SPACE), ("Interrupted", 1), ("RuntimeNotFound", 5)]
    )
    def test_exit_codes(self, daemon: Served, run: Run, reason: str, code: int) -> None:
        fail(daemon, reason)
        assert run("checkpoint", "create", "web").code == code

    def test_a_request_that_is_refused(self, daemon: Served, run: Run) -> None:
        daemon.api.checkpoints.failures["create_checkpoint"] = errors.NotFound("there is no pod 'x'", hint="look")
        result = run("checkpoint", "create", "x")
        assert (result.code, result.err) == (5, "stoker: there is no pod 'x'\nhint: look\n")

    def test_json(self, daemon: Served, run: Run) -> None:
        play(daemon)
        found = json.loads(run("checkpoint", "create", "web", "--json").out)
        assert (found["phase"], found["checkpoints"][0]["id"]) == ("Succeeded", GOLDEN)
        lines = run("checkpoint", "create", "web", "--json", "--watch").lines
        assert [json.loads(line)["operation"]["phase"] for line in lines] == ["Pending", "Running", "Succeeded"]
        assert run("checkpoint", "create", "web", "--watch").code == exits.USAGE

    def test_without_waiting(self, daemon: Served, run: Run) -> None:
        assert run("checkpoint", "create", "web", "--detach").out == "op-0000000000\n"
        assert json.loads(run("checkpoint", "create", "web", "--no-wait", "--json").out)["phase"] == "Pending"

    def test_list(self, daemon: Served, run: Run) -> None:
        daemon.api.checkpoints.made = [checkpoint(name="first", created_at=datetime.now(UTC), clones=3)]
        header, row = run("checkpoint", "ls").lines
        assert header.split() == ["CHECKPOINT", "NAME", "OF", "MADE", "SIZE", "MEMORY", "FROZEN", "CLONES"]
        assert row.split()[:3] == [GOLDEN, "first", "default/web/app"]
        assert row.split()[-2:] == ["42ms", "3"]
        assert json.loads(run("checkpoint", "ls", "--json").out)[0]["labels"] == {}
        daemon.api.checkpoints.made = []
        assert run("checkpoint", "ls")[:2] == (0, "")

    def test_inspect(self, daemon: Served, run: Run) -> None:
        daemon.api.checkpoints.made = [checkpoint(labels={"a": "1"})]
        shown = run("checkpoint", "inspect", "cp-2026").out
        for word in (GOLDEN, "default/web/app", "CRIU 4.2", "a=1", "/var/lib/stoker/checkpoints"):
            assert word in shown
        assert run("checkpoint", "inspect", "nope").code == exits.NOT_FOUND

    def test_verify(self, daemon: Served, run: Run) -> None:
        play(daemon)
        assert "all is as it was written" in run("checkpoint", "verify", GOLDEN).out
        fail(daemon, "CheckpointDamaged", "it is damaged", "", "pages-1.img is missing")
        result = run("checkpoint", "verify", GOLDEN)
        assert (result.code, "  - pages-1.img is missing" in result.err) == (1, True)

    def test_remove(self, daemon: Served, run: Run) -> None:
        result = run("checkpoint", "rm", GOLDEN, "nope")
        assert (result.code, result.out) == (5, f"removed {GOLDEN}, 3.0 MiB\n")
        daemon.api.checkpoints.failures["remove_checkpoint"] = errors.Conflict("in use by 2", hint="remove its clones")
        assert run("checkpoint", "rm", GOLDEN).code == exits.REFUSED

    def test_restore(self, daemon: Served, run: Run) -> None:
        play(daemon)
        result = run("restore", GOLDEN, "--eager")
        assert daemon.api.checkpoints.asked("restore") == (GOLDEN, RestoreRequest(mode="eager"))
        assert f"{GOLDEN}: restored in " in result.out
        assert run("restore", GOLDEN, "--eager", "--lazy").code == exits.USAGE


class TestClone:
    def test_all_that_may_be_said(
        self, daemon: Served, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        play(daemon)
        monkeypatch.setenv("FROM_HERE", SECRET)
        (tmp_path / "task.json").write_bytes(b"\x00task")
        (tmp_path / "env").write_text("# these\nA=1\nB=two words\n")
        result = run(
            *("clone", GOLDEN, "-n", "2", "--lazy", "--hostname", "agent", "--env", "A=3", "--env", "FROM_HERE"),
            *("--env-file", str(tmp_path / "env"), "--file", f"{tmp_path}/task.json:/work/task.json"),
            *("--hook", "/bin/start 'a b'"),
        )
        assert (result.code, result.err) == (0, "")
        assert daemon.api.checkpoints.asked("clone") == CloneRequest(
            checkpoint=GOLDEN,
            count=2,
            hostname="agent",
            mode="lazy",
            env=[
                EnvVar(name="A", value="3"),
                EnvVar(name="B", value="two words"),
                EnvVar(name="FROM_HERE", value=SECRET),
            ],
            files=[CloneFile(path="/work/task.json", content=b"\x00task")],
            hook=["/bin/start", "a b"],
        )
        assert SECRET not in result.out
        assert result.lines[0] == f"operation op-0000000000: clones of {GOLDEN}"
        assert result.lines[1:3] == [f"✓ clone-{number:016x}  10.88.0.7" for number in range(2)]
        assert result.lines[3].startswith(f"{GOLDEN}: 2 clones in ")

    @pytest.mark.parametrize(
        "words",
        [
            ("-n", "0"),
            ("--eager", "--lazy"),
            ("--file", "nowhere"),
            ("--file", "/etc/passwd:relative"),
            ("--file", "/nowhere:/a"),
            ("--hook", "'"),
            ("--hook", " "),
            ("--env", "=x"),
            ("--env", "NOT_SET_ANYWHERE"),
        ],
    )
    def test_mistakes(self, daemon: Served, run: Run, words: tuple[str, ...]) -> None:
        assert run("clone", GOLDEN, *words).code == exits.USAGE
        assert daemon.api.checkpoints.calls == []

    def test_list(self, daemon: Served, run: Run) -> None:
        gib = 1 << 30
        daemon.api.checkpoints.clone_list = [
            clone("clone-a", memory="loading", memory_bytes=2 * gib, memory_missing_bytes=gib),
            clone("clone-b", addresses=["10.1.0.2", "fd00::2"]),
            clone("clone-c", phase="Stopped", memory="lost", addresses=[], message="criu lazy-pages was killed"),
        ]
        result = run("clone", "ls")
        rows = [line.split() for line in result.lines]
        assert rows[0] == ["CLONE", "CHECKPOINT", "STATE", "ADDRESSES", "MEMORY", "MADE"]
        assert rows[1][2:10] == ["Running", "10.88.0.7", "1.0", "GiB", "of", "2.0", "GiB", "still"]
        assert rows[2][3:5] == ["10.1.0.2,", "fd00::2"]
        assert rows[3][2:5] == ["Stopped", "-", "lost"]
        assert result.err == "clone-c: criu lazy-pages was killed\n"

    def test_remove(self, daemon: Served, run: Run) -> None:
        fake = daemon.api.checkpoints
        fake.clone_list = [clone("clone-a"), clone("clone-b")]
        assert run("clone", "rm", "clone-a", "nope").code == exits.NOT_FOUND
        assert run("clone", "rm", "--all").out == "removed clone-b\n"
        assert fake.clone_list == []
        assert run("clone", "rm").code == exits.USAGE
        assert run("clone", "rm", "clone-a", "--all").code == exits.USAGE

    def test_what_is_completed(self, daemon: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STOKER_SOCKET", daemon.socket)
        assert complete(monkeypatch, "clone cp-") == [GOLDEN]
        assert complete(monkeypatch, "checkpoint rm cp-") == [GOLDEN]


def test_pause_and_resume(daemon: Served, run: Run) -> None:
    assert run("pause", "default/web", "clone-a").lines == ["default/web/app  paused"] * 2
    assert daemon.api.checkpoints.asked("pause") == PauseRequest(pod="clone-a")
    assert run("resume", "default/web/app").out == "default/web/app  running\n"


def test_commit(daemon: Served, run: Run) -> None:
    play(daemon)
    result = run(
        *("commit", "web/app", "app:v2", "--change", "ENV A=B", "--change", 'CMD ["x"]', "--author", "me"),
        *("--message", "why", "--squash", "--compression", "zstd"),
    )
    assert daemon.api.checkpoints.asked("commit") == CommitRequest(
        container="web/app",
        image="app:v2",
        changes=["ENV A=B", 'CMD ["x"]'],
        author="me",
        message="why",
        squash=True,
        compression="zstd",
    )
    assert result.lines[-2].startswith("✓ docker.io/library/app:v2  layer 1.0 MiB; frozen 3ms, in ")
    assert result.lines[-1].startswith("  sha256:bbbb")


class TestOperations:
    def test_list_and_show(self, daemon: Served, run: Run) -> None:
        play(daemon)
        run("checkpoint", "create", "web")
        fail(daemon, "CheckpointRefused", "no", "do that", "io_uring")
        run("checkpoint", "create", "web")
        rows = [line.split() for line in run("operations").lines]
        assert [row[:4] for row in rows[1:]] == [
            ["op-0000000001", "Checkpoint", "web", "Failed"],
            ["op-0000000000", "Checkpoint", "web", "Succeeded"],
        ]
        shown = run("operations", "show", "op-0000000001")
        assert "CheckpointRefused: no" in shown.out
        assert "- io_uring" in shown.out
        assert shown.err == "hint: do that\n"
        assert "dumping" in run("operations", "show", "op-0000000000").out
        assert json.loads(run("operations", "--json").out)[0]["causes"] == ["io_uring"]
        assert run("operations", "show", "nope").code == exits.NOT_FOUND

    def test_watch_exits_as_the_command_would_have(self, daemon: Served, run: Run) -> None:
        run("checkpoint", "create", "web", "--detach")
        fail(daemon, "CheckpointRefused")
        assert run("operations", "watch", "op-0000000000").code == exits.REFUSED

    def test_cancel(self, daemon: Served, run: Run) -> None:
        run("checkpoint", "create", "web", "--detach")
        assert run("operations", "cancel", "op-0000000000").out == "op-0000000000 has ended\n"


class TestOnATerminal:
    def test_progress_of_clones(self, daemon: Served, start: Start) -> None:
        program = start("clone", GOLDEN, "-n", "10")
        program.read_until(lambda text: "waiting for its turn" in text)
        fake = daemon.api.checkpoints
        two = [clone("clone-a"), clone("clone-b", memory="loading")]
        daemon.call(lambda: fake.update("op-0000000000", phase="Running", succeeded=2, clones=two))
        text = program.read_until(lambda text: "2 of 10" in text)
        assert text.splitlines()[:2] == ["✓ clone-a  10.88.0.7", "✓ clone-b  10.88.0.7 · its memory still comes"]
        assert all(len(line) < 80 for line in text.splitlines())
        daemon.call(lambda: fake.update("op-0000000000", phase="Succeeded", succeeded=10, clones=two))
        assert program.wait() == 0
        assert program.screen.text.splitlines()[-1].startswith(f"{GOLDEN}: 10 clones in ")
        assert program.screen.cursor_visible

    def test_ctrl_c_cancels_and_sees_the_end(self, daemon: Served, start: Start) -> None:
        program = start("checkpoint", "create", "web")
        program.read_until(lambda text: "waiting for its turn" in text)
        program.press(b"\x03")
        assert program.wait() == exits.INTERRUPTED
        assert "cancelling: stokerd undoes what was begun" in program.screen.text
        assert "it was cancelled" in program.screen.text

    def test_a_signal_leaves_it_alone(self, daemon: Served, start: Start) -> None:
        program = start("checkpoint", "create", "web")
        program.read_until(lambda text: "waiting for its turn" in text)
        program.signal(signal.SIGTERM)
        assert program.wait() == 143
        assert "operation op-0000000000 goes on in stokerd" in program.screen.text
        assert "cancel_operation" not in [name for name, _ in daemon.api.checkpoints.calls]

    def test_watching_leaves_it_alone(self, daemon: Served, start: Start) -> None:
        start("checkpoint", "create", "web", "--detach").wait()
        program = start("operations", "watch", "op-0000000000")
        program.read_until(lambda text: "waiting for its turn" in text)
        program.press(b"\x03")
        assert program.wait() == exits.INTERRUPTED
        assert "cancel it with: stoker operations cancel op-0000000000" in program.screen.text


def test_applying(daemon: Served, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(
        "apiVersion: stoker.dev/v1\nkind: Checkpoint\nmetadata: {name: nightly}\nspec: {podName: web}\n---\n"
        "apiVersion: stoker.dev/v1\nkind: Commit\nspec: {podName: web, image: 'app:v2'}\n"
    )
    dry = run("apply", "-f", str(file), "--dry-run")
    assert "checkpoint web: all containers that run" in dry.out
    assert "commit web as app:v2" in dry.out
    assert daemon.api.checkpoints.calls == []
    assert "operation op-0000000000: checkpoint of web" in run("apply", "-f", str(file)).out
    play(daemon)
    waited = run("apply", "-f", str(file), "--wait")
    assert waited.code == 0
    assert "✓ Checkpoint 'nightly'  succeeded" in waited.out
    assert GOLDEN in waited.out
    fail(daemon, "CheckpointRefused", "no", "do that", "io_uring")
    failed = run("apply", "-f", str(file), "--wait")
    assert failed.code == exits.REFUSED
    assert "- io_uring" in failed.out
