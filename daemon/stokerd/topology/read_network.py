"""RDMA and network devices from sysfs, default routes and VLANs from procfs."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from stoker.fabrics.foreign import guid, integer, plain
from stokerd.topology.addresses import pci_path
from stokerd.topology.facts import Gid, NetDevice, RdmaDevice, RdmaPort, natural
from stokerd.topology.rdma_values import counters, gid, gid_type, lid, link_layer, physical_state, port_state, rate
from stokerd.topology.sysfs import Sysfs

_RDMA, _NET = "sys/class/infiniband", "sys/class/net"
_MOST_DEVICES, _MOST_PORTS, _MOST_GIDS, _GIDS_LOOKED_AT, _MOST_COUNTERS = 512, 16, 8, 64, 128
_STATISTICS = ("rx_bytes", "tx_bytes", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors")
_VLAN = re.compile(r"^\S+\s*\|\s*(\d{1,4})\s*\|\s*(\S+)\s*$", re.MULTILINE)
_INFINIBAND = 32  # ARPHRD_INFINIBAND


def read_rdma(files: Sysfs) -> tuple[RdmaDevice, ...]:
    """Return the RDMA devices, in the order of their names."""
    found = []
    for name in files.names(_RDMA)[:_MOST_DEVICES]:
        base = f"{_RDMA}/{name}"
        if not files.exists(base):
            continue  # gone meanwhile
        path = pci_path(files.target(base)) or pci_path(files.target(f"{base}/device"))
        netdevs = sorted(files.names(f"{base}/device/net"), key=natural)
        ports = sorted(number for text in files.names(f"{base}/ports") if (number := integer(text)) is not None)
        found.append(
            RdmaDevice(
                name=plain(name, 64),
                address=path[-1] if path else "",
                guid=guid(files.text(f"{base}/node_guid")),
                firmware=plain(files.text(f"{base}/fw_ver") or "", 32),
                model=plain(files.text(f"{base}/hca_type") or files.text(f"{base}/board_id") or "", 64),
                ports=tuple(_port(files, base, port, netdevs) for port in ports[:_MOST_PORTS]),
            )
        )
    return tuple(sorted(found, key=lambda device: natural(device.name)))


def _port(files: Sysfs, device: str, number: int, netdevs: list[str]) -> RdmaPort:
    base = f"{device}/ports/{number}"
    layer = link_layer(files.text(f"{base}/link_layer"))
    gids = _gids(files, base)
    first = files.text(f"{base}/gids/0") or ""
    texts: dict[str, str | None] = {}
    for folder in ("counters", "hw_counters"):
        for name in files.names(f"{base}/{folder}")[:_MOST_COUNTERS]:
            if name != "lifespan":
                texts[name] = files.text(f"{base}/{folder}/{name}")
    return RdmaPort(
        number=number,
        state=port_state(files.text(f"{base}/state")),
        physical=physical_state(files.text(f"{base}/phys_state")),
        layer=layer,
        rate=rate(files.text(f"{base}/rate")),
        lid=lid(files.text(f"{base}/lid")),
        sm_lid=lid(files.text(f"{base}/sm_lid")),
        guid=guid("".join(first.split(":")[4:])) if layer == "infiniband" else "",
        gids=gids,
        netdev=_netdev(files, base, device, number, netdevs),
        counters=counters(texts)[0],
    )


def _gids(files: Sysfs, base: str) -> tuple[Gid, ...]:
    """Return the first addresses that are set; a table may have hundreds that are not."""
    found: list[Gid] = []
    for index in range(_GIDS_LOOKED_AT):
        text = files.text(f"{base}/gids/{index}")
        if text is None or len(found) >= _MOST_GIDS:
            break
        address = gid(text)
        if address:
            found.append(Gid(index, address, gid_type(files.text(f"{base}/gid_attrs/types/{index}"))))
    return tuple(found)


def _netdev(files: Sysfs, base: str, device: str, number: int, netdevs: list[str]) -> str:
    named = files.text(f"{base}/gid_attrs/ndevs/0")
    if named:
        return plain(named, 32)
    for name in netdevs:
        place = files.text(f"{device}/device/net/{name}/dev_port")
        if len(netdevs) == 1 or integer(place) == number - 1:
            return plain(name, 32)
    return ""


def read_nets(files: Sysfs, networks: Mapping[str, tuple[str, ...]] | None = None) -> tuple[NetDevice, ...]:
    """Return the network devices that have hardware beneath them; *networks*: addresses with prefix by device."""
    routes = _default_routes(files.text("proc/net/route", 1 << 16) or "")
    vlans: dict[str, list[int]] = {}
    for number, parent in _VLAN.findall(files.text("proc/net/vlan/config", 1 << 16) or ""):
        vlans.setdefault(parent, []).append(int(number))
    found = []
    for name in files.names(_NET)[:_MOST_DEVICES]:
        target = files.target(f"{_NET}/{name}")
        path = pci_path(target)
        # Hyper-V and some boards have network devices that hang on no PCIe; purely virtual ones have no device at all.
        if not files.exists(f"{_NET}/{name}/") or not (path or files.exists(f"{_NET}/{name}/device")):
            continue
        device = _net(files, name, path[-1] if path else "")
        parents = {name, device.bond}
        found.append(
            msgspec.structs.replace(
                device,
                vlans=tuple(sorted({number for parent in parents for number in vlans.get(parent, ())})),
                default_route=bool(routes & parents),
                networks=tuple((networks or {}).get(name, ())),
            )
        )
    return tuple(sorted(found, key=lambda device: natural(device.name)))


def _net(files: Sysfs, name: str, address: str) -> NetDevice:
    base = f"{_NET}/{name}"
    speed = integer(files.text(f"{base}/speed"))
    carrier = files.text(f"{base}/carrier")  # EINVAL while the device is not up
    state = files.text(f"{base}/operstate")
    up = carrier == "1" if carrier in {"0", "1"} else False if state in {"down", "lowerlayerdown"} else None
    values, _ = counters({each: files.text(f"{base}/statistics/{each}") for each in _STATISTICS})
    return NetDevice(
        name=plain(name, 32),
        address=address,
        port=integer(files.text(f"{base}/dev_port")) or 0,
        mac=plain(files.text(f"{base}/address") or "", 64).lower(),
        up=up,
        gbps=speed / 1000 if speed and speed > 0 else 0.0,
        mtu=integer(files.text(f"{base}/mtu")) or 0,
        bond=plain(files.target(f"{base}/master").rpartition("/")[2], 32),
        losses=integer(files.text(f"{base}/carrier_down_count")),
        layer="infiniband" if integer(files.text(f"{base}/type")) == _INFINIBAND else "ethernet",
        ecn=_ecn(files, f"{base}/ecn"),
        counters=values,
    )


def _ecn(files: Sysfs, base: str) -> tuple[int, ...] | None:
    """Return the priorities for which an adapter both marks and heeds congestion, where its driver shows it (mlx5)."""
    if not files.exists(base):
        return None
    return tuple(
        priority
        for priority in range(8)
        if all(files.text(f"{base}/{side}/enable/{priority}") == "1" for side in ("roce_np", "roce_rp"))
    )


def _default_routes(text: str) -> set[str]:
    """Return the devices that have a default route, from /proc/net/route."""
    rows = (line.split() for line in text.split("\n")[1:])
    return {row[0] for row in rows if len(row) > 7 and row[1] == "00000000" and row[7] == "00000000"}
