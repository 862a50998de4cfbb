"""A program of ours as a process of its own: spawned, killed, stopped, and its log."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


class DaemonProcess:
    """Base of stokerd and of the coordinator on the rig. Every method blocks."""

    def __init__(self, name: str, module: str, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name, self.directory = name, directory
        self.program = (sys.executable, "-W", "error", "-m", module)
        self.config, self.log_file = directory / f"{name}.toml", directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        """Start the process and do not wait for anything."""
        with self.log_file.open("ab") as log:
            command = [*self.program, "--config", str(self.config)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def must_run(self) -> None:
        """AssertionError with the end of the log when it has ended by itself."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            raise AssertionError(f"{self.name} ended with {code}:\n{self.log()[-3000:]}")

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)

    def stop(self, timeout: float = 30) -> int:
        """SIGTERM; returns the exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.terminate()
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise AssertionError(f"{self.name} did not stop within {timeout} s:\n{self.log()[-3000:]}") from None

    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace") if self.log_file.exists() else ""

    def events(self) -> list[dict[str, Any]]:
        """Return the log's structured lines."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
