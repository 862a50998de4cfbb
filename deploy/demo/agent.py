"""The program that is checkpointed: an image of it, and what it says of itself over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from deploy.demo.scene import Scene
from tests.rig.bundled import busybox_entries
from tests.rig.images import ImageSpec, build
from tests.rig.layers import Entry, LayerSpec
from tests.rig.node import Node

_PROGRAM = Path(__file__).with_name("agent.sh")
_ASK = r"""for each; do
    echo "at $each"
    exec 3<>"/dev/tcp/$each/8080" && printf 'GET / HTTP/1.0\r\n\r\n' >&3 && cat <&3
done"""
_LINE = re.compile(r"(\d+) (\d+\.\d{6})")
_DEADLINE = 30.0


def publish(scene: Scene) -> str:
    """Push the image of the program; return its name."""
    program = Entry("bin/agent", _PROGRAM.read_bytes(), 0o755)
    layers = (LayerSpec(entries=busybox_entries()), LayerSpec(entries=(program,)))
    config = {"Env": ["PATH=/bin"], "Entrypoint": ["agent"], "WorkingDir": "/"}
    return scene.registry.push("ai/agent", build(ImageSpec(layers=layers, config=config)), tag="1").reference


@dataclass(frozen=True)
class Told:
    """What one of them answered: numbers, and when in seconds of the real time it was there."""

    address: str
    counts: tuple[tuple[int, float], ...]

    @property
    def number(self) -> int:
        """Return where it is now."""
        return self.counts[-1][0] if self.counts else 0

    def since(self, moment: datetime | None) -> tuple[tuple[int, float], ...]:
        """Return what it counted after that."""
        after = moment.timestamp() if moment is not None else 0.0
        return tuple(each for each in self.counts if each[1] > after)


async def ask(node: Node, addresses: Sequence[str]) -> list[Told]:
    """Ask all of them over HTTP, each at its own address."""
    done = await asyncio.to_thread(node.run, "bash", "-c", _ASK, "ask", *addresses, check=False)
    told = []
    for part in done.stdout.split("at ")[1:]:
        address, _, answer = part.partition("\n")
        counts = tuple((int(number), float(at)) for number, at in _LINE.findall(answer))
        told.append(Told(address, counts))
    return told


async def counting(node: Node, addresses: Sequence[str], since: datetime | None = None) -> list[Told]:
    """Return what they answer as soon as each of them has counted after *since*."""
    async with asyncio.timeout(_DEADLINE):
        while True:
            told = await ask(node, addresses)
            if all(each.since(since) for each in told):
                return told
            await asyncio.sleep(0.05)
