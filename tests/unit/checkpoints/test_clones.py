"""Clones on a node in memory, whose programs are played: whatever fails, nothing of a clone is left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from stokerd.checkpoints import lazy, networks
from stokerd.checkpoints import nodes as node_module
from stokerd.checkpoints.cloning import CLONE_LABEL
from stokerd.checkpoints.cni import NetworkError, NetworkList
from stokerd.checkpoints.errors import CheckpointDamaged, CheckpointError
from stokerd.checkpoints.model import Wish
from stokerd.checkpoints.nodes import Ended
from stokerd.checkpoints.service import Checkpoints
from stokerd.checkpoints.shelf import Shelf
from stokerd.errors import NotFound, StokerError
from stokerd.runtime.types import RuntimeInfo
from tests.unit.checkpoints.bench import Bench, ended

NETWORK = NetworkList("pods", "1.0.0", ({"type": "bridge"},))
PLACES = ["snapshots.Prepare", "containers.Create", "tasks.Create", "tasks.Start"]
STEPS = [*PLACES, *(f"{place}:done" for place in PLACES)]


class Programs:
    """What is run on the node: plugins that give addresses, and mounts. ``failing`` names commands that fail."""

    def __init__(self) -> None:
        self.attached: dict[str, int] = {}
        self.namespaces: set[str] = set()
        self.failing: set[str] = set()
        self.ran: list[tuple[str, ...]] = []
        self.number = 1

    async def run(
        self,
        _info: RuntimeInfo,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Ended:
        await asyncio.sleep(0)
        self.ran.append(tuple(argv))
        about = environment or {}
        command = about.get("CNI_COMMAND", argv[0])
        if command in self.failing:
            return Ended(1, b'{"code": 7, "msg": "no"}', b"no")
        if argv[0] == "bridge":
            return self._bridge(command, about["CNI_CONTAINERID"], json.loads(stdin))
        return Ended(0, b"", b"")

    def _bridge(self, command: str, container: str, config: Mapping[str, object]) -> Ended:
        assert config["name"] == "pods"
        if command == "CHECK":
            return Ended(0 if container in self.namespaces else 1, b"", b"")
        if command == "DEL":
            self.attached.pop(container, None)
            return Ended(0, b"", b"")
        self.number += 1
        self.attached[container] = self.number
        return Ended(0, json.dumps({"ips": [{"address": f"10.1.0.{self.number}/16"}]}).encode(), b"")


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    made = Programs()

    async def configuration(_info: RuntimeInfo) -> NetworkList:
        return NETWORK

    async def make_netns(_info: RuntimeInfo, name: str) -> None:
        made.namespaces.add(name)

    async def drop_netns(_info: RuntimeInfo, name: str) -> None:
        made.namespaces.discard(name)

    for module in (networks, node_module):
        monkeypatch.setattr(module, "run_on_node", made.run)
    for name in ("restoring", "undoing"):
        monkeypatch.setattr(f"stokerd.checkpoints.{name}.run_on_node", made.run)
    monkeypatch.setattr(networks, "_find", lambda _info, plugin: plugin)
    monkeypatch.setattr(networks, "configuration", configuration)
    monkeypatch.setattr(networks, "is_there", lambda _info, name: name in made.namespaces)
    monkeypatch.setattr(networks, "make_netns", make_netns)
    monkeypatch.setattr(networks, "drop_netns", drop_netns)
    return made


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def left(bench: Bench, programs: Programs) -> list[str]:
    """Return everything of clones that is there."""
    native, store = bench.runtime.native, bench.runtime.store
    return [
        *native.records,
        *native.tasks,
        *(name for name, each in store.snapshots.items() if CLONE_LABEL in each.info.labels),
        *(path.name for name in (".clones", ".networks") for path in (bench.directory / name).iterdir()),
        *programs.attached,
        *programs.namespaces,
    ]


async def test_make_list_remove(bench: Bench, programs: Programs) -> None:
    kept = await bench.room.create(bench.container(labels={"a": "1"}))
    first, second = await asyncio.gather(bench.room.clone(kept.id), bench.room.clone(kept.id, hostname="other"))
    assert {first.addresses, second.addresses} == {("10.1.0.2",), ("10.1.0.3",)}
    assert {each.id for each in await bench.room.clones()} == {first.id, second.id}
    record = await bench.runtime.records.get(second.id)
    assert record is not None
    spec = record.document()
    assert spec["hostname"] == "other"
    assert {"type": "network", "path": f"/run/stoker/netns/{second.id}"} in spec["linux"]["namespaces"]
    file = Path(spec["annotations"]["org.criu.config"])
    assert await asyncio.to_thread(file.read_text) == "network-lock skip\ntcp-close\nghost-limit 268435456\n"
    assert bench.runtime.native.restored == {first.id: 1, second.id: 1}
    assert "io.cri-containerd.kind" not in record.labels
    bench.runtime.collect()
    for each in (first, second):
        await bench.room.remove_clone(each.id)
        with pytest.raises(NotFound):
            await bench.room.remove_clone(each.id)
    assert left(bench, programs) == []
    await bench.room.remove(kept.id)
    assert bench.left() == []


@pytest.mark.parametrize("place", STEPS)
async def test_any_call_fails(bench: Bench, programs: Programs, place: str) -> None:
    kept = await bench.room.create(bench.container())
    bench.runtime.fail(place, "no")
    with pytest.raises(StokerError):
        await bench.room.clone(kept.id)
    assert left(bench, programs) == []
    await bench.room.clone(kept.id)


@pytest.mark.parametrize("place", STEPS)
async def test_the_caller_goes_away(bench: Bench, programs: Programs, place: str) -> None:
    kept = await bench.room.create(bench.container())
    hold = bench.runtime.hold(place, times=1)
    task = asyncio.create_task(bench.room.clone(kept.id))
    await hold.reached.wait()
    task.cancel()
    await asyncio.sleep(0)
    hold.release()
    assert isinstance(await ended(task), asyncio.CancelledError)
    assert left(bench, programs) == []


async def test_a_start_that_was_broken_off_goes_on_in_the_shim(bench: Bench, programs: Programs) -> None:
    """It comes to its end while what was made is being removed."""
    kept = await bench.room.create(bench.container())
    start, delete = bench.runtime.hold("tasks.Start", times=1), bench.runtime.hold("tasks.Delete", times=1)
    task = asyncio.create_task(bench.room.clone(kept.id))
    await start.reached.wait()
    task.cancel()
    await delete.reached.wait()
    (clone,) = bench.runtime.native.tasks
    bench.runtime.native.start(clone)
    delete.release()
    assert isinstance(await ended(task), asyncio.CancelledError)
    assert left(bench, programs) == []


async def test_one_that_cannot_be_removed_is_left_to_reconciliation(bench: Bench, programs: Programs) -> None:
    kept = await bench.room.create(bench.container())
    bench.runtime.fail("tasks.Start", "no")
    bench.runtime.fail("tasks.Delete", "not now")
    with pytest.raises(StokerError, match="no"):
        await bench.room.clone(kept.id)
    assert len((await bench.room.converge()).clones) == 1
    assert left(bench, programs) == []


@pytest.mark.parametrize("place", STEPS)
async def test_stokerd_dies(bench: Bench, programs: Programs, place: str) -> None:
    kept = await bench.room.create(bench.container())
    hold = bench.runtime.hold(place, times=1)
    dead = asyncio.create_task(bench.room.clone(kept.id))
    await hold.reached.wait()
    done = await bench.new_room().converge()
    assert len(done.clones) == 1
    assert left(bench, programs) == []
    dead.cancel()
    hold.release()
    await ended(dead)


async def test_a_network_that_fails(bench: Bench, programs: Programs) -> None:
    kept = await bench.room.create(bench.container())
    programs.failing = {"ADD"}
    with pytest.raises(NetworkError, match="no"):
        await bench.room.clone(kept.id)
    assert left(bench, programs) == []


async def test_an_address_that_cannot_be_given_back_is_remembered(bench: Bench, programs: Programs) -> None:
    kept = await bench.room.create(bench.container())
    clone = await bench.room.clone(kept.id)
    programs.failing = {"DEL"}
    with pytest.raises(NetworkError):
        await bench.room.remove_clone(clone.id)
    assert clone.id in left(bench, programs)
    programs.failing = set()
    await bench.room.remove_clone(clone.id)
    assert left(bench, programs) == []


async def test_shared_memory_is_as_large_as_it_has_to_be(
    bench: Bench, programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stokerd.checkpoints.restoring._SHM_SIZE", 1 << 20)
    shm = tmp_path / "shm"
    shm.mkdir()
    container = bench.container()
    mounts = [{"destination": "/dev/shm", "type": "bind", "source": str(shm)}]
    bench.runtime.node.containers[container].spec["mounts"] = mounts
    sizes = []
    for size in (4096, 3 << 20):
        (shm / "segment").write_bytes(b"x" * size)
        await bench.room.clone((await bench.room.create(container)).id)
        options = next(argv for argv in reversed(programs.ran) if argv[:3] == ("mount", "-t", "tmpfs"))[4]
        sizes.append(int(options.rpartition("size=")[2]))
    assert sizes == [1 << 20, 6 << 20]


async def test_on_the_nodes_network(bench: Bench, programs: Programs) -> None:
    container = bench.container()
    linux = bench.runtime.node.containers[container].spec["linux"]
    linux["namespaces"] = [each for each in linux["namespaces"] if each["type"] != "network"]
    clone = await bench.room.clone((await bench.room.create(container)).id)
    assert (clone.addresses, programs.attached) == ((), {})
    stopped = await bench.room.create(clone.id, Wish(leave_running=False))
    assert (await bench.room.restore(stopped.id)).id == clone.id
    await bench.room.remove_clone(clone.id)
    assert left(bench, programs) == []


async def test_what_cannot_be_cleared_up_is_tried_again(bench: Bench, programs: Programs) -> None:
    """An address that is not given back holds up nothing else."""
    kept = await bench.room.create(bench.container())
    dead = []
    for _ in range(2):
        hold = bench.runtime.hold("tasks.Start", times=1)
        dead.append((asyncio.create_task(bench.room.clone(kept.id)), hold))
        await hold.reached.wait()
    programs.failing = {"DEL"}
    successor = bench.new_room()
    done = await successor.converge()
    assert (len(done.clones), len(done.left)) == (0, 2)
    programs.failing = set()
    done = await successor.converge()
    assert (len(done.clones), len(done.left)) == (2, 0)
    assert left(bench, programs) == []
    for task, hold in dead:
        task.cancel()
        hold.release()
        await ended(task)


@pytest.mark.parametrize("how", ["made", "restored", "begun after the look at descriptions"])
async def test_what_is_finished_meanwhile_is_no_leftover(bench: Bench, programs: Programs, how: str) -> None:
    """Reconciliation looks once, and comes to each clone later: what was being made then may run by now."""
    clone = await bench.room.clone((await bench.room.create(bench.container())).id)
    kept = await bench.room.create(clone.id, Wish(leave_running=how != "restored"))
    work = bench.room.restore if how == "restored" else bench.room.clone
    listed, start = bench.runtime.hold("containers.ListStream", times=1), bench.runtime.hold("tasks.Start", times=1)
    late = how == "begun after the look at descriptions"
    begun = [] if late else [asyncio.create_task(work(kept.id))]
    if begun:
        await start.reached.wait()
    clearing = asyncio.create_task(bench.room.converge())
    await listed.reached.wait()
    start.release()
    made = await (begun[0] if begun else work(kept.id))
    listed.release()
    assert (await clearing).clones == []
    assert bench.runtime.native.tasks[made.id].state == "running"
    assert made.id in {each.id for each in await bench.room.clones()}


async def test_what_a_failure_leaves_is_cleared_up_without_a_restart(
    bench: Bench, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stokerd.checkpoints.service._CONVERGE_PAUSE", 0.01)
    kept = await bench.room.create(bench.container())
    living = asyncio.create_task(bench.room.run())
    await asyncio.wait_for(bench.room.cleared.wait(), 10)
    bench.runtime.fail("tasks.Start", "no")
    bench.runtime.fail("containers.Delete", "not now")
    with pytest.raises(StokerError):
        await bench.room.clone(kept.id)
    async with asyncio.timeout(10):
        while left(bench, programs):  # noqa: ASYNC110 - it is done in the background
            await asyncio.sleep(0.01)
    living.cancel()
    await ended(living)


async def test_images_that_are_gone(bench: Bench, programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = await bench.room.create(bench.container())
    image = bench.directory / kept.id / "images" / "inventory.img"
    image.write_bytes(b"other")
    with pytest.raises(CheckpointDamaged, match=r"inventory\.img has 5 bytes"):
        await bench.room.clone(kept.id)
    image.unlink()
    with pytest.raises(CheckpointDamaged, match=r"inventory\.img is missing"):
        await bench.room.clone(kept.id)
    monkeypatch.setattr(Shelf, "glance", lambda *_: ())
    with pytest.raises(CheckpointError, match="CRIU cannot restore"):
        await bench.room.clone(kept.id)
    assert left(bench, programs) == []


async def test_lazy_falls_back_to_eager(bench: Bench, programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stokerd.checkpoints.clones._LAZY_FROM", 1)
    kept = await bench.room.create(bench.container())

    async def no(*_: object) -> int:
        raise CheckpointError("criu lazy-pages does not start")

    monkeypatch.setattr(lazy, "start", no)
    with pytest.raises(CheckpointError, match="does not start"):
        await bench.room.clone(kept.id, mode="lazy")
    assert left(bench, programs) == []
    assert (await bench.room.clone(kept.id)).memory == "eager"


async def test_memory_that_is_lost(bench: Bench, programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper of the second one had ended well, that of the first had not."""

    async def begun(*_: object) -> int:
        return 1  # no helper of ours

    monkeypatch.setattr(lazy, "start", begun)
    kept = await bench.room.create(bench.container())
    lost, loaded = [await bench.room.clone(kept.id, mode="lazy") for _ in range(2)]
    assert (lost.memory, loaded.memory) == ("loading", "loading")
    (bench.directory / ".clones" / loaded.id / "work" / "exit").write_text("0\n")
    successor = bench.new_room()
    life = asyncio.create_task(successor.run())
    await _memories(successor, {lost.id: "lost", loaded.id: "loaded"})
    assert [bench.runtime.native.tasks[each.id].state for each in (lost, loaded)] == ["stopped", "running"]
    life.cancel()
    await ended(life)


async def _memories(room: Checkpoints, wanted: Mapping[str, str]) -> None:
    async with asyncio.timeout(10):
        while {each.id: each.memory for each in await room.clones()} != wanted:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
