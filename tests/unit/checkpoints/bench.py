"""A node in memory with a container whose root is a real directory, and the room over it."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from stokerd.checkpoints.model import CHECKPOINT_LABEL
from stokerd.checkpoints.overlay import root_of
from stokerd.checkpoints.preflight import Facts
from stokerd.checkpoints.service import Checkpoints
from stokerd.runtime.memory import MemoryOptions, MemoryRuntime
from tests.unit.checkpoints.trees import build_upper

IMAGE = "stoker.test/app:v1"


class Bench:
    """``facts`` changes what the survey finds, ``orphans`` are CRIU processes that are still about."""

    def __init__(self, tmp: Path) -> None:
        self.directory = tmp / "checkpoints"
        self.runtime = MemoryRuntime(MemoryOptions(snapshot_dir=str(tmp / "snapshots")))
        self.pod = self.runtime.add_pod("web")
        self.facts: dict[str, Any] = {}
        self.orphans: list[tuple[int, ...]] = []
        self.room = self.new_room()

    def new_room(self) -> Checkpoints:
        """The room of a stokerd that has just been started."""
        return Checkpoints(self.runtime, str(self.directory), "stokerd-1", survey=self.survey, dumpers=self.dumpers)

    def container(self, name: str = "app", **more: Any) -> str:
        """Run a container, and let it have written to its root."""
        container = self.runtime.add_container(self.pod, name, IMAGE, **more)
        upper = self.upper(container)
        build_upper(upper)
        return container

    def base(self, container: str) -> None:
        """Let the layers of the container's image have something in them."""
        root = root_of(self.runtime.store.mounts(container))
        assert root is not None
        for lower in root.lowers:
            Path(lower).mkdir(parents=True)
            (Path(lower) / "of-the-base").write_text("base")

    def upper(self, container: str) -> Path:
        root = root_of(self.runtime.store.mounts(container))
        assert root is not None
        return Path(root.upper)

    def survey(
        self, facts: Facts, pids: Iterable[int], spec: Mapping[str, Any], images: str, upper: str, prefix: str
    ) -> Facts:
        return replace(facts, **self.facts)

    def dumpers(self, directory: str) -> tuple[int, ...]:
        return self.orphans.pop() if self.orphans else ()

    # ------------------------------------------------------------------------------------------ what must hold

    def runs(self, container: str) -> bool:
        task = self.runtime.native.task(container)
        return task is not None and task.state == "running"

    def ours(self) -> set[str]:
        """Return the snapshots that were made for checkpoints."""
        return {name for name, each in self.runtime.store.snapshots.items() if CHECKPOINT_LABEL in each.info.labels}

    def left(self) -> list[str]:
        """Return everything of ours that is there."""
        # Not rglob: it fails when what it looks through is removed meanwhile.
        names = ((there, name) for there, *kinds in os.walk(self.directory) for name in itertools.chain(*kinds))
        files = [f"{there}/{name}" for there, name in names if not name.startswith(".")]
        return [*files, *sorted(self.ours())]


async def ended(task: asyncio.Task[Any]) -> BaseException | None:
    """Wait for the end of a task, and return what it failed with."""
    await asyncio.wait({task}, timeout=60)
    assert task.done()
    return asyncio.CancelledError() if task.cancelled() else task.exception()
