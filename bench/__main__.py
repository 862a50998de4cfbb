"""``python -m bench [--only images] [--runs 5]``: measure, print a table, write bench/results/latest.json."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from bench import checkpoints, coordinator, hypernodes, images, recreate, store, topology
from bench.figures import RESULTS, Figure, save, table
from tests.rig import cleanup, paths
from tests.rig.lock import RunLock

Part = Callable[[Path, int, Callable[[str], None]], Awaitable[list[Figure]]]
PARTS: Mapping[str, Part] = {
    "images": images.run,
    "recreate": recreate.run,
    "topology": topology.run,
    "checkpoints": checkpoints.run,
    "store": store.run,
    "hypernodes": hypernodes.run,
    "coordinator": coordinator.run,
}


def say(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--only", choices=sorted(PARTS), help="measure one part; the other figures are kept")
    parser.add_argument("--runs", type=int, default=5, help="samples behind each median")
    arguments = parser.parse_args()
    workdir = paths.DEFAULT_WORKDIR / "bench"
    lock = RunLock()
    lock.acquire()
    try:
        cleanup.cleanup()
        workdir.mkdir(parents=True, exist_ok=True)
        figures: list[Figure] = []
        for name, part in PARTS.items():
            if arguments.only in {None, name}:
                figures += asyncio.run(_run(part, workdir, arguments.runs))
        save(figures)
    finally:
        shutil.rmtree(workdir, ignore_errors=True)
        lock.release()
    print(table(figures))
    print(f"written to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")
    return 0


async def _run(part: Part, workdir: Path, runs: int) -> list[Figure]:
    return await part(workdir, runs, say)


if __name__ == "__main__":
    sys.exit(main())
