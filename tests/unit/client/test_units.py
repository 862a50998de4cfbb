from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.units import (
    brief_duration,
    format_age,
    format_duration,
    format_size,
    format_size_pair,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("90s", 90),
        ("10m", 600),
        ("24h", 86400),
        ("7d", 604800),
        ("2w", 1209600),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("250ms", 0.25),
        (" 5s ", 5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", " ", "5", "s", "-5s", "5 s", "5x", "5s5", "1h 30m", "٥s", "1e3s", "inf", "5S"])
def test_not_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write 90s, 10m"):
        parse_duration(text)


@given(st.integers(0, 10**9))
def test_whole_seconds_survive_a_round_trip(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(1, 999))
def test_milliseconds_survive_a_round_trip(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (-3, "0s"), (0.001, "1ms"), (0.9999, "1000ms"), (1.4, "1s"), (5400, "1h30m"), (90061, "1d1h1m1s")],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-1, "0s"),
        (59.4, "59s"),
        (59.6, "1m"),
        (61, "1m1s"),
        (185, "3m5s"),
        (7200, "2h"),
        (7260, "2h1m"),
        (7201, "2h"),
        (273600, "3d4h"),
        (86400 * 400, "400d"),
    ],
)
def test_brief_duration(seconds: float, text: str) -> None:
    assert brief_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("1KiB", 1024),
        ("1k", 1024),
        ("1kB", 1000),
        ("1.5 GiB", 3 * 512 * 1024 * 1024),
        ("2g", 2 * 1024**3),
        ("2GB", 2 * 10**9),
        ("7EiB", 7 * 1024**6),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 Gi B", "1iB", "1.GiB", ".5G", "1,5G", "5XB", "٥"])
def test_not_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write 512MiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (100 * 1024**2, "100 MiB"),
        (99.96 * 1024**2, "100 MiB"),
        (1023 * 1024**2, "1023 MiB"),
        (6.5 * 1024**3, "6.5 GiB"),
        (2000 * 1024**6, "2000 EiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_format_size(size: float, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(0, 1024**6))
def test_sizes_survive_a_round_trip_within_what_is_shown(size: int) -> None:
    shown = format_size(size)
    number, unit = shown.split(" ")
    step = parse_size(f"1{unit}") * (0.1 if "." in number else 1)
    assert abs(parse_size(shown) - size) <= step / 2 + 1
    assert len(shown) <= 8


def test_size_pairs_share_the_unit_of_the_whole() -> None:
    assert format_size_pair(3 * 1024**3, 6 * 1024**3 + 512 * 1024**2) == "3.0/6.5 GiB"
    assert format_size_pair(5 * 1024**2, 6 * 1024**3) == "0.0/6.0 GiB"
    assert format_size_pair(50 * 1024**2, 200 * 1024**2) == "50/200 MiB"
    assert format_size_pair(0, 0) == "0/0 B"


def test_ages() -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert format_age(None, now) == "-"
    assert format_age(now, now) == "now"
    assert format_age(now - timedelta(minutes=3), now) == "3m ago"
    assert format_age(now + timedelta(hours=24), now) == "in 1d"
