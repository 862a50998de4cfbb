"""LLDP frames as they come from the wire; what is sent is written by hand, since only root may send."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stokerd.topology import lldp_listener
from stokerd.topology.lldp_listener import LldpListener
from stokerd.topology.neighbours import MOST_PER_INTERFACE
from tests.rig.hardware import texts
from tests.rig.hardware.machines import Switch, cpu_node

HOST, OTHER, OUTGOING = 0, 2, 4


def frame(name: str = "leaf-50", port: str = "Ethernet21") -> bytes:
    """The frame that a switch sends to eth0."""
    machine = cpu_node()
    nic = replace(machine.nics[0], switch=Switch(name, "0c:29:ef:00:00:32", port))
    return texts.lldp_frames(replace(machine, nics=(nic,)))["eth0"]


class Wire:
    """Stands for the socket."""

    def __init__(self) -> None:
        self.frames: list[tuple[bytes, tuple[str, int, int]] | OSError] = []
        self.memberships: list[bytes] = []
        self.closed = False

    def send(self, name: str, data: bytes, kind: int = OTHER) -> None:
        self.frames.append((data, (name, 0x88CC, kind)))

    def recvfrom(self, _size: int) -> tuple[bytes, tuple[str, int, int]]:
        found = self.frames.pop(0) if self.frames else BlockingIOError()
        if isinstance(found, OSError):
            raise found
        return found

    def setsockopt(self, _level: int, _option: int, value: bytes) -> None:
        self.memberships.append(value)
        if value[0] == 9:
            raise OSError(19, "No such device")

    def close(self) -> None:
        self.closed = True


class Listening:
    def __init__(self) -> None:
        self.now = 100.0
        self.changes = 0
        self.wire = Wire()
        self.listener = LldpListener(lambda: self.now, self._changed)
        self.listener._socket = self.wire  # type: ignore[assignment]

    def _changed(self) -> None:
        self.changes += 1

    def read(self) -> None:
        self.listener._read()

    def names(self) -> list[tuple[str, str]]:
        return [(interface, each.name) for interface, each in self.listener.neighbours().pairs]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listening]:
    numbers = {"eth0": 3, "eth1": 4, "gone": 9}
    monkeypatch.setattr(lldp_listener, "_index", lambda name: numbers.get(name, 0))
    listening = Listening()
    listening.listener.watch({"eth0": True, "eth1": None})
    yield listening
    listening.listener._socket = None
    listening.listener.close()


def test_who_is_heard_is_there_until_its_time_is_over(here: Listening) -> None:
    here.wire.send("eth0", frame())
    here.read()
    assert (here.names(), here.changes) == ([("eth0", "leaf-50")], 1)
    here.now += 60
    here.wire.send("eth0", frame())
    here.read()
    assert here.changes == 1  # nothing new
    here.now += 119
    assert here.names() == [("eth0", "leaf-50")]
    here.now += 2
    assert here.names() == []


def test_a_switch_that_is_renamed_is_told(here: Listening) -> None:
    here.wire.send("eth0", frame())
    here.read()
    here.wire.send("eth0", frame("leaf-51"))
    here.read()
    assert (here.names(), here.changes) == ([("eth0", "leaf-51")], 2)


def test_our_own_frames_and_other_devices_are_passed_over(here: Listening) -> None:
    here.wire.send("eth0", frame(), OUTGOING)
    here.wire.send("docker0", frame(), HOST)
    here.read()
    assert (here.names(), here.changes) == ([], 0)


def test_who_was_behind_a_link_that_went_down_is_unknown(here: Listening) -> None:
    for name in ("eth0", "eth1"):
        here.wire.send(name, frame())
    here.read()
    here.listener.watch({"eth0": False, "eth1": True})
    assert (here.names(), here.changes) == ([("eth1", "leaf-50")], 2)
    here.listener.watch({"eth0": False, "eth1": True})
    assert here.changes == 2
    here.listener.watch({"eth0": True})
    assert here.names() == []
    here.wire.send("eth1", frame())
    here.read()
    assert here.names() == []


def test_groups_are_joined_once_and_anew_for_a_device_that_came_back(
    here: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(here.wire.memberships) == 6
    here.listener.watch({"eth0": True, "eth1": True, "gone": True, "of-another-machine": True})
    assert len(here.wire.memberships) == 9  # and one that refuses breaks nothing
    monkeypatch.setattr(lldp_listener, "_index", lambda _: 7)
    here.listener.watch({"eth0": True})
    assert len(here.wire.memberships) == 12


def test_what_is_not_understood_is_counted(here: Listening) -> None:
    here.wire.send("eth0", frame()[:20])
    here.wire.frames.append(OSError(100, "Network is down"))
    here.read()
    unread = here.listener.neighbours().unread
    assert unread.count == 1
    assert unread.samples[0].startswith("eth0: its ")


def test_neighbours_beyond_the_limit_are_counted(here: Listening) -> None:
    for number in range(20):
        here.wire.send("eth0", frame(f"host-{number}", f"port{number}"))
    here.read()
    found = here.listener.neighbours()
    assert len(found.pairs) == 8
    assert found.unread.count == 12
    assert found.unread.samples == ("12 frames of more neighbours than are kept of an interface",)


async def test_a_flood_is_read_in_shares(here: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    removed: list[object] = []
    added: list[object] = []
    later: list[tuple[float, object]] = []
    monkeypatch.setattr(loop, "remove_reader", removed.append)
    monkeypatch.setattr(loop, "add_reader", lambda wire, read: added.append((wire, read)))
    call_later = loop.call_later

    def note(delay: float, function: object, *arguments: object) -> asyncio.TimerHandle:
        later.append((delay, function))
        return call_later(3600, lambda: None)

    monkeypatch.setattr(loop, "call_later", note)
    for _ in range(100):
        here.wire.send("eth0", frame())
    here.read()
    assert (len(here.wire.frames), removed) == (36, [here.wire])
    ((delay, go_on),) = later
    assert delay == 1.0
    assert callable(go_on)
    go_on()
    assert added == [(here.wire, here.listener._read)]


async def test_closing_forgets(here: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "remove_reader", lambda _: True)
    here.wire.send("eth0", frame())
    here.read()
    here.listener.close()
    here.listener.close()
    assert (here.wire.closed, here.names()) == (True, [])
    here.read()


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hostile_frames_do_no_harm_to_whoever_else_is_heard(here: Listening, data: st.DataObject) -> None:
    """Frames of chance, cut, flipped and glued together, on both wires: the switch is heard, and memory is bounded."""
    good = frame()
    hostile = st.one_of(
        st.binary(max_size=1600),
        st.integers(0, len(good)).map(lambda end: good[:end]),
        st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)).map(
            lambda change: good[: change[0]] + bytes([change[1]]) + good[change[0] + 1 :]
        ),
        st.integers(0, len(good)).map(lambda start: good[:14] + good[start:] + good[14:]),
    )
    for junk in data.draw(st.lists(hostile, max_size=30)):
        here.wire.send(data.draw(st.sampled_from(["eth0", "eth1", "elsewhere"])), junk)
        here.read()
    here.wire.send("eth1", frame("leaf-99"))
    here.read()
    known = here.listener.neighbours()
    assert ("eth1", "leaf-99") in here.names() or known.unread.count
    assert len(known.pairs) <= 2 * MOST_PER_INTERFACE
    assert all(len(text) <= 100 and text.isprintable() for text in known.unread.samples)
    here.listener._socket = None
    here.listener.close()  # forgets them all
    here.listener._socket = here.wire  # type: ignore[assignment]
    here.wire.send("eth1", frame("leaf-99"))
    here.read()
    assert here.names() == [("eth1", "leaf-99")]
