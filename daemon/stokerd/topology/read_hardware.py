"""All that sysfs shows of a node's hardware. Each part may fail alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from stokerd.topology.facts import Hardware
from stokerd.topology.read_network import read_nets, read_rdma
from stokerd.topology.read_pci import read_numa, read_pci
from stokerd.topology.sysfs import Sysfs


def read_hardware(root: Path = Path("/"), networks: Mapping[str, tuple[str, ...]] | None = None) -> Hardware:
    """Return the hardware of the machine whose files are below *root*. Blocking: some drivers ask the device.

    *networks*: IP addresses with their prefix by network device; sysfs does not show them.
    """
    return read_with(lambda: Sysfs(root), networks)


def read_with(files: Callable[[], Sysfs], networks: Mapping[str, tuple[str, ...]] | None = None) -> Hardware:
    """Return the hardware that *files* show; each part gets its own, to count what it cannot read."""
    pci, rdma, net, numa = (files() for _ in range(4))
    return Hardware(
        pci=read_pci(pci),
        rdma=read_rdma(rdma),
        nets=read_nets(net, networks),
        numa=read_numa(numa),
        unread={"sysfs.net": net.lost, "sysfs.numa": numa.lost, "sysfs.pci": pci.lost, "sysfs.rdma": rdma.lost},
    )
