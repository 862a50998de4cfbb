"""Processes by id and start time, so that a number used again is never taken for the one that was meant."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tests.rig.errors import CommandError
from tests.rig.waiting import until

Stdin = bytes | BinaryIO | None


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold spaces; what follows it is the state, which is field 3 of proc(5).
    return text.rpartition(")")[2].split()


def start_time(pid: int) -> int | None:
    """The start of `pid` in clock ticks since boot; None for none and for a zombie."""
    fields = _stat_fields(pid)
    if fields is None or len(fields) < 20 or fields[0] in "ZX":
        return None
    return int(fields[19])


@dataclass(frozen=True)
class ProcessId:
    """One process, told apart from any later one with the same number."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        started = start_time(pid)
        return None if started is None else cls(pid, started)

    @classmethod
    def own(cls) -> ProcessId:
        found = cls.of(os.getpid())
        assert found is not None
        return found

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started

    def signal(self, number: int = signal.SIGKILL) -> bool:
        """Send a signal if this very process still lives."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive:
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def kill(self, timeout: float = 10.0) -> None:
        if self.signal():
            until(f"process {self.pid} to end", lambda: not self.alive, timeout)


def run(
    argv: Sequence[str | Path],
    *,
    timeout: float = 120.0,
    check: bool = True,
    stdin: Stdin = None,
    environment: dict[str, str] | None = None,
    shown: Sequence[str | Path] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; raises CommandError with what it said, naming `shown` where that is not `argv`."""
    words = [str(word) for word in argv]
    told = [str(word) for word in shown or words]
    try:
        done = subprocess.run(
            words,
            input=stdin if isinstance(stdin, bytes) else None,
            stdin=_stream(stdin),
            capture_output=True,
            timeout=timeout,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired as late:
        said = [(part or b"").decode(errors="replace") for part in (late.stdout, late.stderr)]
        raise CommandError(told, None, *said) from late
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if check and done.returncode != 0:
        raise CommandError(told, done.returncode, out, err)
    return subprocess.CompletedProcess(told, done.returncode, out, err)


def _stream(stdin: Stdin) -> Any:
    if isinstance(stdin, bytes):
        return None
    return subprocess.DEVNULL if stdin is None else stdin


def joined(entries: Iterable[Path], argv: Sequence[str]) -> list[str]:
    """The command line that moves into the cgroups of `entries` and then becomes `argv`, with the same process id."""
    return ["/bin/sh", str(Path(__file__).with_name("join.sh")), *map(str, entries), "--", *argv]


_let_go: list[subprocess.Popen[bytes]] = []


def let_go(children: Iterable[subprocess.Popen[bytes]]) -> None:
    """Leave children running beyond this process, without a word from subprocess about it."""
    if not _let_go:
        atexit.register(_forget)
    _let_go.extend(children)


def _forget() -> None:
    for child in _let_go:
        if child.poll() is None:
            child.returncode = 0


def identified(pids: Iterable[int]) -> list[ProcessId]:
    """Those of `pids` that run now, told apart from any that get their numbers later."""
    return [found for pid in pids if (found := ProcessId.of(pid)) is not None]


def stopped(pid: int) -> bool:
    """Stop a process and return when it stands still; False when it has ended before."""
    try:
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:
        return False
    until(f"process {pid} to stand still", lambda: _state(pid) in {"T", "Z", "X", ""}, interval=0.001)
    return _state(pid) == "T"


def _state(pid: int) -> str:
    return (_stat_fields(pid) or [""])[0]


def living(pids: Iterable[int]) -> list[int]:
    """Those of `pids` that run; zombies do not count."""
    return [pid for pid in pids if start_time(pid) is not None]
