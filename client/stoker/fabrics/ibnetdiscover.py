"""Dumps of ``ibnetdiscover``, as it writes them and as people hand them on. Pure.

A dump may have lost its tabs, been broken into lines of 80 columns by a terminal, have a log's banner on top, or end in
the middle. Nodes begin at their header, so blank lines mean nothing; what a terminal broke is put together again where
that leaves less that cannot be read.

Source of the format: ibnetdiscover(8), infiniband-diags/ibnetdiscover.c in rdma-core.
"""

from __future__ import annotations

import re

from stoker.fabrics.fabric import Draft, Fabric, FabricLink, FabricNode, NodeKind, node
from stoker.fabrics.foreign import LONGEST_NAME, Unreadable, decode, guid, plain

_KINDS: dict[str, NodeKind] = {"S": "switch", "H": "adapter", "R": "router"}
_HEADER_KINDS: dict[str, NodeKind] = {"switchguid": "switch", "caguid": "adapter", "rtguid": "router"}
_LINK = re.compile(
    r"\[(\d{1,4})\](?:\[ext +\w+\])?(?:\((?:0x)?([0-9a-fA-F]{1,16})\))?\s*"
    r"\"([SHR])-(?:0x)?([0-9a-fA-F]{1,16})\"\[(\d{1,4})\](?:\[ext +\w+\])?(?:\((?:0x)?([0-9a-fA-F]{1,16})\))?\s*"
    r"#\s*(?:lid\s*(\d{1,5})\s*lmc\s*\d+\s*)?\"(.*)\"\s*(?:lid\s*(\d{1,5}))?(?:\s*(\d{1,2})x([A-Z]+\d*|\?+))?(.*)"
)
_NODE = re.compile(r"(Switch|Ca|Rt|Router)\s*(\d{1,4})\s*\"([SHR])-(?:0x)?([0-9a-fA-F]{1,16})\"\s*(?:#\s*\"(.*)\".*)?")
_HEADER = re.compile(r"(vendid|devid|sysimgguid|switchguid|caguid|rtguid)=(?:0x)?([0-9a-fA-F]{1,16})(?:\(.*)?$")
_START = re.compile(
    r"\[\d+\]|Switch\s*\d|Ca\s*\d|Rt\s*\d|Router\s*\d|(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)="
)
_IGNORED = re.compile(r"#$|#\s*(?:Topology file|Initiated from|Max of|Reported max|Total MADs)|(?:Non-)?Chassis\b")
_DETAILS = re.compile(r"\s*(?:[svw]=.*)?$")  # what `-f` adds
_LONGEST_RECORD, _MOST_TRIMMED = 1000, 4


def parse(data: bytes | str) -> Fabric:
    """Return the fabric that a dump shows. Never raises: what was not understood is counted in ``unread``."""
    lines = decode(data).split("\n")
    fabric = _read(lines)
    if fabric.unread.count:
        mended = _read(_unwrapped(lines))
        if mended.unread.count < fabric.unread.count:
            return mended
    return fabric


def _unwrapped(lines: list[str]) -> list[str]:
    """Return *lines* as they were before a terminal broke them at its last column."""
    columns = max(len(line) for line in lines)
    whole: list[str] = []
    length = 0  # of the last physical line
    for line in lines:
        if (
            whole
            and line.strip()
            and length >= columns - _MOST_TRIMMED
            and _goes_on(whole[-1], length == columns, line)
        ):
            whole[-1] += " " * (columns - length) + line  # blanks at the end of a line get lost
        else:
            whole.append(line)
        length = len(line)
    return whole


def _goes_on(before: str, full: bool, line: str) -> bool:
    """Say whether *line* is the rest of *before*, which ends at the last column (or near it, if not *full*)."""
    if len(before) > _LONGEST_RECORD:
        return False
    if _START.match(line):
        return full and not _is_record(before.strip())
    return not _IGNORED.match(line.strip()) or not _is_record(before.strip())


def _is_record(line: str) -> bool:
    return any(pattern.fullmatch(line) for pattern in (_LINK, _NODE, _HEADER))


def _read(lines: list[str]) -> Fabric:
    reader = _Reader()
    for line in lines:
        reader.take(line.strip())
    return reader.finish()


class _Reader:
    def __init__(self) -> None:
        self._draft = Draft()
        self._unread = Unreadable()
        self._links: dict[int, FabricLink] | None = None
        self._system = ""

    def take(self, line: str) -> None:
        """Read one line; what most lines are is tried first."""
        if not line:
            return
        if len(line) > 2 * _LONGEST_RECORD:
            self._unread.add(line)
            return
        link = _LINK.fullmatch(line)
        if link is not None:
            self._add_link(link)
        elif (found := _NODE.fullmatch(line)) is not None:
            self._add_node(found)
        elif (header := _HEADER.fullmatch(line)) is not None:
            self._add_header(header[1], guid(header[2]))
        elif not _IGNORED.match(line):
            self._unread.add(line)

    def finish(self) -> Fabric:
        """Return what was read."""
        return self._draft.finish("ibnetdiscover", self._unread.total)

    def _add_header(self, key: str, value: str) -> None:
        if key == "sysimgguid":
            self._system = value
        if key in _HEADER_KINDS and value:
            # Enough for a node, should the line that names it be damaged.
            self._enter(FabricNode(value, _HEADER_KINDS[key], system_guid=self._system))
        else:
            self._links = None

    def _add_node(self, match: re.Match[str]) -> None:
        found = guid(match[4])
        if not found:
            self._links = None
            self._unread.add(match[0])
            return
        name = plain(match[5] or "")
        self._enter(node(found, _KINDS[match[3]], name, system_guid=self._system, ports=int(match[2])))
        self._system = ""

    def _enter(self, new: FabricNode) -> None:
        self._draft.add_node(new)
        self._links = self._draft.links_of(new.guid)

    def _add_link(self, match: re.Match[str]) -> None:
        port, own, kind, peer, peer_port, _, lid, name, peer_lid, width, speed, rest = match.groups()
        if self._links is None:
            self._unread.add(match[0])
            return
        if rest and not _DETAILS.match(rest):
            self._unread.add(match[0])  # the link itself is kept
        peer = peer.lower().zfill(16)
        number = int(port)
        if number in self._links and self._links[number].peer != peer:
            self._unread.add(f"port {number} twice: {match[0]}")
        self._links[number] = FabricLink(
            number,
            peer,
            int(peer_port),
            name if name.isprintable() and len(name) < LONGEST_NAME else plain(name),
            int(width) if width else 0,
            speed or "",
            "up",
            own.lower().zfill(16) if own else "",
            int(lid) if lid else 0,
            int(peer_lid) if peer_lid else 0,
        )
        self._draft.add_peer(peer, _KINDS[kind])
