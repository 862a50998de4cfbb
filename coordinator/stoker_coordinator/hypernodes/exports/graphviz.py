"""A tree as Graphviz draws it. Broken and congested domains stand out. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from stoker_coordinator.hypernodes.exports.looks import congested, heading, mood
from stoker_coordinator.hypernodes.model import HyperNode

_COLOURS = {"healthy": "#43a047", "degraded": "#fb8c00", "down": "#e53935"}
MOST_NODES = 32
"""Nodes of a domain that are written out."""


def dot(domains: Iterable[HyperNode]) -> str:
    """Return the trees as a graph in the language of Graphviz."""
    lines = [
        "digraph stoker {",
        "  rankdir=TB; ranksep=0.6; nodesep=0.25;",
        '  node [shape=box style="rounded" fontname="Helvetica" fontsize=10];',
        "  edge [dir=none];",
    ]
    for each in sorted(domains, key=lambda each: (each.fabric, -each.tier, each.name)):
        text = "\n".join([each.name, *heading(each)])
        lines.append(f'  {_quoted(each.name)} [label={_quoted(text)} color="{_COLOURS[mood(each)]}" penwidth=2];')
        if each.parent:
            look = ' [color="#fb8c00" penwidth=3]' if congested(each) else ""
            lines.append(f"  {_quoted(each.parent)} -> {_quoted(each.name)}{look};")
        lines += _nodes(each)
    return "\n".join([*lines, "}"]) + "\n"


def _nodes(domain: HyperNode) -> Iterable[str]:
    names = sorted(member.name for member in domain.members if member.type == "Node")
    unfit = {each.name for each in domain.unhealthy_nodes}
    broken = {each.node: each.state for each in domain.unhealthy_links}
    for name in names[:MOST_NODES]:
        own = f"{domain.fabric}/{name}"
        state = "down" if name in unfit else "healthy"
        yield f'  {_quoted(own)} [label={_quoted(name)} color="{_COLOURS[state]}"];'
        look = f' [color="{_COLOURS[broken[name]]}" style=dashed]' if broken.get(name) in _COLOURS else ""
        yield f"  {_quoted(domain.name)} -> {_quoted(own)}{look};"
    if len(names) > MOST_NODES:
        more = f"{domain.name}/more"
        yield f'  {_quoted(more)} [label="{len(names) - MOST_NODES} more" style=dashed];'
        yield f"  {_quoted(domain.name)} -> {_quoted(more)};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
