"""Fixtures of the integration tests: stokerd on a node, and images to warm."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.rig.images import ImageSpec, build
from tests.rig.node import Node
from tests.rig.push import Pushed
from tests.rig.registry import Registry
from tests.rig.stokerd import Stokerd, Store

_numbers = itertools.count()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a CRIU that works where the suite has none: bookworm's does not start on today's kernels."""
    callspecs = {item: getattr(item, "callspec", None) for item in items}
    out = {
        item
        for item, callspec in callspecs.items()
        if item.get_closest_marker("criu") and callspec is not None and callspec.params.get("suite") == "bookworm"
    }
    if out:
        config.hook.pytest_deselected(items=sorted(out, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in out]


class MakeStokerd(Protocol):
    """Makes (and starts, unless told not to) a stokerd; tables of settings as keywords."""

    def __call__(self, node: Node, *, start: bool = True, **settings: Mapping[str, Any]) -> Stokerd: ...


@pytest.fixture
def stokerds() -> Iterator[list[Stokerd]]:
    """All that `make_stokerd` has made for a test."""
    made: list[Stokerd] = []
    yield made
    _stop(made)


def _stop(stokerds: list[Stokerd]) -> None:
    for daemon in stokerds:
        if daemon.running:
            assert daemon.stop() == 0
        else:
            daemon.stop()


@pytest.fixture
def make_stokerd(rig: Path, stokerds: list[Stokerd]) -> MakeStokerd:
    def make(node: Node, *, start: bool = True, **settings: Mapping[str, Any]) -> Stokerd:
        daemon = Stokerd(node, rig / f"s{next(_numbers)}", settings=settings)
        stokerds.append(daemon)
        if start:
            daemon.start()
        return daemon

    return make


@pytest.fixture
def stokerd(make_stokerd: MakeStokerd, clean_node: Node) -> Stokerd:
    """A stokerd on the shared node, whose store is put back as it was afterwards."""
    return make_stokerd(clean_node)


@pytest.fixture
def clean_node(node: Node, stokerds: list[Stokerd]) -> Iterator[Node]:
    """The shared node, without garbage; images that the test brought are removed after it.

    Before that every stokerd is stopped: one that keeps an image would bring it back.
    """
    node.collect_garbage()
    before = Store.of(node)
    yield node
    try:
        _stop(stokerds)
    finally:
        more = sorted(Store.of(node).images - before.images)
        if more:
            node.ctr("images", "rm", "--sync", *more)


class Publish(Protocol):
    """Builds an image and pushes it to the shared registry under a name of its own."""

    def __call__(self, spec: ImageSpec | None = None, *, tag: str = "v1", name: str | None = None) -> Pushed: ...


@pytest.fixture
def publish(registry: Registry) -> Publish:
    def make(spec: ImageSpec | None = None, *, tag: str = "v1", name: str | None = None) -> Pushed:
        number = next(_numbers)
        image = build(spec or ImageSpec())
        return registry.push(name or f"test/image{number}", image, tag=tag)

    return make
