"""``stoker support-bundle`` and ``stoker reload``."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from stoker.cli import exits, support
from stoker.client import Client
from stoker.objects.checkpoints import CloneRequest
from stoker.objects.containers import EnvVar, RecreateRequest, RecreateTarget, ReloadResult
from stokerd import errors
from tests.unit.api.fake_containers import container, pod
from tests.unit.client.commands import ENTRY, Outcome, Run
from tests.unit.client.served import Served
from tests.unit.deadlines import passes_when, written

WEB = "default/web-0"
FILES = [
    "versions.json",
    "health.json",
    "node.json",
    "doctor.txt",
    "settings.json",
    "metrics.txt",
    "topology.json",
    "topology-load.json",
    "images.json",
    "pins.json",
    "keeps.json",
    "jobs.json",
    "history.json",
    "pods.json",
    "recreates.json",
    "operations.json",
    "checkpoints.json",
    "clones.json",
    "logs.ndjson",
    "journal.txt",
]


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of programs, journalctl not among them, and a working directory."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.chdir(tmp_path)
    return directory


def journalctl(programs: Path, script: str) -> None:
    program = programs / "journalctl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def read(path: Path | str) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {
            member.name.partition("/")[2]: file.read()
            for member in tar
            if (file := tar.extractfile(member)) is not None
        }


def test_what_is_in_it(daemon: Served, run: Run, programs: Path, tmp_path: Path) -> None:
    journalctl(programs, 'echo "$@"; echo "Authorization: Bearer abc123def456hush"')
    containers = daemon.api.containers
    containers.all_pods = [pod(WEB, container("main", WEB))]
    env = [EnvVar(name="TOKEN", value="env-hush")]
    request = RecreateRequest(pod=WEB, containers=[RecreateTarget(name="main", env=env)])
    daemon.call(containers.recreate, request)
    wish = CloneRequest(checkpoint="cp-20260301-120000-abc123", env=[EnvVar(name="TOKEN", value="env-hush")])
    daemon.call(daemon.api.checkpoints.clone, wish)
    old = (datetime.now(UTC) - timedelta(hours=2)).isoformat()
    new = datetime.now(UTC).isoformat()
    daemon.api.node.logs = [
        json.dumps({"event": "old", "timestamp": old}),
        json.dumps({"event": "new", "timestamp": new, "password": "log-hush", "url": "https://me:url-hush@host/"}),
        json.dumps({"event": "undated"}),
        "no JSON, password=text-hush",
    ]
    result = run("support-bundle", "-o", "b.tar.gz", "--since", "1h")
    assert result.code == 0, result.err
    path = tmp_path / "b.tar.gz"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    files = read(path)
    assert list(files) == ["index.json", *FILES]
    assert b"hush" not in gzip.decompress(path.read_bytes())
    index = json.loads(files["index.json"])
    assert [part["file"] for part in index["parts"]] == FILES
    assert all("missing" not in part for part in index["parts"])
    assert index["logsSinceSeconds"] == 3600
    assert [json.loads(line)["event"] for line in files["logs.ndjson"].splitlines()[:2]] == ["new", "undated"]
    assert files["logs.ndjson"].splitlines()[2] == b"no JSON, password=[redacted]"
    assert b"--unit=stokerd --since=@" in files["journal.txt"]
    (only,) = json.loads(files["pods.json"])
    assert (only["annotations"], only["labels"]) == ({"note": "[removed]"}, {"app": "web-0"})
    assert json.loads(files["recreates.json"])[0]["id"] == "r0001"
    assert json.loads(files["operations.json"])[0]["kind"] == "Clone"
    assert json.loads(files["checkpoints.json"])[0]["pod"] == "web"
    assert json.loads(files["versions.json"])["runtime"] == "containerd 1.7.24"
    assert b"stoker_api_requests_total" in files["metrics.txt"]
    assert json.loads(files["health.json"])["healthz"]["ok"] is True
    assert files["doctor.txt"].decode().startswith("  ✓ stokerd 0.1.0")
    assert result.lines[0].split()[:2] == ["✓", "versions.json"]
    assert result.lines[-1].startswith("b.tar.gz  ")
    assert "look through it before you send it" in result.err


def test_without_a_daemon_and_a_journal(run: Run, tmp_path: Path) -> None:
    result = run("support-bundle", "-o", "b.tar.gz", "--socket", "/nonexistent/s.sock")
    assert result.code == 0
    files = read(tmp_path / "b.tar.gz")
    assert list(files) == ["index.json", "versions.json"]
    assert json.loads(files["versions.json"])["stokerd"].startswith("unknown: there is no socket")
    missing = {part["file"]: part["missing"] for part in json.loads(files["index.json"])["parts"] if "missing" in part}
    assert list(missing) == FILES[1:]
    assert missing["node.json"] == "there is no socket /nonexistent/s.sock"
    assert missing["journal.txt"] == "journalctl is not installed"
    assert any(line.startswith("  – node.json") and "there is no socket" in line for line in result.lines)


def test_parts_that_fail_are_notes(
    daemon: Served, run: Run, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(_client: Client) -> bytes:
        raise TimeoutError

    sources = [source._replace(get=late) if source.file == "pods.json" else source for source in support._SOURCES]
    monkeypatch.setattr(support, "_SOURCES", sources)
    journalctl(programs, "echo 'No journal files were found.' >&2; exit 1")
    daemon.api.images.failures["pins"] = errors.RuntimeUnavailable("containerd does not answer")
    with capture_logs():
        assert run("support-bundle", "-o", "b.tar.gz").code == 0
    index = json.loads(read(tmp_path / "b.tar.gz")["index.json"])
    missing = {part["file"]: part["missing"] for part in index["parts"] if "missing" in part}
    assert missing == {
        "pins.json": "containerd does not answer",
        "pods.json": "no answer within 20 s",
        "journal.txt": "No journal files were found.",
    }


def test_a_part_that_does_not_come_is_given_up(daemon: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "_PART_SECONDS", 0.3)
    daemon.call(lambda: daemon.api.containers.gates.update(pods=asyncio.Event()))
    source = next(source for source in support._SOURCES if source.file == "pods.json")

    async def ask() -> support.Part:
        async with Client(Path(daemon.socket)) as client:
            return await support._part(client, source)

    assert asyncio.run(ask()).missing == "no answer within 0.3 s"


def test_a_journal_without_lines(run: Run, programs: Path, tmp_path: Path) -> None:
    journalctl(programs, "echo '-- No entries --'")
    assert run("support-bundle", "-o", "b.tar.gz").code == 0
    assert "journal.txt" not in read(tmp_path / "b.tar.gz")


def test_a_journal_that_hangs_is_ended(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tmp_path / "pid"
    journalctl(programs, f"echo $$ > {pid}; exec /bin/sleep 1000")
    passes_when(monkeypatch, lambda: written(pid))
    assert asyncio.run(support._journal(0.0)).missing == "journalctl did not end within 20 s"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_files_that_are_there(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_text("precious")
    path.chmod(0o644)
    assert run("support-bundle", "-o", "b.tar.gz") == Outcome(
        exits.USAGE,
        "",
        "stoker: b.tar.gz is there already: give another file with -o, or --force\n"
        "hint: stoker support-bundle --help\n",
    )
    assert path.read_text() == "precious"
    (tmp_path / "link").symlink_to("elsewhere")
    assert run("support-bundle", "-o", "link").code == exits.USAGE
    assert run("support-bundle", "-o", "b.tar.gz", "--force").code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "index.json" in read(path)
    result = run("support-bundle", "-o", "none/b.tar.gz")
    assert (result.code, result.err) == (
        exits.FAILED,
        "stoker: cannot write none/b.tar.gz: No such file or directory\n",
    )
    assert sorted(one.name for one in tmp_path.iterdir()) == ["b.tar.gz", "bin", "link"]


def test_its_own_name(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node 7.example.com")
    document = json.loads(run("support-bundle", "--json").out)
    assert document["host"] == "node-7"
    name = Path(document["path"]).name
    assert name.startswith("stoker-support-node-7-20")
    assert len(document["parts"]) == len(FILES)
    with tarfile.open(tmp_path / name) as tar:
        assert {Path(member.name).parent.name for member in tar} == {name.removesuffix(".tar.gz")}
        assert {(member.uid, member.gid, member.mode) for member in tar} == {(0, 0, 0o600)}


def test_standard_output(daemon: Served) -> None:
    arguments = [sys.executable, "-c", ENTRY, "--socket", daemon.socket, "support-bundle", "-o", "-"]
    result = subprocess.run(arguments, capture_output=True, timeout=60, check=True)
    with tarfile.open(fileobj=io.BytesIO(result.stdout)) as tar:
        assert any(member.name.endswith("/node.json") for member in tar)
    assert result.stderr == b""


def test_the_same_parts_are_the_same_bytes() -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    parts = [support.Part("a", "b", b"c"), support.Part("d", "e", b"", "gone")]
    index = support.index_of(parts, since=60, now=now)
    first, second = (support.archive(parts, directory="x", index=index, now=now) for _ in range(2))
    assert first == second
    assert index["createdAt"] == "2026-03-01T00:00:00Z"


@pytest.mark.parametrize(
    ("value", "clean"),
    [
        ({"password": "x", "n": 1}, {"password": "[removed]", "n": 1}),
        ({"docker_configs": ["/root/.docker/config.json"]}, {"docker_configs": ["/root/.docker/config.json"]}),
        ({"a": [{"registryToken": "x"}]}, {"a": [{"registryToken": "[removed]"}]}),
        ({"annotations": {"a": "x", "b": ""}}, {"annotations": {"a": "[removed]", "b": "[removed]"}}),
        ({"password": ""}, {"password": ""}),
        ("https://me:x@host/", "https://host/"),
        (None, None),
    ],
)
def test_secrets_are_taken_out(value: Any, clean: Any) -> None:
    assert support.without_secrets(value) == clean


# ---------------------------------------------------------------------------------------------- reload


def test_reload(daemon: Served, run: Run) -> None:
    assert run("reload") == Outcome(0, "nothing has changed\n", "")
    daemon.api.node.reloaded = ReloadResult(applied=["images.max_parallel"], restart_needed=["api.socket"])
    assert run("reload") == Outcome(
        0,
        "✓ images.max_parallel  holds now\n! api.socket  changed in the file; holds after: systemctl restart stokerd\n",
        "",
    )
    assert json.loads(run("reload", "--json").out)["restartNeeded"] == ["api.socket"]
    daemon.api.node.failure = errors.ConfigError("/etc/stoker/stokerd.toml", ["images.max_parallel: too small"])
    result = run("reload")
    assert (result.code, result.out) == (exits.USAGE, "")
    assert "images.max_parallel: too small" in result.err
