"""Where a cloud says this machine is: a JSON or environment file that something else has written. Pure.

No metadata service is asked. Only keys that are known to tell a place are kept: such files also hold credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stoker.fabrics.foreign import Unread, Unreadable, decode, plain

LONGEST = 1 << 20
_MOST_DEPTH = 6
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*(.*)")

# By the last part of the name, in small letters, without separators.
_MEANINGS: Mapping[str, str] = {
    "instanceid": "instance", "vmid": "instance", "instancetype": "instance-type", "vmsize": "instance-type",
    "machinetype": "instance-type", "shape": "instance-type", "region": "region", "location": "region",
    "availabilityzone": "zone", "availabilityzoneid": "zone-id", "zone": "zone", "availabilitydomain": "zone",
    "placementgroup": "placement-group", "placementgroupid": "placement-group", "groupname": "placement-group",
    "capacityblockid": "capacity-block", "hostid": "physical-host", "physicalhost": "physical-host",
    "networknodes": "network-path", "cluster": "cluster", "block": "block", "subblock": "sub-block",
    "physicalhosttopology": "physical-host", "rack": "rack", "rackid": "rack", "row": "row", "room": "room",
    "datacenter": "datacenter", "faultdomain": "fault-domain", "platformfaultdomain": "fault-domain",
    "clusterid": "cluster", "hpcislandid": "hpc-island", "networkblockid": "network-block",
    "localblockid": "local-block", "gpumemoryfabricid": "gpu-memory-fabric",
}  # fmt: skip


_SECRET = re.compile(r"secret|token|passw|credential|key|signature|auth", re.IGNORECASE)


class Placement(msgspec.Struct, frozen=True):
    """What a file says about where the machine is. ``ignored``: how many of its values tell no place."""

    facts: Mapping[str, str] = {}
    ignored: int = 0
    unread: Unread = Unread()


def parse(data: bytes | str) -> Placement:
    """Return the places that a JSON document, or lines of ``KEY=value``, tell. Never raises."""
    if len(data) > LONGEST:
        return Placement(unread=Unread(1, (f"a file of {len(data)} bytes is too long",)))
    text = decode(data)
    if text.lstrip()[:1] in {"{", "["}:
        return _json(text)
    return _environment(text)


def _json(text: str) -> Placement:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        return Placement(unread=Unread(1, (plain(f"not JSON: {error}"),)))
    return _placed(_leaves(document, "", 0), Unreadable())


def _leaves(value: Any, name: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > _MOST_DEPTH:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, str(key), depth + 1)
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        yield name, "/".join(value[:8])
    elif isinstance(value, list):
        yield "", ""  # of several objects, it cannot be said which is meant
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield name, str(value)


def _environment(text: str) -> Placement:
    unread = Unreadable()
    pairs = []
    for line in text.split("\n"):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _ASSIGNMENT.fullmatch(line) if len(line) < 4096 else None
        if match is None:
            unread.add("a line that is no assignment")  # never its text: it may be a secret
        else:
            pairs.append((match[1], match[2].strip().strip("'\"")))
    return _placed(iter(pairs), unread)


def _placed(pairs: Iterator[tuple[str, str]], unread: Unreadable) -> Placement:
    facts: dict[str, str] = {}
    ignored = 0
    for name, value in pairs:
        meaning = _meaning(name)
        value = plain(value, 256)
        if meaning and value:
            facts.setdefault(meaning, value)
        else:
            ignored += 1
    return Placement(dict(sorted(facts.items())), ignored, unread.total)


def _meaning(name: str) -> str:
    """Return what *name* tells, whatever prefix a cloud gives it (``EC2_INSTANCE_ID``, ``OCI_SHAPE``)."""
    if _SECRET.search(name):
        return ""
    bare = re.sub(r"[^a-z0-9]", "", name.lower())
    if bare in _MEANINGS:
        return _MEANINGS[bare]
    words = re.split(r"[_.-]+", name.lower())
    return next((found for start in range(1, len(words)) if (found := _MEANINGS.get("".join(words[start:]), ""))), "")
