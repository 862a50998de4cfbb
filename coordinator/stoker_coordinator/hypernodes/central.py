"""What all central sources say together, looked up by adapter, by host and by switch; and what a node's ports are then.

A node's own report comes first: it is from the wire. A central source adds where the report says nothing, or where
nobody reports; where the two differ, the port says so. Adapters are told by their GUIDs, hosts by names that are their
own: what is called ``localhost`` belongs to nobody. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from stoker_coordinator.hypernodes.levels import without_circles
from stoker_coordinator.hypernodes.model import Attachment, NodeFacts, Port, Reading, SourceState

BY_NAME = "name:"
"""How the identity of a switch begins that a source knows by its name alone."""
_NOT_ITS_OWN = frozenset(("", "switch", "localhost", "sonic", "cumulus", "arista", "leaf", "spine", "bridge"))
Claim = tuple[Reading, Attachment]


def layer_of(fabric: str) -> str:
    """Return the layer of a fabric; all fabrics of a layer may share switches. RoCE is on Ethernet."""
    layer = fabric.partition("-")[0]
    return "ethernet" if layer == "roce" else layer


def short(host: str) -> str:
    """Return a host's name without its domain."""
    return host.partition(".")[0]


class Central:
    """All central sources. Made anew when one of them has changed."""

    def __init__(self, sources: Sequence[SourceState] = ()) -> None:
        self.sources = tuple(sources)
        self.by_alias: dict[str, list[Claim]] = {}
        self.by_host: dict[str, list[Claim]] = {}
        self.called: dict[str, str] = {}
        self.links: dict[str, dict[str, dict[str, tuple[int, float, int]]]] = {}
        self.parents: dict[str, dict[str, str]] = {}
        self._shorts: dict[str, set[str]] = {}
        self._named: dict[tuple[str, str], str] = {}
        for source in self.sources:
            if source.reading is not None:
                self._take(source.reading)

    def _take(self, reading: Reading) -> None:
        for attachment in reading.attachments:
            claim = (reading, attachment)
            if attachment.guid:
                self.by_alias.setdefault(attachment.guid, []).append(claim)
            if attachment.host:
                self.by_host.setdefault(attachment.host.lower(), []).append(claim)
                self._shorts.setdefault(short(attachment.host.lower()), set()).add(attachment.host.lower())
        layer = layer_of(reading.fabric)
        for switch, name in reading.names.items():
            self.called.setdefault(switch, name)
            if switch.startswith(BY_NAME):
                self._named[layer, name.lower()] = switch
        links = self.links.setdefault(layer, {})
        for trunk in reading.trunks:
            one, other = trunk.one, trunk.other
            near = links.get(one)
            if near is None:
                near = links[one] = {}
            if other not in near:
                links.setdefault(other, {})[one] = near[other] = (trunk.links, trunk.gbps, trunk.down)
        if reading.declared:
            merged = {**reading.parents, **self.parents.get(reading.fabric, {})}
            self.parents[reading.fabric] = without_circles(merged)

    def who_links(self, layer: str, one: str, other: str) -> str:
        """Return the source by whose word two switches are linked."""
        ends = {one, other}
        for source in self.sources:
            reading = source.reading
            if reading is None or layer_of(reading.fabric) != layer:
                continue
            if any({trunk.one, trunk.other} == ends for trunk in reading.trunks):
                return source.name
        return ""

    def identity(self, fabric: str, switch: str, name: str) -> str:
        """Return what a switch is known as here, which a node knows by its chassis."""
        if not self._named or name.lower() in _NOT_ITS_OWN:
            return switch
        return self._named.get((layer_of(fabric), name.lower()), switch)

    def hosts_of(self, node: str, *, alone: bool) -> Iterator[str]:
        """Yield the hosts that are *node*. Without their domains names count only if just one has that (*alone*)."""
        name = node.lower()
        if name in self.by_host:
            yield name
        elif alone:
            hosts = sorted(self._shorts.get(short(name), ()))
            if len(hosts) == 1 and ("." not in hosts[0] or "." not in name):
                yield hosts[0]

    def ports_of(self, facts: NodeFacts, *, alone: bool = True) -> tuple[Port, ...]:
        """Return the ports of a node, from its report and from what is said of it here."""
        ports = facts.ports
        if not self.by_alias and not self.by_host and not self._named:
            return ports
        if self.by_alias or self._named:
            ports = tuple(self._completed(port) for port in ports)
        more = [claim for host in self.hosts_of(facts.name, alone=alone) for claim in self.by_host[host]]
        return (*ports, *self._added(ports, more)) if more else ports

    def _completed(self, port: Port) -> Port:
        switch = self.identity(port.fabric, port.switch, port.switch_name) if port.switch else ""
        claims = [claim for alias in port.aliases for claim in self.by_alias.get(alias, ())]
        if not claims:
            return port if switch == port.switch else msgspec.structs.replace(port, switch=switch)
        best = max(claims, key=lambda claim: claim[1].up)
        elsewhere = next((claim for claim in claims if claim[1].switch != switch), None)
        if not switch or (port.lost is not None and best[1].up and best[1].switch != switch):
            return self._moved(port, best)
        disputed = f"{elsewhere[0].source} says {elsewhere[1].switch}" if elsewhere is not None else ""
        if switch == port.switch and not disputed:
            return port
        return msgspec.structs.replace(port, switch=switch, disputed=disputed)

    def _moved(self, port: Port, claim: Claim) -> Port:
        reading, attachment = claim
        return msgspec.structs.replace(
            port,
            switch=attachment.switch,
            switch_name=self.called.get(attachment.switch, ""),
            switch_port=attachment.switch_port,
            gbps=port.gbps or attachment.gbps,
            source=reading.source,
            why=_why(attachment),
            seen=None,
            lost=None,
        )

    def _added(self, ports: Iterable[Port], claims: Iterable[Claim]) -> Iterator[Port]:
        known = {alias for port in ports for alias in port.aliases}
        devices = dict.fromkeys((name for port in ports for name in (*port.aliases, port.nic)), "")
        placed = {port.fabric for port in ports if port.switch}
        for reading, attachment in claims:
            device = attachment.device
            # Two adapters of one source may be called alike, but two sources mean the same by one name.
            if attachment.guid in known or devices.get(device, reading.source) != reading.source:
                continue
            if not (attachment.guid or device) and reading.fabric in placed:
                continue  # a place alone, while the node itself knows more
            if attachment.guid:
                known.add(attachment.guid)
            devices.setdefault(device, reading.source)
            yield self.port_of(reading, attachment)

    def port_of(self, reading: Reading, attachment: Attachment) -> Port:
        """Return a port that a central source alone tells of."""
        return Port(
            nic=attachment.device or attachment.guid,
            number=attachment.port,
            fabric=reading.fabric,
            switch=attachment.switch,
            switch_name=self.called.get(attachment.switch, ""),
            switch_port=attachment.switch_port,
            gbps=attachment.gbps,
            state="healthy" if attachment.up else "down",
            reasons=() if attachment.up else (f"{reading.source} says so",),
            source=reading.source,
            why=_why(attachment),
            aliases=(attachment.guid,) if attachment.guid else (),
        )


def _why(attachment: Attachment) -> str:
    who = " ".join(word for word in (attachment.host, attachment.device) if word) or "an adapter without a name"
    return f"it lists {who}" + (f" ({attachment.guid})" if attachment.guid else "")


def stranger(central: Central, host: str, claimed: Collection[str]) -> NodeFacts | None:
    """Return a host that no node is, with its adapters but those that nodes have (*claimed*); None if none are left."""
    claims = central.by_host.get(host, ())
    ports = tuple(central.port_of(*claim) for claim in claims if claim[1].guid not in claimed)
    return NodeFacts(host, ports=ports) if ports else None
