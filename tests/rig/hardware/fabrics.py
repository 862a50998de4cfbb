"""Dumps of InfiniBand fabrics of any size, as ``ibnetdiscover`` writes them."""

from __future__ import annotations

_LEAVES, _SPINES = 0x2C5EAB0300000000, 0x2C5EAB0400000000
_FIRST_UPLINK = 33


def two_tiers(switches: int, adapters: int, *, uplinks: int = 16) -> str:
    """Return a topology file of two tiers: three quarters of the switches are leaves, with all adapters on them."""
    leaves = switches * 3 // 4
    spines = switches - leaves
    lines: list[str] = []
    for leaf in range(leaves):
        guid = f"{_LEAVES + leaf:016x}"
        lines += ["", f"switchguid=0x{guid}({guid})"]
        lines.append(f'Switch\t65 "S-{guid}"\t\t# "{_leaf(leaf)}" enhanced port 0 lid 9 lmc 0')
        for port, adapter in enumerate(range(leaf, adapters, leaves), start=1):
            guid = f"{adapter + 1:016x}"
            lines.append(f'[{port}]\t"H-{guid}"[1]({guid}) \t\t# "{_host(adapter)}" lid 5 4xNDR')
        for uplink in range(uplinks):
            spine = (leaf + uplink) % spines
            place = f'[{_FIRST_UPLINK + uplink}]\t"S-{_SPINES + spine:016x}"[{leaf % 64 + 1}]'
            lines.append(f'{place}\t\t# "MF0;spine-{spine}:MQM9701/U1" lid 7 4xNDR')
    for adapter in range(adapters):
        leaf, port_number = adapter % leaves, adapter // leaves + 1
        guid = f"{adapter + 1:016x}"
        lines += ["", f"caguid=0x{guid}", f'Ca\t1 "H-{guid}"\t\t# "{_host(adapter)}"']
        peer = f'"S-{_LEAVES + leaf:016x}"[{port_number}]'
        lines.append(f'[1]({guid}) \t{peer}\t\t# lid 5 lmc 0 "{_leaf(leaf)}" lid 9 4xNDR')
    return "\n".join(lines) + "\n"


def _leaf(number: int) -> str:
    return f"MF0;leaf-{number}:MQM9701/U1"


def _host(adapter: int) -> str:
    return f"node-{adapter // 8} mlx5_{adapter % 8}"
