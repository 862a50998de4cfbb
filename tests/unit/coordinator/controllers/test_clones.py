"""Checkpoints that are pushed, and clones: which node makes them of what, how long they are wished for."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from stoker.objects.checkpoints import CheckpointInfo, CloneInfo, Operation, OperationKind, PushedTo
from stoker.objects.cluster_clones import Clone, CloneEnv, CloneSpec
from stoker.objects.cluster_images import NodeSelector, PullSecret, PullSecretSpec, SecretAuth
from stoker.objects.cluster_nodes import Node, NodeCapability, NodeSpec, NodeStatus
from stoker.objects.cluster_requests import Checkpoint, CheckpointSpec, CheckpointStatus, NameReference, RegistryAuth
from stoker.objects.link import CheckpointWish, CloneWish, Result, ResultPhase, Wish
from stoker.objects.meta import ObjectMeta
from stoker_coordinator.controllers import cloning
from tests.unit.coordinator.controllers.scene import START
from tests.unit.coordinator.controllers.test_sharing import PASSWORD, Desk, meta, raw, read
from tests.unit.images.virtual import virtual

DIGEST = "sha256:" + "1" * 64
PUSHED = f"reg/saved:1@{DIGEST}"
LOGIN = RegistryAuth(secrets=(NameReference(name="login"),))


def result(wish: Wish, phase: ResultPhase, kind: OperationKind, **operation: Any) -> Result:
    detail = raw(Operation(id="o", kind=kind, phase="Succeeded", **operation))
    return Result(uid=wish.uid, generation=wish.generation, kind=wish.kind, phase=phase, detail=detail)


def made(home: str = "n1", reference: str = "", identity: str = "cp-1") -> Checkpoint:
    status = CheckpointStatus(
        phase="Succeeded", checkpoint_id=identity, node_name=home, reference=reference, completion_time=START
    )
    return Checkpoint(metadata=meta("saved"), spec=CheckpointSpec(pod_name="web-0"), status=status)


async def have_login(desk: Desk) -> None:
    auth = SecretAuth(registry="reg", username="ana", password=PASSWORD)
    await desk.store.create(PullSecret(metadata=meta("login"), spec=PullSecretSpec(auths=(auth,))))


async def status_of(desk: Desk, name: str = "copies") -> Any:
    await asyncio.sleep(2)
    return (await desk.store.get(Clone, name, "ns")).status


async def clones(desk: Desk, **spec: Any) -> Clone:
    wanted = {"checkpoint": "saved", **spec}
    return await desk.store.create(Clone(metadata=meta("copies"), spec=CloneSpec(**wanted)))


@virtual
async def test_a_destination_goes_with_the_wish_and_what_was_pushed_comes_back() -> None:
    desk = Desk()
    await have_login(desk)
    async with desk.open():
        await desk.node("n1")
        desk.has_pods("n1", "web-0")
        spec = CheckpointSpec(pod_name="web-0", destination="reg/saved:1", registry_auth=LOGIN)
        await desk.store.create(Checkpoint(metadata=meta("saved"), spec=spec))
        (wish,) = await desk.wishes()
        asked = read(wish, CheckpointWish)
        assert (asked.destination, asked.auths[0].password) == ("reg/saved:1", PASSWORD)
        assert PASSWORD not in repr(wish) + repr(asked)
        info, pushed = CheckpointInfo(id="cp-1", bytes=7), PushedTo(reference="reg/saved:1", digest=DIGEST)
        await desk.sharing.on_result("n1", result(wish, "Succeeded", "Checkpoint", checkpoints=[info], pushed=pushed))
        status = (await desk.store.get(Checkpoint, "saved", "ns")).status
        assert (status.phase, status.checkpoint_id, status.reference) == ("Succeeded", "cp-1", PUSHED)


@virtual
async def test_a_push_that_failed_leaves_a_checkpoint_that_its_own_node_can_clone() -> None:
    desk = Desk()
    async with desk.open():
        await desk.node("n1")
        desk.has_pods("n1", "web-0")
        spec = CheckpointSpec(pod_name="web-0", destination="reg/saved:1")
        await desk.store.create(Checkpoint(metadata=meta("saved"), spec=spec))
        (wish,) = await desk.wishes()
        failed = result(wish, "Failed", "Checkpoint", checkpoints=[CheckpointInfo(id="cp-1")])
        await desk.sharing.on_result("n1", replace(failed, reason="Unauthorized", message="it stays"))
        status = (await desk.store.get(Checkpoint, "saved", "ns")).status
        assert (status.phase, status.reason, status.checkpoint_id) == ("Failed", "Unauthorized", "cp-1")
        await clones(desk)
        (wish,) = await desk.wishes()
        assert (wish.kind, read(wish, CloneWish).request.checkpoint) == ("clone", "cp-1")


@virtual
async def test_clones_wait_for_their_checkpoint_and_are_wished_for_until_their_object_goes() -> None:
    desk = Desk()
    await have_login(desk)
    async with desk.open():
        for name in ("n1", "n2"):
            await desk.node(name)
        await desk.store.create(Checkpoint(metadata=meta("saved"), spec=CheckpointSpec(pod_name="web-0")))
        desk.has_pods("n1", "web-0")
        await clones(
            desk, count=2, node_name="n2", trust=True, env=(CloneEnv(name="T", value=PASSWORD),), registry_auth=LOGIN
        )
        status = await status_of(desk)
        assert (status.phase, status.message) == ("Pending", "waits for Checkpoint ns/saved")
        (wish,) = await desk.wishes()
        info, pushed = CheckpointInfo(id="cp-1"), PushedTo(reference="reg/saved:1", digest=DIGEST)
        await desk.sharing.on_result("n1", result(wish, "Succeeded", "Checkpoint", checkpoints=[info], pushed=pushed))
        (wish,) = await desk.wishes("n2")
        asked = read(wish, CloneWish)
        assert (asked.reference, asked.trust, asked.request.count) == (PUSHED, True, 2)
        assert [(each.name, each.value) for each in asked.request.env] == [("T", PASSWORD)]
        assert asked.auths[0].password == PASSWORD
        assert PASSWORD not in repr(asked)
        pulling = result(wish, "Running", "Pull", done_bytes=30, total_bytes=120)
        await desk.sharing.on_result("n2", pulling)
        assert (await status_of(desk)).message == "pulling the checkpoint, 25 %"
        there = [
            CloneInfo(id=f"clone-{n}", checkpoint="cp-2", phase="Running", addresses=[f"10.0.0.{n}"]) for n in (1, 2)
        ]
        desk.told.clear()
        await desk.sharing.on_result("n2", result(wish, "Succeeded", "Clone", clones=there))
        status = await status_of(desk)
        assert (status.phase, status.ready, status.clones[1].addresses) == ("Succeeded", 2, ("10.0.0.2",))
        assert desk.told == ["n2"]
        # It is over, and still wished for, without secrets.
        (wish,) = await desk.wishes("n2")
        assert (wish.done, bytes(wish.spec)) == (True, b"\xc0")
        await desk.store.delete(Clone, "copies", "ns")
        assert await desk.wishes("n2") == []
        assert desk.told == ["n2", "n2"]


@virtual
async def test_clones_of_which_none_could_be_made_are_wished_for_no_more() -> None:
    desk = Desk()
    async with desk.open():
        await desk.node("n1")
        await desk.store.create(made())
        await clones(desk, count=3)
        (wish,) = await desk.wishes()
        await desk.sharing.on_result("n1", replace(result(wish, "Failed", "Clone"), message="no CRIU"))
        assert await desk.wishes() == []
        status = await status_of(desk)
        assert (status.phase, status.message, status.ready) == ("Failed", "no CRIU", 0)


@virtual
async def test_some_of_several_that_run_are_kept_until_the_object_goes() -> None:
    desk = Desk()
    async with desk.open():
        await desk.node("n1")
        await desk.store.create(made())
        await clones(desk, count=3)
        (wish,) = await desk.wishes()
        one = [CloneInfo(id="clone-1", checkpoint="cp-1", phase="Running")]
        await desk.sharing.on_result("n1", result(wish, "Failed", "Clone", clones=one))
        assert [each.done for each in await desk.wishes()] == [True]
        assert (await status_of(desk)).ready == 1


@virtual
async def test_clones_that_no_node_answers_for_are_given_up_and_undone_when_it_is_back() -> None:
    desk = Desk()
    async with desk.open():
        await desk.node("n1")
        await desk.store.create(made())
        await clones(desk)
        assert len(await desk.wishes()) == 1
        await desk.node("n1", connected=False)
        await asyncio.sleep(70)
        assert (await status_of(desk)).reason == "NodeSilent"
        assert await desk.wishes() == []


@virtual
async def test_clones_whose_secrets_cannot_be_opened_are_kept_by_the_node_that_has_them() -> None:
    desk = Desk()
    async with desk.open():
        await desk.node("n1")
        await desk.store.create(made())
        await clones(desk)
        (wish,) = await desk.wishes()
        desk.key_lost = True
        assert await desk.wishes() == []  # a node that has none yet would take them for made
        await desk.sharing.on_result("n1", result(wish, "Running", "Clone"))
        (kept,) = await desk.wishes()
        assert (kept.uid, kept.generation, kept.kind, kept.done) == (wish.uid, wish.generation, "clone", True)


@virtual
async def test_what_cannot_be_is_told() -> None:
    desk = Desk()
    async with desk.open():
        for name in ("n1", "n2"):
            await desk.node(name)
        await clones(desk)
        assert (await status_of(desk)).message == "there is no Checkpoint ns/saved"
        await asyncio.sleep(65)
        assert (await status_of(desk)).reason == "CheckpointNotFound"


def node(name: str, *, connected: bool = True, paused: bool = False, able: bool = True, **labels: str) -> Node:
    can = (NodeCapability(name="clone", available=able),)
    status = NodeStatus(connected=connected, capabilities=can)
    return Node(metadata=ObjectMeta(name=name, labels=labels), spec=NodeSpec(paused=paused), status=status)


NODES = (node("n1"), node("n2", zone="b"), node("n3", zone="b"), node("n4", connected=False, zone="b"))
ZONE = NodeSelector(match_labels={"zone": "b"})


@pytest.mark.parametrize(
    ("spec", "found", "load", "expected"),
    [
        ({}, made(), {}, "n1"),
        ({}, made("gone"), {}, "gone"),
        ({"node_name": "n2", "trust": True}, made(reference=PUSHED), {}, "n2"),
        ({"node_name": "n4", "like": "a/b/c"}, made(reference=PUSHED), {}, "n4"),
        ({"node_name": "n1"}, made(reference=PUSHED), {}, "n1"),
        ({"node_name": "n9"}, made(reference=PUSHED), {}, "NodeNotFound"),
        ({"node_name": "n2", "trust": True}, made(), {}, "NotPushed"),
        ({"node_name": "n2"}, made(reference=PUSHED), {}, "NotTrusted"),
        ({"selector": ZONE, "trust": True}, made(reference=PUSHED), {}, "n2"),
        ({"selector": ZONE, "trust": True}, made(reference=PUSHED), {"n2": 2, "n3": 1}, "n3"),
        ({"selector": ZONE}, made("n3"), {"n3": 9}, "n3"),
        ({"selector": NodeSelector(names=("n4",))}, made(), {}, "NodeNotFound"),
        ({"selector": ZONE}, made(identity=""), {}, "CheckpointFailed"),
    ],
)
def test_which_node(spec: dict[str, Any], found: Checkpoint, load: dict[str, int], expected: str) -> None:
    clone = Clone(metadata=meta("copies"), spec=CloneSpec(checkpoint="saved", **spec))
    place = cloning.place(clone, found, NODES, load)
    assert (place.node or place.reason) == expected
    assert bool(place.node) != bool(place.message)


def test_a_reference_goes_to_a_node_that_can_and_takes_work() -> None:
    clone = Clone(metadata=meta("copies"), spec=CloneSpec(reference=PUSHED, trust=True))
    nodes = (node("a", able=False), node("b", paused=True), node("c"), node("d", connected=False))
    assert cloning.place(clone, None, nodes, {"c": 5}).node == "c"
    assert cloning.place(clone, None, nodes[:1], {}).node == "a"
    assert cloning.place(clone, None, nodes[1:2], {}).reason == "NodeNotFound"


def test_secrets_are_in_no_repr() -> None:
    variable = CloneEnv(name="T", value=PASSWORD)
    assert PASSWORD not in repr(Clone(metadata=meta(), spec=CloneSpec(checkpoint="a", env=(variable,))))
    assert PASSWORD in msgspec.json.encode(variable).decode()
