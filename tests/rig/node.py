"""A node: one Debian suite's containerd in namespaces and a cgroup of its own.

Network `own` (the default): a network namespace of the node's own, with loopback, and a CNI bridge once a pod has
run. It has no way out. What listens on this machine's loopback is reached from inside at the same 127.0.0.1:PORT by a
relay, for the ports that are exposed; so image references are the same inside and outside and no traffic leaves
loopback. Network `host`: this machine's namespace, no relay in the way (for measurements). Only pods with host
networking run there, so that no bridge or rule is ever made on the machine.

The node's process ids and the paths of its directories are those of the machine: what containerd says about paths
below `data_dir` and `run_dir`, and about process ids, holds outside too.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tests.rig import containerd_config, cri_probe, holder, paths, records
from tests.rig.bundled import pause_archive
from tests.rig.cgroups import NodeCgroup
from tests.rig.containerd_config import ConfigInputs, HostsEntry, PullOptions
from tests.rig.errors import RigError
from tests.rig.processes import ProcessId, Stdin, joined, let_go, run
from tests.rig.records import Record
from tests.rig.relays import start_relay
from tests.rig.waiting import until

Network = Literal["own", "host"]
SANDBOX_IMAGE = "stoker.test/pause:1"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_TIMEOUT = 40.0


@dataclass(frozen=True)
class NodeOptions:
    """Everything about a node that has a default."""

    network: Network = "own"
    # An ext4 of this size for containerd's root; None keeps it on the machine's own file system.
    disk_bytes: int | None = None
    inodes: int | None = None
    pull: PullOptions = field(default_factory=PullOptions)
    # Laid over containerd's configuration, table by table.
    config: Mapping[str, Any] = field(default_factory=dict)
    # Ports of this machine's loopback that the node reaches at its own.
    expose: tuple[int, ...] = ()
    igzip: bool = True
    log_level: str = "info"
    environment: Mapping[str, str] = field(default_factory=dict)


class Node:
    """Start it with start() or `with`; every method blocks."""

    def __init__(
        self,
        name: str,
        suite: str,
        *,
        workdir: Path = paths.DEFAULT_WORKDIR,
        options: NodeOptions | None = None,
    ) -> None:
        if not name.replace("-", "").isalnum() or len(name) > 40:
            raise RigError(f"{name!r} is no name for a node: letters, digits and dashes, 40 at most")
        self.name, self.suite = name, suite
        self.options = options or NodeOptions()
        self.data_dir = workdir.resolve() / name
        self.run_dir = paths.RUN / name
        self.root_dir = self.data_dir / "containerd"
        self.state_dir = self.run_dir / "state"
        self.artifacts_dir = self.data_dir / "artifacts"
        self.certs_dir = self.data_dir / "certs.d"
        self.cni_dir = self.run_dir / "cni"
        self.config_file = self.run_dir / "containerd.toml"
        self.endpoint = self.run_dir / "containerd.sock"
        self.log_file = self.data_dir / "containerd.log"
        self.bridge, self.subnet = holder.bridge_and_subnet(name)
        self._cgroup = NodeCgroup.planned(name)
        self._record: Record | None = None
        self._children: list[subprocess.Popen[bytes]] = []
        self._holder: ProcessId | None = None
        self._containerd: ProcessId | None = None

    # Life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Make everything and wait until CRI answers; on failure nothing is left and the log's end is in the error."""
        lower = paths.node_root(self.suite)
        pause = pause_archive()
        record = Record(self.name, "node", ProcessId.own(), self._cgroup, [self.data_dir], self._details())
        record.create()
        self._record = record
        try:
            holder.make_directories(self._layout())
            self._holder = holder.hold(self._layout(), lower, self._cgroup, self._children)
            self.write_config()
            self.start_containerd()
            for port in self.options.expose:
                self.expose(port)
            self.import_image(pause)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of the node, shims and containers included, and remove everything it made."""
        record, self._record = self._record, None
        if record is not None:
            record.destroy()
            for child in self._children:
                child.wait(10)
        self._children = []
        self._holder = self._containerd = None

    def detach(self) -> None:
        """Let the node outlive this object and this process: stop() does nothing any more, attach() finds it again."""
        record = self._live_record()
        assert self._holder is not None
        record.owner = self._holder
        record.details = self._details()
        record.save()
        let_go(self._children)
        self._record, self._children = None, []

    @classmethod
    def attach(cls, name: str) -> Node:
        """A node that another process started."""
        record = records.load(name)
        if record.kind != "node":
            raise RigError(f"{name} is a {record.kind}, not a node")
        details = record.details
        node = cls(
            name,
            details["suite"],
            workdir=Path(details["workdir"]),
            options=NodeOptions(network=details["network"], expose=tuple(details["expose"])),
        )
        node._record = record
        node._holder = ProcessId(**details["holder"]) if details["holder"] else None
        node._containerd = ProcessId(**details["containerd"]) if details["containerd"] else None
        return node

    # containerd

    @property
    def pid(self) -> int:
        """The process that holds the node's namespaces; it stays when containerd restarts."""
        if self._holder is None or not self._holder.alive:
            raise RigError(f"node {self.name} does not run")
        return self._holder.pid

    @property
    def containerd_pid(self) -> int | None:
        return self._containerd.pid if self._containerd is not None and self._containerd.alive else None

    def write_config(self, overrides: Mapping[str, Any] | None = None) -> None:
        """Write containerd's configuration; it is read at the next start of containerd."""
        inputs = ConfigInputs(
            suite=self.suite,
            root=self.root_dir,
            state=self.state_dir,
            endpoint=self.endpoint,
            certs_dir=self.certs_dir,
            cni_conf_dir=self.cni_dir,
            sandbox_image=SANDBOX_IMAGE,
            log_level=self.options.log_level,
            pull=self.options.pull,
            overrides=self.options.config if overrides is None else overrides,
        )
        self.config_file.write_text(containerd_config.render(inputs), encoding="utf-8")

    def start_containerd(self, timeout: float = START_TIMEOUT) -> None:
        self.endpoint.unlink(missing_ok=True)
        environment = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **self.options.environment}
        if not self.options.igzip:
            environment["CONTAINERD_DISABLE_IGZIP"] = "1"
        argv = ["containerd", "--config", str(self.config_file)]
        with self.log_file.open("ab") as log:
            child = self.popen(*argv, environment=environment, stdout=log, stderr=log)
        self._containerd = ProcessId.of(child.pid)
        self._wait_for_cri(child, timeout)
        self._save_details()

    def kill_containerd(self) -> None:
        """SIGKILL, as a crash would be; shims and containers live on."""
        if self._containerd is not None:
            self._containerd.kill()
        self._reap()

    def stop_containerd(self, timeout: float = 20.0) -> None:
        """SIGTERM, as an orderly stop would be; shims and containers live on."""
        containerd = self._containerd
        if containerd is not None and containerd.signal(15):
            until("containerd to end", lambda: not containerd.alive, timeout)
        self._reap()

    def restart_containerd(self, timeout: float = START_TIMEOUT) -> None:
        self.stop_containerd()
        self.start_containerd(timeout)

    def log_tail(self, lines: int = 40) -> str:
        try:
            text = self.log_file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    # Commands in the node

    def enter_argv(self, *argv: str | Path) -> list[str]:
        """The command line that runs `argv` in the node's namespaces, without joining its cgroup."""
        spaces = ["--mount", "--uts", "--cgroup", *(["--net"] if self.options.network == "own" else [])]
        return ["nsenter", "--target", str(self.pid), *spaces, "--", *(str(each) for each in argv)]

    def popen(
        self,
        *argv: str | Path,
        environment: Mapping[str, str] | None = None,
        stdin: Any = subprocess.DEVNULL,
        stdout: Any = subprocess.DEVNULL,
        stderr: Any = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start a command in the node's namespaces and cgroup; its process id is the child's own."""
        child = subprocess.Popen(
            self._joined(self.enter_argv(*argv)),
            env=dict(environment or self._environment()),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        self._children.append(child)
        return child

    def run(
        self, *argv: str | Path, timeout: float = 120.0, check: bool = True, stdin: Stdin = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the node to its end."""
        command = self._joined(self.enter_argv(*argv))
        return run(command, timeout=timeout, check=check, stdin=stdin, environment=self._environment(), shown=argv)

    def ctr(
        self,
        *args: str | Path,
        namespace: str = "k8s.io",
        timeout: float = 300.0,
        check: bool = True,
        stdin: Stdin = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run the node's own ctr."""
        where = ("--address", self.endpoint, "--namespace", namespace)
        return self.run("ctr", *where, *args, timeout=timeout, check=check, stdin=stdin)

    def collect_garbage(self) -> None:
        """Let containerd collect now what it would otherwise collect some time later."""
        lease = self.ctr("leases", "create").stdout.strip()
        self.ctr("leases", "rm", "--sync", lease)

    def shell(self) -> int:
        """An interactive shell in the node, with ctr and the CRI socket at hand."""
        environment = {
            **self._environment(),
            "CONTAINERD_ADDRESS": str(self.endpoint),
            "CONTAINERD_NAMESPACE": "k8s.io",
            "CONTAINER_RUNTIME_ENDPOINT": f"unix://{self.endpoint}",
            "TERM": os.environ.get("TERM", "xterm"),
            "PS1": f"{self.name} ({self.suite}) # ",
        }
        return subprocess.run(
            self._joined(self.enter_argv("/bin/bash", "--norc")), env=environment, check=False
        ).returncode

    # Images and registries

    def import_image(self, archive: Path, namespace: str = "k8s.io") -> None:
        """Import an OCI archive with all its names; the archive need not be visible inside."""
        with archive.open("rb") as file:
            self.ctr("images", "import", "-", namespace=namespace, stdin=file)

    def expose(self, port: int, target: int | None = None) -> None:
        """Make 127.0.0.1:`target` of this machine reachable at the node's 127.0.0.1:`port`, until the node stops."""
        if self.options.network == "host":
            return
        self._children.append(start_relay(self.pid, port, target or port, self._cgroup, self.data_dir / "relay.log"))

    def hosts(self, registry: str, *entries: HostsEntry, server: str | None = None) -> Path:
        """Write certs.d/<registry>/hosts.toml; without entries: plain HTTP to the registry itself."""
        return containerd_config.write_hosts(self.certs_dir, registry, *entries, server=server)

    # Inside

    def _environment(self) -> dict[str, str]:
        return {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8"}

    def _joined(self, argv: Sequence[str]) -> list[str]:
        return joined(self._cgroup.entries, argv)

    def _layout(self) -> holder.Layout:
        return holder.Layout(
            name=self.name,
            own_network=self.options.network == "own",
            run_dir=self.run_dir,
            data_dir=self.data_dir,
            root_dir=self.root_dir,
            cni_dir=self.cni_dir,
            directories=(self.state_dir, self.artifacts_dir, self.certs_dir),
            disk_bytes=self.options.disk_bytes,
            inodes=self.options.inodes,
            bridge=self.bridge,
            subnet=self.subnet,
            hide=() if self.options.igzip else ("igzip",),
        )

    def _wait_for_cri(self, child: subprocess.Popen[bytes], timeout: float) -> None:
        def answers() -> bool:
            if child.poll() is not None:
                raise RigError(f"containerd ended with {child.returncode} while starting:\n{self.log_tail()}")
            return self.endpoint.exists() and cri_probe.cri_answers(self.endpoint)

        try:
            until(f"CRI of node {self.name} to answer", answers, timeout)
        except RigError as error:
            raise RigError(f"{error}\nThe end of {self.log_file}:\n{self.log_tail()}") from error

    def _reap(self) -> None:
        self._children = [child for child in self._children if child.poll() is None]

    def _live_record(self) -> Record:
        if self._record is None:
            raise RigError(f"node {self.name} does not run")
        return self._record

    def _details(self) -> dict[str, Any]:
        def plain(process: ProcessId | None) -> dict[str, int] | None:
            return None if process is None else {"pid": process.pid, "started": process.started}

        return {
            "suite": self.suite,
            "workdir": str(self.data_dir.parent),
            "network": self.options.network,
            "expose": list(self.options.expose),
            "holder": plain(self._holder),
            "containerd": plain(self._containerd),
            "endpoint": str(self.endpoint),
            "log": str(self.log_file),
        }

    def _save_details(self) -> None:
        record = self._live_record()
        record.details = self._details()
        record.save()
