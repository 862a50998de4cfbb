"""A file in which somebody has written down what hangs on what. YAML or TOML; pure but for PyYAML's parser.

::

    fabric: infiniband
    switches:
      - {name: leaf-1, id: 2c5eab0300b87b40, nodes: "n[01-18]", links: [spine-1, spine-2]}
      - {name: leaf-2, nodes: [n19, n20], parent: pod-1}

``links`` are cables between switches, of which the tree is found; ``parent`` tells the tree itself. ``id`` is a GUID,
or the MAC address that the switch tells by LLDP; a switch of Ethernet without one is known by its name.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml

from stoker.fabrics.foreign import Unreadable, decode, guid, plain
from stoker_coordinator.hypernodes import hostlist
from stoker_coordinator.hypernodes.central import BY_NAME, layer_of
from stoker_coordinator.hypernodes.levels import without_circles
from stoker_coordinator.hypernodes.model import Attachment, Reading
from stoker_coordinator.hypernodes.naming import slug
from stoker_coordinator.hypernodes.sources.trunks import Trunks

LONGEST = 16 << 20
_KNOWN = frozenset(("name", "id", "nodes", "links", "parent", "gbps"))
_MAC = re.compile(r"[0-9a-f]{2}([:-][0-9a-f]{2}){5}")


def read(data: bytes | str, *, source: str = "static", toml: bool = False) -> Reading:
    """Return what a file says."""
    unread = Unreadable()
    document = _load(decode(data[:LONGEST]), unread, toml=toml)
    for key in sorted(str(key) for key in document.keys() - {"fabric", "switches"}):
        unread.add(f"a field that is not known: {key}")
    fabric = slug(str(document.get("fabric", ""))) or "static"
    reader = _Reader(unread, by_name=layer_of(fabric) == "ethernet")
    switches = document.get("switches")
    if not isinstance(switches, list):
        unread.add("switches is no list")
        switches = []
    entries = [entry for entry in switches if isinstance(entry, dict) and reader.introduce(entry)]
    for _ in range(len(switches) - len(entries)):
        unread.add("a switch without a name")
    for entry in entries:
        reader.take(entry)
    return Reading(
        source=source,
        fabric=fabric,
        attachments=tuple(reader.attachments),
        trunks=reader.trunks.all(),
        names=reader.names,
        parents=without_circles(reader.parents),
        declared=bool(reader.parents),
        unread=unread.total,
    )


def _load(text: str, unread: Unreadable, *, toml: bool) -> dict[str, Any]:
    try:
        found = tomllib.loads(text) if toml else yaml.load(text, Loader=_Loader)  # noqa: S506 - it is a SafeLoader
    except (tomllib.TOMLDecodeError, yaml.YAMLError, RecursionError, ValueError) as exc:
        unread.add(f"it cannot be read: {exc}")
        return {}
    if isinstance(found, dict):
        return found
    unread.add("it is no table of fields")
    return {}


class _Loader(yaml.SafeLoader):
    """Without aliases: a small file of them can be gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


class _Reader:
    def __init__(self, unread: Unreadable, *, by_name: bool) -> None:
        """*by_name*: nodes may know by another identity what is only named here."""
        self.attachments: list[Attachment] = []
        self._unknown = BY_NAME if by_name else ""
        self.trunks = Trunks()
        self.names: dict[str, str] = {}
        self.parents: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._unread = unread

    def introduce(self, entry: dict[str, Any]) -> bool:
        """Learn a switch's name and identity, before others speak of it; say whether it has a name."""
        name = plain(str(entry.get("name", "")))
        if name:
            self.names[self._id(name, str(entry.get("id", "")))] = name
        return bool(name)

    def _id(self, name: str, given: str = "") -> str:
        if name not in self._ids:
            self._ids[name] = _identity(given) or (f"{self._unknown}{name.lower()}" if self._unknown else name)
            self.names.setdefault(self._ids[name], name)
        return self._ids[name]

    def take(self, entry: dict[str, Any]) -> None:
        """Read what is said of one switch."""
        name = plain(str(entry["name"]))
        here = self._ids[name]
        for key in sorted(str(key) for key in entry.keys() - _KNOWN):
            self._unread.add(f"switch {name}: a field that is not known: {key}")
        gbps = entry.get("gbps", 0)
        speed = float(gbps) if isinstance(gbps, int | float) and 0 <= gbps < 1e6 else 0.0
        for host in self._names_in(entry.get("nodes", []), name):
            self.attachments.append(Attachment(switch=here, host=host))
        for other in self._names_in(entry.get("links", []), name):
            self.trunks.add(here, self._id(other), speed)
        if parent := plain(str(entry.get("parent", "") or "")):
            self.parents[here] = self._id(parent)

    def _names_in(self, value: Any, name: str) -> list[str]:
        texts = value if isinstance(value, list) else [value]
        found: list[str] = []
        for text in texts:
            names = hostlist.expand(text) if isinstance(text, str) else None
            if names is None:
                self._unread.add(f"switch {name}: not a list of names: {text}")
            else:
                found += [plain(each) for each in names if plain(each)]
        return found


def _identity(given: str) -> str:
    text = plain(given).lower()
    return text.replace("-", ":") if _MAC.fullmatch(text) else guid(given) or text
