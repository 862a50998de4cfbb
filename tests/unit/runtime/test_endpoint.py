"""Finding a socket, and saying what is wrong with one."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from stokerd.errors import InvalidInput
from stokerd.runtime import endpoint
from stokerd.runtime.endpoint import Found

NOBODY = 65534


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield server


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may do everything; give that up for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that everybody may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("unix:///run/containerd/containerd.sock", "/run/containerd/containerd.sock"),
        ("unix:/run/containerd/containerd.sock", "/run/containerd/containerd.sock"),
        ("/run/containerd/containerd.sock", "/run/containerd/containerd.sock"),
    ],
)
def test_paths(text: str, path: str) -> None:
    assert endpoint.socket_path(text) == path
    assert endpoint.candidates(text) == (path,)


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:1234", "containerd.sock", "unix://run/containerd.sock", "http:///x"])
def test_what_is_no_unix_socket(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a unix socket") as caught:
        endpoint.candidates(text)
    assert caught.value.hint is not None
    assert "unix:///run/containerd/containerd.sock" in caught.value.hint


def test_usual_places_when_nothing_is_configured() -> None:
    assert endpoint.candidates("") == endpoint.USUAL_SOCKETS
    assert endpoint.USUAL_SOCKETS[0] == "/run/containerd/containerd.sock"


class TestLook:
    def test_who_listens(self, tmp_path: Path) -> None:
        path = tmp_path / "sock"
        with listening(path):
            assert endpoint.look(str(path)) == Found(str(path), "", os.getpid())

    def test_missing(self, tmp_path: Path) -> None:
        assert endpoint.look(f"{tmp_path}/none").problem == "does not exist"
        (tmp_path / "file").touch()
        assert endpoint.look(f"{tmp_path}/file/none").problem == "does not exist"

    def test_not_a_socket(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert endpoint.look(f"{tmp_path}/file").problem == "is not a socket"
        assert endpoint.look(str(tmp_path)).problem == "is not a socket"

    def test_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "sock"
        with listening(path):
            pass
        assert endpoint.look(str(path)).problem == "nobody listens (refused)"

    def test_permission(self, open_directory: Path) -> None:
        hidden = open_directory / "hidden"
        hidden.mkdir()
        with listening(open_directory / "sock"), listening(hidden / "sock"):
            (open_directory / "sock").chmod(0)
            hidden.chmod(0)
            with as_nobody():
                assert endpoint.look(f"{open_directory}/sock").problem == "permission denied"
                assert endpoint.look(f"{hidden}/sock").problem == "permission denied"
            hidden.chmod(0o755)

    def test_too_long(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert endpoint.look(f"{tmp_path}/{'x' * 300}").problem == "is too long for a unix socket"
        deep = tmp_path / ("d" * 120)
        deep.mkdir()
        monkeypatch.chdir(deep)
        with listening(Path("sock")):
            assert "too long" in endpoint.look(f"{deep}/sock").problem

    def test_of_another_kind(self, tmp_path: Path) -> None:
        path = tmp_path / "sock"
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as server:
            server.bind(str(path))
            problem = endpoint.look(str(path)).problem
        assert problem == os.strerror(91)  # EPROTOTYPE


def test_says_what_was_tried(tmp_path: Path) -> None:
    with listening(tmp_path / "sock"):
        (tmp_path / "file").touch()
        found = [endpoint.look(f"{tmp_path}/{name}") for name in ("none", "file", "sock")]
    assert endpoint.tried(found) == (
        f"{tmp_path}/none: does not exist; {tmp_path}/file: is not a socket; {tmp_path}/sock: answers"
    )
    assert endpoint.first(found) == found[2]
    assert endpoint.first(found[:2]) is None
    assert endpoint.tried([]) == ""
