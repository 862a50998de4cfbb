"""Runs the command line in this process, and says what came out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

import pytest

from stoker.cli.main import main

ENTRY = "from stoker.cli.main import run; run()"


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Run = Callable[..., Outcome]
Ago = Callable[..., datetime]


def runner(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_it(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = main(list(arguments))
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run_it


def python(code: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False, **options
    )


def complete(monkeypatch: pytest.MonkeyPatch, words: str) -> list[str]:
    """What a shell is offered for the last of *words*, which stand after ``stoker``."""
    monkeypatch.setenv("_STOKER_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"stoker {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(f"stoker {words}".split(" ")) - 1))
    return [line.removeprefix("plain,") for line in python(ENTRY).stdout.splitlines() if line]
