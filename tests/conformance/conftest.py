"""Assertions of the suite's own modules say what they compared, as those of test modules do."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(f"tests.conformance.{name}" for name in ("pods", "subject", "memory_subject", "containerd_subject")),
    *(
        f"tests.conformance.contract_{part}"
        for part in (
            "containers",
            "disk",
            "events",
            "failures",
            "images",
            "leases",
            "life",
            "pods",
            "store",
            "tasks",
            "writing",
        )
    ),
)
