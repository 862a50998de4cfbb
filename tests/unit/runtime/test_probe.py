"""What the programs of a node say of themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from stokerd.runtime import probe


def program(directory: Path, script: str) -> list[str]:
    """Put a criu into a directory, and return where programs are looked for."""
    path = directory / "criu"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return [str(directory)]


async def test_a_program_says_its_version(tmp_path: Path) -> None:
    assert await probe._program_version("criu", program(tmp_path, "echo Version: 4.2"), os.getpid(), "") == "4.2"


async def test_one_that_does_not_answer_counts_as_absent_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_PROGRAM_TIMEOUT", 0.2)
    with capture_logs() as logs:
        assert await probe._program_version("criu", program(tmp_path, "exec sleep 60"), os.getpid(), "") == ""
    assert [(each["log_level"], each["program"]) for each in logs] == [("warning", str(tmp_path / "criu"))]
