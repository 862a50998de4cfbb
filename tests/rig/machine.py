"""A machine on which systemd is process 1: namespaces of its own over this machine's own root filesystem.

What is written goes to a tmpfs and is gone with the machine; directories named in `binds` are this machine's own. So
the units, the programs and the Python of the machine that the tests run on are what systemd starts, without another
root filesystem.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.rig import paths
from tests.rig.cgroups import NodeCgroup
from tests.rig.errors import MissingToolError, RigError
from tests.rig.holder import cgroup_mounts
from tests.rig.processes import ProcessId, Stdin, joined, run
from tests.rig.records import Record
from tests.rig.waiting import until

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SYSTEMD = (Path("/usr/lib/systemd/systemd"), Path("/lib/systemd/systemd"))


class Machine:
    """Start it with `with`; every method blocks."""

    def __init__(self, name: str, *, workdir: Path, binds: Sequence[Path] = (), setup: str = ":") -> None:
        """*setup*: shell commands that are run in its root before systemd starts."""
        self.name = name
        self.data_dir = workdir.resolve() / name
        self.run_dir = paths.RUN / name
        self._binds = (paths.REPOSITORY, *binds)
        self._setup = setup
        self._cgroup = NodeCgroup.planned(name)
        self._record: Record | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._systemd: ProcessId | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Boot, and wait until systemd takes commands."""
        program = next((path for path in SYSTEMD if path.exists()), None)
        if program is None:
            raise MissingToolError("systemd is not installed (Debian package systemd); run `make bootstrap`")
        record = Record(self.name, "machine", ProcessId.own(), self._cgroup, [self.data_dir])
        record.create()
        self._record = record
        try:
            self.data_dir.mkdir(parents=True)
            (self.run_dir / "area").mkdir()
            self._cgroup.create()
            self._boot(program)
            until("systemd to be up", self._is_up, 30.0)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all of it and remove everything it made."""
        record, self._record = self._record, None
        if record is not None:
            record.destroy()
        child, self._child = self._child, None
        if child is not None:
            child.wait(10)

    def _boot(self, program: Path) -> None:
        environment = {
            "PATH": PATH,
            "MACHINE_NAME": self.name,
            "MACHINE_AREA": str(self.run_dir / "area"),
            "MACHINE_CGROUP_ROOTS": " ".join(map(str, self._cgroup.root_entries)),
            "MACHINE_CGROUP_MOUNTS": " ".join(cgroup_mounts()),
            "MACHINE_BINDS": " ".join(map(str, self._binds)),
            "MACHINE_SETUP": self._setup,
            "MACHINE_SYSTEMD": str(program),
        }
        with self.log_file.open("wb") as log:
            self._child = subprocess.Popen(
                ["/bin/sh", str(paths.HERE / "machine.sh")],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def log_file(self) -> Path:
        return self.data_dir / "console.log"

    def _is_up(self) -> bool:
        child = self._child
        assert child is not None
        if child.poll() is not None:
            said = self.log_file.read_text(encoding="utf-8", errors="replace")[-3000:]
            raise RigError(f"systemd of {self.name} ended with {child.returncode}:\n{said}")
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text(encoding="ascii").split()
        if not children:
            return False
        self._systemd = ProcessId.of(int(children[0]))
        if self._systemd is None or Path(f"/proc/{children[0]}/comm").read_text().strip() != "systemd":
            return False
        state = self.run("systemctl", "is-active", "basic.target", check=False).stdout.strip()
        return state == "active"

    # ------------------------------------------------------------------------------------------ commands

    def run(
        self, *argv: str | Path, timeout: float = 60.0, check: bool = True, stdin: Stdin = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine to its end."""
        if self._systemd is None:
            raise RigError(f"machine {self.name} does not run")
        spaces = ("--mount", "--uts", "--ipc", "--cgroup", "--net", "--pid")
        command = ["nsenter", "--target", str(self._systemd.pid), *spaces, "--", *map(str, argv)]
        environment = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "SYSTEMD_PAGER": "", "NO_COLOR": "1"}
        return run(
            joined(self._cgroup.entries, command),
            timeout=timeout,
            check=check,
            stdin=stdin,
            environment=environment,
            shown=argv,
        )

    def systemctl(self, *arguments: str, check: bool = True) -> str:
        return self.run("systemctl", *arguments, check=check).stdout

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Return properties of a unit."""
        text = self.systemctl("show", unit, *(f"--property={name}" for name in properties))
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def write(self, path: str, text: str) -> None:
        """Write a file on the machine."""
        quoted = shlex.quote(path)
        self.run("sh", "-c", f'mkdir -p "$(dirname {quoted})"; cat > {quoted}', stdin=text.encode())

    def journal(self, unit: str) -> str:
        """Return what a unit has logged, one JSON object a line, the oldest first."""
        return self.run("journalctl", "--unit", unit, "--output=json", "--no-pager").stdout
