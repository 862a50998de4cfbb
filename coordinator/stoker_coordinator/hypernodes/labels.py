"""Trees that labels of nodes tell: region, block, rack. Pure.

A domain is known by its whole path, so that ``rack-1`` of one block is not that of another. A node hangs on the deepest
domain whose labels it has without a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from stoker.fabrics.foreign import plain
from stoker_coordinator.hypernodes.model import Port

HOSTNAME = "kubernetes.io/hostname"
_SEPARATOR = "\t"  # no label has one
_MOST_LEVELS = 12


class LabelTopology(Struct, frozen=True):
    """Labels of nodes as a tree; *keys* from the root down. A key that names the node itself says nothing here."""

    fabric: str
    keys: tuple[str, ...]


def place(topology: LabelTopology, labels: Mapping[str, str]) -> Port | None:
    """Return where a node's labels put it; None if it has not even the first."""
    path: list[str] = []
    last = ""
    for key in topology.keys[:_MOST_LEVELS]:
        value = plain(labels.get(key, ""), 63)
        if key == HOSTNAME or not value:
            break
        path.append(value)
        last = f"{key}={value}"
    if not path:
        return None
    return Port(
        nic="",
        number=0,
        fabric=topology.fabric,
        switch=_SEPARATOR.join(path),
        switch_name="-".join(path),
        source="labels",
        why=f"the node's label {last}",
    )


def parents_of(path: str) -> Iterator[tuple[str, str]]:
    """Yield each domain of a path with the one above it."""
    while _SEPARATOR in path:
        above = path.rpartition(_SEPARATOR)[0]
        yield path, above
        path = above
