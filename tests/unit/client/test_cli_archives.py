"""``stoker checkpoint export|import|push|pull``, ``stoker image push`` and ``stoker commit --push``."""

from __future__ import annotations

import io
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from stoker.objects.archives import CheckpointPullRequest, CheckpointPushRequest, ImagePushRequest
from stoker.objects.checkpoints import Operation
from stoker.objects.images import InlineAuth
from stokerd.errors import NotFound, RuntimeUnavailable
from tests.unit.api.fake_archives import pushed
from tests.unit.client.commands import Run
from tests.unit.client.served import Served

SECRET = "hush-hush-5c9a"


def play(daemon: Served, **more: object) -> None:
    """Have operations succeed as soon as they are followed."""
    fake = daemon.api.checkpoints

    def go(operation: Operation) -> None:
        fake.step(operation.id, "pushing")
        fake.update(operation.id, done_bytes=1 << 20, total_bytes=3 << 20)
        if operation.kind in {"Push", "Commit"}:
            fake.operations_by_id[operation.id] = replace(fake.operations_by_id[operation.id], pushed=pushed(**more))
        fake.succeed(fake.operations_by_id[operation.id])

    fake.on_follow = go


def test_push_an_image(daemon: Served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    play(daemon, mounted_bytes=5 << 20, partial=True)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{SECRET}\n".encode())))
    result = run("image", "push", "app:v1", "--to", "reg.example/app:v1", "-u", "me", "--password-stdin")
    assert result.code == 0, result.err
    asked = daemon.api.checkpoints.asked("push_image")
    auths = [InlineAuth(registry="reg.example", username="me", password=SECRET)]
    assert asked == ImagePushRequest(image="app:v1", to="reg.example/app:v1", auths=auths)
    assert "3.0 MiB sent, 5.0 MiB mounted" in result.out
    assert "only what this node has" in result.out
    assert "1.0 MiB of 3.0 MiB" in result.out
    assert SECRET not in result.out + result.err


def test_commit_and_push(daemon: Served, run: Run) -> None:
    play(daemon)
    result = run("commit", "web", "reg.example/app:v1", "--push", "--squash", "--compression", "zstd")
    assert result.code == 0, result.err
    asked = daemon.api.checkpoints.asked("commit")
    assert (asked.push, asked.squash, asked.compression) == (True, True, "zstd")
    made, digest, pushed = result.lines[-3:]
    assert made.startswith("✓ docker.io/library/app:v2  layer 1.0 MiB; frozen 3ms, in ")
    assert digest.startswith("  sha256:")
    assert pushed == "  pushed: 3.0 MiB sent"
    assert run("commit", "web", "app", "-u", "me").code == 2


def test_push_and_pull_a_checkpoint(daemon: Served, run: Run) -> None:
    play(daemon)
    assert run("checkpoint", "push", "first", "reg.example/cp:v1").code == 0
    assert daemon.api.checkpoints.asked("push_checkpoint") == ("first", CheckpointPushRequest(to="reg.example/cp:v1"))
    assert run("checkpoint", "pull", "reg.example/cp:v1", "--like", "web/app", "--name", "here").code == 0
    wanted = CheckpointPullRequest(reference="reg.example/cp:v1", like="web/app", name="here")
    assert daemon.api.checkpoints.asked("pull_checkpoint") == wanted
    assert run("checkpoint", "pull", "reg.example/cp:v1", "--no-wait", "--trust").lines[0].startswith("op-")


@pytest.mark.parametrize("words", [("pull", "reg.example/cp:v1"), ("import", "file")])
@pytest.mark.parametrize("both", [(), ("--trust", "--like", "web")])
def test_what_clones_may_do_has_to_be_said(daemon: Served, run: Run, words: tuple[str, ...], both: tuple[str]) -> None:
    result = run("checkpoint", *words, *both)
    assert result.code == 2
    assert "--like" in result.err


def test_export_and_import(daemon: Served, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "first.tar.zst"
    result = run("checkpoint", "export", "first", "-o", str(file))
    assert result.code == 0, result.err
    assert file.read_bytes() == b"".join(daemon.api.archives.archive)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run("checkpoint", "export", "first", "-o", str(file)).code == 2
    assert run("checkpoint", "export", "first", "-o", str(file), "--force").code == 0
    result = run("checkpoint", "import", str(file), "--trust", "--name", "here")
    assert result.code == 0, result.err
    assert daemon.api.archives.taken == file.read_bytes()
    assert daemon.api.checkpoints.asked("import_checkpoint") == ("", "here", True)
    assert run("checkpoint", "import", str(tmp_path / "none"), "--trust").code == 2


def test_what_breaks_off_is_no_file(daemon: Served, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "first.tar.zst"
    daemon.api.archives.breaks = RuntimeUnavailable("away")
    assert run("checkpoint", "export", "first", "-o", str(file)).code != 0
    daemon.api.checkpoints.failures["export_checkpoint"] = NotFound("there is none")
    assert run("checkpoint", "export", "first", "-o", str(file)).code != 0
    assert list(tmp_path.iterdir()) == []
    assert run("checkpoint", "export", "first", "-o", str(tmp_path / "none" / "file")).code == 1
