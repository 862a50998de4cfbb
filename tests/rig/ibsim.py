"""A real fabric of InfiniBand, as far as its management goes: ibsim plays switches and adapters, opensm brings it up.

The tools that ask it are the real ones of infiniband-diags; they only find ibsim where they look for a device file. No
kernel module is needed.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.rig import paths
from tests.rig.cgroups import NodeCgroup
from tests.rig.errors import RigError
from tests.rig.processes import ProcessId, joined, run
from tests.rig.records import Record
from tests.rig.waiting import until

START_TIMEOUT = 20.0
_SIMULATED = "libumad2sim.so"
_DEVICE = "ibsim0"
"""What an adapter is called by those who look at the fabric from it."""


class IbFabric:
    """A fabric that a dump of `ibnetdiscover` describes; use it as a context. Every method blocks."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._text = text
        self._root = paths.switches_root()
        self._cgroup = NodeCgroup.planned(name)
        self._record = Record(name, "fabric", ProcessId.own(), self._cgroup)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._record.create()
        self._cgroup.create()
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._record.destroy()
        if self._process is not None:
            self._process.wait(10)
            assert self._process.stdin is not None
            self._process.stdin.close()

    # ------------------------------------------------------------------------------------------ asked

    def tool(self, seen_from: str, *argv: str, check: bool = True) -> str:
        """Return what a tool prints that looks at the fabric from an adapter, which is named by its GUID."""
        return run([*self._inside(seen_from), *argv], timeout=60, check=check).stdout

    def bring_up(self, seen_from: str) -> None:
        """Have opensm give addresses to all and make their links active, from an adapter."""
        self._enter(f"exec {shlex.join([*self._inside(seen_from), *_OPENSM])}", "opensm")

    def script(self, path: Path, program: str, guid_of: dict[str, str]) -> str:
        """Write a program that looks at the fabric from the adapter that ``-C`` names; return its path."""
        cases = "\n".join(f"{name}) from={guid};;" for name, guid in sorted(guid_of.items()))
        command = shlex.join(["chroot", str(self._root), "env", *self._environment()])
        path.write_text(
            f'#!/bin/sh\n[ "$1" = -C ] || exit 64\ncase "$2" in\n{cases}\n*) echo "no device $2" >&2; exit 65;;\nesac\n'
            f'shift 2\nexec {command} SIM_HOST=H-$from {program} "$@"\n',
            encoding="utf-8",
        )
        path.chmod(0o755)
        return str(path)

    # ------------------------------------------------------------------------------------------ changed

    def pull(self, guid: str) -> None:
        """Take out the cable of an adapter."""
        self._command(f'Unlink "H-{guid}"[1]')
        until(f"the cable of {guid} to be out", lambda: not self._linked(guid), START_TIMEOUT)

    def put_back(self, guid: str) -> None:
        """Put the cable back to where it was."""
        self._command(f'ReLink "H-{guid}"[1]')
        until(f"the cable of {guid} to be back", lambda: self._linked(guid), START_TIMEOUT)

    # ------------------------------------------------------------------------------------------ inside

    def _start(self) -> None:
        (self._record.run_dir / "fabric").write_text(self._text, encoding="utf-8")
        command = ["chroot", str(self._root), "env", f"IBSIM_SOCKNAME={self.name}", "ibsim", "-s", "/run/rig/fabric"]
        with self._log("ibsim").open("ab") as log:
            self._process = subprocess.Popen(
                joined(self._cgroup.entries, self._spaces(f"exec {shlex.join(command)}")),
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, env=_ENVIRONMENT,
            )  # fmt: skip
        until("ibsim to be ready", self._ready, START_TIMEOUT)

    def _ready(self) -> bool:
        assert self._process is not None
        said = self._log("ibsim").read_text(encoding="utf-8", errors="replace")
        if self._process.poll() is not None:
            raise RigError(f"ibsim ended with {self._process.returncode}:\n{said[-2000:]}")
        return "sim>" in said

    def _command(self, text: str) -> None:
        """Give a command on ibsim's console; it is done in ibsim's own time."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n".encode())
        self._process.stdin.flush()

    def _linked(self, guid: str) -> bool:
        """Say whether somebody answers at the other end of an adapter's cable."""
        ask = ("smpquery", "-t", "50", "-D", "nodeinfo", "0,1")
        return run([*self._inside(guid), *ask], check=False, timeout=20).returncode == 0

    def _enter(self, script: str, name: str) -> None:
        done = subprocess.run(
            joined(self._cgroup.entries, self._spaces(script)),
            stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False, env=_ENVIRONMENT,
        )  # fmt: skip
        if done.returncode != 0:
            raise RigError(f"{name} ended with {done.returncode}:\n{(done.stdout + done.stderr).decode()[-2000:]}")

    def _spaces(self, script: str) -> list[str]:
        root, run_dir = shlex.quote(str(self._root)), shlex.quote(str(self._record.run_dir))
        lines = [
            "set -e",
            f"mount -t tmpfs tmpfs {root}/run",
            f"mkdir -p {root}/run/rig",
            f"mount --bind {run_dir} {root}/run/rig",
            f"mount -t tmpfs tmpfs {root}/var",
            f"mkdir -p {root}/var/log {root}/var/cache/opensm",
            script,
        ]
        spaces = ["--mount", "--pid", "--fork", "--kill-child"]
        return ["unshare", *spaces, "--", "/bin/sh", "-c", "\n".join(lines)]

    def _inside(self, seen_from: str) -> list[str]:
        return ["chroot", str(self._root), "env", *self._environment(), f"SIM_HOST=H-{seen_from}"]

    def _environment(self) -> list[str]:
        library = next(self._root.glob(f"usr/lib/*/umad2sim/{_SIMULATED}"))
        return [f"IBSIM_SOCKNAME={self.name}", f"LD_PRELOAD=/{library.relative_to(self._root)}"]

    def _log(self, name: str) -> Path:
        return self._record.run_dir / f"{name}.log"


_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
_OPENSM = ("opensm", "--once", "--log_file", "/run/rig/opensm.log")
