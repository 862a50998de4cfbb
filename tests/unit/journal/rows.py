"""Rows as tests need them."""

from __future__ import annotations

from stokerd.journal.rows import AttemptRow, ItemRow, JobRow, KeepRow, LayerRow, PinRow


def job(name: str, created_at: float = 1.5) -> JobRow:
    return JobRow(name, "night", "Always", 7, 5, 60.5, None, "Active", created_at)


def item(job: str, position: int) -> ItemRow:
    return ItemRow(job, position, f"app:{position}", f"docker.io/library/app:{position}")


def attempt(reference: str, number: int = 1, result: str = "Succeeded") -> AttemptRow:
    assert result in {"Succeeded", "Failed"}
    return AttemptRow(
        reference, "job", number, 1.0, 2.0 + number, "Succeeded" if result == "Succeeded" else "Failed", "", "", "", 10
    )


def pin(reference: str, created_at: float = 1.0) -> PinRow:
    return PinRow(reference, "sha256:aa", 10, created_at, None)


def keep(reference: str, created_at: float = 1.0) -> KeepRow:
    return KeepRow(reference, "IfNotPresent", 0, created_at)


def layer(number: int, unpacked: int = 20) -> LayerRow:
    return LayerRow(f"sha256:{number:064x}", "gzip", 10, unpacked, 3)
