"""Figures: what was measured, against what, and whether it reaches its target. Pure but for reading the machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

RESULTS = Path(__file__).parent / "results" / "latest.json"


@dataclass(frozen=True)
class Figure:
    """One figure. ``runs``: samples behind each median; ``detail``: both sides' medians, for people."""

    name: str
    value: float
    unit: str
    target: float
    runs: int
    against: str
    better: Literal["lower", "higher"] = "lower"
    detail: str = ""

    @property
    def reached(self) -> bool:
        return self.value <= self.target if self.better == "lower" else self.value >= self.target


def ratio(
    name: str, ours: Sequence[float], theirs: Sequence[float], *, target: float, against: str, unit: str = "s"
) -> Figure:
    """Return the ratio of two medians of times taken in one run."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    spread = f"{min(ours):.2f}-{max(ours):.2f} to {min(theirs):.2f}-{max(theirs):.2f} {unit}"
    detail = f"{mine:.2f} to {other:.2f} {unit} (all: {spread})"
    return Figure(name, round(mine / other, 3), "ratio", target, len(ours), against, detail=detail)


def table(figures: Iterable[Figure]) -> str:
    """Return the figures as a table for people."""
    rows = [("figure", "value", "target", "", "against", "medians")]
    for figure in figures:
        unit = "" if figure.unit == "ratio" else f" {figure.unit}"
        mark = "reached" if figure.reached else "MISSED"
        rows.append(
            (
                figure.name,
                f"{figure.value:g}{unit}",
                f"{'≤' if figure.better == 'lower' else '≥'} {figure.target:g}",
                mark,
                figure.against,
                figure.detail,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def save(figures: Iterable[Figure], path: Path = RESULTS) -> None:
    """Write the figures; those of earlier runs that were not measured again stay."""
    before: Mapping[str, Any] = {}
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8")).get("figures", {})
    fresh = {figure.name: {k: v for k, v in asdict(figure).items() if k != "name"} for figure in figures}
    document = {"commit": commit(), "machine": machine(), "figures": dict(sorted({**before, **fresh}.items()))}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def machine() -> dict[str, Any]:
    memory = int(Path("/proc/meminfo").read_text(encoding="ascii").split()[1]) // 1024
    return {
        "cores": os.cpu_count(),
        "memory_mib": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
