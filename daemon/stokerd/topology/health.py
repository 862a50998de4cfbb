"""How a port is doing, from what is read of it over time. Pure: the time is a parameter, the memory a value.

A link that goes down or comes up is told at once. One that keeps doing so is `flapping` from the third time within a
window on, and stays so until it has been quiet for a while: then there is one report, not ten. Errors count as rates;
each rate has a threshold above which it must stay for a while to count, and a lower one below which it must stay to be
forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from stokerd.topology.rates import Congestion, Reading, congestion, rates

HealthState = Literal["healthy", "degraded", "down", "unknown"]


class Threshold(msgspec.Struct, frozen=True):
    """Events per second from which a counter is a fault, and below which it is none any more."""

    enter: float
    leave: float
    meaning: str


THRESHOLDS: Mapping[str, Threshold] = {
    "symbol_error": Threshold(1.0, 0.1, "symbol errors"),
    "local_link_integrity_errors": Threshold(0.1, 0.01, "link integrity errors"),
    "port_rcv_errors": Threshold(1.0, 0.1, "receive errors"),
    "excessive_buffer_overrun_errors": Threshold(0.1, 0.01, "buffer overruns"),
    "link_error_recovery": Threshold(0.05, 0.005, "link error recoveries"),
    "out_of_sequence": Threshold(100.0, 10.0, "packets out of sequence"),
    "packet_seq_err": Threshold(100.0, 10.0, "packet sequence errors (retransmits)"),
    "local_ack_timeout_err": Threshold(10.0, 1.0, "acknowledgement timeouts (retransmits)"),
    "rnr_nak_retry_err": Threshold(10.0, 1.0, "receiver not ready"),
    "roce_adp_retrans": Threshold(100.0, 10.0, "adaptive retransmits"),
    "rx_crc_errors": Threshold(1.0, 0.1, "CRC errors"),
    "rx_crc_errors_phy": Threshold(1.0, 0.1, "CRC errors"),
}


class HealthRules(msgspec.Struct, frozen=True):
    """The settings of health; seconds, and shares of 0 to 1."""

    thresholds: Mapping[str, Threshold] = msgspec.field(default_factory=lambda: THRESHOLDS)
    hold: float = 30.0
    """A rate must stay above its threshold for so long to count, and below it for so long to be forgotten."""
    flap_window: float = 300.0
    flap_count: int = 3
    """Times that a link went down within the window from which it is flapping."""
    flap_quiet: float = 120.0
    congested_enter: float = 0.3
    congested_leave: float = 0.1


class PortReading(msgspec.Struct, frozen=True):
    """What was read of a port: whether it is up (None: nobody says), and its counters.

    ``downs`` is the device's own count of link losses; it shows those that were too short to be seen.
    """

    up: bool | None
    counters: Mapping[str, int] = {}
    downs: int | None = None
    degraded: tuple[str, ...] = ()
    """What is less than it should be just now, by its width and speed."""


class Alarm(msgspec.Struct, frozen=True):
    """A rate beyond its threshold: since when, and whether that is long enough to count."""

    since: float
    raised: bool = False
    calm_since: float | None = None


class PortHealth(msgspec.Struct, frozen=True):
    """What is remembered of a port. ``state``, ``reasons``, ``since`` and ``flaps`` are what is reported."""

    state: HealthState = "unknown"
    reasons: tuple[str, ...] = ()
    since: float = 0.0
    flaps: int = 0
    down_since: float | None = None
    losses: int = 0
    recent: tuple[float, ...] = ()
    up: bool | None = None
    up_since: float | None = None
    downs: int | None = None
    alarms: Mapping[str, Alarm] = {}
    reading: Reading | None = None
    per_second: Mapping[str, float] = {}
    congestion: Congestion = Congestion()


def observe(memory: PortHealth, found: PortReading, now: float, rules: HealthRules | None = None) -> PortHealth:
    """Return what is known of a port after *found* was read at *now*."""
    rules = rules or HealthRules()
    losses = _losses(memory, found)
    recent = tuple(at for at in memory.recent if now - at < rules.flap_window) + (now,) * min(losses, rules.flap_count)
    reading = Reading(now, found.counters)
    per_second = rates(memory.reading, reading)
    crowded = congestion(per_second)
    alarms = _alarms(memory.alarms, per_second, crowded, now, rules, fresh=memory.reading is not None)
    flapping = _flapping(memory, recent, now, rules)
    state, reasons = _verdict(found, alarms, flapping=flapping, rules=rules)
    total = memory.losses + losses
    changed = (state, reasons) != (memory.state, memory.reasons)
    went_down = found.up is False and memory.up is not False
    return PortHealth(
        state=state,
        reasons=reasons,
        since=now if changed else memory.since,
        flaps=memory.flaps if flapping and FLAPPING in memory.reasons else total,
        down_since=now if went_down else memory.down_since if found.up is False else None,
        losses=total,
        recent=recent,
        up=found.up,
        up_since=(memory.up_since if memory.up_since is not None else now) if found.up else None,
        downs=found.downs,
        alarms=alarms,
        reading=reading,
        per_second=per_second,
        congestion=crowded,
    )


def _losses(memory: PortHealth, found: PortReading) -> int:
    """Return how often the link was lost since the last reading: what was seen, or the device counted, if more."""
    seen = int(found.up is False and memory.up is True)
    if found.downs is None or memory.downs is None or found.downs < memory.downs:
        return seen
    return max(seen, found.downs - memory.downs)


def _flapping(memory: PortHealth, recent: tuple[float, ...], now: float, rules: HealthRules) -> bool:
    if len(recent) >= rules.flap_count:
        return True
    return FLAPPING in memory.reasons and bool(recent) and now - recent[-1] < rules.flap_quiet


FLAPPING = "flapping"


def _alarms(
    old: Mapping[str, Alarm],
    per_second: Mapping[str, float],
    crowded: Congestion,
    now: float,
    rules: HealthRules,
    *,
    fresh: bool,
) -> dict[str, Alarm]:
    """Return the alarms after a reading; a counter that has no rate this time leaves its alarm as it is."""
    limits = {name: (limit.enter, limit.leave, per_second.get(name)) for name, limit in rules.thresholds.items()}
    limits["congestion"] = (rules.congested_enter, rules.congested_leave, crowded.value if fresh else None)
    alarms: dict[str, Alarm] = {}
    for name, (enter, leave, rate) in sorted(limits.items()):
        alarm = _alarm(old.get(name), rate, enter, leave, now, rules.hold)
        if alarm is not None:
            alarms[name] = alarm
    return alarms


def _alarm(old: Alarm | None, rate: float | None, enter: float, leave: float, now: float, hold: float) -> Alarm | None:
    if rate is None:
        return old
    if old is None:
        return Alarm(now, raised=hold <= 0) if rate >= enter else None
    if not old.raised:
        if rate < enter:
            return None
        return Alarm(old.since, raised=now - old.since >= hold)
    if rate >= leave:
        return Alarm(old.since, raised=True)
    calm = now if old.calm_since is None else old.calm_since
    return None if now - calm >= hold else Alarm(old.since, raised=True, calm_since=calm)


def _verdict(
    found: PortReading, alarms: Mapping[str, Alarm], *, flapping: bool, rules: HealthRules
) -> tuple[HealthState, tuple[str, ...]]:
    words = {name: limit.meaning for name, limit in rules.thresholds.items()} | {"congestion": "congested"}
    raised = tuple(words.get(name, name) for name, alarm in alarms.items() if alarm.raised)
    if flapping:
        # Neither up nor down is true for long: what it is just now is left out, so that the report stays as it is.
        return "degraded", (FLAPPING, *raised)
    if found.up is None:
        return "unknown", raised
    if not found.up:
        return "down", ()
    reasons = (*found.degraded, *raised)
    return ("degraded" if reasons else "healthy"), reasons


def speed_problems(width: int, speed: float, width_max: int, peers: tuple[float, ...]) -> tuple[str, ...]:
    """Return how a port is less than it could be: fewer lanes than it has, or slower than most of its peers."""
    problems = []
    if width and width_max and width < width_max:
        problems.append(f"{width} of {width_max} lanes")
    known = sorted(peer for peer in peers if peer > 0)
    usual = known[len(known) // 2] if len(known) >= 2 else 0.0
    if speed and usual and speed < usual:
        problems.append(f"{speed:g} Gb/s, its peers {usual:g}")
    return tuple(problems)
