"""A dump of an InfiniBand fabric (``ibnetdiscover``, ``iblinkinfo``) as a central source. Pure."""

from __future__ import annotations

from stoker.fabrics import dumps
from stoker.fabrics.fabric import Fabric, FabricNode
from stoker_coordinator.hypernodes.model import INFINIBAND, Attachment, Reading
from stoker_coordinator.hypernodes.sources.trunks import Trunks


def read(data: bytes | str, *, source: str = "ibnetdiscover", fabric: str = INFINIBAND) -> Reading:
    """Return what a dump says of hosts and switches."""
    return of_fabric(dumps.parse(data), source=source, fabric=fabric)


def of_fabric(found: Fabric, *, source: str, fabric: str) -> Reading:
    """Return a fabric's dump as a reading. Switches' own adapters (for aggregation) are nobody's hosts."""
    kinds = {node.guid: node for node in found.nodes}
    attachments: list[Attachment] = []
    trunks = Trunks()
    unnamed = 0
    for node in found.nodes:
        if node.kind == "adapter":
            if not node.host:
                unnamed += 1
            attachments.extend(_attachments(node, kinds))
        elif node.kind == "switch":
            for link in node.links:
                peer = kinds.get(link.peer)
                # Each link is seen from both of its ends.
                if peer is not None and peer.kind == "switch" and (node.guid, link.port) < (peer.guid, link.peer_port):
                    trunks.add(node.guid, peer.guid, link.gbps, up=link.state != "down")
    return Reading(
        source=source,
        fabric=fabric,
        attachments=tuple(attachments),
        trunks=trunks.all(),
        names={node.guid: node.name for node in found.nodes if node.kind == "switch" and node.name},
        unread=found.unread,
        unnamed=unnamed,
    )


def _attachments(node: FabricNode, kinds: dict[str, FabricNode]) -> list[Attachment]:
    found = []
    for link in node.links:
        peer = kinds.get(link.peer)
        if peer is None or peer.kind != "switch" or "aggregation node" in node.name.lower():
            continue
        guids = dict.fromkeys(guid for guid in (link.guid, node.guid) if guid)
        found.append(
            Attachment(
                switch=peer.guid,
                host=node.host,
                guid=next(iter(guids)),
                device=node.device,
                port=link.port,
                switch_port=str(link.peer_port),
                gbps=link.gbps,
                up=link.state != "down",
            )
        )
    return found
