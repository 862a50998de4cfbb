"""What `[fabric]` says beside files of links: trees of labels, NVLink domains, and hosts that are no nodes."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec.structs import replace

from stoker.objects.cluster_nodes import Node
from stoker.objects.meta import ObjectMeta
from stoker_coordinator.controllers.fabric_settings import FabricSettings
from tests.unit.coordinator.controllers.test_fabrics import Place, members
from tests.unit.images.virtual import virtual


def place(directory: Path, settings: FabricSettings) -> Place:
    made = Place(directory)
    made.settings = settings
    return made


async def label(here: Place, name: str, **labels: str) -> None:
    """Give a node these labels, as an object that nobody may have heard of yet."""
    wanted = {f"example.com/{key}": value for key, value in labels.items()}
    if await here.store.find(Node, name) is None:
        await here.store.create(Node(metadata=ObjectMeta(name=name, labels=wanted)))
    else:
        await here.store.change(
            Node, name, change=lambda node: replace(node, metadata=replace(node.metadata, labels=wanted))
        )


@virtual
async def test_labels_of_nodes_are_a_tree(tmp_path: Path) -> None:
    """Labels count that a node has before it is heard of, those that it gets, and those that it had before a start."""
    here = place(tmp_path, FabricSettings(labels=("Rooms: example.com/room, example.com/rack",)))
    async with here.open():
        for name, rack in (("n1", "r1"), ("n2", "r1"), ("n3", "r2")):
            await label(here, name, room="a", rack=rack)
            await here.says(name)
        racks = await here.domains()
        assert {name: members(each) for name, each in racks.items()} == {
            "rooms-a-r1": {"n1", "n2"},
            "rooms-a-r2": {"n3"},
        }
        await label(here, "n2", room="a", rack="r2")
        assert members((await here.domains())["rooms-a-r2"]) == {"n2", "n3"}
    async with here.open():
        assert members((await here.domains())["rooms-a-r2"]) == {"n2", "n3"}


@virtual
async def test_nvlink_domains_of_a_file(tmp_path: Path) -> None:
    source = tmp_path / "nmx.json"
    domain = "3b1f0f2e-77aa-4c1e-9d0c-000000000001"
    source.write_text(json.dumps([{"ID": f"{n}", "Name": f"n{n}", "DomainUUID": domain} for n in (1, 2)]))
    here = place(tmp_path, FabricSettings(nmx=source))
    async with here.open() as fabrics:
        await here.says("n1")
        await here.says("n2")
        (found,) = (await here.domains()).values()
        assert (found.status.fabric, members(found)) == ("nvlink", {"n1", "n2"})
        assert [(each.name, each.state) for each in fabrics.sources.states] == [("nmx", "ok")]


@virtual
async def test_hosts_that_only_a_source_knows_are_members_if_that_is_wanted(tmp_path: Path) -> None:
    source = tmp_path / "topology.conf"
    source.write_text("SwitchName=s1 Nodes=n[1-3]\n")
    for wanted, expected in ((False, {"n1"}), (True, {"n1", "n2", "n3"})):
        directory = tmp_path / str(wanted)
        here = place(directory, FabricSettings(slurm=source, strangers=wanted))
        async with here.open():
            await here.says("n1")
            (found,) = (await here.domains()).values()
            assert members(found) == expected
            await here.node("n2")  # now it is a node, and says nothing yet
            (found,) = (await here.domains()).values()
            assert members(found) == expected
