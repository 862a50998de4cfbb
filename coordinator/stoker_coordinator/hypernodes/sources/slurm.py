"""A tree that Slurm's ``topology.conf`` tells, for ``topology/tree`` or ``topology/block``. Pure."""

from __future__ import annotations

from stoker.fabrics.foreign import Unreadable, decode, plain
from stoker_coordinator.hypernodes import hostlist
from stoker_coordinator.hypernodes.levels import without_circles
from stoker_coordinator.hypernodes.model import Attachment, Reading
from stoker_coordinator.hypernodes.naming import slug

_LONGEST_LINE = 1 << 20
_OWN_LINES = frozenset(("blocksizes", "linkspeed", "switchname", "blockname"))


def read(data: bytes | str, *, source: str = "slurm", fabric: str = "slurm") -> Reading:
    """Return the tree of a file. What is not understood is counted, line by line."""
    unread = Unreadable()
    reader = _Reader(unread)
    for line in decode(data).replace("\\\n", " ").split("\n"):
        line = line.partition("#")[0].strip()
        if len(line) > _LONGEST_LINE:
            unread.add(line)
        elif line:
            reader.take(line)
    attachments = tuple(Attachment(switch=switch, host=host) for host, switch in reader.nodes.items())
    parents = without_circles(reader.parents)
    for child in sorted(reader.parents.keys() - parents.keys()):
        unread.add(f"switch {child} would be above itself, or too deep")
    return Reading(
        source=source,
        fabric=slug(fabric) or "slurm",
        attachments=attachments,
        names={each: each for each in {*reader.nodes.values(), *parents, *parents.values()}},
        parents=parents,
        declared=True,
        unread=unread.total,
    )


class _Reader:
    def __init__(self, unread: Unreadable) -> None:
        self.nodes: dict[str, str] = {}
        self.parents: dict[str, str] = {}
        self._unread = unread

    def take(self, line: str) -> None:
        """Read a line of ``Name=Value`` pairs."""
        words = (word.partition("=") for word in line.replace(" =", "=").replace("= ", "=").split())
        pairs = {name.lower(): value for name, equals, value in words if equals}
        name = plain(pairs.get("switchname") or pairs.get("blockname") or "")
        if not name:
            if not pairs.keys() & _OWN_LINES:
                self._unread.add(line)
            return
        for host in self._expand(pairs.get("nodes", ""), line):
            if self.nodes.setdefault(host, name) != name:
                self._unread.add(f"node {host} is on {self.nodes[host]} and on {name}")
        for switch in self._expand(pairs.get("switches", ""), line):
            if self.parents.setdefault(switch, name) != name:
                self._unread.add(f"switch {switch} is below {self.parents[switch]} and below {name}")

    def _expand(self, text: str, line: str) -> list[str]:
        names = hostlist.expand(text)
        if names is None:
            self._unread.add(line)
            return []
        return [plain(name) for name in names if plain(name)]
