"""Metrics of the process and of the calls to containerd."""

from __future__ import annotations

import os
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30, 120, 600)
"""Up to what a pull takes, and a container that is given its time to stop."""


class RuntimeMetrics:
    """Counts every call to containerd by method and status, and how long it took."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter("stoker_runtime_calls", "Calls to containerd.", ["method", "status"], registry=registry)
        self._seconds = Histogram(
            "stoker_runtime_call_seconds", "Duration of calls to containerd.", ["method"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip

    def observe(self, method: str, status: str, seconds: float) -> None:
        """`runtime.status.Observer`."""
        self._calls.labels(method, status).inc()
        self._seconds.labels(method).observe(seconds)


class SubsystemMetrics:
    """Which subsystems of the daemon run, and how often one failed (`stoker.service.supervise.Gauges`)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._up = Gauge(
            "stoker_subsystem_up", "1 while a subsystem runs, 0 from a failure until it has recovered.", ["subsystem"],
            registry=registry,
        )  # fmt: skip
        self._failures = Counter(
            "stoker_subsystem_failures", "Failures after which a subsystem was started again.", ["subsystem"],
            registry=registry,
        )  # fmt: skip

    def up(self, name: str, *, up: bool) -> None:
        self._up.labels(name).set(up)
        self._failures.labels(name)

    def failed(self, name: str) -> None:
        self._failures.labels(name).inc()


def watch_process(registry: CollectorRegistry) -> None:
    """Have memory, CPU time and open files of the daemon read when they are asked for."""
    ProcessCollector(registry=registry)


def resident_bytes() -> int:
    """Return the memory of this process that is resident (Linux, Documentation/filesystems/proc.rst, statm).

    Not by psutil: that costs a daemon 4 MiB.
    """
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")
