from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.images.retry import Backoff, registry_rest

backoffs = st.builds(
    Backoff,
    initial=st.floats(0.001, 1e6),
    maximum=st.floats(0.001, 1e9),
    factor=st.floats(1.0, 100.0),
    jitter=st.floats(0.0, 1.0),
)
attempts = st.integers(-3, 10**9)
draws = st.floats(0.0, 1.0, exclude_max=True)


def test_the_delay_doubles_up_to_its_limit() -> None:
    backoff = Backoff(1.0, 60.0, jitter=0.0)
    assert [backoff.delay(attempt, 0.9) for attempt in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_jitter_shortens_a_delay_by_up_to_its_share() -> None:
    backoff = Backoff(10.0, 60.0, jitter=0.5)
    assert backoff.delay(1, 0.0) == 10.0
    assert backoff.delay(1, 0.5) == 7.5
    assert 5.0 < backoff.delay(1, 0.999) < 5.01
    assert Backoff(10.0, 60.0, jitter=1.0).delay(1, 0.5) == 5.0


def test_an_attempt_that_was_not_counted_waits_as_the_first() -> None:
    assert Backoff(3.0, 60.0).delay(0, 0.0) == Backoff(3.0, 60.0).delay(-7, 0.0) == 3.0


@given(backoffs, attempts, draws)
def test_a_delay_is_finite_and_within_its_bounds(backoff: Backoff, attempt: int, draw: float) -> None:
    full = backoff.delay(attempt, 0.0)
    delay = backoff.delay(attempt, draw)
    assert min(backoff.initial, backoff.maximum) <= full <= backoff.maximum
    assert 0.0 <= full * (1 - backoff.jitter) <= delay <= full
    assert math.isfinite(delay)


@given(backoffs, attempts, draws)
def test_a_later_attempt_never_waits_less(backoff: Backoff, attempt: int, draw: float) -> None:
    assert backoff.delay(attempt, draw) <= backoff.delay(attempt + 1, draw)


@pytest.mark.parametrize(
    ("strikes", "retry_after", "rest"),
    [
        (1, None, 1.0),
        (3, None, 4.0),
        (1, 30.0, 30.0),
        (1, 0.0, 1.0),
        (1, -5.0, 1.0),
        (7, 30.0, 60.0),  # ours is longer
        (1, 600.0, 600.0),
        (1, 86_400.0, 600.0),
        (1, math.inf, 600.0),
        (1, math.nan, 1.0),
    ],
)
def test_a_registry_rests_as_long_as_it_asks_within_reason(
    strikes: int, retry_after: float | None, rest: float
) -> None:
    assert registry_rest(strikes, retry_after, Backoff(1.0, 60.0), 0.0) == rest


@given(attempts, st.none() | st.floats(), backoffs, draws)
def test_a_rest_is_never_shorter_than_ours_nor_endless(
    strikes: int, retry_after: float | None, backoff: Backoff, draw: float
) -> None:
    rest = registry_rest(strikes, retry_after, backoff, draw)
    assert backoff.delay(strikes, draw) <= rest <= max(backoff.maximum, 600.0)
