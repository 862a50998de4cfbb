"""An InfiniBand fabric as a dump shows it: nodes by GUID, and the links between their ports. Pure.

A GUID is the only identity here. Names are what somebody typed, or nobody did: adapters called ``localhost`` may be
of as many hosts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from stoker.fabrics.foreign import Unread

NodeKind = Literal["switch", "adapter", "router"]
LinkState = Literal["up", "down", "unknown"]
LANE_GBPS: Mapping[str, float] = {
    "SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.0, "FDR": 14.0625,
    "EDR": 25.0, "HDR": 50.0, "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip
"""What a lane of each speed carries, as people count it: 4x NDR is 400 Gb/s."""

# What a host is called before somebody gives it a name.
_DEFAULT_HOSTS = frozenset(
    (
        "localhost", "localhost.localdomain", "ubuntu", "debian", "centos", "rocky", "almalinux", "fedora", "rhel",
        "sles", "linux", "host", "node", "(none)", "none", "unknown", "mlnx", "bogon", "dgx", "default",
    )
)  # fmt: skip
_VENDOR = re.compile(r"mellanox|nvidia|connectx|infinihost|infiniscale|aggregation node|qlogic|voltaire", re.IGNORECASE)


class FabricLink(msgspec.Struct, frozen=True):
    """One port of a node, and what is at the other end. ``peer`` is empty where nothing is, or nobody says what."""

    port: int
    peer: str = ""
    peer_port: int = 0
    peer_name: str = ""
    width: int = 0
    speed: str = ""
    state: LinkState = "up"
    guid: str = ""
    lid: int = 0
    peer_lid: int = 0

    @property
    def gbps(self) -> float:
        """Return what the link carries; 0 where the dump does not say."""
        lane = LANE_GBPS.get(self.speed)
        if lane is None:
            try:
                lane = float(self.speed)
            except ValueError:
                lane = 0.0
        return self.width * lane


class FabricNode(msgspec.Struct, frozen=True):
    """A switch, adapter or router. ``host`` is empty where its name is nobody's own."""

    guid: str
    kind: NodeKind
    name: str = ""
    host: str = ""
    device: str = ""
    system_guid: str = ""
    ports: int = 0
    links: tuple[FabricLink, ...] = ()

    @property
    def label(self) -> str:
        """Return what to call it: its name if that is its own, or else its GUID."""
        if self.kind != "adapter":
            return self.name or self.guid
        return f"{self.host} {self.device}".strip() if self.host else self.guid


class Fabric(msgspec.Struct, frozen=True):
    """A whole dump. ``nodes`` are in the order of their GUIDs."""

    form: str = ""
    nodes: tuple[FabricNode, ...] = ()
    unread: Unread = Unread()

    def of_kind(self, kind: NodeKind) -> tuple[FabricNode, ...]:
        """Return the nodes of a kind."""
        return tuple(node for node in self.nodes if node.kind == kind)


def own_name(description: str) -> tuple[str, str]:
    """Return host and device that an adapter's description names; two empty ones where it says nothing of its own.

    ``node01``, ``node01 HCA-1`` and ``node01 mlx5_0`` name a host; ``MT4129 ConnectX7   Mellanox Technologies`` and
    ``localhost mlx5_0`` do not.
    """
    words = description.strip().strip("'\"").split()
    if not words or len(words) > 2 or _VENDOR.search(description):
        return "", ""
    host = words[0].strip("'\"").lower()
    if host in _DEFAULT_HOSTS or not re.search(r"[a-z0-9]", host):
        return "", ""
    return words[0], words[1] if len(words) == 2 else ""


def node(found: str, kind: NodeKind, name: str, **more: object) -> FabricNode:
    """Return a node, with what its name says about its host."""
    host, device = own_name(name) if kind == "adapter" else ("", "")
    return msgspec.structs.replace(FabricNode(found, kind, name, host, device), **more)


class Draft:
    """A fabric while it is being read: links come in any order, and from either end."""

    def __init__(self) -> None:
        self._nodes: dict[str, FabricNode] = {}
        self._links: dict[str, dict[int, FabricLink]] = {}
        self._peers: dict[str, NodeKind] = {}

    def add_node(self, new: FabricNode) -> None:
        """Take a node that the dump describes; of two descriptions, the one with a name counts."""
        old = self._nodes.get(new.guid)
        if old is None or not old.name:
            self._nodes[new.guid] = new

    def add_peer(self, found: str, kind: NodeKind) -> None:
        """Take the kind of a node that is seen at the other end of a link."""
        self._peers.setdefault(found, kind)

    def links_of(self, found: str) -> dict[int, FabricLink]:
        """Return the links of a node by port, to be filled."""
        return self._links.setdefault(found, {})

    def resolve(self, by_lid: Mapping[int, str]) -> None:
        """Find peers that are known by their LIDs only."""
        for links in self._links.values():
            for port, link in links.items():
                if not link.peer and link.peer_lid in by_lid:
                    links[port] = msgspec.structs.replace(link, peer=by_lid[link.peer_lid])

    def finish(self, form: str, unread: Unread) -> Fabric:
        """Return the fabric. Who is only seen at the other end of a link is a node, too."""
        self._add_unseen()
        nodes = [
            msgspec.structs.replace(each, links=tuple(links[port] for port in sorted(links)))
            if (links := self._links.get(each.guid))
            else each
            for each in self._nodes.values()
        ]
        return Fabric(form, tuple(sorted(nodes, key=lambda each: each.guid)), unread)

    def _add_unseen(self) -> None:
        for found in [found for found in self._links if found not in self._nodes]:
            self.add_node(node(found, self._peers.get(found, "adapter"), ""))
        mirrored: dict[str, dict[int, FabricLink]] = {}
        names: dict[str, str] = {}
        for found, links in self._links.items():
            here = self._nodes[found].name
            for link in links.values():
                if link.peer and link.peer not in self._nodes:
                    names[link.peer] = names.get(link.peer) or link.peer_name
                    mirrored.setdefault(link.peer, {})[link.peer_port] = _other_end(found, here, link)
        for found, links in mirrored.items():
            self.add_node(node(found, self._peers.get(found, "adapter"), names[found]))
            self._links[found] = links


def _other_end(found: str, name: str, link: FabricLink) -> FabricLink:
    return FabricLink(
        port=link.peer_port,
        peer=found,
        peer_port=link.port,
        peer_name=name,
        width=link.width,
        speed=link.speed,
        state=link.state,
        lid=link.peer_lid,
        peer_lid=link.lid,
    )
