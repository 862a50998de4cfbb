"""Some machines on the same switches, as in a rack: what is in them is files, their cables and switches are real.

Each machine is laid out below a root of its own, for a stokerd of its own; all hang on switches in network namespaces.
Machines that name the same switch share it: each gets a port of its own there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.rig.hardware.machines import FakeNic, Machine, Switch, h100_roce, leaf, renamed
from tests.rig.hardware.tree import lay_out, use_real_carriers
from tests.rig.lldp import LldpSwitches
from tests.rig.nvml import FakeNvml

_NUMBERS = 16
"""Of a machine's NICs: their MAC addresses are made of them."""
_MOST_MACHINES = 15
_LONGEST_DEVICE = 15


def server(name: str, *leaves: int) -> Machine:
    """Return a small machine: a GPU for each of the given leaf switches, with a NIC of RoCE that hangs on it."""
    whole, count = h100_roce(name), len(leaves)
    rails = [
        replace(nic, switch=leaf(number, "Ethernet1"))
        for nic, number in zip(whole.nics[:count], leaves, strict=True)
    ]  # fmt: skip
    # Without a driver nobody is asked about GPUs: PCIe tells enough of them for their NICs to be compute interfaces.
    return replace(whole, gpus=whole.gpus[:count], nics=tuple(rails), disks=(), driver="")


class Rack:
    """Use it as a context, or `start` and `stop` it. Machines are known by their names. Every method blocks.

    ``machines`` are as they are on this machine: devices, MAC addresses and ports of switches are others than given.
    """

    def __init__(self, name: str, machines: Sequence[Machine], directory: Path, *, prefix: str = "") -> None:
        """*name*: of what the rig records; *directory*: for files; *prefix*: of all network devices on this machine."""
        prefix = prefix or f"r{os.getpid() % 10**4}"
        self.switches = LldpSwitches(name)
        self.machines = tuple(_apart(machines, prefix))
        self._directory = directory
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Lay all machines out, start the switches, plug in the cables."""
        for index, machine in enumerate(self.machines):
            lay_out(machine, self.root(index))
            if machine.driver:
                FakeNvml(machine, self._driver(index))
        self._stack.callback(self.switches.stop)
        self.switches.start()
        self.switches.plug_in(*self.machines)
        for index, machine in enumerate(self.machines):
            devices = [nic.netdev for nic in machine.nics if nic.netdev in self.switches.cables]
            use_real_carriers(self.root(index), devices)

    def stop(self) -> None:
        """End the switches, and take the cables away; may be called without `start`."""
        self._stack.close()

    def settings(self, index: int) -> dict[str, Any]:
        """Return the table ``[topology]`` for the stokerd of a machine."""
        machine = self.machines[index]
        library = str(self._driver(index) / "libnvidia-ml.so.1") if machine.driver else ""
        absent = dict.fromkeys(("nvidia_smi", "amd_smi", "smpquery", "lldpcli"), "")
        return {"root": str(self.root(index)), "node": machine.name, "nvidia_library": library, **absent}

    def root(self, index: int) -> Path:
        """Return where a machine's files are."""
        return self._directory / self.machines[index].name / "root"

    def nic(self, machine: str, nic: str) -> FakeNic:
        """Return a NIC by the name that reports call it by: of its RDMA device, else of its network device."""
        found = next(each for each in self.machines if each.name == machine)
        return next(each for each in found.nics if nic in {each.rdma, each.netdev})

    def pull(self, machine: str, nic: str) -> None:
        """Pull a cable out, at its other end."""
        self.switches.pull(self.nic(machine, nic).netdev)

    def put_back(self, machine: str, nic: str) -> None:
        """Put a cable back."""
        self.switches.put_back(self.nic(machine, nic).netdev)

    def speak(self) -> None:
        """Have all switches say now who they are; by themselves they take half a minute."""
        self.switches.speak()

    def _driver(self, index: int) -> Path:
        return self._directory / self.machines[index].name / "driver"


def _apart(machines: Sequence[Machine], prefix: str) -> Iterator[Machine]:
    """Yield machines with devices, addresses and ports that no other of them has."""
    assert len(machines) <= _MOST_MACHINES
    assert len({machine.name for machine in machines}) == len(machines)
    taken: set[tuple[str, str]] = set()
    for index, machine in enumerate(machines):
        nics = [
            replace(nic, number=index * _NUMBERS + nic.number, switch=_port(nic.switch, taken)) for nic in machine.nics
        ]
        # A letter: numbers beside each other would not be told apart.
        made = renamed(replace(machine, nics=tuple(nics)), f"{prefix}{chr(ord('a') + index)}")
        assert all(len(nic.netdev) <= _LONGEST_DEVICE for nic in made.nics)
        yield made


def _port(switch: Switch | None, taken: set[tuple[str, str]]) -> Switch | None:
    """Return a switch with a port of it that is free: the one that is named, or one after it."""
    while switch is not None and (switch.name, switch.port) in taken:
        head, number = re.fullmatch(r"(.*?)(\d*)", switch.port).groups()  # type: ignore[union-attr]
        switch = replace(switch, port=f"{head}{int(number or 0) + 1}")
    if switch is not None:
        taken.add((switch.name, switch.port))
    return switch
