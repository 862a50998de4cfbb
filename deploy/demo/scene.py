"""What the demo plays on: a registry with images, a fault proxy that slows it down, a node, and stokerd."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from deploy.demo.hardware import Hardware
from tests.rig.images import ImageSpec, build
from tests.rig.layers import LayerSpec
from tests.rig.node import Node
from tests.rig.registry import Registry
from tests.rig.stokerd import Stokerd

MIB = 1 << 20
CHECKPOINTS = "checkpoints"


@dataclass
class Stage:
    """One step of the story and how long it took."""

    title: str
    outcome: str = ""
    seconds: float = 0.0


@dataclass
class Story:
    """Tells the steps as they happen, and once more in a table at the end."""

    stages: list[Stage] = field(default_factory=list)

    @contextmanager
    def stage(self, title: str) -> Iterator[Stage]:
        entry = Stage(title)
        self.stages.append(entry)
        print(f"\n{_bold(f'── {title}')}", flush=True)
        started = time.perf_counter()
        yield entry
        entry.seconds = time.perf_counter() - started

    def table(self) -> str:
        rows = [(stage.title, stage.outcome, f"{stage.seconds:.1f} s") for stage in self.stages]
        rows.append(("all together", "", f"{sum(stage.seconds for stage in self.stages):.0f} s"))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(f"  {a.ljust(widths[0])}  {b.ljust(widths[1])}  {c.rjust(widths[2])}" for a, b, c in rows)


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else text


def check(good: bool, what: str) -> None:
    """End the demo when something is not as the story says."""
    if not good:
        raise SystemExit(f"demo: failed: {what}")


def image_specs() -> dict[str, ImageSpec]:
    """What an AI node runs, in small: a training and a serving stack on one base, and what stands beside them."""
    base = LayerSpec(size=40 * MIB, files=900, seed="demo os", directory="usr", compressible=0.5)
    python = LayerSpec(size=24 * MIB, files=1200, seed="demo python", directory="opt/python", compressible=0.6)
    framework = LayerSpec(size=96 * MIB, files=700, seed="demo framework", directory="opt/framework", compressible=0.4)

    def own(name: str, size: int, files: int) -> LayerSpec:
        return LayerSpec(size=size, files=files, seed=f"demo {name}", directory=f"srv/{name}", compressible=0.3)

    return {
        "ai/trainer:2.4": ImageSpec(layers=(base, python, framework, own("trainer", 20 * MIB, 150))),
        "ai/server:0.9": ImageSpec(layers=(base, python, framework, own("server", 32 * MIB, 200))),
        "ai/sandbox:1.3": ImageSpec(layers=(base, python, own("sandbox", 6 * MIB, 300))),
        "tools/metrics:5": ImageSpec(layers=(own("metrics", 12 * MIB, 20),)),
        "tools/shell:1": ImageSpec(layers=(own("shell", 2 * MIB, 40),)),
    }


@dataclass
class Scene:
    registry: Registry
    node: Node
    stokerd: Stokerd
    hardware: Hardware

    @property
    def checkpoints(self) -> Path:
        """Return the directory of stokerd's checkpoints, which the node sees, too."""
        return self.node.artifacts_dir / CHECKPOINTS

    def name(self, image: str) -> str:
        return f"{self.registry.address}/{image}"

    def stoker(self, *arguments: str) -> int:
        """Run the command line as a person would, its output going where ours goes."""
        shown = shlex.join(["stoker", *arguments])
        print(f"\x1b[2m$ {shown}\x1b[0m" if sys.stdout.isatty() else f"$ {shown}", flush=True)
        argv = [sys.executable, "-m", "stoker", "--socket", str(self.stokerd.socket), *arguments]
        return subprocess.run(argv, check=False).returncode


def make_scene(workdir: Path) -> Scene:
    """Prepare, but do not start, everything in *workdir*."""
    workdir.mkdir(parents=True, exist_ok=True)
    registry = Registry("demo-registry", workdir=workdir)
    node = Node("demo", "forky", workdir=workdir)
    hardware = Hardware(workdir)
    settings = {
        "images": {"disk_reserve": "256MiB", "disk_floor": "128MiB"},
        "daemon": {"log_level": "info"},
        "topology": hardware.settings,
        "checkpoints": {"directory": str(node.artifacts_dir / CHECKPOINTS)},
    }
    return Scene(registry, node, Stokerd(node, workdir / "stokerd", settings=settings), hardware)


def publish(scene: Scene) -> int:
    """Build the images and push them; return the bytes of all different layers."""
    sizes: dict[str, int] = {}
    for name, spec in image_specs().items():
        repository, _, tag = name.rpartition(":")
        pushed = scene.registry.push(repository, build(replace(spec)), tag=tag)
        sizes |= {layer.digest: layer.size for layer in pushed.layers}
    return sum(sizes.values())
