"""What domains are called: after their switches, and for as long as any of these is there. Pure.

A name that was given is kept with the switches it was given to. A domain has the name that was given to most of its
switches; one that has none gets a new name, after the first of its switches. So names stay when others come and go,
when switches are replaced one by one, and over restarts, where this memory is stored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from stoker_coordinator.hypernodes.model import NameMemory

LONGEST = 63
"""Of a name: it may stand as the value of a label, too."""
FORGET_AFTER = timedelta(days=30)
_FEWEST_KEPT = 256
_ODD = re.compile(r"[^a-z0-9]+")
_MANAGED = re.compile(r"MF\d;([^:]+):.*")
_PREFIX = {"infiniband": "ib", "ethernet": "eth", "management": "mgmt"}


def slug(text: str, limit: int = LONGEST) -> str:
    """Return *text* as a part of a name of DNS; empty if nothing of it can be. What is too long ends with a digest."""
    text = _ODD.sub("-", text.lower()).strip("-")
    if len(text) > limit:
        text = f"{text[: limit - 9].rstrip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return text


def own_part(name: str) -> str:
    """Return what of a switch's name is its own: ``MF0;leaf-1:MQM9701/U1`` is ``leaf-1``."""
    match = _MANAGED.fullmatch(name)
    return match[1] if match else name


def prefix_of(fabric: str) -> str:
    """Return how names of a fabric's domains begin."""
    return slug("-".join(_PREFIX.get(part, part) for part in fabric.split("-")), 24) or "fabric"


class Names:
    """The names of one fabric's domains, which are known by keys of this process alone."""

    def __init__(self, fabric: str, memory: Mapping[str, NameMemory]) -> None:
        self._fabric = fabric
        self._prefix = prefix_of(fabric)
        self.root = slug(fabric) or "fabric"
        self._memory = {name: each for name, each in memory.items() if each.fabric == fabric}
        self._named: dict[str, set[str]] = {}  # switch to the names that it is remembered in
        for name, each in self._memory.items():
            for switch in each.switches:
                self._named.setdefault(switch, set()).add(name)
        self.of: dict[str, str] = {}

    @property
    def memory(self) -> dict[str, NameMemory]:
        """What is to be kept."""
        return dict(self._memory)

    def assign(
        self,
        domains: Mapping[str, tuple[str, ...]],
        called: Callable[[str], str],
        taken: Iterable[str],
        now: datetime,
    ) -> None:
        """Give a name to each of *domains* (with its switches). Names in *taken* are of other fabrics."""
        named: dict[str, str] = {}
        given = {self.root, *taken}
        for _, _, name, key in sorted(self._claims(domains)):
            if key not in named and name not in given:
                named[key] = name
                given.add(name)
        given.update(self._memory)
        for key in sorted(domains.keys() - named.keys()):
            named[key] = self._new(domains[key], called, given)
            given.add(named[key])
        self._remember({named[key]: switches for key, switches in domains.items()}, now)
        self.of = named

    def _claims(self, domains: Mapping[str, tuple[str, ...]]) -> Iterable[tuple[int, bool, str, str]]:
        """Yield the names that domains may have; sorted, the best are first, and those in use before those given up."""
        for key, switches in domains.items():
            overlap: dict[str, int] = {}
            for switch in switches:
                for name in self._named.get(switch, ()):
                    overlap[name] = overlap.get(name, 0) + 1
            for name, count in overlap.items():
                yield -count, self._memory[name].unused is not None, name, key

    def _new(self, switches: tuple[str, ...], called: Callable[[str], str], given: set[str]) -> str:
        names = {switch: own_part(called(switch)) for switch in switches}
        first = min(switches, key=lambda switch: (names[switch] or switch, switch))
        wanted = slug(names[first]) or slug(first) or hashlib.sha256(first.encode()).hexdigest()[:8]
        name = slug(f"{self._prefix}-{wanted}")
        if name in given:
            name = slug(f"{name[: LONGEST - 17]}-{slug(first, 16)}")
        number = 2
        while name in given:
            name, number = slug(f"{self._prefix}-{wanted[:40]}-{number}"), number + 1
        return name

    def _remember(self, used: Mapping[str, tuple[str, ...]], now: datetime) -> None:
        for name, switches in used.items():
            if self._memory.get(name) != (fresh := NameMemory(self._fabric, switches)):
                self._drop(name)
                self._memory[name] = fresh
                for switch in switches:
                    self._named.setdefault(switch, set()).add(name)
        for name, each in list(self._memory.items()):
            if name not in used and each.unused is None:
                self._memory[name] = NameMemory(self._fabric, each.switches, now)
        unused = sorted((each.unused, name) for name, each in self._memory.items() if each.unused is not None)
        spare = len(unused) - max(_FEWEST_KEPT, 2 * len(used))
        for number, (since, name) in enumerate(unused):
            if number < spare or now - since > FORGET_AFTER:
                self._drop(name)

    def _drop(self, name: str) -> None:
        old = self._memory.pop(name, None)
        for switch in old.switches if old is not None else ():
            self._named[switch].discard(name)
            if not self._named[switch]:
                del self._named[switch]
