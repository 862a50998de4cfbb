"""Real switches of Ethernet, as far as LLDP goes: lldpd and a bridge in a network namespace each, and veth cables.

A cable's one end is a network device of this machine's namespace, with a name of the caller's choice; the other is a
port of the switch's bridge. When a switch ends, its namespace and its cables go with it.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.rig import paths
from tests.rig.cgroups import NodeCgroup
from tests.rig.errors import CommandError, RigError
from tests.rig.hardware.machines import Machine, Switch
from tests.rig.processes import ProcessId, joined, let_go, run
from tests.rig.records import Record
from tests.rig.waiting import until

START_TIMEOUT = 20.0
_ANSWER_TIMEOUT = 5.0
BRIDGE = "br0"
CONFIGURATION = """\
configure system hostname "{}"
configure system description "switch operating system 1.2"
configure lldp portidsubtype ifname
"""


@dataclass(frozen=True)
class Cable:
    """From one of our network devices to a port of a switch."""

    device: str
    switch: str
    port: str


class LldpSwitches:
    """All switches of a test or a demo; use it as a context. Every method blocks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._root = paths.switches_root()
        self._cgroup = NodeCgroup.planned(name)
        self._record = Record(name, "switches", ProcessId.own(), self._cgroup)
        self._detached = False
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._switches: dict[str, Switch] = {}
        self.cables: dict[str, Cable] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Make the place for switches; there are none yet."""
        self._record.create()
        self._cgroup.create()

    def detach(self) -> None:
        """Let the switches outlive this object and this process: stop() does nothing any more."""
        first = ProcessId.of(next(iter(self._processes.values())).pid)
        assert first is not None
        self._record.owner = first
        self._record.save()
        let_go(self._processes.values())
        self._processes, self.cables = {}, {}
        self._detached = True

    def stop(self) -> None:
        """End all switches, and take their cables away; may be called without start()."""
        if self._detached:
            return
        for device in self.cables:
            run(["ip", "link", "del", device], check=False)  # its switch's namespace ends in the kernel's own time
        self._record.destroy()
        for process in self._processes.values():
            process.wait(10)

    # ------------------------------------------------------------------------------------------ made

    def plug_in(self, *machines: Machine) -> None:
        """Make the switches that machines' NICs hang on, and a cable from each NIC; devices must not exist yet."""
        nics = [nic for machine in machines for nic in machine.nics if nic.layer == "Ethernet"]
        wanted = [(nic.netdev, nic.mac, nic.switch) for nic in nics if nic.switch is not None]
        new = {switch.name: switch for _, _, switch in wanted if switch.name not in self._switches}
        self.add(new.values())
        for device, mac, switch in wanted:
            self.plug(device, switch.name, switch.port)
            run(["ip", "link", "set", device, "address", mac, "up"])

    def add(self, switches: Iterable[Switch]) -> None:
        """Start switches, all at the same time."""
        new = list(switches)
        for switch in new:
            self._switches[switch.name] = switch
            self._processes[switch.name] = self._start(switch)
        for switch in new:
            told = partial(self._calls_itself, switch.name, switch.name)
            until(f"lldpd of {switch.name} to answer", told, START_TIMEOUT)

    def plug(self, device: str, switch: str, port: str) -> None:
        """Put a cable between a new network device of ours and a new port of a switch."""
        inner, its = self._inner(port), self._switches[switch]
        there = ("peer", "name", inner, "address", its.chassis, "netns", str(self._pid(switch)))
        run(["ip", "link", "add", device, "type", "veth", *there])
        self._inside(switch, "ip", "link", "set", inner, *(("master", BRIDGE) if its.bridge else ()), "up")
        if inner != port:
            self._configure_port(switch, inner, "portidsubtype", "local", port)
        self.cables[device] = Cable(device, switch, inner)

    # ------------------------------------------------------------------------------------------ changed

    def pull(self, device: str) -> None:
        """Take the carrier away from one of our devices, as a cable that is pulled out does."""
        self._set(device, "down")

    def put_back(self, device: str) -> None:
        """Put the cable back."""
        self._set(device, "up")

    def pass_on(self, switch: str, other: Switch) -> None:
        """Have a switch pass LLDP on, as it should not, and plug another one into it: both are heard at its ports."""
        self.add([other])
        mask = f"/sys/class/net/{BRIDGE}/bridge/group_fwd_mask"
        set_it = f"mount -t sysfs sysfs /sys && echo 0x4000 > {mask}"
        run(["nsenter", "--target", str(self._pid(switch)), "--net", "unshare", "--mount", "sh", "-c", set_it])
        there = ("peer", "name", other.port, "address", other.chassis, "netns", str(self._pid(other.name)))
        self._inside(switch, "ip", "link", "add", "other", "type", "veth", *there)
        self._inside(switch, "ip", "link", "set", "other", "master", BRIDGE, "up")
        self._inside(other.name, "ip", "link", "set", other.port, "master", BRIDGE, "up")

    def rename(self, switch: str, name: str) -> None:
        """Have a switch call itself something else; it tells its neighbours at once."""
        self.lldpcli(switch, "configure", "system", "hostname", name)
        until(f"{switch} to call itself {name}", lambda: self._calls_itself(switch, name))
        self.lldpcli(switch, "update")

    def speak(self) -> None:
        """Have all switches say now who they are, rather than in their own time."""
        for switch in self._switches:
            self.lldpcli(switch, "update")

    def silence(self, device: str) -> None:
        """Switch LLDP off at the port that a device hangs on."""
        cable = self.cables[device]
        self._configure_port(cable.switch, cable.port, "status", "rx-only")

    def _set(self, device: str, state: str) -> None:
        cable = self.cables[device]
        self._inside(cable.switch, "ip", "link", "set", cable.port, state)

    # ------------------------------------------------------------------------------------------ asked

    def lldpcli(self, switch: str, *words: str) -> str:
        """Run lldpcli against a switch, whose lldpd now and then does not answer: then it is asked again."""
        tries = 4
        while True:
            tries -= 1
            try:
                return run([*client(self._root), "-u", self._socket(switch), *words], timeout=_ANSWER_TIMEOUT).stdout
            except CommandError as error:
                if error.code is not None or not tries:
                    raise

    def socket(self, switch: str) -> Path:
        """Return the socket of a switch's lldpd."""
        return self._socket(switch)

    def start_on_the_host(self, devices: Iterable[str]) -> Path:
        """Start an lldpd of this machine's own, on these devices alone; return its socket."""
        pattern = ",".join(devices)
        self._processes["host"] = self._lldpd("host", ["-I", pattern], own_network=False)
        until("lldpd of the host to answer", lambda: bool(self._says("host")), START_TIMEOUT)
        return self._socket("host")

    # ------------------------------------------------------------------------------------------ inside

    def _start(self, switch: Switch) -> subprocess.Popen[bytes]:
        # Without addresses of their own, which would come some seconds after the links.
        before = ["echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6", "ip link set lo up"]
        if switch.bridge:  # one that has none is a host
            before += [f"ip link add {BRIDGE} address {switch.chassis} type bridge", f"ip link set {BRIDGE} up"]
        # Told before it speaks: until then it would give the name of this machine.
        (self._record.run_dir / f"{switch.name}.conf").write_text(CONFIGURATION.format(switch.name), encoding="utf-8")
        return self._lldpd(switch.name, ["-O", f"/run/rig/{switch.name}.conf"], before=before)

    def _lldpd(
        self, name: str, options: list[str], *, before: Iterable[str] = (), own_network: bool = True
    ) -> subprocess.Popen[bytes]:
        root, run_dir = shlex.quote(str(self._root)), shlex.quote(str(self._record.run_dir))
        command = ["chroot", str(self._root), "lldpd", "-d", "-u", f"/run/rig/{name}.sock", *options]
        script = [
            "set -e",
            f"mount -t tmpfs tmpfs {root}/run",
            f"mkdir -p {root}/run/lldpd {root}/run/rig",
            f"mount --bind {run_dir} {root}/run/rig",
            f"mount -t proc proc {root}/proc",
            f"mount {'-t sysfs sysfs' if own_network else '--bind /sys'} {root}/sys",
            *before,
            f"exec {shlex.join(command)}",
        ]
        spaces = ["--mount", "--pid", "--fork", "--kill-child", "--uts", *(["--net"] if own_network else [])]
        argv = ["unshare", *spaces, "--", "/bin/sh", "-c", "\n".join(script)]
        with (self._record.run_dir / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                joined(self._cgroup.entries, argv),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )  # fmt: skip

    def _says(self, name: str) -> str:
        """Return what an lldpd says of itself; "" while it does not answer yet."""
        process = self._processes[name]
        if process.poll() is not None:
            text = (self._record.run_dir / f"{name}.log").read_text(encoding="utf-8", errors="replace")
            raise RigError(f"lldpd of {name} ended with {process.returncode}:\n{text[-2000:]}")
        if not self._socket(name).exists():
            return ""
        try:
            return self.lldpcli(name, "show", "chassis")
        except CommandError as error:
            if error.code is None:
                raise
            return ""

    def _calls_itself(self, switch: str, name: str) -> bool:
        return any(line.split() == ["SysName:", name] for line in self._says(switch).splitlines())

    def _configure_port(self, switch: str, port: str, *words: str) -> None:
        """Configure a port once lldpd has found it."""
        until(f"lldpd of {switch} to find {port}", lambda: f" {port}\n" in self.lldpcli(switch, "show", "interfaces"))
        self.lldpcli(switch, "configure", "ports", port, "lldp", *words)

    def _socket(self, name: str) -> Path:
        return self._record.run_dir / f"{name}.sock"

    def _pid(self, switch: str) -> int:
        return self._processes[switch].pid

    def _inside(self, switch: str, *argv: str) -> None:
        run(["nsenter", "--target", str(self._pid(switch)), "--net", "--", *argv])

    @staticmethod
    def _inner(port: str) -> str:
        """Return a name that a network device may have, for a port that may have any."""
        return port.replace("/", ".")[-15:]


def client(root: Path) -> list[str]:
    """Return the command that runs lldpcli of the root outside of it, so that it finds sockets where they are."""
    loader = next(root.glob("usr/lib*/ld-linux-*.so.*"))
    libraries = ":".join(sorted({str(path.parent) for path in root.glob("usr/lib/*-linux-gnu/libc.so.6")}))
    return [str(loader), "--library-path", libraries, str(root / "usr/sbin/lldpcli")]


def lldpcli_script(path: Path) -> Path:
    """Write a program that is called like lldpcli; return its path."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(client(paths.switches_root()))} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path
