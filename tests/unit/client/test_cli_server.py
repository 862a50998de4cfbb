"""``stoker --server``: objects of a coordinator from the command line, against a real API over a store in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
import yaml
from aiohttp import web
from msgspec.structs import replace

from stoker.objects.cluster_images import ImagePullJob, JobProgress, NodeTrouble, PullJobStatus
from stoker.objects.cluster_nodes import Node, NodeStatus
from stoker.objects.meta import Condition, Object, ObjectMeta
from stoker_coordinator.api.joining import Joining
from stoker_coordinator.nodes.tokens import Token
from tests.unit.client.commands import Run, runner
from tests.unit.coordinator.api.conftest import Api, running
from tests.unit.coordinator.store.things import job

YAML = """\
apiVersion: apps.kruise.io/v1alpha1
kind: ImagePullJob
metadata:
  name: base
  labels: {app: x}
spec:
  image: docker.io/library/nginx:1
  parallelism: 10%
  sandboxConfig: {labels: {a: b}}
"""


class Served:
    """A coordinator's API in a thread of its own."""

    def __init__(self, directory: Path, routes: tuple[web.RouteDef, ...] = ()) -> None:
        self.api: Api
        self._directory = directory
        self._routes = routes
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="coordinator")

    @property
    def url(self) -> str:
        return f"unix:{self.api.settings.socket}"

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def spawn(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def make(self, obj: Object) -> Any:
        return self.call(self.api.store.create(obj))

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with running(self._directory, self._routes) as self.api:
            self._ready.set()
            await self._stop.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    for name in ("STOKER_TOKEN", "STOKER_TOKEN_FILE", "STOKER_CACERT", "STOKER_SERVER"):
        monkeypatch.delenv(name, raising=False)
    with Served(tmp_path) as served:
        monkeypatch.setenv("STOKER_SERVER", served.url)
        yield served


@pytest.fixture
def stoker(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "objects.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_apply_makes_changes_and_leaves_alone(server: Served, stoker: Run, file: Callable[[str], str]) -> None:
    path = file(YAML)
    dry = stoker("apply", "-f", path, "--dry-run")
    first = stoker("apply", "-f", path)
    again = stoker("apply", "-f", path)
    changed = stoker("apply", "-f", file(YAML.replace("10%", "20%")))

    assert dry.out == "ImagePullJob default/base  would be created\n"
    assert first.out == "ImagePullJob default/base  created\n"
    assert first.err == (
        f"stoker: warning: {path}:9: ImagePullJob default/base: spec.sandboxConfig is not honoured here: stokerd"
        " chooses the labels and annotations of its pulls\n"
    )
    assert again.out == "ImagePullJob default/base  unchanged\n"
    assert changed.out == "ImagePullJob default/base  changed\n"
    assert (first.code, again.code) == (0, 0)


def test_what_is_wrong_is_told_with_its_line(server: Served, stoker: Run, file: Callable[[str], str]) -> None:
    path = file(YAML.replace("10%", "lots").replace("nginx:1", "nginx 1") + "---\n" + YAML.replace("base", "other"))
    done = stoker("apply", "-f", path)

    assert done.code == 2
    assert f"{path}:7: ImagePullJob default/base: spec.image: 'docker.io/library/nginx 1' is no image" in done.err
    assert f"{path}:8: ImagePullJob default/base: spec.parallelism: 'lots' is neither a number nor a share" in done.err
    assert done.out == "ImagePullJob default/other  created\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: Pod\napiVersion: v1\n", "objects.yaml:1:7: kind is 'Pod'; there are Node, ImagePullJob"),
        ("a: 1\n", "kind must be there"),
        ("", "there is no object"),
        ("kind: Node\napiVersion: stoker.dev/v9\n", "Node has no 'stoker.dev/v9'"),
    ],
)
def test_a_file_that_cannot_be_meant(
    server: Served, stoker: Run, file: Callable[[str], str], text: str, says: str
) -> None:
    done = stoker("apply", "-f", file(text))

    assert done.code == 2
    assert says in done.err


