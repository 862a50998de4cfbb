"""The rules that HyperNodes of Volcano must keep: of its schema, of its webhook, and of its scheduler's cache. Pure.

A domain that breaks one makes Volcano's scheduler refuse every job with a topology constraint, so all are checked here
before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from stoker_coordinator.hypernodes.model import HyperNode

LONGEST_NAME = 253
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def is_name(text: str) -> bool:
    """Say whether Kubernetes takes *text* as an object's name."""
    return len(text) <= LONGEST_NAME and _NAME.fullmatch(text) is not None


def violations(domains: Iterable[HyperNode]) -> list[str]:
    """Return what is against the rules in a set of domains that are to be written together; empty if nothing is."""
    found = list(domains)
    by_name: dict[str, HyperNode] = {}
    problems: list[str] = []
    for each in found:
        if each.name in by_name:
            problems.append(f"{each.name}: there are two of this name")
        by_name[each.name] = each
    problems += [problem for each in found for problem in _alone(each)]
    problems += _parents(found, by_name)
    problems += _circles(by_name)
    return problems


def _alone(each: HyperNode) -> Iterator[str]:
    if not is_name(each.name):
        yield f"{each.name}: not a name of DNS"
    if each.tier < 1:
        yield f"{each.name}: tier {each.tier}; tiers begin at 1"
    if not each.members:
        yield f"{each.name}: it has no member"
    names = [(member.type, member.name) for member in each.members]
    for kind, name in names:
        if not is_name(name):
            yield f"{each.name}: member {name} has no name of DNS"
        if kind == "HyperNode" and name == each.name:
            yield f"{each.name}: it is a member of itself"
    if len(set(names)) < len(names):
        yield f"{each.name}: a member is there twice"


def _parents(found: Sequence[HyperNode], by_name: Mapping[str, HyperNode]) -> Iterator[str]:
    above: dict[tuple[str, str, str], str] = {}
    for each in found:
        for member in each.members:
            # A node may be in one domain of each fabric; a domain is in one domain.
            key = (member.type, member.name, each.fabric if member.type == "Node" else "")
            if key in above:
                yield f"{member.name}: it is in {above[key]} and in {each.name}"
            above[key] = each.name
            if member.type == "HyperNode":
                child = by_name.get(member.name)
                if child is None:
                    yield f"{each.name}: its member {member.name} is not there"
                elif child.tier >= each.tier:
                    yield f"{each.name}: tier {each.tier}, but its member {child.name} has tier {child.tier}"


def _circles(by_name: Mapping[str, HyperNode]) -> Iterator[str]:
    above = {m.name: each.name for each in by_name.values() for m in each.members if m.type == "HyperNode"}
    told: set[str] = set()
    for name in by_name:
        seen = [name]
        while (parent := above.get(seen[-1])) is not None and parent not in seen:
            seen.append(parent)
        if parent == name and not told & set(seen):
            told.update(seen)
            yield f"{name}: it is above itself: {' < '.join([*seen, name])}"
