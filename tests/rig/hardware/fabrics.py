"""Dumps of InfiniBand fabrics of any size, as ``ibnetdiscover`` writes them."""

from __future__ import annotations

_LEAVES, _SPINES, _ADAPTERS = 0x2C5EAB0300000000, 0x2C5EAB0400000000, 0xA088C20400000000


def two_tiers(switches: int, adapters: int, *, uplinks: int = 16, speed: str = "NDR", ports: int = 64) -> str:
    """Return a topology file of two tiers: three quarters of the switches are leaves, with all adapters on them.

    Every link is written from both of its ends, so that ibsim takes the file, too (with a *speed* that it knows).
    """
    leaves = switches * 3 // 4
    spines = switches - leaves
    below: dict[int, list[tuple[int, int]]] = {spine: [] for spine in range(spines)}  # leaf and its port, by spine
    lines: list[str] = []
    for leaf in range(leaves):
        lines += _switch(_LEAVES + leaf, _leaf(leaf), ports)
        for port, adapter in enumerate(range(leaf, adapters, leaves), start=1):
            guid = f"{_ADAPTERS + adapter:016x}"
            lines.append(f'[{port}]\t"H-{guid}"[1]({guid}) \t\t# "{_host(adapter)}" lid 5 4x{speed}')
        for uplink in range(uplinks):
            spine, port = (leaf + uplink) % spines, ports // 2 + 1 + uplink
            below[spine].append((leaf, port))
            place = f'[{port}]\t"S-{_SPINES + spine:016x}"[{len(below[spine])}]'
            lines.append(f'{place}\t\t# "{_spine(spine)}" lid 7 4x{speed}')
    for spine, links in below.items():
        lines += _switch(_SPINES + spine, _spine(spine), ports)
        for number, (leaf, port) in enumerate(links, start=1):
            lines.append(f'[{number}]\t"S-{_LEAVES + leaf:016x}"[{port}]\t\t# "{_leaf(leaf)}" lid 9 4x{speed}')
    for adapter in range(adapters):
        leaf, number = adapter % leaves, adapter // leaves + 1
        guid = f"{_ADAPTERS + adapter:016x}"
        lines += ["", f"caguid=0x{guid}", f'Ca\t1 "H-{guid}"\t\t# "{_host(adapter)}"']
        peer = f'"S-{_LEAVES + leaf:016x}"[{number}]'
        lines.append(f'[1]({guid}) \t{peer}\t\t# lid 5 lmc 0 "{_leaf(leaf)}" lid 9 4x{speed}')
    return "\n".join(lines) + "\n"


def _switch(number: int, name: str, ports: int) -> list[str]:
    guid = f"{number:016x}"
    head = f'Switch\t{ports} "S-{guid}"\t\t# "{name}" enhanced port 0 lid 9 lmc 0'
    return ["", f"switchguid=0x{guid}({guid})", head]


def _leaf(number: int) -> str:
    return f"MF0;leaf-{number}:MQM9701/U1"


def _spine(number: int) -> str:
    return f"MF0;spine-{number}:MQM9701/U1"


def _host(adapter: int) -> str:
    return f"node-{adapter // 8} mlx5_{adapter % 8}"