def test_get_prints_tables_that_read_well(server: Served, stoker: Run) -> None:
    now = datetime.now(UTC)
    server.make(
        replace(
            job("base"),
            status=PullJobStatus(
                desired=10,
                active=2,
                succeeded=5,
                failed=1,
                progress=JobProgress(bytes_total=4 << 20, bytes_done=1 << 20),
            ),
        )
    )
    server.make(
        Node(
            metadata=ObjectMeta(name="n1"),
            status=NodeStatus(
                conditions=(Condition(type="Ready", status="True"),),
                connected=True,
                stokerd_version="0.1.0",
                runtime_name="containerd",
                runtime_version="2.1.4",
                images=12,
                disk_free_bytes=5 << 30,
                last_seen=now,
            ),
        )
    )
    jobs, nodes = stoker("get", "ipj"), stoker("nodes")

    assert jobs.lines[0].split() == ["NAME", "IMAGE", "NODES", "ACTIVE", "DONE", "FAILED", "PROGRESS", "STATE", "AGE"]
    assert jobs.lines[1].startswith(
        "base  docker.io/library/nginx:1     10       2     5       1  25% of 4.0 MiB  running"
    )
    assert nodes.lines[1].split()[:8] == ["n1", "ready", "0.1.0", "containerd", "2.1.4", "12", "0", "5.0"]


def test_get_in_other_forms(server: Served, stoker: Run) -> None:
    server.make(job("a", labels={"app": "x"}))
    server.make(job("b", namespace="other"))

    one = yaml.safe_load(stoker("get", "imagepulljob", "a", "-o", "yaml").out)
    listed = msgspec.json.decode(stoker("get", "imagepulljobs", "-A", "-o", "json").out)
    everywhere = stoker("get", "imagepulljobs", "-A")

    assert (one["kind"], one["metadata"]["name"]) == ("ImagePullJob", "a")
    assert [item["metadata"]["name"] for item in listed["items"]] == ["a", "b"]
    assert [line.split()[:2] for line in everywhere.lines[1:]] == [["default", "a"], ["other", "b"]]
    assert stoker("get", "ipj", "-A", "-l", "app=x", "-o", "name").out == "imagepulljobs/a\n"
    assert (
        stoker("get", "ipj", "--field-selector", "metadata.name=zz").err
        == "there are no imagepulljobs in this namespace\n"
    )


def test_get_of_what_is_not_there(server: Served, stoker: Run) -> None:
    server.make(job("a"))
    done = stoker("get", "ipj", "a", "none")

    assert done.code == 5
    assert done.lines[1].startswith("a ")
    assert "there is no ImagePullJob default/none" in done.err
    assert stoker("get", "things").code == 2
    assert "there are nodes (no), imagepulljobs (ipj)" in stoker("get", "things").err


def test_get_pages_through_many(server: Served, stoker: Run) -> None:
    async def make() -> None:
        for number in range(1201):
            await server.api.store.create(Node(metadata=ObjectMeta(name=f"n{number:04}")))

    server.call(make())

    assert len(stoker("get", "nodes", "-o", "name").lines) == 1201


def test_jobs_show_bars_and_troubles(server: Served, stoker: Run) -> None:
    server.make(
        replace(
            job("base"),
            status=PullJobStatus(
                desired=4,
                active=1,
                succeeded=1,
                troubles=tuple(NodeTrouble(node=f"n{n}", reason="NotFound", message="no such image") for n in range(5)),
                progress=JobProgress(bytes_total=2048, bytes_done=1024, nodes_silent=1),
            ),
        )
    )
    done = stoker("jobs")

    assert "1/4 nodes" in done.lines[0]
    assert "1 silent" in done.lines[0]
    assert [line.strip() for line in done.lines[1:]] == [
        "✗ n0: NotFound no such image",
        "✗ n1: NotFound no such image",
        "✗ n2: NotFound no such image",
        "and 2 more: stoker describe",
    ]


