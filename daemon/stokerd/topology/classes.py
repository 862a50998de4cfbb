"""What each network interface is for: compute, storage, management. Pure.

The operator's rules come first, in their order; then what can be told from the hardware. Each answer has its reason:
whoever places jobs by it should see why.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from stokerd.topology.distances import NEAR, Distance

Use = Literal["compute", "storage", "management", "unknown"]
_SLOW_GBPS = 25.0
_SAME_SPEED = 0.9


class Traits(msgspec.Struct, frozen=True):
    """What is known of one interface."""

    name: str
    netdevs: tuple[str, ...] = ()
    rdma: bool = False
    layer: str = ""
    gbps: float = 0.0
    vlans: tuple[int, ...] = ()
    networks: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    gpu_distance: Distance = "SYS"
    default_route: bool = False
    virtual: bool = False

    @property
    def near_gpu(self) -> bool:
        """Say whether a GPU is behind the same PCIe switch."""
        return bool(self.gpus) and self.gpu_distance in NEAR


class UseRule(msgspec.Struct, frozen=True):
    """One rule of the configuration. What it leaves open matches everything; the first that matches counts."""

    use: Use
    name: str = ""
    vlan: int | None = None
    layer: str = ""
    least_gbps: float | None = None
    most_gbps: float | None = None
    subnet: str = ""
    near_gpu: bool | None = None

    def describe(self) -> str:
        """Return the rule's conditions in words."""
        parts = [
            f"name {self.name}" if self.name else "",
            f"VLAN {self.vlan}" if self.vlan is not None else "",
            f"link layer {self.layer}" if self.layer else "",
            f"at least {self.least_gbps:g} Gb/s" if self.least_gbps is not None else "",
            f"at most {self.most_gbps:g} Gb/s" if self.most_gbps is not None else "",
            f"subnet {self.subnet}" if self.subnet else "",
            {True: "next to a GPU", False: "not next to a GPU", None: ""}[self.near_gpu],
        ]
        return ", ".join(filter(None, parts)) or "everything"


class Decision(msgspec.Struct, frozen=True):
    """What an interface is for, and why we think so."""

    use: Use
    reason: str


def matches(rule: UseRule, traits: Traits) -> bool:
    """Say whether *rule* is about such an interface. A subnet that is none matches nothing."""
    return (
        (not rule.name or any(fnmatchcase(name, rule.name) for name in (traits.name, *traits.netdevs)))
        and (rule.vlan is None or rule.vlan in traits.vlans)
        and (not rule.layer or rule.layer == traits.layer)
        and (rule.least_gbps is None or traits.gbps >= rule.least_gbps)
        and (rule.most_gbps is None or traits.gbps <= rule.most_gbps)
        and (not rule.subnet or any(_within(address, rule.subnet) for address in traits.networks))
        and (rule.near_gpu is None or rule.near_gpu == traits.near_gpu)
    )


def _within(address: str, subnet: str) -> bool:
    try:
        network = ipaddress.ip_network(subnet, strict=False)
        return ipaddress.ip_interface(address).ip in network
    except ValueError:
        return False


def decide(traits: Traits, siblings: Sequence[Traits], rules: Sequence[UseRule] = ()) -> Decision:
    """Return what the interface is for. *siblings*: all interfaces of the node, itself included."""
    for number, rule in enumerate(rules, start=1):
        if matches(rule, traits):
            return Decision(rule.use, f"rule {number} of the configuration: {rule.describe()}")
    if traits.virtual:
        return Decision("unknown", "a virtual function or virtual device; no rule names it")
    if traits.rdma:
        return _of_rdma(traits, siblings)
    if traits.default_route:
        return Decision("management", "it has the default route, and no RDMA")
    if 0 < traits.gbps <= _SLOW_GBPS and any(each.rdma for each in siblings):
        return Decision("management", f"{traits.gbps:g} Gb/s without RDMA, beside faster interfaces with it")
    return Decision("unknown", "nothing tells what it is for; a rule in the configuration can")


def _of_rdma(traits: Traits, siblings: Sequence[Traits]) -> Decision:
    fast = max((each.gbps for each in siblings if each.rdma and not each.virtual), default=0.0)
    served = ", ".join(traits.gpus)
    if traits.near_gpu and traits.gbps >= fast * _SAME_SPEED:
        return Decision("compute", f"RDMA behind one PCIe switch with {served} ({traits.gpu_distance})")
    if traits.near_gpu and traits.gbps == 0:
        return Decision(
            "compute", f"RDMA behind one PCIe switch with {served} ({traits.gpu_distance}); its link is down"
        )
    near = [each for each in siblings if each.rdma and each.near_gpu and not each.virtual]
    if near and not traits.near_gpu:
        names = ", ".join(each.name for each in near[:3]) + (", ..." if len(near) > 3 else "")
        return Decision("storage", f"RDMA next to no GPU, while {names} are next to one")
    if not near and traits.gpus and traits.gbps >= fast * _SAME_SPEED:
        return Decision("compute", f"RDMA of the highest speed; no NIC of this node is closer to a GPU ({served})")
    return Decision("unknown", "RDMA, but nothing tells what for; a rule in the configuration can")
