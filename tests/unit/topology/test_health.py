"""Health over time: rates, hysteresis, flaps, congestion."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stokerd.topology.health import FLAPPING, HealthRules, PortHealth, PortReading, observe, speed_problems
from stokerd.topology.rates import Reading, congestion, rates, use

UP, DOWN, SILENT = PortReading(up=True), PortReading(up=False), PortReading(up=None)
RULES = HealthRules()


def watch(*steps: tuple[float, PortReading], memory: PortHealth | None = None) -> list[PortHealth]:
    states = []
    memory = memory or PortHealth()
    for at, reading in steps:
        memory = observe(memory, reading, at)
        states.append(memory)
    return states


def test_a_link_goes_down_and_comes_back() -> None:
    first, down, still, up = watch((0, UP), (10, DOWN), (20, DOWN), (30, UP))
    assert (first.state, first.since, first.flaps) == ("healthy", 0, 0)
    assert (down.state, down.since, down.down_since, down.flaps) == ("down", 10, 10, 1)
    assert (still.since, still.down_since) == (10, 10)
    assert (up.state, up.since, up.down_since, up.flaps) == ("healthy", 30, None, 1)


def test_nobody_says_how_a_link_is() -> None:
    assert watch((0, SILENT))[0].state == "unknown"


def test_a_link_that_keeps_flapping_is_one_change_not_ten() -> None:
    steps = [(float(at), UP if at % 2 else DOWN) for at in range(1, 21)]
    states = watch((0.0, UP), *steps)
    reported = [states[0]]
    for state in states:
        if (state.state, state.reasons, state.flaps) != (reported[-1].state, reported[-1].reasons, reported[-1].flaps):
            reported.append(state)
    assert [state.state for state in reported] == ["healthy", "down", "healthy", "down", "healthy", "degraded"]
    assert reported[-1].reasons == (FLAPPING,)
    assert states[-1].losses == 10


def test_flapping_ends_after_quiet() -> None:
    memory = watch(*[(float(at), UP if at % 2 else DOWN) for at in range(7)], memory=PortHealth(up=True))[-1]
    assert memory.reasons == (FLAPPING,)
    states = watch((100, UP), (300, UP), (307, UP), memory=memory)
    assert [state.state for state in states] == ["degraded", "degraded", "healthy"]


def test_losses_too_short_to_be_seen_are_counted_by_the_device() -> None:
    states = watch(
        (0, PortReading(up=True, downs=5)),
        (10, PortReading(up=True, downs=7)),
        (20, PortReading(up=False, downs=8)),
        (30, PortReading(up=True, downs=0)),  # the driver was loaded anew
    )
    assert [state.losses for state in states] == [0, 2, 3, 3]
    assert [state.flaps for state in states] == [0, 2, 3, 3]
    assert states[2].reasons == (FLAPPING,)


def errors(at: float, count: int) -> tuple[float, PortReading]:
    return at, PortReading(up=True, counters={"symbol_error": count})


def test_errors_count_when_they_stay() -> None:
    states = watch(errors(0, 0), errors(10, 50), errors(20, 100), errors(30, 150), errors(40, 200))
    assert [state.state for state in states] == ["healthy", "healthy", "healthy", "healthy", "degraded"]
    assert states[-1].reasons == ("symbol errors",)


def test_a_burst_of_errors_is_no_fault() -> None:
    states = watch(errors(0, 0), errors(10, 5000), errors(20, 5000), errors(30, 5000), errors(60, 5000))
    assert {state.state for state in states} == {"healthy"}


def test_errors_between_the_thresholds_change_nothing() -> None:
    memory = watch(errors(0, 0), *[errors(at, at * 5) for at in range(10, 60, 10)])[-1]
    assert memory.state == "degraded"
    slower = watch(*[errors(at, 250 + (at - 50) // 2) for at in range(60, 200, 10)], memory=memory)
    assert {state.state for state in slower} == {"degraded"}
    quiet = watch(*[errors(at, 1000) for at in range(200, 260, 10)], memory=slower[-1])
    assert [state.state for state in quiet] == ["degraded"] * 4 + ["healthy"] * 2


def test_a_counter_that_went_back_has_no_rate() -> None:
    assert rates(Reading(0, {"a": 100, "b": 5}), Reading(10, {"a": 3, "b": 25, "c": 7})) == {"b": 2}
    assert rates(None, Reading(10, {"a": 3})) == {}
    assert rates(Reading(10, {"a": 1}), Reading(10, {"a": 3})) == {}


def test_a_reset_does_not_clear_an_alarm() -> None:
    memory = watch(errors(0, 0), *[errors(at, at * 5) for at in range(10, 60, 10)])[-1]
    assert watch(errors(60, 0), memory=memory)[-1].state == "degraded"


def test_less_than_it_could_be() -> None:
    assert speed_problems(4, 400, 4, (400, 400, 400)) == ()
    assert speed_problems(2, 200, 4, (400, 400, 200)) == ("2 of 4 lanes", "200 Gb/s, its peers 400")
    assert speed_problems(4, 200, 4, (200,)) == ()
    assert speed_problems(0, 0, 0, ()) == ()
    degraded = PortReading(up=True, degraded=("2 of 4 lanes",))
    assert watch((0, degraded))[0].reasons == ("2 of 4 lanes",)


readings = st.builds(
    PortReading,
    up=st.none() | st.booleans(),
    counters=st.dictionaries(st.sampled_from(["symbol_error", "port_xmit_wait", "port_xmit_data"]), st.integers(0, 99)),
    downs=st.none() | st.integers(0, 9),
)


@given(st.lists(st.tuples(st.floats(0, 100), readings), max_size=20))
@settings(max_examples=100)
def test_whatever_is_read_the_memory_stays_small_and_sound(steps: list[tuple[float, PortReading]]) -> None:
    now, losses = 0.0, 0
    memory = PortHealth()
    for delay, reading in steps:
        now += delay
        memory = observe(memory, reading, now, RULES)
        assert memory.losses >= losses
        assert memory.since <= now
        assert 0 <= memory.congestion.value <= 1
        assert len(memory.recent) <= len(steps) * RULES.flap_count
        losses = memory.losses
        if reading.up is False and FLAPPING not in memory.reasons:
            assert memory.state == "down"


# ---------------------------------------------------------------------------------------------- congestion and use


@pytest.mark.parametrize(
    ("per_second", "value", "names"),
    [
        ({}, 0, set()),
        ({"port_xmit_wait": 0, "port_xmit_data": 1e9}, 0, {"xmitWait"}),
        ({"port_xmit_wait": 1e9, "port_xmit_data": 1e9}, 0.5, {"xmitWait"}),
        ({"port_xmit_wait": 1e9, "port_xmit_data": 0}, 1, {"xmitWait"}),
        ({"rp_cnp_handled": 1000, "port_xmit_packets": 1e6}, 1, {"cnp"}),
        ({"rp_cnp_handled": 500, "port_xmit_packets": 1e6}, 0.5, {"cnp"}),
        ({"np_ecn_marked_roce_packets": 1e5, "port_rcv_packets": 1e6}, 0.1, {"ecn"}),
        ({"rx_prio3_pause_duration": 2.5e5, "rx_prio0_pause_duration": 0}, 0.25, {"pause"}),
        ({"port_xmit_discards": 10, "port_xmit_packets": 100}, 0.1, {"discards"}),
    ],
)
def test_congestion_is_a_number_with_its_inputs(per_second: dict[str, float], value: float, names: set[str]) -> None:
    found = congestion(per_second)
    assert found.value == pytest.approx(value)
    assert set(found.inputs) == names


@given(
    st.dictionaries(
        st.sampled_from(["port_xmit_wait", "port_xmit_data", "rp_cnp_handled", "port_xmit_packets"]), st.floats(0, 1e12)
    )
)
def test_more_waiting_is_never_less_congestion(per_second: dict[str, float]) -> None:
    more = {**per_second, "port_xmit_wait": per_second.get("port_xmit_wait", 0) * 2}
    if "port_xmit_wait" in per_second:
        assert congestion(more).value >= congestion(per_second).value
    assert 0 <= congestion(per_second).value <= 1


def test_congestion_that_stays_degrades_a_port() -> None:
    def crowded(at: float, share: float) -> tuple[float, PortReading]:
        counters = {"port_xmit_wait": int(at * share * 1000), "port_xmit_data": int(at * (1 - share) * 1000)}
        return at, PortReading(up=True, counters=counters)

    states = watch(*[crowded(at, 0.5) for at in range(0, 60, 10)])
    assert states[-1].reasons == ("congested",)
    assert states[1].state == "healthy"


def test_use_of_a_link() -> None:
    assert use({"port_xmit_data": 12.5e9 / 4, "port_rcv_data": 0}, 400).sent == pytest.approx(100)
    assert use({"tx_bytes": 1.25e9, "rx_bytes": 0}, 25).sent == pytest.approx(10)
    assert use({}, 25).sent is None
