"""Reports of all ports of a fabric: ``iblinkinfo`` (blocks, or ``-l``) and ``ibnetdiscover -p``. Pure.

Unlike a topology file, these show ports that are down. ``iblinkinfo`` names a peer by its LID and name only, unless
``-l`` was given; the GUID is then found among the lines of the peer itself. It writes the speed of one lane, not of the
link. In all of these, adapters are known by the GUIDs of their ports: each port is a node of its own.

Source of the formats: iblinkinfo(8), ibnetdiscover(8), infiniband-diags in rdma-core.
"""

from __future__ import annotations

import re

from stoker.fabrics.fabric import Draft, Fabric, FabricLink, LinkState, NodeKind, node
from stoker.fabrics.foreign import Unreadable, decode, guid, plain

_KINDS: dict[str, NodeKind] = {"CA": "adapter", "SW": "switch", "RT": "router"}
_BLOCK_KINDS: dict[str, NodeKind] = {"CA": "adapter", "Switch": "switch", "Router": "router", "RT": "router"}
_PORT = re.compile(
    r"(CA|SW|RT)\s*(\d{1,5})\s+(\d{1,4})\s+0x([0-9a-fA-F]{1,16})\s+(\d{1,2}x|\?+)\s*([A-Z]+\d*|\?+)\s*"
    r"(?:-\s*(CA|SW|RT)\s*(\d{1,5})\s+(\d{1,4})\s+0x([0-9a-fA-F]{1,16})\s*\(\s*'(.*)'\s*\)|'(.*)')"
)
_BLOCK = re.compile(r"(CA|Switch|Router|RT):\s*(?:0x([0-9a-fA-F]{1,16})\s+)?(.*?):?")
_INFO = re.compile(
    r"(?:0x([0-9a-fA-F]{1,16})\s+(?:\"(.*?)\"\s*)?)?(\d{1,5})\s+(\d{1,4})\[\s*\d*\s*\]\s*"
    r"==\(\s*([^()]*?)\s*\)\s*(?:\([^()]*\)\s*)?==>\s*"  # -p tells of queues before the arrow
    r"(?:0x([0-9a-fA-F]{1,16})\s+)?(?:(\d{1,5})\s+(\d{1,4}))?\s*\[\s*\d*\s*\]\s*\"(.*)\"\s*\((.*)\)"
)
_STATE = re.compile(r"(?:(\d{1,2})X\s*(\d{1,4}(?:\.\d{1,8})?)\s*Gbps\s*)?(\w+)\s*/\s*(\w+)")
_LONGEST_LINE = 1000
_SPEED_OF_LANE = {2.5: "SDR", 5.0: "DDR", 10.0: "QDR", 14.0625: "FDR"}
_PAM = ((20.0, 30.0, "EDR"), (45.0, 60.0, "HDR"), (90.0, 120.0, "NDR"), (180.0, 240.0, "XDR"))


def parse_ports(data: bytes | str) -> Fabric:
    """Return the fabric that ``ibnetdiscover -p`` shows. Never raises."""
    draft, unread = Draft(), Unreadable()
    for line in decode(data).split("\n"):
        line = line.strip()
        match = _PORT.fullmatch(line) if len(line) <= _LONGEST_LINE else None
        if match is not None:
            _add_port(draft, match)
        elif line and not line.startswith("#"):
            unread.add(line)
    return draft.finish("ibnetdiscover -p", unread.total)


def _add_port(draft: Draft, match: re.Match[str]) -> None:
    kind, lid, port, found, width, speed, peer_kind, peer_lid, peer_port, peer, names, alone = match.groups()
    found, number = guid(found), int(port)
    # A name may hold what stands between the two; the GUIDs say who is who all the same.
    name, _, peer_name = (names or "").partition("' - '")
    draft.add_node(node(found, _KINDS[kind], plain(alone if names is None else name)))
    if peer_kind:
        draft.add_peer(guid(peer), _KINDS[peer_kind])
    draft.links_of(found)[number] = FabricLink(
        port=number,
        peer=guid(peer),
        peer_port=int(peer_port or 0),
        peer_name=plain(peer_name),
        width=int(width[:-1]) if width[0] != "?" else 0,
        speed=speed if speed[0] != "?" else "",
        state="up" if peer_kind else "unknown" if speed[0] == "?" else "down",
        lid=int(lid),
        peer_lid=int(peer_lid or 0),
    )


def parse_link_info(data: bytes | str) -> Fabric:
    """Return the fabric that ``iblinkinfo`` shows, with or without ``-l``. Never raises."""
    reader = _LinkInfo()
    for line in decode(data).split("\n"):
        if line := line.strip():
            reader.take(line)
    return reader.finish()


class _LinkInfo:
    def __init__(self) -> None:
        self._draft = Draft()
        self._unread = Unreadable()
        self._kind: NodeKind = "adapter"
        self._guid = ""
        self._name = ""
        self._guid_of_lid: dict[int, str] = {}

    def take(self, line: str) -> None:
        match = _INFO.fullmatch(line) if len(line) <= _LONGEST_LINE else None
        if match is not None:
            self._add(match)
        elif len(line) <= _LONGEST_LINE and (block := _BLOCK.fullmatch(line)) is not None:
            self._kind, self._guid, self._name = _BLOCK_KINDS[block[1]], guid(block[2]), plain(block[3])
        elif not line.startswith("#"):
            self._unread.add(line)

    def _add(self, match: re.Match[str]) -> None:
        own, own_name, lid, port, inner, peer, peer_lid, peer_port, peer_name, _ = match.groups()
        found = guid(own) or self._guid
        state = _STATE.fullmatch(inner)
        if not found or state is None:
            self._unread.add(match[0])
            return
        if own_name is None:
            self._draft.add_node(node(found, self._kind, self._name))
        else:
            name = plain(own_name)
            self._draft.add_node(node(found, "adapter" if _is_adapter(name) else "switch", name))
        if int(lid):
            self._guid_of_lid.setdefault(int(lid), found)
        self._draft.links_of(found)[int(port)] = FabricLink(
            port=int(port),
            peer=guid(peer),
            peer_port=int(peer_port or 0),
            peer_name=plain(peer_name),
            width=int(state[1] or 0),
            speed=speed_name(float(state[2])) if state[2] else "",
            state=_state(state[3], state[4]),
            lid=int(lid),
            peer_lid=int(peer_lid or 0),
        )
        if peer:
            self._draft.add_peer(guid(peer), "adapter" if _is_adapter(plain(peer_name)) else "switch")

    def finish(self) -> Fabric:
        """Return what was read, peers found by their LIDs."""
        self._draft.resolve(self._guid_of_lid)
        return self._draft.finish("iblinkinfo", self._unread.total)


def _is_adapter(name: str) -> bool:
    """Guess from a name alone, as ``-l`` shows no kinds: switches are called by their model, or have a ``;``."""
    return not re.search(r";|switch|quantum|infiniscale|isr\d|\bsx\d|\bsb\d|mqm|mcs\d|spine|leaf", name, re.IGNORECASE)


def _state(logical: str, physical: str) -> LinkState:
    if physical.lower() == "linkup":
        return "up"
    return "down" if logical.lower() in {"down", "init", "initialize", "armed"} else "unknown"


def speed_name(gbps: float) -> str:
    """Return what a lane of so many Gb/s is called (25.78125 is EDR on the wire); the number where it has no name."""
    exact = _SPEED_OF_LANE.get(gbps)
    return exact or next((name for low, high, name in _PAM if low <= gbps <= high), f"{gbps:g}")
