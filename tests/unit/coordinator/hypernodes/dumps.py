"""A fabric like those that are built for GB200, as ``ibnetdiscover`` writes it, with what is odd about real ones.

Eight racks with four rails each (of the first, one leaf is gone), nine spines, aggregation nodes on all switches,
adapters that only have their vendor's name, hosts called ``localhost`` and ``ubuntu``, and the fabric manager's host on
two leaves.
"""

from __future__ import annotations

RACKS, RAILS, SPINES, HOSTS = 8, 4, 9, 17
LEAVES = [(rack, rail) for rack in range(RACKS) for rail in range(RAILS) if (rack, rail) != (0, 2)]

Ends = tuple[tuple[str, int], tuple[str, int]]


def host(rack: int, number: int) -> str:
    return f"r{rack:02d}-gpu-{number:02d}"


def leaf_guid(rack: int, rail: int) -> str:
    return f"2c5eab03{rack:04x}{rail:04x}"


def spine_guid(number: int) -> str:
    return f"2c5eab04{number:08x}"


class Cabling:
    """Adapters and cables, to be changed before they are written."""

    def __init__(self) -> None:
        self.adapters: dict[str, str] = {}
        self.cables: list[Ends] = []
        self._ports: dict[str, int] = {}
        for rack, rail in LEAVES:
            self._leaf(rack, rail)
        for number in range(SPINES):
            self.attach(f"a99{number:013x}", "Mellanox Technologies Aggregation Node", spine_guid(number))
        for rail, leaf in enumerate([(0, 0), (0, 1), (0, 3)]):
            self.attach(f"e0000000000000{rail:02x}", f"localhost HCA-{rail}", leaf_guid(*leaf))
        for rail in (2, 3):
            self.attach(f"e0000000000001{rail:02x}", f"ubuntu mlx5_{rail}", leaf_guid(7, rail))
            self.attach(f"e0000000000002{rail:02x}", f"b11-cufm-02 mlx5_{rail}", leaf_guid(7, rail))

    def _leaf(self, rack: int, rail: int) -> None:
        own = leaf_guid(rack, rail)
        for number in range(HOSTS):
            name = f"{host(rack, number)} mlx5_{rail}"
            if number == HOSTS - 1 and rack % 2:
                name = "MT4129 ConnectX7   Mellanox Technologies"
            self.attach(f"e09d{rack:04x}{number:04x}{rail:04x}", name, own)
        self.attach(f"a98{rack:06x}{rail:07x}", "Mellanox Technologies Aggregation Node", own)
        for spine in range(SPINES):
            for _ in range(2):
                self.cables.append(((own, self._next(own)), (spine_guid(spine), self._next(spine_guid(spine)))))

    def attach(self, guid: str, name: str, switch: str) -> None:
        """Plug an adapter into the next port of a switch."""
        self.adapters[guid] = name
        self.cables.append(((guid, 1), (switch, self._next(switch))))

    def _next(self, guid: str) -> int:
        self._ports[guid] = self._ports.get(guid, 0) + 1
        return self._ports[guid]

    def text(self) -> str:
        """Return the dump."""
        names = {leaf_guid(*leaf): f"MF0;A-IBLEAF-{leaf[1]:02d}-{leaf[0]:02d}:MQM9701/U1" for leaf in LEAVES}
        names.update({spine_guid(number): f"MF0;B-IBSPINE-{number:02d}:MQM9701/U1" for number in range(SPINES)})
        ends: dict[str, list[tuple[int, tuple[str, int]]]] = {}
        for one, other in self.cables:
            ends.setdefault(one[0], []).append((one[1], other))
            ends.setdefault(other[0], []).append((other[1], one))
        lines = []
        for guid, name in [*names.items(), *self.adapters.items()]:
            switch = guid in names
            lines += ["", f"{'switch' if switch else 'ca'}guid=0x{guid}({guid})"]
            lines.append(f'{"Switch" if switch else "Ca"}\t65 "{"S" if switch else "H"}-{guid}"\t\t# "{name}"')
            for port, (peer, its) in sorted(ends.get(guid, [])):
                own = "" if switch else f"({guid})"
                kind = "S" if peer in names else "H"
                called = names.get(peer) or self.adapters[peer]
                lines.append(f'[{port}]{own}\t"{kind}-{peer}"[{its}]\t\t# "{called}" lid 5 4xNDR')
        return "\n".join(lines) + "\n"
