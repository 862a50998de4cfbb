"""A fabric as a picture (SVG): domains within domains, each leaf group a card with its nodes as squares.

A line leads from each domain to what is in it: thick and orange if that is congested, red and dashed if nothing gets
through. The picture needs no script and no font of its own, reads on white and on dark, and tells more of each thing
when the pointer rests on it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from stoker_coordinator.hypernodes.exports.looks import Mood, congested, counted, cut_off, heading, mood
from stoker_coordinator.hypernodes.model import HyperNode

MOST_CARDS = 48
"""Leaf groups that are drawn with their nodes; where there are more, those that are well are small tiles."""
MOST_SQUARES, MOST_BAD = 72, 3
_WIDEST, _MARGIN, _GAP, _LANE = 1300, 16, 14, 24
_NARROWEST = 640  # as the legend is
_CARD, _TILE = 244, 118
_SQUARE, _PER_ROW = 15, 13
_BAR, _DROP = 42, 26
_LETTER = 6.1  # of 11 px, about
STYLE = """
.hn-bg{fill:#fff}.hn-in{fill:#f4f6f8;stroke:#cfd6dd}.hn-card{fill:#fff;stroke:#90a4ae;stroke-width:1.5}
.hn-text{font:11px system-ui,sans-serif;fill:#1c2733}.hn-name{font-weight:600}.hn-big{font-size:16px}
.hn-dim{fill:#5b6975}.hn-bad{fill:#c62828}.hn-line{stroke:#90a4ae;stroke-width:1.6;fill:none}
.hn-congested{stroke:#fb8c00;stroke-width:4}.hn-broken{stroke:#e53935;stroke-width:2.5;stroke-dasharray:6 4}
.hn-healthy{stroke:#43a047}.hn-degraded{stroke:#fb8c00}.hn-down{stroke:#e53935;stroke-dasharray:5 3}
.hn-n{stroke-width:1}.hn-n-healthy{fill:#c8e6c9;stroke:#43a047}.hn-n-degraded{fill:#ffcc80;stroke:#ef6c00}
.hn-n-down{fill:#ef9a9a;stroke:#c62828}.hn-cross{stroke:#c62828;stroke-width:1.6}
@media (prefers-color-scheme:dark){
.hn-bg{fill:#12181f}.hn-in{fill:#1a222b;stroke:#33404d}.hn-card{fill:#161e27}.hn-text{fill:#e3e9ef}.hn-dim{fill:#93a3b3}
.hn-bad{fill:#ff8a80}.hn-n-healthy{fill:#1e4620}.hn-n-degraded{fill:#6b3d00}.hn-n-down{fill:#7f1d1d}}
"""


@dataclass(frozen=True)
class _Block:
    """A domain with its size, and where what is in it stands beneath its bar."""

    domain: HyperNode
    width: int
    height: int
    inner: tuple[tuple[_Block, int, int], ...] = ()
    tile: bool = False


def svg(domains: Iterable[HyperNode], title: str = "") -> str:
    """Return the picture of one fabric."""
    found = {each.name: each for each in domains}
    roots = [each for each in found.values() if not each.parent]
    leaves = sum(any(member.type == "Node" for member in each.members) for each in found.values())
    tops = [_measure(root, found, small=leaves > MOST_CARDS) for root in sorted(roots, key=lambda each: each.name)]
    width = max([_NARROWEST, *(block.width for block in tops)]) + 2 * _MARGIN
    height = 66 + sum(block.height + _GAP for block in tops) + 40
    body = [
        f'<rect class="hn-bg" width="{width}" height="{height}"/>',
        _text(_MARGIN, 28, title or ", ".join(each.fabric for each in roots) or "no fabric", "hn-name hn-big"),
        _text(_MARGIN, 48, _summary(roots), "hn-dim"),
    ]
    y = 66
    for block in tops:
        body += _draw(block, _MARGIN, y)
        y += block.height + _GAP
    body += _legend(y + 12)
    label = escape(f"topology of {title or 'the fabric'}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{label}"><style>{STYLE}</style>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _summary(roots: Sequence[HyperNode]) -> str:
    nodes = sum(each.node_count for each in roots)
    bad = sum(each.unhealthy_node_count for each in roots), sum(each.unhealthy_link_count for each in roots)
    words = [counted(nodes, "node"), counted(sum(each.link_count for each in roots), "link")]
    words += [counted(bad[0], "unhealthy node")] if bad[0] else []
    words += [counted(bad[1], "unhealthy link")] if bad[1] else []
    waiting = sum(each.congested_links for each in roots)
    words += [counted(waiting, "congested link")] if waiting else []
    return ", ".join(words)


# ---------------------------------------------------------------------------------------------- sizes


def _measure(domain: HyperNode, found: Mapping[str, HyperNode], *, small: bool) -> _Block:
    below = [found[m.name] for m in domain.members if m.type == "HyperNode" and m.name in found]
    if not below:
        return _leaf(domain, small=small)
    blocks = [_measure(each, found, small=small) for each in sorted(below, key=lambda each: each.name)]
    if any(member.type == "Node" for member in domain.members):
        blocks.append(_leaf(_own_nodes(domain), small=small))
    return _rows(domain, blocks)


def _own_nodes(domain: HyperNode) -> HyperNode:
    """Return the nodes that hang on a domain of a higher tier itself, as if they were one beneath."""
    names = tuple(member for member in domain.members if member.type == "Node")
    return HyperNode(
        name=f"on {domain.name} itself", fabric=domain.fabric, tier=1, members=names, node_count=len(names)
    )


def _rows(domain: HyperNode, blocks: Sequence[_Block]) -> _Block:
    """Put blocks beside each other, and into as many rows as it takes; above each row is a line for all of them."""
    inner: list[tuple[_Block, int, int]] = []
    x = y = widest = tallest = 0
    for block in sorted(blocks, key=lambda block: block.tile):  # what is not well, before the tiles
        if x and (x + _GAP + block.width > _WIDEST or block.tile != inner[-1][0].tile):
            x, y, tallest = 0, y + tallest + _GAP + _DROP, 0
        x += _GAP if x else 0
        inner.append((block, _LANE + x, y + _DROP))
        x += block.width
        tallest = max(tallest, block.height)
        widest = max(widest, x)
    return _Block(domain, max(_LANE + widest + _GAP, 340), _BAR + y + _DROP + tallest + _GAP, tuple(inner))


def _leaf(domain: HyperNode, *, small: bool) -> _Block:
    if small and mood(domain) == "healthy" and not congested(domain):
        return _Block(domain, _TILE, 36, tile=True)
    squares = min(sum(member.type == "Node" for member in domain.members), MOST_SQUARES)
    rows = -(-squares // _PER_ROW)
    return _Block(domain, _CARD, 24 + 14 * len(heading(domain)) + rows * (_SQUARE + 2) + 13 * len(_bad(domain)) + 14)


# ---------------------------------------------------------------------------------------------- lines and boxes


def _draw(block: _Block, x: int, y: int) -> Iterator[str]:
    if block.tile:
        yield from _tile(block, x, y)
    elif block.inner:
        yield from _frame(block, x, y)
    else:
        yield from _card(block, x, y)


def _frame(block: _Block, x: int, y: int) -> Iterator[str]:
    domain = block.domain
    size = f'x="{x}" y="{y}" width="{block.width}" height="{block.height}"'
    yield f'<g>{_title(domain)}<rect class="hn-in" {size} rx="8"/>'
    yield _box(x + 6, y + 6, block.width - 12, _BAR - 12, domain)
    yield _text(x + 16, y + 25, domain.name, "hn-name")
    yield _text(x + 26 + int(_LETTER * 1.12 * len(domain.name)), y + 25, ", ".join(heading(domain)), "hn-dim")
    yield from _lines(block, x + _LANE // 2, y + _BAR - 6)
    for inner, dx, dy in block.inner:
        yield from _draw(inner, x + dx, y + _BAR + dy)
    yield "</g>"


def _lines(block: _Block, x: int, y: int) -> Iterator[str]:
    """Draw the ways up: one line down along the left side, one along each row, and one to each block in it."""
    rows = sorted({dy for _, _, dy in block.inner})
    left = x - _LANE // 2
    for row in rows:
        last = max(dx for _, dx, dy in block.inner if dy == row)
        yield f'<path class="hn-line" d="M{x} {y}V{y + 6 + row - _DROP + 6}H{left + last + 24}"/>'
    for inner, dx, dy in block.inner:
        look = "hn-broken" if cut_off(inner.domain) else "hn-congested" if congested(inner.domain) else ""
        yield f'<path class="hn-line {look}" d="M{left + dx + 24} {y + 12 + dy - _DROP}V{y + 6 + dy}"/>'


def _box(x: int, y: int, width: int, height: int, domain: HyperNode) -> str:
    return f'<rect class="hn-card hn-{mood(domain)}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>'


def _tile(block: _Block, x: int, y: int) -> Iterator[str]:
    domain = block.domain
    yield f"<g>{_title(domain)}" + _box(x, y, block.width, block.height, domain)
    yield _text(x + 8, y + 15, _fitting(domain.name, block.width - 14, tail=True), "hn-name")
    yield _text(x + 8, y + 29, counted(domain.node_count, "node"), "hn-dim") + "</g>"


def _card(block: _Block, x: int, y: int) -> Iterator[str]:
    domain = block.domain
    yield f"<g>{_title(domain)}" + _box(x, y, block.width, block.height, domain)
    yield _text(x + 10, y + 18, _fitting(domain.name, block.width - 20, tail=True), "hn-name")
    down = y + 18
    for line in heading(domain):
        down += 14
        yield _text(x + 10, down, _fitting(line, block.width - 20), "hn-dim")
    yield from _squares(domain, x + 10, down + 8)
    squares = min(sum(member.type == "Node" for member in domain.members), MOST_SQUARES)
    down += 8 + -(-squares // _PER_ROW) * (_SQUARE + 2)
    for line in _bad(domain):
        down += 13
        yield _text(x + 10, down, _fitting(line, block.width - 20), "hn-bad")
    yield "</g>"


def _squares(domain: HyperNode, x: int, y: int) -> Iterator[str]:
    told = _told(domain)
    names = sorted(member.name for member in domain.members if member.type == "Node")
    # What is wrong is to be seen, however many there are.
    shown = sorted(sorted(names, key=lambda name: name not in told)[:MOST_SQUARES])
    for number, name in enumerate(shown):
        state, words = told.get(name, ("healthy", []))
        left, top = x + (number % _PER_ROW) * (_SQUARE + 2), y + (number // _PER_ROW) * (_SQUARE + 2)
        box = f'<rect class="hn-n hn-n-{state}" x="{left}" y="{top}" width="{_SQUARE}" height="{_SQUARE}" rx="2"/>'
        cross = f'<path class="hn-cross" d="M{left + 4} {top + 4}l7 7m0 -7l-7 7"/>' if state == "down" else ""
        yield f"<g><title>{escape('; '.join([name, *words]))}</title>{box}{cross}</g>"


def _told(domain: HyperNode) -> dict[str, tuple[Mood, list[str]]]:
    """Return of each node that is not well how it is drawn, and what is wrong."""
    found: dict[str, tuple[Mood, list[str]]] = {}
    for node in domain.unhealthy_nodes:
        found[node.name] = ("down", [f"{node.reason}: {node.message}"])
    for link in domain.unhealthy_links:
        state, words = found.setdefault(link.node, ("degraded", []))
        found[link.node] = (state, [*words, f"{link.nic}/{link.port} to {link.switch} is {link.state}: {link.reason}"])
    return found


def _bad(domain: HyperNode) -> list[str]:
    """Return the first things that are wrong, and how many more there are."""
    lines = [f"{each.name}: {each.reason}" for each in domain.unhealthy_nodes]
    lines += [f"{each.node} {each.nic}: {each.state}" for each in domain.unhealthy_links]
    total = domain.unhealthy_node_count + domain.unhealthy_link_count
    if total <= MOST_BAD:
        return lines
    return [*lines[: MOST_BAD - 1], f"and {total - MOST_BAD + 1} more"]


def _title(domain: HyperNode) -> str:
    names = ", ".join(each.name or each.id for each in domain.switches[:16])
    words = [f"{domain.name}, tier {domain.tier}", *heading(domain)]
    words += [f"switches: {names}"] if names else []
    words += [each.message for each in domain.conditions if each.message]
    return f"<title>{escape('; '.join(words))}</title>"


def _legend(y: int) -> Iterator[str]:
    x = _MARGIN
    for state, words in (("healthy", "well"), ("degraded", "a link is bad"), ("down", "not fit for work")):
        yield f'<rect class="hn-n hn-n-{state}" x="{x}" y="{y - 10}" width="12" height="12" rx="2"/>'
        yield _text(x + 18, y, words, "hn-dim")
        x += 34 + int(_LETTER * len(words))
    for look, words in (("", "way up"), ("hn-congested", "congested"), ("hn-broken", "nothing gets through")):
        yield f'<path class="hn-line {look}" d="M{x} {y - 4}h26"/>'
        yield _text(x + 32, y, words, "hn-dim")
        x += 48 + int(_LETTER * len(words))


def _fitting(text: str, width: int, *, tail: bool = False) -> str:
    """Return as much of *text* as fits; with *tail*, its end: names differ there."""
    most = int(width / _LETTER)
    if len(text) <= most:
        return text
    return "…" + text[1 - most :] if tail else text[: most - 1] + "…"


def _text(x: int, y: int, text: str, look: str) -> str:
    return f'<text class="hn-text {look}" x="{x}" y="{y}">{escape(text)}</text>'
