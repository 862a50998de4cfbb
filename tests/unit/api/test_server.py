"""The socket on disk, and starting and stopping."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from stokerd.api import listener
from stokerd.api.accept import Acceptor
from stokerd.api.server import ApiServer, ApiSettings
from stokerd.errors import AlreadyRunning, InvalidInput, StokerError
from tests.unit.api.fake_checkpoints import FakeCheckpoints
from tests.unit.api.fake_containers import FakeContainers
from tests.unit.api.fake_node import FakeNode
from tests.unit.api.fake_topology import FakeTopology
from tests.unit.api.fakes import Api, FakeImages, running_api, until


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short, because a socket's path has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="stoker-") as name:
        yield Path(name)


def make_server(path: Path, group: str = "") -> ApiServer:
    settings = ApiSettings(socket=path, group=group)
    return ApiServer(
        settings,
        images=FakeImages(),
        containers=FakeContainers(),
        checkpoints=FakeCheckpoints(),
        topology=FakeTopology(),
        node=FakeNode(),
        registry=CollectorRegistry(),
    )


def set_mode(path: Path, mode: int) -> None:
    path.chmod(mode)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def remove(path: Path) -> None:
    path.unlink()


async def healthy(path: Path) -> bool:
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=str(path))) as http,
        http.get("http://x/healthz") as response,
    ):
        return response.status == 200


async def test_mode_group_and_parent(directory: Path) -> None:
    path = directory / "run" / "stoker" / "s.sock"
    before = os.umask(0o077)
    try:
        server = make_server(path, group="4242")
        await server.start()
    finally:
        os.umask(before)
    found = path.lstat()
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o660
    assert (found.st_uid, found.st_gid) == (os.getuid(), 4242)
    assert mode_of(path.parent) == 0o755
    await server.stop(1.0)
    assert not path.exists()


async def test_an_existing_parent_keeps_its_mode(directory: Path) -> None:
    set_mode(directory, 0o711)
    server = make_server(directory / "s.sock")
    await server.start()
    await server.stop(1.0)
    assert mode_of(directory) == 0o711


async def test_nobody_connects_before_mode_and_group_are_right(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = directory / "s.sock"
    outcomes: list[str] = []
    real_chown = os.chown

    def chown(target: Path, uid: int, gid: int) -> None:
        with socket.socket(socket.AF_UNIX) as early:
            try:
                early.connect(str(path))
                outcomes.append("connected")
            except ConnectionRefusedError:
                outcomes.append("refused")
        real_chown(target, uid, gid)

    monkeypatch.setattr(os, "chown", chown)
    server = make_server(path, group="4242")
    await server.start()
    assert outcomes == ["refused"]
    await server.stop(1.0)


async def test_a_group_that_does_not_exist_leaves_root_alone(directory: Path) -> None:
    path = directory / "s.sock"
    server = make_server(path, group="no-such-group-here")
    with capture_logs() as logs:
        await server.start()
    assert logs[0]["log_level"] == "warning"
    assert path.lstat().st_gid == os.getgid()
    assert await healthy(path)
    await server.stop(1.0)


def test_groups_by_name_and_number() -> None:
    assert listener.group_id("") is None
    assert listener.group_id("17") == 17
    assert listener.group_id("root") == 0
    assert listener.group_id("no-such-group-here") is None


async def test_a_second_server_on_the_same_socket_is_refused(api: Api) -> None:
    second = make_server(api.socket)
    with pytest.raises(AlreadyRunning, match=rf"another stokerd \(pid {os.getpid()}\) is listening on {api.socket}"):
        await second.start()
    await second.stop(0.0)
    assert await healthy(api.socket)


async def test_a_live_socket_is_not_taken_even_without_its_lock_file(api: Api) -> None:
    remove(api.socket.with_name("s.sock.lock"))
    with pytest.raises(AlreadyRunning, match="another program is listening"):
        await make_server(api.socket).start()
    assert await healthy(api.socket)


async def test_a_live_socket_with_a_full_backlog_is_alive(directory: Path) -> None:
    path = directory / "s.sock"
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        waiting = []
        while True:
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            waiting.append(client)
            try:
                client.connect(str(path))
            except BlockingIOError:
                break
        with pytest.raises(AlreadyRunning):
            await make_server(path).start()
        for client in waiting:
            client.close()
    assert path.exists()


async def test_the_socket_of_a_dead_daemon_is_replaced(directory: Path) -> None:
    path = directory / "s.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.exists()
    server = make_server(path)
    await server.start()
    assert await healthy(path)
    await server.stop(1.0)


async def test_what_is_not_a_socket_is_left_alone(directory: Path) -> None:
    path = directory / "s.sock"
    path.write_text("precious")
    with pytest.raises(InvalidInput, match="is not a socket"):
        await make_server(path).start()
    assert path.read_text() == "precious"


async def test_a_symlink_is_not_followed(directory: Path) -> None:
    (directory / "s.sock").symlink_to(directory / "elsewhere")
    with pytest.raises(InvalidInput, match="is not a socket"):
        await make_server(directory / "s.sock").start()
    (directory / "t.sock.lock").symlink_to(directory / "elsewhere")
    with pytest.raises(StokerError, match="cannot prepare"):
        await make_server(directory / "t.sock").start()
    assert not (directory / "elsewhere").exists()


async def test_a_path_that_is_too_long(directory: Path) -> None:
    with pytest.raises(InvalidInput, match="longer than 107 bytes"):
        await make_server(directory / ("x" * 100) / "s.sock").start()


async def test_a_parent_that_is_a_file(directory: Path) -> None:
    (directory / "file").touch()
    with pytest.raises(StokerError, match="cannot prepare"):
        await make_server(directory / "file" / "s.sock").start()


async def test_a_failed_start_releases_everything(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = directory / "s.sock"

    async def broken(self: ApiServer, gid: int | None) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr(ApiServer, "_make_runner", broken)
        with pytest.raises(RuntimeError):
            await make_server(path).start()
    assert not path.exists()
    server = make_server(path)
    await server.start()
    await server.stop(1.0)


async def test_a_bind_that_fails_leaves_no_socket(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    path = directory / "s.sock"
    with monkeypatch.context() as patch:
        patch.setattr(os, "chown", refuse)
        with pytest.raises(StokerError, match="cannot listen on") as caught:
            await make_server(path, group="4242").start()
    assert "run stokerd as root" in (caught.value.hint or "")
    assert not path.exists()
    server = make_server(path, group="4242")
    await server.start()
    await server.stop(1.0)


async def test_stopping_leaves_a_socket_that_is_not_ours(directory: Path) -> None:
    path = directory / "s.sock"
    server = make_server(path)
    await server.start()
    path.unlink()
    path.write_text("someone else's")
    await server.stop(1.0)
    assert path.read_text() == "someone else's"


async def test_stop_twice_and_without_start(directory: Path) -> None:
    server = make_server(directory / "s.sock")
    await server.stop(1.0)
    await server.start()
    await server.stop(1.0)
    await server.stop(1.0)


async def test_restart_on_the_same_socket(api: Api) -> None:
    await api.restart()
    assert await healthy(api.socket)


async def test_stop_lets_requests_finish_and_takes_no_new_ones(api: Api) -> None:
    api.images.gates["pins"] = asyncio.Event()
    slow = asyncio.create_task(api.http.get(api.url + "/v1/pins").__aenter__())
    await api.images.entering("pins").wait()
    stopping = asyncio.create_task(api.server.stop(30.0))
    await until(lambda: not api.socket.exists())
    assert not stopping.done()
    api.images.gates["pins"].set()
    response = await slow
    assert response.status == 200
    response.close()
    await stopping


async def test_stop_does_not_wait_for_ever(api: Api) -> None:
    api.images.gates["pins"] = asyncio.Event()
    api.images.gates["pin"] = asyncio.Event()
    asking = [
        asyncio.create_task(api.http.get(api.url + "/v1/pins").__aenter__()),
        asyncio.create_task(api.http.put(api.url + "/v1/pins", json={"image": "a"}).__aenter__()),
    ]
    await api.images.entering("pins").wait()
    await api.images.entering("pin").wait()
    await api.server.stop(0.01)
    await asyncio.wait(asking)
    assert all(isinstance(task.exception(), aiohttp.ClientConnectionError) for task in asking)
    assert api.images.finished == []


async def test_a_shortage_of_file_descriptors_is_survived_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[OSError] = []
    pause = Acceptor._pause

    def counted(self: Acceptor, error: OSError) -> None:
        pauses.append(error)
        pause(self, error)

    monkeypatch.setattr(Acceptor, "_pause", counted)
    async with running_api() as api:
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        with capture_logs() as logs:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            try:
                client.connect(str(api.socket))
                await until(lambda: bool(logs))
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(client, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                await until(lambda: len(pauses) >= 3)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            answer = await loop.sock_recv(client, 1000)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert [entry["log_level"] for entry in logs] == ["warning", "info"]
        client.close()


async def test_stopping_during_a_shortage(directory: Path) -> None:
    server = make_server(directory / "s.sock")
    await server.start()
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    with capture_logs() as logs:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            client.connect(str(directory / "s.sock"))
            await until(lambda: bool(logs))
            await server.stop(1.0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    client.close()


async def test_a_connection_that_is_gone_at_once_does_no_harm(api: Api) -> None:
    for _ in range(50):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(api.socket))
    assert await healthy(api.socket)


async def test_many_connections_at_once(api: Api) -> None:
    answers = await asyncio.gather(*[healthy(api.socket) for _ in range(100)])
    assert all(answers)