def test_describe_says_everything(server: Served, stoker: Run) -> None:
    since = datetime.now(UTC) - timedelta(minutes=5)
    complete = Condition(type="Complete", status="False", reason="Busy", last_transition_time=since)
    server.make(replace(job("base", labels={"app": "x"}), status=PullJobStatus(desired=3, conditions=(complete,))))
    done = stoker("describe", "ipj", "base")

    assert done.lines[0] == "ImagePullJob default/base"
    assert "  Labels:     app=x" in done.lines
    assert "  image: docker.io/library/nginx:1" in done.lines
    assert "  desired: 3" in done.lines
    assert done.lines[-1].split() == ["Complete", "False", "5m", "Busy"]


def test_delete_by_name_and_by_file(server: Served, stoker: Run, file: Callable[[str], str]) -> None:
    server.make(job("a", finalizers=("x/y",)))
    stoker("apply", "-f", file(YAML))

    assert stoker("delete", "ipj", "base", "--dry-run").out == "ImagePullJob default/base  would be deleted\n"
    assert stoker("delete", "-f", file(YAML)).out == "ImagePullJob default/base  deleted\n"
    assert stoker("delete", "ipj", "a").out == "ImagePullJob default/a  deleted when its finalizers are done\n"
    assert stoker("delete", "ipj", "base").code == 5
    assert stoker("delete", "ipj").code == 2
    assert stoker("delete").code == 2


