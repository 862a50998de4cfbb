"""HyperNodes follow what nodes say: made, marked, moved, kept over restarts, and nobody else's touched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from stoker.objects.cluster_nodes import ExactMatch, HyperNode, HyperNodeMember, HyperNodeSpec, MemberSelector, Node
from stoker.objects.meta import ObjectMeta
from stoker.objects.topology import (
    Nic,
    NicPort,
    PortHealth,
    PortLoad,
    PortNeighbour,
    TopologyLoad,
    TopologyReport,
)
from stoker_coordinator.controllers.fabric_memory import FabricMemory
from stoker_coordinator.controllers.fabric_settings import FabricSettings
from stoker_coordinator.controllers.fabrics import KINDS, Fabrics
from stoker_coordinator.controllers.informer import Informer
from stoker_coordinator.nodes.ports import Presence
from tests.unit.coordinator.controllers.scene import START, Scene
from tests.unit.images.virtual import Inline, virtual

LEAVES = ("leaf-a", "leaf-b")


def report(node: str, *switches: str, down: bool = False) -> TopologyReport:
    """Two rails on the given switches; "" is a port whose neighbour nobody sees."""
    nics = []
    for rail, switch in enumerate(switches):
        seen = [
            PortNeighbour(
                source="lldp", since=START, chassis=switch, name=switch, port="1", kind="switch", reason="it says so"
            )
        ]
        broken = down and rail == 0
        health = PortHealth(
            source="health",
            since=START,
            state="down" if broken else "healthy",
            reasons=["no carrier"] if broken else [],
        )
        port = NicPort(
            source="sysfs",
            since=START,
            number=1,
            state="down" if broken else "active",
            layer="ethernet",
            netdev=f"eth{rail}",
            gbps=400.0,
            neighbours=seen if switch else [],
            health=health,
        )
        nics.append(
            Nic(source="sysfs", since=START, name=f"mlx5_{rail}", use="compute", use_reason="", rdma=True, ports=[port])
        )
    return TopologyReport(version=1, node=node, since=START, nics=nics)


class Place(Scene):
    """Fabrics over a store, and their memory in a directory."""

    def __init__(self, directory: Path, static: Path | None = None) -> None:
        super().__init__()
        self.directory, self.settings = directory, FabricSettings(static=static, interval=30.0)
        self.fabrics: Fabrics

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Fabrics]:
        informer = Informer(self.store, KINDS)
        memory = FabricMemory(self.directory / "fabric.db", Inline())
        self.fabrics = Fabrics(self.store, informer, memory, self.settings, clock=self.now)
        await self.fabrics.open()
        tasks = [asyncio.create_task(part.run()) for part in (informer, self.fabrics)]
        try:
            await asyncio.sleep(1)
            yield self.fabrics
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await memory.close()
            assert all(task.cancelled() for task in tasks)

    async def says(self, node: str, *switches: str, down: bool = False) -> None:
        await self.node(node)
        await asyncio.sleep(0.1)
        self.fabrics.on_content(node, report(node, *switches, down=down))
        self.fabrics.on_presence(node, Presence(connected=True, ready=True, since=START.timestamp()))

    async def domains(self, tier: int = 1) -> dict[str, HyperNode]:
        await asyncio.sleep(3)
        return {
            each.metadata.name: each
            for each in (await self.store.list(HyperNode)).items
            if each.spec.tier == tier and each.metadata.labels
        }


def members(domain: HyperNode) -> set[str]:
    found = [each.selector.exact_match for each in domain.spec.members]
    return {each.name for each in found if each is not None}


@virtual
async def test_nodes_on_one_switch_are_a_domain_and_a_pulled_cable_is_marked(tmp_path: Path) -> None:
    here = Place(tmp_path)
    async with here.open():
        for name in ("n1", "n2"):
            await here.says(name, "leaf-a", "leaf-b")
        await here.says("n3", "leaf-c", "leaf-d")
        found = await here.domains()
        assert sorted(map(sorted, map(members, found.values()))) == [["n1", "n2"], ["n3"]]
        (pair,) = [each for each in found.values() if "n1" in members(each)]
        assert (pair.status.node_count, pair.status.unhealthy_links) == (2, ())
        await here.says("n1", "", "leaf-b", down=True)
        after = (await here.domains())[pair.metadata.name]
        assert members(after) == {"n1", "n2"}
        assert [(each.a.split()[0], each.reason) for each in after.status.unhealthy_links] == [("n1", "down")]
        assert after.metadata.generation == pair.metadata.generation


@virtual
async def test_a_node_that_is_away_keeps_its_place_and_one_that_is_deleted_loses_it(tmp_path: Path) -> None:
    here = Place(tmp_path)
    async with here.open() as fabrics:
        for name in ("n1", "n2"):
            await here.says(name, *LEAVES)
        away = Presence(connected=False, ready=False, since=here.now().timestamp(), reason="Silent")
        fabrics.on_presence("n1", away)
        (domain,) = (await here.domains()).values()
        assert members(domain) == {"n1", "n2"}
        assert [each.name for each in domain.status.unhealthy_nodes] == ["n1"]
        await here.store.delete(Node, "n1")
        (domain,) = (await here.domains()).values()
        assert members(domain) == {"n2"}


@virtual
async def test_a_coordinator_that_starts_anew_takes_nothing_away(tmp_path: Path) -> None:
    here = Place(tmp_path)
    async with here.open():
        for name in ("n1", "n2", "n3"):
            await here.says(name, *LEAVES)
        before = await here.domains()
    await here.store.delete(Node, "n3")
    async with here.open():
        after = await here.domains()
        assert after.keys() == before.keys()
        (domain,) = after.values()
        assert members(domain) == {"n1", "n2"}
        await asyncio.sleep(1000)
        assert (await here.domains()).keys() == before.keys()


@virtual
async def test_without_its_memory_a_coordinator_waits_before_it_removes_anything(tmp_path: Path) -> None:
    here = Place(tmp_path)
    async with here.open():
        await here.says("n1", *LEAVES)
        before = await here.domains()
        assert len(before) == 1
    (tmp_path / "fabric.db").unlink()
    async with here.open():
        await asyncio.sleep(500)
        assert (await here.domains()).keys() == before.keys()
        await asyncio.sleep(200)
        assert await here.domains() == {}


@virtual
async def test_hypernodes_of_others_are_never_touched(tmp_path: Path) -> None:
    here = Place(tmp_path)
    theirs = HyperNode(
        metadata=ObjectMeta(name="theirs"),
        spec=HyperNodeSpec(1, (HyperNodeMember("Node", MemberSelector(exact_match=ExactMatch("n1"))),)),
    )
    kept = await here.store.create(theirs)
    async with here.open():
        await here.says("n1", *LEAVES)
        await asyncio.sleep(1000)
        assert await here.store.get(HyperNode, "theirs") == kept


@virtual
async def test_load_alone_is_written_a_few_times_a_minute(tmp_path: Path) -> None:
    here = Place(tmp_path)
    async with here.open() as fabrics:
        await here.says("n1", *LEAVES)
        (before,) = (await here.domains()).values()
        revisions = set()
        for second in range(60):
            port = PortLoad(nic="mlx5_0", port=1, sent_gbps=float(second), received_gbps=1.0, congestion=0.0)
            fabrics.on_content("n1", TopologyLoad(node="n1", at=here.now(), ports=[port]))
            await asyncio.sleep(1)
            revisions.add((await here.store.get(HyperNode, before.metadata.name)).revision)
        assert 4 <= len(revisions) <= 9
        await asyncio.sleep(11)
        (after,) = (await here.domains()).values()
        assert after.status.used_gbps == 60.0


@virtual
async def test_a_dump_joins_leaves_and_its_loss_deletes_nothing(tmp_path: Path) -> None:
    source = tmp_path / "fabric.yaml"
    lines = ["fabric: roce", "switches:"]
    lines += [f"  - {{name: {leaf}, id: {leaf}, links: [spine-1, spine-2]}}" for leaf in ("leaf-a", "leaf-b", "leaf-c")]
    source.write_text("\n".join(lines))
    here = Place(tmp_path, static=source)
    async with here.open() as fabrics:
        await here.says("n1", "leaf-a", "leaf-b")
        await here.says("n2", "leaf-c", "leaf-d")
        await asyncio.sleep(40)
        assert [each.state for each in fabrics.sources.states] == ["ok"]
        assert any(len(members(each)) == 2 for each in (await here.domains(2)).values())
        before = {each.name for each in fabrics.live.hypernodes()}
        source.write_text("")
        await asyncio.sleep(100)
        assert {each.name for each in fabrics.live.hypernodes()} == before
        assert [each.state for each in fabrics.sources.states] == ["failed"]
        source.unlink()
        await asyncio.sleep(100)
        assert "cannot be read" in fabrics.sources.states[0].reason


@virtual
async def test_who_asks_right_after_a_start_sees_what_was_known(tmp_path: Path) -> None:
    """An export must not be empty because the coordinator has just been started."""
    here = Place(tmp_path)
    async with here.open() as fabrics:
        await here.says("n1", *LEAVES)
        await here.domains()
        before = fabrics.live.hypernodes()
    memory = FabricMemory(tmp_path / "fabric.db", Inline())
    again = Fabrics(here.store, Informer(here.store, KINDS), memory, here.settings, clock=here.now)
    await again.open()
    assert again.live.hypernodes() == before != []
    await memory.close()


@virtual
async def test_a_place_is_kept_before_anybody_is_told_of_it(tmp_path: Path) -> None:
    """A coordinator that is killed in the moment in which the object is there knows the domain and its members."""
    here = Place(tmp_path)
    for count in (1, 2, 3):
        async with here.open() as fabrics:
            await here.says(f"n{count}", *LEAVES)
            while True:
                found = (await here.store.list(HyperNode)).items
                if count in {len(members(each)) for each in found if each.spec.tier == 1}:
                    break
                await asyncio.sleep(0.01)
            before = fabrics.live.hypernodes()
        memory = FabricMemory(tmp_path / "fabric.db", Inline())
        again = Fabrics(here.store, Informer(here.store, KINDS), memory, here.settings, clock=here.now)
        await again.open()
        assert [(each.name, each.members) for each in again.live.hypernodes()] == [
            (each.name, each.members) for each in before
        ]
        await memory.close()


def test_what_an_upgrade_cannot_read_is_as_if_it_had_not_been_kept(tmp_path: Path) -> None:
    async def main() -> None:
        memory = FabricMemory(tmp_path / "fabric.db")
        await memory.open()
        await memory.close()
        import sqlite3

        with sqlite3.connect(tmp_path / "fabric.db") as connection:
            connection.execute("INSERT INTO kept VALUES ('node', 'n1', X'c1'), ('future', 'x', X'c0')")
        again = FabricMemory(tmp_path / "fabric.db")
        assert (await again.open()).nodes == []
        await again.close()

    asyncio.run(main())


@pytest.mark.parametrize("shift", [timedelta(hours=-3), timedelta(hours=30)])
def test_a_clock_that_jumps_moves_nobody(tmp_path: Path, shift: timedelta) -> None:
    @virtual
    async def test() -> None:
        here = Place(tmp_path)
        async with here.open():
            await here.says("n1", *LEAVES)
            before = await here.domains()
            here.shift = shift
            await here.says("n2", *LEAVES)
            (domain,) = (await here.domains()).values()
            assert domain.metadata.name in before
            assert members(domain) == {"n1", "n2"}

    test()
