"""podman in a root of its own, as another way to checkpoint, clone and commit. Built when it is first asked for."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.rig import archive, holder, paths
from tests.rig.images import Image
from tests.rig.node import PATH, Node
from tests.rig.processes import ProcessId
from tests.rig.records import Record

IMAGE = paths.REPOSITORY / "images" / "podman"
SUITE = "forky"
_SOURCE = Path(__file__).with_name("tick.c")


def root() -> Path:
    """Return the root with podman in it; the first call makes it, which takes a minute."""
    built: Path = _builder().build(SUITE, image=IMAGE)
    return built


def tick_program() -> bytes:
    """Return the program that is measured, compiled by the compiler of podman's root."""
    source = _SOURCE.read_bytes()
    target = paths.CACHE / "programs" / f"tick-{hashlib.sha256(source).hexdigest()[:16]}"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        argv = ["chroot", str(root()), "gcc", "-O2", "-static", "-x", "c", "-o", "/tmp/tick", "-"]
        subprocess.run(argv, input=source, check=True, env={"PATH": PATH})
        made = root() / "tmp" / "tick"
        target.write_bytes(made.read_bytes())
        made.unlink()
    return target.read_bytes()


def _builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stoker_node_build", paths.NODE_IMAGE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Podman(Node):
    """A node without a containerd: podman with crun, netavark and its own storage, on the same disk."""

    def start(self) -> None:
        lower = root()
        record = Record(self.name, "node", ProcessId.own(), self._cgroup, [self.data_dir], self._details())
        record.create()
        self._record = record
        try:
            holder.make_directories(self._layout())
            self._holder = holder.hold(self._layout(), lower, self._cgroup, self._children)
            self._configure()
        except BaseException:
            self.stop()
            raise

    def podman(self, *argv: str | Path, timeout: float = 120.0) -> str:
        """Run one command; return what it printed."""
        return self.run("podman", *argv, timeout=timeout).stdout.strip()

    def load(self, reference: str, image: Image) -> None:
        file = archive.write(self.data_dir / "image.tar", {reference: image})
        name = self.podman("load", "--quiet", "--input", file).rpartition(": ")[2]
        self.podman("tag", name, reference)
        file.unlink()

    def upper(self, container: str) -> Path:
        """Return the container's upper directory, as it is reached from this machine."""
        found: list[dict[str, Any]] = json.loads(self.podman("inspect", container))
        return Path(found[0]["GraphDriver"]["Data"]["UpperDir"])

    def _configure(self) -> None:
        storage = f'[storage]\ndriver = "overlay"\nrunroot = "{self.state_dir}"\ngraphroot = "{self.root_dir}"\n'
        engine = '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\nruntime = "crun"\n'
        policy = '{"default": [{"type": "insecureAcceptAnything"}]}'
        files = {"storage.conf": storage, "containers.conf": engine, "policy.json": policy}
        for name, text in files.items():
            self.run("sh", "-c", f"mkdir -p /etc/containers && cat >/etc/containers/{name}", stdin=text.encode())
