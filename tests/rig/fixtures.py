"""The rig as pytest fixtures. tests/conftest.py loads this module as a plugin.

`suite` is parametrised from STOKER_SUITES (default: forky), so whatever uses `node` runs once per suite. A tool that
is missing is an error, never a skip. One run at a time holds the lock; what dead runs left is removed before the
first test, and the session fails when anything of its own is left after the last.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import pytest

from tests.rig import cleanup, paths, records
from tests.rig.cgroups import NodeCgroup
from tests.rig.errors import RigError
from tests.rig.faultproxy import FaultProxy
from tests.rig.lock import RunLock
from tests.rig.node import Node, NodeOptions
from tests.rig.processes import ProcessId
from tests.rig.records import Record
from tests.rig.registry import Registry, RegistryOptions, free_port

# Set by pytest-xdist in its workers: all of one run have the same.
_lock = RunLock(run=os.environ.get("PYTEST_XDIST_TESTRUNUID", ""))


def suites() -> list[str]:
    return [word for word in os.environ.get("STOKER_SUITES", "forky").replace(",", " ").split() if word]


def _terminated(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def pytest_configure() -> None:
    """SIGTERM ends a run as Ctrl-C does: fixtures are torn down."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminated)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Wait for the rig here, where no test's timeout runs."""
    if session.config.option.collectonly or os.geteuid() != 0:
        return
    if any("rig" in getattr(item, "fixturenames", ()) for item in session.items):
        capture = session.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
            _lock.acquire()


def pytest_unconfigure() -> None:
    _lock.release()


@pytest.fixture(scope="session")
def rig() -> Iterator[Path]:
    """The session's own directory, and the promise that nothing is left at the end."""
    if os.geteuid() != 0:
        raise RigError("the rig needs root; run the tests with sudo, or only tests/unit")
    cleanup.cleanup()
    name = f"run-{os.getpid()}"
    directory = paths.DEFAULT_WORKDIR / name
    record = Record(name, "run", ProcessId.own(), NodeCgroup(()), [directory])
    record.create()
    directory.mkdir(parents=True)
    yield directory
    forgotten = [each.name for each in records.made if each is not record and each.left_over()]
    record.destroy()
    records.destroy_own()
    left = [f"{each.name}: {what}" for each in records.made for what in each.left_over()]
    problems = [f"{name} was not stopped" for name in forgotten] + left
    if problems:
        raise RigError("the rig left behind: " + "; ".join(problems))


@pytest.fixture(scope="session", params=suites())
def suite(request: pytest.FixtureRequest) -> str:
    """The Debian suite whose containerd the test runs against."""
    return str(request.param)


@pytest.fixture(scope="session")
def registry(rig: Path) -> Iterator[Registry]:
    """A plain registry that all tests share; it allows deletion."""
    with Registry(f"registry-{os.getpid()}", workdir=rig, options=RegistryOptions(delete=True)) as made:
        yield made


@pytest.fixture(scope="session")
def proxy_port() -> int:
    """The port of every `proxy` of this session, so that nodes can be told once."""
    return free_port()


@pytest.fixture
def proxy(registry: Registry, proxy_port: int) -> Iterator[FaultProxy]:
    """A fault proxy in front of the shared registry, without rules and with its counters at nothing."""
    with FaultProxy(registry.address, port=proxy_port) as made:
        yield made


@pytest.fixture(scope="session")
def node(rig: Path, suite: str, registry: Registry, proxy_port: int) -> Iterator[Node]:
    """A node that the tests of one suite share; it reaches `registry` and `proxy`. Leave it as it was found."""
    options = NodeOptions(expose=(registry.port, proxy_port))
    with Node(f"{suite}-{os.getpid()}", suite, workdir=rig, options=options) as made:
        made.hosts(registry.address)
        made.hosts(f"127.0.0.1:{proxy_port}")
        yield made


class MakeNode(Protocol):
    """Starts a node of the test's own; keywords are those of NodeOptions."""

    def __call__(self, **options: Any) -> Node: ...


@pytest.fixture
def make_node(rig: Path, suite: str, registry: Registry, proxy_port: int) -> Iterator[MakeNode]:
    """Nodes that one test has to itself: to fill, break, configure."""
    made: list[Node] = []

    def make(**options: Any) -> Node:
        expose = {registry.port, proxy_port, *options.pop("expose", ())}
        name = f"{suite}-{os.getpid()}-{next(_numbers)}"
        node = Node(name, suite, workdir=rig, options=NodeOptions(expose=tuple(sorted(expose)), **options))
        node.start()
        made.append(node)
        node.hosts(registry.address)
        node.hosts(f"127.0.0.1:{proxy_port}")
        node.collect_garbage()
        return node

    yield make
    _stop_all([each.stop for each in made])


class MakeRegistry(Protocol):
    """Starts a registry of the test's own; keywords are those of RegistryOptions."""

    def __call__(self, **options: Any) -> Registry: ...


@pytest.fixture
def make_registry(rig: Path) -> Iterator[MakeRegistry]:
    """Registries that one test has to itself: with passwords, with TLS, to kill."""
    made: list[Registry] = []

    def make(**options: Any) -> Registry:
        registry = Registry(f"registry-{os.getpid()}-{next(_numbers)}", workdir=rig, options=RegistryOptions(**options))
        registry.start()
        made.append(registry)
        return registry

    yield make
    _stop_all([each.stop for each in made])


def _count() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


_numbers = _count()


def _stop_all(stops: list[Callable[[], None]]) -> None:
    """Call all of them, then raise what the first failure said."""
    failures: list[Exception] = []
    for stop in stops:
        try:
            stop()
        except (RigError, OSError) as error:
            failures.append(error)
    if failures:
        raise failures[0]
