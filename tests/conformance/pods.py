"""Pods and containers that the contracts make, in the JSON that CRI shows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stokerd.runtime.pod_types import Blueprint, ContainerState, ContainerStatus, PodBlueprint, PodStatus
from tests.conformance.subject import HEEDS, READY, Subject, eventually


@dataclass(frozen=True)
class MadePod:
    """A sandbox that runs, and what can be done in it."""

    subject: Subject
    id: str
    blueprint: PodBlueprint
    image: str

    def container(
        self, name: str = "app", *, attempt: int = 0, program: Sequence[str] = HEEDS, **more: Any
    ) -> Blueprint:
        """Return the blueprint of a container; *more* are fields of ContainerConfig."""
        return Blueprint(
            {
                "metadata": {"name": name, **({"attempt": attempt} if attempt else {})},
                "image": {"image": self.image},
                "command": list(program),
                "log_path": f"{name}-{attempt}.log",
                "linux": {},
                **more,
            }
        )

    async def create(self, name: str = "app", **more: Any) -> str:
        return await self.subject.runtime.containers.create(self.id, self.container(name, **more), self.blueprint)

    async def run(self, name: str = "app", **more: Any) -> str:
        made = await self.create(name, **more)
        await self.subject.runtime.containers.start(made)
        return made


async def make_pod(subject: Subject, name: str = "web", **more: Any) -> MadePod:
    """Run a sandbox; *more* are fields of PodSandboxConfig."""
    image = await subject.runnable()
    uid = str(uuid.uuid4())
    config = {
        "metadata": {"name": name, "namespace": "conformance", "uid": uid},
        "hostname": name,
        "log_directory": subject.directory(uid),
        "linux": {},
        **more,
    }
    blueprint = PodBlueprint(config)
    return MadePod(subject, await subject.runtime.pods.run(blueprint), blueprint, image)


async def status_of(subject: Subject, container: str) -> ContainerStatus:
    found = await subject.runtime.containers.status(container)
    assert found is not None, container
    return found


async def pod_status_of(subject: Subject, pod: str) -> PodStatus:
    found = await subject.runtime.pods.status(pod)
    assert found is not None, pod
    return found


async def state_of(subject: Subject, container: str) -> ContainerState:
    return (await status_of(subject, container)).container.state


async def ready(subject: Subject, container: str) -> None:
    """Wait until a program that says how it takes signals has come to that."""

    async def said() -> bool:
        return (await subject.runtime.containers.exec(container, READY, timeout=10)).exit_code == 0

    await eventually("the program to be ready for signals", said)


async def ended(subject: Subject, container: str) -> ContainerStatus:
    """Wait until a container has ended by itself."""

    async def exited() -> bool:
        return await state_of(subject, container) == "exited"

    await eventually("the container to end", exited)
    return await status_of(subject, container)


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield the places at which two JSON documents differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {*one, *other}:
            yield from differences(one.get(key), other.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differences(left, right, f"{path}[{number}]")
    elif one != other:
        yield path
