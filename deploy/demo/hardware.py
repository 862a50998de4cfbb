"""The machine that the demo plays on, as far as topology goes: files, with real switches behind real cables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.rig.hardware.machines import h100_roce
from tests.rig.hardware.tree import lay_out, use_real_carriers
from tests.rig.lldp import LldpSwitches
from tests.rig.nvml import FakeNvml


class Hardware:
    """Eight GPUs and eleven NICs that are files, a library that answers for the GPUs' driver, and real cables."""

    def __init__(self, workdir: Path) -> None:
        self.machine = h100_roce()
        self.root = workdir / "machine"
        self.switches = LldpSwitches("demo-switches")
        self._driver = workdir / "driver"

    @property
    def settings(self) -> dict[str, Any]:
        """Return stokerd's settings for this machine."""
        library = str(self._driver / "libnvidia-ml.so.1")
        return {"root": str(self.root), "node": self.machine.name, "nvidia_library": library, "lldpcli": ""}

    def start(self) -> None:
        """Make the files, start the switches, plug in the cables."""
        lay_out(self.machine, self.root)
        FakeNvml(self.machine, self._driver)
        self.switches.start()
        self.switches.plug_in(self.machine)
        use_real_carriers(self.root, self.switches.cables)

    def stop(self) -> None:
        """End the switches; may be called without `start`."""
        self.switches.stop()
