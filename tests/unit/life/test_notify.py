"""The notify protocol over a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.service.notify import Notifier
from tests.unit.images.virtual import virtual, virtual_loop


class Manager:
    """The service manager's end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self.socket.setblocking(False)

    def told(self) -> list[str]:
        """Return everything that was said since the last call."""
        found = []
        while True:
            try:
                found.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return found

    def close(self) -> None:
        self.socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    made = Manager(f"@stoker-{secrets.token_hex(8)}" if request.param == "abstract" else str(tmp_path / "notify"))
    yield made
    made.close()


def test_what_is_said(manager: Manager) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": manager.address})
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.status("all is\nwell")
    notifier.ready()
    notifier.reloading()
    notifier.ready()
    notifier.status("all is well")  # no news
    notifier.stopping(20.0)
    notifier.close()
    status, ready, reloading, again, stopping = manager.told()
    assert (status, ready, again) == ("STATUS=all is well", "READY=1", "READY=1")
    first, _, when = reloading.partition("\nMONOTONIC_USEC=")
    assert first == "RELOADING=1"
    assert before <= int(when) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert stopping == "STOPPING=1\nEXTEND_TIMEOUT_USEC=20000000"


def test_nobody_is_told_when_nobody_listens() -> None:
    environment = {"WATCHDOG_USEC": "1000000", "OTHER": "1"}
    notifier = Notifier.from_environment(environment)
    assert not notifier.enabled
    notifier.ready()
    notifier.close()
    assert environment == {"OTHER": "1"}


@pytest.mark.parametrize("address", ["vsock:2:1234", "relative/path", "@", "tcp://x"])
def test_an_address_that_is_no_unix_socket_is_left_alone(address: str) -> None:
    notifier = Notifier(address)
    notifier.ready()
    assert not notifier.enabled


def test_children_do_not_inherit_what_was_meant_for_us(manager: Manager) -> None:
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    notifier = Notifier.from_environment(environment)
    assert environment == {}
    assert notifier.watchdog == 3.0


@pytest.mark.parametrize(
    ("microseconds", "pid", "seconds"),
    [
        ("500000", "", 0.5),
        ("500000", "1", None),  # meant for another process
        ("0", "", None),
        ("", "", None),
        ("-5", "", None),
        ("soon", "", None),
    ],
)
def test_the_watchdog_is_read(microseconds: str, pid: str, seconds: float | None) -> None:
    assert Notifier.from_environment({"WATCHDOG_USEC": microseconds, "WATCHDOG_PID": pid}).watchdog == seconds


async def test_the_watchdog_is_fed_twice_in_its_time_and_only_while_the_loop_turns(manager: Manager) -> None:
    notifier = Notifier(manager.address, watchdog=0.2)
    async with asyncio.TaskGroup() as group:
        beat = group.create_task(notifier.run())
        fed = 0
        began = time.monotonic()
        while fed < 5:
            await _readable(manager)
            fed += manager.told().count("WATCHDOG=1")
        assert time.monotonic() - began >= 0.3
        time.sleep(0.4)  # noqa: ASYNC251 - the loop hangs: that is the point
        assert manager.told() == []
        await _readable(manager)
        beat.cancel()
    notifier.close()


async def _readable(manager: Manager) -> None:
    loop, seen = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(manager.socket, seen.set)
    async with asyncio.timeout(5):
        await seen.wait()
    loop.remove_reader(manager.socket)


async def test_what_is_not_taken_at_once_is_sent_later_in_order(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    notifier = Notifier(manager.address)
    sent = 0
    while not notifier._pending:  # until the manager's queue is full
        notifier._send(f"STATUS=filler {sent}")
        sent += 1
        assert sent < 100_000
    notifier.ready()
    async with asyncio.TaskGroup() as group:
        beat = group.create_task(notifier.run())
        told: list[str] = []
        async with asyncio.timeout(10):
            while "READY=1" not in told:
                await _readable(manager)
                told += manager.told()
        beat.cancel()
    assert told == [*(f"STATUS=filler {number}" for number in range(sent)), "READY=1"]
    notifier.close()
    manager.close()


@virtual
async def test_a_manager_that_has_gone_costs_no_time_and_little_memory() -> None:
    notifier = Notifier(f"@stoker-{secrets.token_hex(8)}", watchdog=10.0)
    for number in range(1000):
        notifier.status(f"line {number}")
    assert len(notifier._pending) <= 64
    loop = virtual_loop()
    async with asyncio.TaskGroup() as group:
        beat = group.create_task(notifier.run())
        before = loop.steps
        await asyncio.sleep(100)
        assert loop.steps - before < 5000  # it tries again now and then, and does not spin
        beat.cancel()
    notifier.close()
