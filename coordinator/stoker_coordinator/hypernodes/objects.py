"""Domains as HyperNode objects: exactly Volcano's schema, and our richer status beside. Pure.

A HyperNode whose name or members Kubernetes would not take is not written; why is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from stoker.objects import cluster_nodes as objects
from stoker.objects.meta import Condition, ObjectMeta
from stoker_coordinator.hypernodes import model
from stoker_coordinator.hypernodes.model import HyperNode, Member
from stoker_coordinator.hypernodes.naming import own_part, slug
from stoker_coordinator.hypernodes.rules import is_name, violations

SOURCE_LABEL, FABRIC_LABEL = "volcano.sh/network-topology-source", "stoker.dev/fabric"


class Written(NamedTuple):
    """Objects to be written, and what could not be."""

    objects: tuple[objects.HyperNode, ...]
    problems: tuple[str, ...]


def write(domains: Iterable[HyperNode], node_names: Mapping[str, str] | None = None) -> Written:
    """Return *domains* (of one fabric, or of several) as objects, children first.

    *node_names*: what nodes are called there, where that differs. Members that have no name there are left out.
    """
    names = node_names or {}
    left_out: list[str] = []
    kept: dict[str, HyperNode] = {}
    for each in sorted(domains, key=lambda each: (each.tier, each.name)):
        members = []
        for member in each.members:
            name = names.get(member.name, member.name) if member.type == "Node" else member.name
            if member.type == "HyperNode" and member.name not in kept:
                continue  # told where it was left out
            if is_name(name):
                members.append(Member(type=member.type, name=name))
            else:
                left_out.append(f"{each.name}: member {name} has no name of DNS")
        if members:
            kept[each.name] = msgspec.structs.replace(each, members=tuple(members))
        else:
            left_out.append(f"{each.name}: it has no member that can be written")
    return Written(tuple(manifest(each) for each in kept.values()), (*left_out, *violations(kept.values())))


def manifest(domain: HyperNode) -> objects.HyperNode:
    """Return a domain as an object. What Volcano has no field for stands beside its own status."""
    return objects.HyperNode(
        metadata=ObjectMeta(name=domain.name, labels={SOURCE_LABEL: "stoker", FABRIC_LABEL: slug(domain.fabric)}),
        spec=spec(domain),
        status=status(domain),
    )


def spec(domain: HyperNode) -> objects.HyperNodeSpec:
    """Return what Volcano schedules by."""
    members = sorted(domain.members, key=lambda member: (member.type, member.name))
    return objects.HyperNodeSpec(
        tier=domain.tier,
        members=tuple(
            objects.HyperNodeMember(
                type=member.type, selector=objects.MemberSelector(exact_match=objects.ExactMatch(name=member.name))
            )
            for member in members
        ),
    )


def status(domain: HyperNode) -> objects.HyperNodeStatus:
    """Return Volcano's status, filled (it counts nodes and has conditions), and what it has no fields for."""
    nodes = tuple(sorted(member.name for member in domain.members if member.type == "Node"))
    return objects.HyperNodeStatus(
        node_count=domain.node_count,
        conditions=tuple(_condition(each) for each in domain.conditions),
        nodes=nodes,
        members=len(domain.members),
        switches=tuple(own_part(each.name) or each.id for each in domain.switches),
        fabric=domain.fabric,
        capacity_gbps=domain.capacity_gbps,
        uplink_gbps=domain.uplink_gbps,
        used_gbps=round(domain.sent_gbps + domain.received_gbps, 3),
        oversubscription=domain.oversubscription or 0.0,
        congested=any(each.type == "Congested" and each.status == "True" for each in domain.conditions),
        unhealthy_nodes=tuple(
            objects.UnhealthyNode(name=each.name, reason=each.reason, message=each.message, since=each.since)
            for each in domain.unhealthy_nodes
        ),
        unhealthy_links=tuple(
            objects.UnhealthyLink(
                a=f"{each.node} {each.nic}/{each.port}",
                b=own_part(each.switch),
                reason=each.state,
                message=each.reason,
                since=each.since,
            )
            for each in domain.unhealthy_links
        ),
        last_change=domain.last_change,
    )


def _condition(each: model.Condition) -> Condition:
    return Condition(
        type=each.type,
        status=each.status,
        reason=each.reason,
        message=each.message or each.reason,
        last_transition_time=each.last_transition_time,
    )
