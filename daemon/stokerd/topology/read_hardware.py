"""All that sysfs shows of a node's hardware. Each part may fail alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from stokerd.topology.facts import Hardware, Ports, Tree
from stokerd.topology.read_machine import read_cpu, read_disks, read_memory
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
    tree, ports = read_tree(files), read_ports(files, networks)
    unread = {**ports.unread, **tree.unread}
    return Hardware(tree.pci, ports.rdma, ports.nets, tree.numa, tree.cpu, tree.memory, tree.disks, unread)


def read_tree(files: Callable[[], Sysfs]) -> Tree:
    """Return the GPUs, adapters, NUMA nodes, CPUs, memory and disks that *files* show."""
    pci, numa, machine = files(), files(), files()
    found = read_pci(pci), read_numa(numa), read_cpu(machine), read_memory(machine), read_disks(machine)
    return Tree(*found, {"sysfs.numa": numa.lost, "sysfs.pci": pci.lost, "sysfs.machine": machine.lost})


def read_ports(files: Callable[[], Sysfs], networks: Mapping[str, tuple[str, ...]] | None = None) -> Ports:
    """Return the ports that *files* show."""
    rdma, net = files(), files()
    found = read_rdma(rdma), read_nets(net, networks)
    return Ports(*found, {"sysfs.net": net.lost, "sysfs.rdma": rdma.lost})
