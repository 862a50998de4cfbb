"""The in-memory runtime as a subject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from stokerd.runtime.memory import MemoryOptions, MemoryRuntime
from stokerd.runtime.memory_artifacts import Layer, Reference
from stokerd.runtime.memory_conduct import Conduct
from stokerd.runtime.memory_faults import Hold
from stokerd.runtime.pod_types import ExecResult
from tests.conformance.subject import FAILS, HEEDS, IGNORES, LASTS, MISSING, SAYS, Generation, Made, MadeLayer

HOST = "registry.test"
RUNNABLE = "stoker.test/busybox:1"


class MemoryBarrier:
    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    async def reached(self) -> None:
        await self._hold.reached.wait()

    def release(self) -> None:
        self._hold.release()


class MemorySubject:
    """`Subject` without anything real."""

    refused = "127.0.0.1:1/none:v1"
    unknown_host = "nowhere.invalid/none:v1"

    def __init__(self, generation: Generation, disk_bytes: int = 100 << 30, files: Path | None = None) -> None:
        self.generation = generation
        self._files = files
        snapshots = str(files / "snapshots") if files is not None else ""
        options = MemoryOptions(generation=generation, disk_bytes=disk_bytes, snapshot_dir=snapshots)
        self.runtime = MemoryRuntime(options)
        self.runtime.remote.unreachable = {
            "127.0.0.1:1": "dial tcp 127.0.0.1:1: connect: connection refused",
            "nowhere.invalid": "dial tcp: lookup nowhere.invalid: no such host",
        }
        self._before: Counter[str] = Counter()
        self.runtime.conduct(Conduct(stop_code=0), command=HEEDS)
        self.runtime.conduct(Conduct(ignores_term=True), command=IGNORES)
        self.runtime.conduct(Conduct(exits_after=0.01, exit_code=7), command=FAILS)
        self.runtime.conduct(Conduct(start_error=f"exec: {MISSING[0]}: no such file or directory"), command=MISSING)
        self.runtime.on_exec(ExecResult(3, b"out\n", b"err\n"), argv=SAYS)
        self.runtime.on_exec(f"exec: {MISSING[0]}: no such file or directory", argv=MISSING)
        self.runtime.on_exec(ExecResult(0), argv=LASTS, takes=30)

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
        own = seed or name
        image = self.runtime.remote.add_image(
            f"{HOST}/{name}:{tag}",
            layers=[Layer.of(size, f"{own} {number}") for number, size in enumerate(sizes)],
            platforms=["linux/s390x" if foreign else self.runtime.options.platform],
            attested=index,
            seed=own,
        )
        first = image.first
        return Made(
            image.reference,
            image.digest,
            first.manifest,
            first.manifest_digest,
            first.config,
            first.config_digest,
            tuple(MadeLayer(layer.digest, layer.size) for layer in first.layers),
        )

    def absent(self, name: str = "absent") -> str:
        return f"{HOST}/{name}:none"

    def hold(self, made: Made, layer: int, after: int) -> MemoryBarrier:
        return MemoryBarrier(self.runtime.remote.hold(made.reference, f"layer:{layer}", after=after))

    def answer(self, made: Made, status: int, layer: int | None = None) -> None:
        if layer is not None:
            url = f"https://{HOST}/v2/blobs/{made.layers[layer].digest}"
            cause = f"httpReadSeeker: failed open: unexpected status from GET request to {url}: {status} Bad Gateway"
            self.runtime.remote.fail(made.reference, f"layer:{layer}", cause, times=1 << 30)
            return
        self.runtime.remote.answer(made.reference, status, times=1 << 30)

    def require_auth(self, made: Made, username: str, password: str) -> None:
        name = Reference.parse(made.reference)
        assert name is not None
        self.runtime.remote.require_auth(name.repository, username, password)

    def clear(self) -> None:
        self.runtime.clear_faults()

    def fetched(self, digest: str) -> int:
        return self.runtime.remote.fetched[digest] - self._before[digest]

    def forget(self) -> None:
        self._before = Counter(self.runtime.remote.fetched)

    async def runnable(self) -> str:
        self.runtime.load_image(RUNNABLE)
        return RUNNABLE

    async def cdi_device(self) -> str:
        return "stoker.dev/test=zero"

    def directory(self, name: str) -> str:
        if self._files is None:
            return f"/srv/{name}"
        path = self._files / name
        path.mkdir(parents=True, exist_ok=True)
        return str(path)

    async def quiet(self) -> None:
        """A pull that was cancelled here has ended."""

    async def crash(self) -> None:
        self.runtime.crash()

    async def restart(self) -> None:
        self.runtime.restart()

    def nudge(self) -> None:
        self.runtime.collect()

    def free_bytes(self) -> tuple[int, int]:
        state = self.runtime.disk.state()
        return state.total_bytes, state.free_bytes
