"""Sockets that are passed: what is taken, what is refused, and what becomes of the rest."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stokerd.api.listener import adopt_listener
from stokerd.life.activation import WrongSocket, passed_api_socket

FIRST = 200  # descriptors that nothing else in the test process has


def environment(count: int, names: str = "", pid: int | None = None) -> dict[str, str]:
    return {"LISTEN_PID": str(pid or os.getpid()), "LISTEN_FDS": str(count), "LISTEN_FDNAMES": names}


def place(made: socket.socket, number: int) -> None:
    """Put a socket at the descriptor at which systemd would pass it: inheritable, and nobody's here."""
    os.dup2(made.fileno(), FIRST + number, inheritable=True)
    made.close()


def unix(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM, *, listening: bool = True) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(str(path))
    if listening:
        made.listen()
    return made


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    for number in range(4):
        try:
            os.close(FIRST + number)
        except OSError:
            continue


def is_open(number: int) -> bool:
    try:
        os.fstat(FIRST + number)
    except OSError:
        return False
    return True


def test_the_one_that_is_passed_is_taken(tmp_path: Path) -> None:
    place(unix(tmp_path / "api.sock"), 0)
    told = environment(1, "stokerd.socket")
    taken = passed_api_socket(told, first=FIRST)
    assert taken is not None
    assert told == {}
    assert taken.getsockname() == str(tmp_path / "api.sock")
    assert fcntl.fcntl(taken.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert not taken.getblocking()
    taken.close()


def test_of_several_the_one_named_api_is_taken_and_the_others_are_closed(tmp_path: Path) -> None:
    for number, name in enumerate(("one", "two", "three")):
        place(unix(tmp_path / name), number)
    taken = passed_api_socket(environment(3, "metrics:api:other"), first=FIRST)
    assert taken is not None
    assert taken.getsockname() == str(tmp_path / "two")
    assert [is_open(number) for number in range(3)] == [False, True, False]
    taken.close()


def test_of_several_without_the_name_none_is_taken(tmp_path: Path) -> None:
    for number, name in enumerate(("one", "two")):
        place(unix(tmp_path / name), number)
    assert passed_api_socket(environment(2, "a:b"), first=FIRST) is None
    assert not is_open(0)
    assert not is_open(1)


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"LISTEN_FDS": "1"},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "api"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "none"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0"},
    ],
)
def test_what_is_not_for_us_is_not_touched(told: dict[str, str], tmp_path: Path) -> None:
    place(unix(tmp_path / "api.sock"), 0)
    assert passed_api_socket(told, first=FIRST) is None
    assert is_open(0)
    assert told == {}


def test_what_cannot_be_the_apis_socket_is_refused(tmp_path: Path) -> None:
    place(unix(tmp_path / "datagrams", socket.SOCK_DGRAM, listening=False), 0)
    with pytest.raises(WrongSocket, match="no listening unix stream socket"):
        passed_api_socket(environment(1), first=FIRST)
    place(unix(tmp_path / "deaf", listening=False), 0)
    with pytest.raises(WrongSocket):
        passed_api_socket(environment(1), first=FIRST)
    network = socket.create_server(("127.0.0.1", 0))
    place(network, 0)
    with pytest.raises(WrongSocket):
        passed_api_socket(environment(1), first=FIRST)
    reading, writing = os.pipe()
    os.dup2(reading, FIRST)
    os.close(reading)
    os.close(writing)
    with pytest.raises(WrongSocket, match="no socket"):
        passed_api_socket(environment(1), first=FIRST)
    os.close(FIRST)
    with pytest.raises(WrongSocket, match="not open"):
        passed_api_socket(environment(1), first=FIRST)


def test_a_passed_socket_is_closed_at_the_stop_but_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    theirs = unix(path)
    listener = adopt_listener(theirs.dup())
    assert listener.path == path
    listener.withdraw()
    listener.release()
    assert path.is_socket()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))  # whoever passed it still listens
    theirs.close()
