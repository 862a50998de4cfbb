"""What the kernel tells of links: messages byte by byte, and real ones."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.topology.link_messages import LinkMessage, parse
from stokerd.topology.netlink import LinkEvents, problem_of

NEW, DEL, NEW_ADDRESS = 16, 17, 20
UP = 1 << 16 | 1


def attribute(kind: int, value: bytes) -> bytes:
    raw = struct.pack("=HH", len(value) + 4, kind) + value
    return raw + b"\0" * (-len(raw) % 4)


def message(name: str, *, kind: int = NEW, flags: int = UP, info: str = "") -> bytes:
    body = struct.pack("=BxHiII", 0, 1, 7, flags, 0) + attribute(4, b"\0\0\0\1") + attribute(3, name.encode() + b"\0")
    if info:
        body += attribute(18 | 1 << 15, attribute(1, info.encode() + b"\0"))
    return struct.pack("=IHHII", len(body) + 16, kind, 0, 0, 0) + body


def test_messages() -> None:
    data = message("eth0") + message("vnet7", info="tun", flags=1) + message("eth1", kind=DEL, flags=0)
    assert parse(data) == [
        LinkMessage("eth0", up=True),
        LinkMessage("vnet7", "tun"),
        LinkMessage("eth1", gone=True),
    ]


def test_others_and_what_is_cut_off_are_passed_over() -> None:
    whole = message("eth0")
    assert parse(message("eth9", kind=NEW_ADDRESS) + whole) == [LinkMessage("eth0", up=True)]
    assert parse(whole + message("eth1")[:-4]) == [LinkMessage("eth0", up=True)]
    assert parse(b"") == parse(b"\0" * 64) == []
    assert parse(struct.pack("=IHHII", 16, NEW, 0, 0, 0)) == []
    assert parse(message("\xff" * 20))[0].name.startswith("\xff")


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    assert isinstance(parse(data), list)
    assert isinstance(parse(message("eth0")[: -len(data) or None] + data), list)


class Told:
    def __init__(self) -> None:
        self.messages: list[LinkMessage] = []
        self.lost = 0
        self.changed = asyncio.Event()

    def tell(self, found: LinkMessage) -> None:
        self.messages.append(found)
        self.changed.set()

    def lose(self) -> None:
        self.lost += 1
        self.changed.set()


class OtherSocket:
    """Stands for the socket, since only the kernel may send to the group."""

    def __init__(self, *answers: tuple[bytes, tuple[int, int]] | OSError) -> None:
        self.answers = list(answers)
        self.closed = False

    def recvfrom(self, _size: int) -> tuple[bytes, tuple[int, int]]:
        answer = self.answers.pop(0) if self.answers else BlockingIOError()
        if isinstance(answer, OSError):
            raise answer
        return answer

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self.closed = True


async def test_only_the_kernel_is_believed() -> None:
    told = Told()
    events = LinkEvents(told.tell, told.lose)
    events._socket = OtherSocket((message("eth0"), (1234, 0)), (message("eth1"), (0, 1)))  # type: ignore[assignment]
    events._read()
    assert [each.name for each in told.messages] == ["eth1"]


async def test_events_that_were_lost_are_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    events = LinkEvents(told.tell, told.lose)
    full = OtherSocket(OSError(errno.ENOBUFS, ""))
    events._socket = full  # type: ignore[assignment]
    events._read()
    assert (told.lost, full.closed) == (1, False)
    broken = OtherSocket(OSError(errno.EBADF, ""))
    events._socket = broken  # type: ignore[assignment]
    monkeypatch.setattr(asyncio.get_running_loop(), "remove_reader", lambda _fd: True)
    events._read()
    assert (told.lost, broken.closed) == (2, True)
    events._read()  # nothing is there any more
    events.stop()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_listening_and_no_more() -> None:
    told = Told()
    events = LinkEvents(told.tell, told.lose)
    before = descriptors()
    events.start()
    events.stop()
    events.stop()
    assert descriptors() == before


async def test_a_system_that_does_not_let_us(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EAFNOSUPPORT, "")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(OSError, match="97") as caught:
        LinkEvents(lambda _: None, lambda: None).start()
    assert problem_of(caught.value) == (
        "the kernel does not let us listen: Address family not supported by protocol; links are looked at instead"
    )
