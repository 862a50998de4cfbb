"""Links between switches, counted while a source is read. Pure."""

from __future__ import annotations

from stoker_coordinator.hypernodes.model import Trunk


class Trunks:
    """Collects single links; ``all`` has those between two switches as one."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[float]] = {}

    def add(self, one: str, other: str, gbps: float = 0.0, *, up: bool = True, links: int = 1) -> None:
        """Take a link; between a switch and itself there is none."""
        if one and other and one != other:
            counts = self._found.setdefault((min(one, other), max(one, other)), [0, 0.0, 0])
            counts[0] += links
            counts[1] += gbps * links if up else 0.0
            counts[2] += 0 if up else links

    def all(self) -> tuple[Trunk, ...]:
        """Return what was collected."""
        return tuple(
            Trunk(one, other, int(links), gbps, int(down)) for (one, other), (links, gbps, down) in self._found.items()
        )
