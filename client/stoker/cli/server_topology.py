"""The topology of a coordinator: its fabrics as trees, in the forms of others, and why a node is where it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stoker.cli import exits
from stoker.cli.console import Console, write_out
from stoker.cli.server_options import ask
from stoker.cli.text import Style, clean

Domain = Mapping[str, Any]
_BAD_SHOWN = 5


def show(console: Console, fabric: str, form: str, file: str | None) -> int:
    """Print the fabrics as trees, or write one in another form."""
    if form or file or console.json:
        wanted = form or ("json" if console.json else "svg")
        text = ask(console, lambda client: client.text("/topology", {"fabric": fabric, "format": wanted}))
        return _write(console, text, file)
    raw = ask(console, lambda client: client.text("/topology", {"fabric": fabric}))
    found = msgspec.json.decode(raw)["fabrics"]
    if not found:
        console.note("no node has reported a fabric yet")
    for each in found:
        for line in tree(each, console.style()):
            console.say(line)
    return exits.OK


def _write(console: Console, text: str, file: str | None) -> int:
    if file is None or file == "-":
        write_out(text)
        return exits.OK
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        console.fail(f"cannot write {file}: {error.strerror or error}")
        return exits.FAILED
    return exits.OK


def why(console: Console, node: str, switch: str) -> int:
    """Print how a node is tied to a switch, and who says so. FAILED when nobody does."""
    raw = ask(console, lambda client: client.text("/topology/why", {"node": node, "switch": switch}))
    found = msgspec.json.decode(raw)
    if console.json:
        console.document(found)
    else:
        style = console.style()
        for edge in found.get("edges", ()):
            links = f" ({edge['links']} links)" if edge.get("links", 1) > 1 else ""
            says = style.paint(clean(f"[{edge['source']}]"), "dim")
            ends = style.paint(clean(f"{edge['one']} - {edge['other']}"), "bold")
            console.say(f"{ends}{links}: {clean(edge['why'])} {says}")
        for note in found.get("notes", ()):
            console.say(clean(note))
    return exits.OK if found.get("found") else exits.FAILED


# ---------------------------------------------------------------------------------------------- the tree


def tree(fabric: Mapping[str, Any], style: Style) -> Iterator[str]:
    """Yield a fabric's lines: its root, the domains within, what is wrong beneath each."""
    domains: dict[str, Domain] = {each["name"]: each for each in fabric["domains"]}
    children: dict[str, list[Domain]] = {}
    for each in domains.values():
        children.setdefault(each.get("parent", ""), []).append(each)
    for root in children.get("", []):
        yield _line(root, style)
        yield from _beneath(root, children, style, "")


def _beneath(domain: Domain, children: Mapping[str, Sequence[Domain]], style: Style, indent: str) -> Iterator[str]:
    inner = sorted(children.get(domain["name"], ()), key=lambda each: str(each["name"]))
    bad = list(_bad(domain, style)) if not inner else []
    for index, each in enumerate(inner):
        last = index == len(inner) - 1
        yield f"{indent}{'└─ ' if last else '├─ '}{_line(each, style)}"
        yield from _beneath(each, children, style, indent + ("   " if last else "│  "))
    for line in bad:
        yield f"{indent}   {line}"


def _line(domain: Domain, style: Style) -> str:
    nodes, ready = domain.get("nodeCount", 0), domain.get("readyNodes", 0)
    parts = [f"{nodes} node{'s' if nodes != 1 else ''}" + (f", {ready} ready" if ready != nodes else "")]
    if domain.get("capacityGbps"):
        parts.append(f"{domain['capacityGbps']:g} Gb/s")
    if domain.get("oversubscription"):
        parts.append(f"{domain['oversubscription']:g}:1 up")
    if any(each["type"] == "Congested" and each["status"] == "True" for each in domain.get("conditions", ())):
        parts.append(style.paint("congested", "yellow"))
    unwell = domain.get("unhealthyLinkCount", 0)
    if unwell:
        parts.append(style.paint(f"{unwell} bad link{'s' if unwell != 1 else ''}", "red"))
    name = style.paint(clean(str(domain["name"])), "bold")
    members = [str(each["name"]) for each in domain.get("members", ()) if each["type"] == "Node"]
    named = (
        style.paint(f"  {clean(', '.join(members[:4]))}{' …' if len(members) > 4 else ''}", "dim") if members else ""
    )
    return f"{name}  {style.separator.join(parts)}{named}"


def _bad(domain: Domain, style: Style) -> Iterator[str]:
    links = list(domain.get("unhealthyLinks", ()))
    for link in links[:_BAD_SHOWN]:
        text = f"{link['node']} {link['nic']}/{link['port']} - {link['switch']}: {link['state']}, {link['reason']}"
        yield style.paint(clean(text), "red" if link["state"] == "down" else "yellow")
    if len(links) > _BAD_SHOWN:
        yield f"and {len(links) - _BAD_SHOWN} more"
    for node in list(domain.get("unhealthyNodes", ()))[:_BAD_SHOWN]:
        yield style.paint(clean(f"{node['name']}: {node.get('message') or node['reason']}"), "red")
