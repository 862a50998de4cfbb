"""What the suite needs of an implementation beside `Runtime` itself: images to pull, barriers, counters, crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from stokerd.errors import StokerError
from stokerd.images.failures import Failure, classify
from stokerd.images.manifests import parse_config
from stokerd.runtime.protocol import NativeRuntime
from stokerd.runtime.types import RegistryAuth

T = TypeVar("T")

Generation = Literal["1.6", "1.7", "2.1"]
MIB = 1 << 20
DEADLINE = 20.0

HEEDS = ("sh", "-c", "trap 'exit 0' TERM; touch /ready; while :; do sleep 3600 & wait $!; done")
"""A program that runs until it is told to stop, and then stops at once."""
IGNORES = ("sh", "-c", "trap '' TERM; touch /ready; while :; do sleep 1; done")
"""One that does not heed the stop signal."""
READY = ("test", "-e", "/ready")
"""Fails until one of these two does with a signal what it is to do; a root that is read-only never shows it."""
FAILS = ("sh", "-c", "exit 7")
"""One that ends at once, with 7."""
MISSING = ("/no/such/program",)
"""One that cannot be started."""
SAYS = ("sh", "-c", "echo out; echo err >&2; exit 3")
"""A command that writes to both its outputs and ends with 3."""
LASTS = ("sleep", "30")
"""A command that takes longer than anybody waits."""


@dataclass(frozen=True)
class MadeLayer:
    digest: str
    size: int


@dataclass(frozen=True)
class Made:
    """An image in a registry that the runtime can reach. ``digest`` is of what the name stands for."""

    reference: str
    digest: str
    manifest: bytes
    manifest_digest: str
    config: bytes
    id: str
    layers: tuple[MadeLayer, ...]

    @property
    def by_digest(self) -> str:
        return f"{self.reference.rpartition(':')[0]}@{self.digest}"

    @property
    def names(self) -> set[str]:
        """The three records that CRI makes of it."""
        return {self.reference, self.by_digest, self.id}

    @property
    def chain_ids(self) -> tuple[str, ...]:
        return parse_config(self.config).chain_ids

    @property
    def blobs(self) -> set[str]:
        """All content that one platform's image has."""
        return {self.digest, self.manifest_digest, self.id, *(layer.digest for layer in self.layers)}


class Barrier(Protocol):
    """A transfer waits here until it is released."""

    async def reached(self) -> None: ...
    def release(self) -> None: ...


class Subject(Protocol):
    """One implementation, and the world around it."""

    generation: Generation
    refused: str
    """A reference in a registry where nobody listens."""
    unknown_host: str
    """A reference in a registry whose name nobody knows."""

    @property
    def runtime(self) -> NativeRuntime: ...

    async def make_image(
        self,
        name: str,
        sizes: Sequence[int] = (100_000,),
        *,
        tag: str = "v1",
        seed: str = "",
        index: bool = False,
        foreign: bool = False,
    ) -> Made:
        """Put an image into the registry. Layers of equal size, seed and place are equal; the seed is the name's own
        unless given. With *foreign* it is for no machine of this kind."""
        ...

    def absent(self, name: str = "absent") -> str:
        """Return a reference of that registry that it does not have."""
        ...

    def hold(self, made: Made, layer: int, after: int) -> Barrier:
        """Stop every transfer of this layer after so many bytes."""
        ...

    def answer(self, made: Made, status: int, layer: int | None = None) -> None:
        """Let the registry answer all requests for this image, or for one layer of it, with a status."""
        ...

    def require_auth(self, made: Made, username: str, password: str) -> None: ...

    def clear(self) -> None:
        """No more holds, answers and accounts."""
        ...

    def fetched(self, digest: str) -> int:
        """Return how many bytes of this blob the registry has sent since `forget`."""
        ...

    def forget(self) -> None: ...

    async def runnable(self) -> str:
        """Let an image be there in which the programs above can be run; return its name."""
        ...

    async def cdi_device(self) -> str:
        """Let a device be there under a name of the Container Device Interface; return the name. Its containers have a
        variable CDI=1, where the runtime knows CDI."""
        ...

    def directory(self, name: str) -> str:
        """Return the path of a directory that exists where the runtime looks for logs and for what to mount."""
        ...

    async def quiet(self) -> None:
        """Return when no transfer is under way any more: a cancelled pull ends on the other side a moment later."""
        ...

    async def crash(self) -> None:
        """Kill the runtime and return when that was noticed."""
        ...

    async def restart(self) -> None:
        """Start the runtime again; the caller waits until it is ready."""
        ...

    def nudge(self) -> None:
        """Run a garbage collection that the runtime would soon run by itself."""
        ...

    def free_bytes(self) -> tuple[int, int]:
        """Return all and free bytes of the file system under the runtime's root, found by what `info` says."""
        ...


async def eventually(what: str, probe: Callable[[], Awaitable[T]], timeout: float = DEADLINE) -> T:
    """Ask *probe* until it answers something true; AssertionError when it never does."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not (answer := await probe()):
        assert loop.time() < deadline, f"{what}: not within {timeout:g} s"
        await asyncio.sleep(0.02)
    return answer


async def blobs_of(subject: Subject) -> set[str]:
    return {info.digest for info in await subject.runtime.content.list()}


async def snapshots_of(subject: Subject) -> set[str]:
    return {info.name for info in await subject.runtime.snapshots.list()}


async def records_of(subject: Subject) -> set[str]:
    return {record.name for record in await subject.runtime.images.list()}


async def ingest_of(subject: Subject, digest: str) -> int | None:
    """Return how far the ingest of a layer is, None when there is none."""
    for ingest in await subject.runtime.content.ingests():
        if ingest.ref == f"layer-{digest}":
            return ingest.offset
    return None


async def held(subject: Subject, lease: str) -> dict[str, set[str]]:
    """Return what a lease holds, by type."""
    found: dict[str, set[str]] = {}
    for resource in await subject.runtime.leases.resources(lease):
        found.setdefault(resource.type, set()).add(resource.id)
    return found


async def failure_of(
    subject: Subject, reference: str, auth: RegistryAuth | None = None, lease: str | None = None
) -> Failure:
    """Pull what cannot be pulled, and say what the image room makes of the failure."""
    try:
        await subject.runtime.cri.pull(reference, auth=auth, lease=lease)
    except StokerError as error:
        return classify(error, reference)
    raise AssertionError(f"{reference} was pulled")


async def cancelled(subject: Subject, task: asyncio.Task[str]) -> None:
    """Cancel a pull, and return when it has ended here and its transfers have on the other side."""
    task.cancel()
    results = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError), results
    await subject.quiet()
