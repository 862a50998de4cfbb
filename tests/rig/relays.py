"""Starting relays: processes that carry a port of this machine's loopback into a node (see relay.py)."""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path

from tests.rig import paths
from tests.rig.cgroups import NodeCgroup
from tests.rig.errors import RigError
from tests.rig.processes import joined

READY_TIMEOUT = 15.0


def start_relay(pid: int, port: int, target: int, cgroup: NodeCgroup, log: Path) -> subprocess.Popen[bytes]:
    """Listen on `port` in the network namespace of `pid`; returns once it listens."""
    argv = [sys.executable, "-I", "-S", str(paths.HERE / "relay.py"), str(pid), str(port), str(target)]
    with log.open("ab") as sink:
        child = subprocess.Popen(
            joined(cgroup.entries, argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=sink,
            start_new_session=True,
        )
    assert child.stdout is not None
    with child.stdout as said:
        readable, _, _ = select.select([said], [], [], READY_TIMEOUT)
        if not readable or said.readline() != b"ready\n":
            child.kill()
            child.wait()
            raise RigError(f"no relay for port {port}: {log.read_text(errors='replace').strip()[-500:]}")
    return child
