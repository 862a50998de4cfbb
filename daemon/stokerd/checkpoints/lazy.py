"""Memory that comes after the start: one ``criu lazy-pages`` for each clone, which serves its page faults.

The helper is a process of the node's: it outlives stokerd, ends when all memory is in, and is found again by what its
clone has written down. When it dies before that, the clone has lost its memory: what it would read from then on are
zeros. So it is killed, and says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from stokerd.checkpoints.errors import CheckpointError
from stokerd.checkpoints.nodes import run_on_node
from stokerd.checkpoints.shelf import tail
from stokerd.runtime.types import RuntimeInfo

LOG = "lazy.log"
_EXIT = "exit"
_SOCKET = "lazy-pages.socket"
_TIMEOUT = 15.0
_PAUSE = 0.005
_BEGUN = "helper.pid"
_KEEPER = """
echo $$ >helper.pid
criu "$@" &
criu=$!
for each in $groups; do
    [ -d "$each" ] || mkdir -p "$each"
    echo $$ >"$each/cgroup.procs"
    echo $criu >"$each/cgroup.procs"
done 2>/dev/null
wait $criu
code=$?
if [ $code != 0 ] && grep -q "$clone" "/proc/$(cat clone.pid)/cgroup"; then kill -9 "$(cat clone.pid)"; fi
echo $code >exit.new && mv exit.new exit
"""
_APART = """
cd "$1" || exit
groups=$0 clone=$2 keeper=$3
export groups clone
shift 3
setsid sh -c "$keeper" keeper "$@" </dev/null >/dev/null 2>&1 &
echo $!
"""
"""Leave stokerd's cgroup: what is in that ends with stokerd's service, and counts against its memory. It takes as long
as CRIU takes to start, so it is done meanwhile. The shell that keeps CRIU kills the clone at once when CRIU fails,
whether or not a stokerd is there to do it; by its cgroup it knows that the process is still the clone's."""
_GROUP = "stoker-helpers"


async def start(info: RuntimeInfo, clone: str, images: str, work: str) -> int:
    """Start the helper; on return it listens. *images* and *work* are directories of the node."""
    groups = " ".join(await asyncio.to_thread(cgroups_of, info.pid))
    argv = ["lazy-pages", "-v2", "-D", images, "-W", work, "-o", LOG]
    begun = await run_on_node(info, ["sh", "-c", _APART, groups, work, clone, _KEEPER, *argv])
    if begun.status or not begun.output.strip().isdigit():
        raise CheckpointError(f"criu lazy-pages cannot be started: {begun.errors.decode('utf-8', 'replace')[-200:]}")
    pid, here = int(begun.output), Path(f"{info.host_root}{work}")
    try:
        async with asyncio.timeout(_TIMEOUT):
            while not await asyncio.to_thread((here / _SOCKET).exists):
                if await asyncio.to_thread(exit_status, here) is not None:
                    break
                await asyncio.sleep(_PAUSE)
            else:
                return pid
    except TimeoutError:
        kill(pid, work)
    log = await asyncio.to_thread(tail, here / LOG)
    raise CheckpointError(f"criu lazy-pages does not start: {(log.strip().splitlines() or ['it says nothing'])[-1]}")


def exit_status(work: Path) -> int | None:
    """Return what CRIU ended with, None when nothing is written down."""
    try:
        return int((work / _EXIT).read_text())
    except (OSError, ValueError):
        return None


def begun(work: Path) -> int:
    """Return which helper was started there, 0 when none was: not all that are started are written down."""
    try:
        return int((work / _BEGUN).read_text())
    except (OSError, ValueError):
        return 0


def tell(work: Path, pid: int) -> None:
    """Write down which process is the clone's first, for the one that is to kill it."""
    (work / "clone.pid").write_text(f"{pid}\n")


def cgroups_of(containerd: int) -> list[str]:
    """Return the cgroups for helpers: beneath containerd's own, whose service leaves its children alone."""
    found: list[str] = []
    try:
        lines = Path(f"/proc/{containerd}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
        elif controllers == "name=systemd":
            mounts = ["/sys/fs/cgroup/systemd"]
        else:
            continue
        mount = next((each for each in mounts if Path(each, "cgroup.procs").exists()), None)
        if mount is not None and " " not in path:
            found.append(f"{mount}{path.rstrip('/')}/{_GROUP}")
    return found


def is_helper(pid: int, work: str) -> bool:
    """Say whether *pid* is the helper that works there, and not one that got its number later."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return False
    return "lazy-pages" in arguments and work in arguments


async def ended(pid: int, work: str) -> None:
    """Return when the helper is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if is_helper(pid, work):
            await _readable(descriptor)
    finally:
        os.close(descriptor)


async def _readable(descriptor: int) -> None:
    """A pidfd can be read when its process has ended."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)


def kill(pid: int, work: str) -> None:
    """End the helper of a clone that is gone: the shell and its CRIU are one process group."""
    if is_helper(pid, work):
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