def test_a_token_comes_from_a_file(
    server: Served, stoker: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_SERVER", f"http://127.0.0.1:{server.api.server.port}")
    refused = stoker("get", "nodes")
    (tmp_path / "token").write_text(server.api.token("viewer") + "\n")
    monkeypatch.setenv("STOKER_TOKEN_FILE", str(tmp_path / "token"))
    good = stoker("get", "nodes")
    forbidden = stoker("delete", "node", "n")

    assert (refused.code, good.code, forbidden.code) == (6, 0, 6)
    assert "stoker-coordinator token create" in refused.err
    assert "the role viewer may not delete nodes" in forbidden.err
    monkeypatch.setenv("STOKER_TOKEN_FILE", str(tmp_path / "none"))
    assert "STOKER_TOKEN_FILE" in stoker("get", "nodes").err


def test_which_coordinator(stoker: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STOKER_SERVER", raising=False)

    assert "--server URL" in stoker("get", "nodes").err
    assert stoker("--server", "ftp://x", "get", "nodes").code == 2
    away = stoker("--server", f"unix:{tmp_path}/none.sock", "get", "nodes")
    assert (away.code, "No such file" in away.err) == (3, True)
    assert "leave it out" in stoker("--server", "http://localhost:1", "pods").err


def test_watch_prints_rows_as_things_happen(
    server: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stoker.cli import console as console_module

    printed: list[str] = []
    enough = threading.Event()

    def write(text: str) -> None:
        printed.append(text)
        if len(printed) == 2:
            server.call(server.api.store.delete(ImagePullJob, "a", "default"))
        if len(printed) == 3:
            enough.set()
            raise KeyboardInterrupt

    monkeypatch.setattr(console_module, "write_out", write)
    server.make(job("a"))
    done = runner(capsys)("watch", "ipj", "a")

    assert done.code == 130
    assert enough.is_set()
    assert [line.split()[0:2] for line in printed] == [["EVENT", "NAME"], ["added", "a"], ["deleted", "a"]]


class Door:
    """`api.joining.Door` for one test: tokens that only say what was asked for."""

    authority = b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"

    def __init__(self) -> None:
        self.shut_out: list[str] = []
        self.revoked: list[str] = []

    async def create_token(self, *, seconds: float, uses: int, node: str, note: str) -> str:
        return f"token for {node or 'any'}, {seconds:g} s, {uses} uses, {note}"

    async def list_tokens(self) -> list[Token]:
        now = datetime.now(UTC).timestamp()
        return [
            Token("a1", b"", now, now + 3600, 2, note="rack 3"),
            Token("b2", b"", now - 9, now - 1, 1, "n1"),
            Token("c3", b"", now, now + 3600, 0),
            Token("d4", b"", now, now + 3600, 1, revoked=True),
        ]

    async def revoke_token(self, identity: str) -> None:
        self.revoked.append(identity)

    async def revoke_node(self, node: str) -> None:
        self.shut_out.append(node)


def test_who_is_let_in(tmp_path: Path, stoker: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door()
    with Served(tmp_path, Joining(door).routes()) as served:
        monkeypatch.setenv("STOKER_SERVER", served.url)
        made = stoker("nodes", "token", "--node", "n1", "--for", "10m", "--note", "x")
        listed = stoker("nodes", "tokens")
        done = [stoker("nodes", "revoke-token", "a1"), stoker("nodes", "exclude", "n1")]
        authority = stoker("nodes", "authority")

    assert made.out == "token for n1, 600 s, 1 uses, x\n"
    assert [line.split()[0] for line in listed.lines[1:]] == ["a1", "b2", "c3", "d4"]
    states = ["good for", "expired", "used up", "revoked"]
    assert all(state in line for state, line in zip(states, listed.lines[1:], strict=True))
    assert (door.revoked, door.shut_out, [each.code for each in done]) == (["a1"], ["n1"], [0, 0])
    assert authority.out == door.authority.decode()


def test_apply_waits_until_everything_is_over(
    server: Served, stoker: Run, file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(condition: str) -> Callable[[ImagePullJob], ImagePullJob]:
        def change(kept: ImagePullJob) -> ImagePullJob:
            now = datetime.now(UTC)
            trouble = NodeTrouble(node="n1", reason="NotFound", message="no such image")
            return replace(
                kept,
                status=PullJobStatus(
                    desired=2,
                    succeeded=1,
                    completion_time=now,
                    observed_generation=kept.generation,
                    conditions=(Condition(type=condition, status="True"),),
                    troubles=(trouble,) if condition == "Degraded" else (),
                ),
            )

        return change

    async def end(name: str, condition: str) -> None:
        store = server.api.store
        async for event in store.watch([ImagePullJob], since=0):
            if event.type == "ADDED" and event.object is not None and event.object.metadata.name == name:
                await store.change(ImagePullJob, name, "default", change=finish(condition), status=True)
                return

    server.spawn(end("base", "Complete"))
    good = stoker("apply", "-f", file(YAML), "--wait")
    server.spawn(end("other", "Degraded"))
    bad = stoker("apply", "-f", file(YAML.replace("base", "other")), "--wait")

    assert (good.code, bad.code) == (0, 1)
    assert good.lines[-1].startswith("default/base  ")
    assert good.lines[-1].endswith("1/2 nodes · complete")
    assert bad.lines[-1] == "default/other  ✗ n1: NotFound no such image"
    assert stoker("jobs", "--wait").err == "no image job runs\n"


def test_waiting_ends_when_the_coordinator_refuses_to_go_on(
    server: Served, stoker: Run, file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(server.api.token("operator"))
    monkeypatch.setenv("STOKER_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("STOKER_SERVER", f"http://127.0.0.1:{server.api.server.port}")

    async def revoke() -> None:
        store = server.api.store
        async for event in store.watch([ImagePullJob], since=0):
            if event.type == "ADDED":
                server.api.tokens.revoke("a-operator")
                return

    server.spawn(revoke())
    done = stoker("apply", "-f", file(YAML), "--wait")

    assert done.code == 6
    assert "not known here" in done.err
