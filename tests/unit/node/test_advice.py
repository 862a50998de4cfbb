"""What is advised on a coordinator that is away, and on a certificate that nobody renews."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from stoker.cli.doctor import report_lines
from stoker.cli.text import Style
from stoker.objects.node import CoordinatorLink, NodeInfo
from stokerd.errors import RuntimeUnavailable
from stokerd.images.space import Margins
from stokerd.node.advice import Findings, advise
from stokerd.uplink.standing import Standing, UplinkMetrics

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
AWAY = RuntimeUnavailable("nobody listens there", hint="start it")


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


def advised(link: CoordinatorLink | None, now: datetime) -> list[tuple[str, str, str]]:
    margins = Margins(0, 0, 0, 0)
    coordinator = (link, now) if link is not None else None
    found = advise(Findings(None, None, margins, 0.0, coordinator=coordinator))
    return [(each.severity, each.message, each.remedy) for each in found if each.subject == "coordinator"]


def test_one_that_is_away_is_told_when_it_has_been_so_for_a_while() -> None:
    clock = Clock()
    standing = Standing("c:7444", clock)
    standing.connected()
    clock.now += timedelta(hours=1)
    standing.lost("Disconnected", AWAY)
    standing.lost("Disconnected", AWAY)
    assert advised(standing.link, clock.now + timedelta(seconds=30)) == []
    later = clock.now + timedelta(minutes=3)
    standing.lost("Disconnected", AWAY)
    (found,) = advised(standing.link, later)
    assert found == ("warning", "c:7444 is away for 3m, and what it wishes waits: nobody listens there", "start it")
    standing.connected()
    assert advised(standing.link, later) == []
    assert (standing.link.reason, standing.link.message, standing.link.hint) == ("", "", "")


@pytest.mark.parametrize(
    ("left", "told"), [(timedelta(days=4), ""), (timedelta(days=1), "expires"), (timedelta(hours=-1), "has expired")]
)
def test_a_certificate_that_is_not_renewed(left: timedelta, told: str) -> None:
    standing = Standing("c:7444", Clock())
    standing.connected()
    standing.identified((NOW + left).timestamp())
    found = advised(standing.link, NOW)
    assert [f"certificate {told}:" in message for _, message, _ in found] == ([True] if told else [])


def test_no_coordinator_is_no_matter() -> None:
    assert advised(None, NOW) == []
    assert "coordinator" not in "\n".join(report_lines(NodeInfo(), Style()))


def test_what_the_doctor_and_the_metrics_say() -> None:
    standing, registry = Standing("c:7444"), CollectorRegistry()
    UplinkMetrics(registry, lambda: standing.link)

    def shown() -> tuple[str, str]:
        lines = report_lines(NodeInfo(coordinator=standing.link), Style())
        return next(line for line in lines if "coordinator" in line), generate_latest(registry).decode()

    line, metrics = shown()
    assert "coordinator c:7444  (away for 0s; work goes on)" in line
    assert "stoker_coordinator_connected 0.0" in metrics
    assert "expiry" not in metrics
    standing.connected()
    standing.identified(NOW.timestamp())
    line, metrics = shown()
    assert "coordinator c:7444  (connected for 0s, certificate until 2026-11-30 12:00 UTC)" in line
    assert "stoker_coordinator_connected 1.0" in metrics
    assert "stoker_coordinator_certificate_expiry_seconds 1.796" in metrics
