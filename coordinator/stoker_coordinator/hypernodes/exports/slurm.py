"""A tree as Slurm's ``topology.conf``: for ``topology/tree``, and its blocks for ``topology/block``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from stoker_coordinator.hypernodes import hostlist
from stoker_coordinator.hypernodes.model import HyperNode

_ODD = re.compile(r"[^A-Za-z0-9_.-]")


def tree(domains: Iterable[HyperNode], names: Mapping[str, str] | None = None) -> str:
    """Return the tree of one fabric. *names*: what Slurm calls nodes, where that differs."""
    found = sorted(domains, key=lambda each: (each.tier, each.name))
    lines = [f"# {each.fabric}: {each.node_count} nodes, written by stoker" for each in found if not each.parent]
    for each in found:
        hosts, below = _hosts(each, names), [m.name for m in each.members if m.type == "HyperNode"]
        parts = [f"SwitchName={each.name}"]
        if below:
            # Slurm has switches of nodes and switches of switches, and none of both.
            extra = f"{each.name}-nodes"
            if hosts:
                lines.append(f"SwitchName={extra} Nodes={hostlist.fold(hosts)}")
                below.append(extra)
            parts.append(f"Switches={hostlist.fold(below)}")
        else:
            parts.append(f"Nodes={hostlist.fold(hosts)}")
        lines.append(" ".join(parts))
    return "\n".join(lines) + "\n"


def blocks(domains: Iterable[HyperNode], names: Mapping[str, str] | None = None) -> str:
    """Return the domains of tier 1 as blocks; of NVLink's fabric, where there is one.

    A base block has as many nodes as the smallest of them; larger sizes are twice the one before.
    """
    found = sorted(
        (each for each in domains if any(m.type == "Node" for m in each.members)), key=lambda each: each.name
    )
    sizes = [len(_hosts(each, names)) for each in found]
    lines = [f"# {each.fabric}: written by stoker" for each in found[:1]]
    for each in found:
        lines.append(f"BlockName={each.name} Nodes={hostlist.fold(_hosts(each, names))}")
    if sizes:
        lines.append(f"BlockSizes={','.join(map(str, _sizes(min(sizes), len(found))))}")
    return "\n".join(lines) + "\n"


def _sizes(base: int, count: int) -> Sequence[int]:
    return [base << power for power in range(count.bit_length())]


def _hosts(domain: HyperNode, names: Mapping[str, str] | None) -> list[str]:
    return list(_safe((names or {}).get(m.name, m.name) for m in domain.members if m.type == "Node"))


def _safe(hosts: Iterable[str]) -> Iterator[str]:
    """Yield the names that cannot be taken for anything else in such a file."""
    return (host for host in hosts if host and not _ODD.search(host))
