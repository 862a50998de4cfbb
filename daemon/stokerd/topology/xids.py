"""Errors of NVIDIA's GPUs (Xid) in records of the kernel's log, and what they mean. Pure.

Source: kernel Documentation/ABI/testing/dev-kmsg; NVIDIA's list of Xid errors for the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

import msgspec

from stokerd.topology.addresses import pci_address
from stokerd.topology.facts import Xid

_RECORD = re.compile(
    rb"\d{1,6},\d{1,20},(\d{1,18}),[^;\n]{0,64};.{0,64}?NVRM: Xid \(PCI:([0-9a-fA-F:.]{7,16})\): (\d{1,4})\b"
)
_MOST = 64

MEANINGS: Mapping[int, str] = {
    48: "memory error that could not be corrected",
    61: "its controller stopped",
    62: "its controller stopped",
    63: "memory is to be mapped away",
    64: "memory could not be mapped away",
    74: "NVLink error",
    79: "it has fallen off the bus",
    92: "many corrected memory errors",
    94: "memory error that was contained",
    95: "memory error that was not contained",
    109: "context switch timed out",
    110: "security fault",
    119: "its system processor does not answer",
    120: "error of its system processor",
    136: "NVLink training failed",
    140: "memory error that could not be recovered",
    143: "it could not be started",
    144: "NVLink error",
    145: "NVLink error",
    149: "NVLink error",
    154: "it needs to be reset",
}
"""Those that are of the hardware. Others are mostly of the programs that ran on it, and are told without a finding."""
GONE = frozenset((79, 143))


class XidRecord(msgspec.Struct, frozen=True):
    """One record: which GPU, which error, and how long after the start of the machine."""

    address: str
    number: int
    microseconds: int


def parse(record: bytes) -> XidRecord | None:
    """Return the error that a record of the log tells of; None if it tells of none. Never raises."""
    found = _RECORD.match(record)
    if found is None:
        return None
    place = found[2].decode("ascii")
    address = pci_address(place) or pci_address(f"{place}.0")
    return XidRecord(address, int(found[3]), int(found[1])) if address else None


def note(known: tuple[Xid, ...], address: str, number: int, at: datetime) -> tuple[Xid, ...]:
    """Return what is known with one more error; when there are too many kinds, those that were longest ago go."""
    kept = {(each.address, each.number): each for each in known}
    before = kept.get((address, number))
    kept[address, number] = Xid(address, number, before.count + 1 if before else 1, at)
    newest = sorted(kept.values(), key=lambda each: each.last, reverse=True)[:_MOST]
    return tuple(sorted(newest, key=lambda each: (each.address, each.number)))
