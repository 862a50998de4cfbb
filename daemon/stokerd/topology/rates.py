"""Counters as rates, and congestion as one number. Pure; times are seconds of a clock that the caller chooses."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_WORDS = 4  # bytes of a unit of port_xmit_data and port_rcv_data
_CNP_SHARE_FULL = 0.001
"""Notifications per packet from which a path counts as fully congested: DCQCN halves its rate long before."""


class Reading(msgspec.Struct, frozen=True):
    """Counters at a time."""

    at: float
    counters: Mapping[str, int] = {}


def rates(before: Reading | None, now: Reading) -> dict[str, float]:
    """Return what each counter grew by per second; one that went back (a reset, a wrap) has no rate this time."""
    if before is None or now.at <= before.at:
        return {}
    seconds = now.at - before.at
    return {
        name: (value - before.counters[name]) / seconds
        for name, value in now.counters.items()
        if value >= before.counters.get(name, value + 1)
    }


class Congestion(msgspec.Struct, frozen=True):
    """How congested a port is, 0 to 1, and what that was made of: shares of 0 to 1 by name."""

    value: float = 0.0
    inputs: Mapping[str, float] = {}


def congestion(per_second: Mapping[str, float]) -> Congestion:
    """Return how much of the time a port could not send for want of credits, or was told to slow down.

    xmitWait  InfiniBand: waiting for credits against waiting and sending, both in the port's own ticks
    cnp       RoCE: congestion notifications handled per packet sent, full at one in a thousand
    ecn       RoCE: packets that arrived with a congestion mark
    pause     Ethernet: time that the peer's pause frames kept the port silent
    discards  packets dropped for want of buffer, per packet sent
    """
    wait, data = per_second.get("port_xmit_wait"), per_second.get("port_xmit_data")
    sent, received = per_second.get("port_xmit_packets", 0.0), per_second.get("port_rcv_packets", 0.0)
    inputs: dict[str, float] = {}
    if wait is not None and data is not None:
        inputs["xmitWait"] = _share(wait, wait + data)
    if "rp_cnp_handled" in per_second:
        inputs["cnp"] = _share(per_second["rp_cnp_handled"], sent * _CNP_SHARE_FULL)
    if "np_ecn_marked_roce_packets" in per_second:
        inputs["ecn"] = _share(per_second["np_ecn_marked_roce_packets"], received)
    pauses = [
        rate for name, rate in per_second.items() if name.startswith("rx_prio") and name.endswith("_pause_duration")
    ]
    if pauses:
        inputs["pause"] = _share(max(pauses), 1e6)  # microseconds
    if "port_xmit_discards" in per_second:
        inputs["discards"] = _share(per_second["port_xmit_discards"], sent)
    free = 1.0
    for share in inputs.values():
        free *= 1.0 - share
    return Congestion(round(1.0 - free, 4), {name: round(share, 4) for name, share in sorted(inputs.items())})


def _share(part: float, whole: float) -> float:
    if part <= 0:
        return 0.0
    return min(1.0, part / whole) if whole > 0 else 1.0


class Use(msgspec.Struct, frozen=True):
    """What a port carries now, and could, in Gb/s."""

    sent: float | None = None
    received: float | None = None
    capacity: float = 0.0


def use(per_second: Mapping[str, float], capacity: float) -> Use:
    """Return a port's bandwidth: of RDMA's counters (units of four bytes), or else of the network device's bytes."""
    return Use(
        _gbps(per_second, "port_xmit_data", "tx_bytes"), _gbps(per_second, "port_rcv_data", "rx_bytes"), capacity
    )


def _gbps(per_second: Mapping[str, float], words: str, octets: str) -> float | None:
    if words in per_second:
        return round(per_second[words] * _WORDS * 8 / 1e9, 3)
    return round(per_second[octets] * 8 / 1e9, 3) if octets in per_second else None
