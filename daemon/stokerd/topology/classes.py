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
    model: str = ""
    gbps: float = 0.0
    vlans: tuple[int, ...] = ()
    networks: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    gpu_distance: Distance = "SYS"
    default_route: bool = False
    virtual: bool = False
    bond: str = ""

    @property
    def near_gpu(self) -> bool:
        """Say whether a GPU can be reached without a CPU in between."""
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


def ruled(number: int, rule: UseRule) -> Decision:
    """Return what the rule with that number (from 1) decides."""
    return Decision(rule.use, f"rule {number} of the configuration: {rule.describe()}")


def keep(new: Decision, before: Decision, rules: Sequence[UseRule]) -> Decision:
    """Return what to say of an interface whose link is down, and so tells nothing of its speed just now.

    What was said *before* holds, unless a rule that is ahead of it decides now, or its own rule is gone.
    """
    by_rule = [ruled(number, rule) for number, rule in enumerate(rules, start=1)]
    ahead = by_rule.index(new) if new in by_rule else len(by_rule)
    if before in by_rule:
        return before if by_rule.index(before) <= ahead else new
    hardware = not before.reason.startswith("rule ") and before.use != "unknown"
    return before if hardware and ahead == len(by_rule) else new


def decide(traits: Traits, siblings: Sequence[Traits], rules: Sequence[UseRule] = ()) -> Decision:
    """Return what the interface is for. *siblings*: all interfaces of the node, itself included."""
    for number, rule in enumerate(rules, start=1):
        if matches(rule, traits):
            return ruled(number, rule)
    if traits.virtual:
        return Decision("unknown", "a virtual function or virtual device; no rule names it")
    if traits.rdma:
        return _of_rdma(traits, siblings)
    partner = partner_of(traits, siblings)
    if partner is not None:
        return Decision(_of_rdma(partner, siblings).use, f"one of {traits.bond}, over which {partner.name} has RDMA")
    if traits.default_route:
        return Decision("management", "it has the default route, and no RDMA")
    if 0 < traits.gbps <= _SLOW_GBPS and any(each.rdma for each in siblings):
        return Decision("management", f"{traits.gbps:g} Gb/s without RDMA, beside faster interfaces with it")
    return Decision("unknown", "nothing tells what it is for; a rule in the configuration can")


def partner_of(traits: Traits, siblings: Sequence[Traits]) -> Traits | None:
    """Return the interface with RDMA over the bond that one without RDMA of its own is a part of."""
    if traits.rdma or not traits.bond:
        return None
    return next((each for each in siblings if each.rdma and each.bond == traits.bond), None)


def _of_rdma(traits: Traits, siblings: Sequence[Traits]) -> Decision:
    real = [each for each in siblings if each.rdma and not each.virtual]
    fast = max((each.gbps for each in real), default=0.0)
    fastest = {each.model for each in real if each.model and each.gbps >= fast * _SAME_SPEED}
    # A link that is down tells nothing of its speed, and a slow one may be a fault: the model tells what it should be.
    fast_enough = traits.gbps == 0 or traits.gbps >= fast * _SAME_SPEED or traits.model in fastest
    served = ", ".join(traits.gpus)
    near = [each.name for each in real if each.near_gpu]
    if traits.near_gpu and fast_enough:
        return Decision("compute", f"RDMA, with no CPU between it and {served} ({traits.gpu_distance})")
    if near and not traits.near_gpu:
        names = ", ".join(near[:3]) + (", ..." if len(near) > 3 else "")
        return Decision("storage", f"RDMA next to no GPU, while {names} are next to one")
    if not near and traits.gpus and fast_enough:
        return Decision("compute", f"RDMA of the fastest kind; no NIC of this node is closer to a GPU ({served})")
    return Decision("unknown", "RDMA, but nothing tells what for; a rule in the configuration can")
