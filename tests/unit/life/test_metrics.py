"""Every call to containerd is counted, with its errors and its time."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from stokerd.metrics import RuntimeMetrics, watch_process


def test_calls_are_counted_by_method_and_status_and_timed() -> None:
    registry = CollectorRegistry()
    metrics = RuntimeMetrics(registry)
    metrics.observe("cri.PullImage", "OK", 45.0)
    metrics.observe("cri.StopContainer", "OK", 0.2)
    metrics.observe("cri.StopContainer", "DEADLINE_EXCEEDED", 40.0)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"stoker_runtime_{name}", labels)

    assert value("calls_total", method="cri.StopContainer", status="OK") == 1
    assert value("calls_total", method="cri.StopContainer", status="DEADLINE_EXCEEDED") == 1
    assert value("call_seconds_count", method="cri.StopContainer") == 2
    assert value("call_seconds_sum", method="cri.PullImage") == 45.0
    assert value("call_seconds_bucket", method="cri.PullImage", le="120.0") == 1
    assert value("call_seconds_bucket", method="cri.PullImage", le="30.0") == 0


def test_the_process_tells_of_itself() -> None:
    registry = CollectorRegistry()
    watch_process(registry)
    text = generate_latest(registry).decode()
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"):
        assert f"\n{name} " in text
