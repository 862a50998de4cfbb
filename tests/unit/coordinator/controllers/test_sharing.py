"""What nodes are told to do, and what becomes of their answers; requests find their nodes or are given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from stoker.objects.checkpoints import CheckpointInfo, CommitRequest, CommittedImage, Operation
from stoker.objects.cluster_clones import Clone
from stoker.objects.cluster_images import NodeImage, PullSecret, PullSecretSpec, SecretAuth, SecretReference
from stoker.objects.cluster_nodes import Node, NodeSpec
from stoker.objects.cluster_requests import (
    Checkpoint,
    CheckpointSpec,
    Commit,
    CommitSpec,
    ContainerRecreateRequest,
    ContainerRecreateRequestSpec,
    NameReference,
    RecreateContainer,
    RecreateEnv,
    RegistryAuth,
)
from stoker.objects.containers import PodInfo, RecreateRequest, RecreateStatus, TargetStatus
from stoker.objects.images import ItemStatus, JobStatus, Progress, WarmRequest
from stoker.objects.inventory import PodInventory
from stoker.objects.link import CheckpointWish, Result, ResultPhase, Wish
from stoker.objects.meta import LabelSelector, Object, ObjectMeta, ObjectReference
from stoker_coordinator.controllers import placing, sharing
from stoker_coordinator.controllers.informer import Informer
from stoker_coordinator.controllers.placing import Placing
from stoker_coordinator.controllers.pods import PodIndex
from stoker_coordinator.controllers.requests import duration
from stoker_coordinator.controllers.sharing import Sharing
from stoker_coordinator.controllers.tags import Order, assign
from stoker_coordinator.nodes.ports import RETURN_SECONDS
from stoker_coordinator.sealing import SealBroken
from tests.unit.coordinator.controllers.scene import START, Scene
from tests.unit.images.virtual import virtual

PASSWORD = "sesame-7381"


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


def read(wish: Wish, kind: type[Any]) -> Any:
    return msgspec.msgpack.decode(wish.spec, type=kind)


class Desk(Scene):
    """Sharing and placing over one store; ``told`` are the nodes that were told that something changed."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.key_lost = False
        self.pods = PodIndex()
        self.sharing: Sharing
        self.placing: Placing

    @asynccontextmanager
    async def open(self, *, just_started: bool = False) -> AsyncIterator[None]:
        """*just_started*: nodes may still be on their way back."""
        kinds: list[type[Object]] = list({*sharing.KINDS, *placing.KINDS})
        informer = Informer(self.store, kinds)
        self.sharing = Sharing(self.store, informer, self._tell, unseal=self._unseal, clock=self.now)
        self.placing = Placing(self.store, informer, self.pods, clock=self.now)
        tasks = [asyncio.create_task(part.run()) for part in (informer, self.sharing, self.placing)]
        try:
            await asyncio.sleep(1 if just_started else RETURN_SECONDS)
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert all(task.cancelled() for task in tasks)

    def _unseal(self, obj: Any) -> Any:
        if self.key_lost and isinstance(obj, ContainerRecreateRequest | Clone):
            raise SealBroken(f"{obj.key}: there is no key that it was sealed with")
        return obj

    def _tell(self, nodes: Sequence[str]) -> None:
        self.told += nodes

    def has_pods(self, node: str, *names: str, **labels: str) -> None:
        pods = [PodInfo(id=name, name=name, phase="Ready", namespace="ns", labels=labels) for name in names]
        self.pods.update(node, PodInventory(pods=pods))
        self.placing.changed()

    async def wishes(self, node: str = "n1") -> list[Wish]:
        await asyncio.sleep(2)
        return list((await self.sharing.share(node)).wishes)


def meta(name: str = "one") -> ObjectMeta:
    return ObjectMeta(name=name, namespace="ns")


async def wanted(desk: Desk, *images: str) -> NodeImage:
    owner = ObjectReference(kind="ImagePullJob", name="job", namespace="ns", uid="u")
    order = Order(owner, images, secrets=(SecretReference("login", "ns"),), priority=5)
    await desk.node("n1")
    return await desk.store.create(assign(NodeImage(metadata=ObjectMeta(name="n1")), order, desk.now()))


def progress(phase: ResultPhase, done: int, reason: str = "") -> msgspec.Raw:
    item = ItemStatus(
        image="x",
        reference="x",
        phase="Pulling",
        reason=reason,
        digest="sha256:1",
        progress=Progress(bytes_total=100, bytes_done=done, percent=float(done)),
    )
    return raw(JobStatus(id="j", state="Active", items=[item]))


@virtual
async def test_images_become_wishes_with_credentials_until_they_are_through() -> None:
    desk = Desk()
    await desk.store.create(
        PullSecret(
            metadata=meta("login"),
            spec=PullSecretSpec(auths=(SecretAuth(registry="reg", username="ana", password=PASSWORD),)),
        )
    )
    async with desk.open():
        await wanted(desk, "reg/a:1", "reg/b@sha256:00")
        first, second = await desk.wishes()
        assert desk.told.count("n1") >= 1
        request = read(first, WarmRequest)
        assert (request.images, request.priority, request.attempts) == (["reg/a:1"], 5, 4)
        assert (request.auths[0].username, request.auths[0].password) == ("ana", PASSWORD)
        assert PASSWORD not in repr(first)
        assert read(second, WarmRequest).images == ["reg/b@sha256:00"]

        def result(phase: ResultPhase, done: int, **more: Any) -> Result:
            return Result(
                uid=first.uid,
                generation=first.generation,
                kind="warm",
                phase=phase,
                detail=progress(phase, done),
                **more,
            )

        await desk.sharing.on_result("n1", result("Running", 40))
        await desk.sharing.on_result("n1", result("Running", 60))
        await asyncio.sleep(1)
        (tag,) = (await desk.store.get(NodeImage, "n1")).status.image_statuses["reg/a"].tags
        assert (tag.phase, tag.progress, tag.bytes_done, tag.bytes_total) == ("Pulling", 60, 60, 100)
        await desk.sharing.on_result("n1", result("Succeeded", 100))
        await desk.sharing.on_result("n1", result("Running", 10))
        status = (await desk.store.get(NodeImage, "n1")).status
        assert (status.succeeded, status.waiting, status.desired) == (1, 1, 2)
        assert status.image_statuses["reg/a"].tags[0].image_id == "sha256:1"
        assert [wish.name for wish in await desk.wishes()] == ["reg/b@sha256:00"]


@virtual
async def test_results_of_another_round_or_of_nobodys_wish_change_nothing() -> None:
    desk = Desk()
    async with desk.open():
        kept = await wanted(desk, "reg/a:1")
        (wish,) = await desk.wishes()
        for uid, generation in (
            (wish.uid, 0),
            ("image/other-uid/reg/a:1", 1),
            (f"image/{kept.metadata.uid}/reg/z:1", 1),
            ("nonsense", 1),
        ):
            phase: ResultPhase = "Succeeded" if generation else "Running"
            await desk.sharing.on_result("n1", Result(uid=uid, generation=generation, kind="warm", phase=phase))
        await asyncio.sleep(1)
        assert (await desk.store.get(NodeImage, "n1")).status.succeeded == 0
        broken = Result(
            uid=wish.uid, generation=1, kind="warm", phase="Failed", detail=raw(["no", "job"]), message="bad"
        )
        await desk.sharing.on_result("n1", broken)
        assert (await desk.store.get(NodeImage, "n1")).status.failed == 1


@virtual
async def test_a_paused_node_and_new_credentials_are_told() -> None:
    desk = Desk()
    async with desk.open():
        await wanted(desk, "reg/a:1")
        await desk.wishes()
        desk.told.clear()
        await desk.store.change(Node, "n1", change=lambda node: replace(node, spec=NodeSpec(paused=True)))
        await desk.wishes()
        assert desk.told == ["n1"]
        assert (await desk.sharing.share("n1")).paused
        await desk.store.create(PullSecret(metadata=meta("login")))
        await desk.wishes()
        assert desk.told == ["n1", "n1"]


async def recreate(desk: Desk, **more: Any) -> ContainerRecreateRequest:
    spec = ContainerRecreateRequestSpec(
        pod_name="web-0",
        containers=(
            RecreateContainer(
                "app", image="reg/a:2", env=(RecreateEnv("TOKEN", PASSWORD), RecreateEnv("OLD", unset=True))
            ),
        ),
        **more,
    )
    return await desk.store.create(ContainerRecreateRequest(metadata=meta(), spec=spec))


@virtual
async def test_a_recreate_request_goes_to_the_node_of_its_pod_and_comes_back_with_its_outcome() -> None:
    desk = Desk()
    async with desk.open():
        await desk.node("n1")
        await desk.node("n2")
        made = await recreate(desk)
        assert await desk.wishes() == []
        desk.has_pods("n1", "web-0")
        desk.has_pods("n2", "web-1")
        (wish,) = await desk.wishes()
        assert await desk.wishes("n2") == []
        request = read(wish, RecreateRequest)
        assert (request.pod, request.namespace, request.containers[0].image) == ("web-0", "ns", "reg/a:2")
        assert [(env.name, env.value) for env in request.containers[0].env] == [("TOKEN", PASSWORD), ("OLD", None)]
        target = TargetStatus(name="app", phase="Succeeded", reason="Recreated", is_killed=True)
        detail = raw(RecreateStatus(id="r", name="r", phase="Completed", containers=[target]))
        liar = Result(uid=wish.uid, generation=wish.generation, kind="recreate", phase="Failed")
        await desk.sharing.on_result("n2", liar)
        await desk.sharing.on_result("n1", replace(liar, phase="Succeeded", detail=detail, message="recreated"))
        status = (await desk.store.get(ContainerRecreateRequest, "one", "ns")).status
        assert (status.phase, status.result, status.node_name) == ("Completed", "Succeeded", "n1")
        assert [(each.name, each.phase, each.is_killed) for each in status.container_recreate_states] == [
            ("app", "Succeeded", True)
        ]
        assert await desk.wishes() == []
        assert made.metadata.uid == wish.uid


@virtual
async def test_a_request_that_cannot_be_opened_any_more_is_neither_broken_off_nor_begun() -> None:
    desk = Desk()
    async with desk.open():
        await desk.node("n1")
        desk.has_pods("n1", "web-0")
        await recreate(desk)
        (wish,) = await desk.wishes()
        desk.key_lost = True
        (kept,) = await desk.wishes()
        assert ((kept.uid, kept.generation, kept.kind), kept.done) == ((wish.uid, wish.generation, wish.kind), True)
        assert kept.spec == Wish(uid="", generation=0, kind="").spec
        desk.key_lost = False
        assert await desk.wishes() == [wish]


@virtual
async def test_checkpoint_and_commit() -> None:
    desk = Desk()
    async with desk.open():
        await desk.node("n1")
        desk.has_pods("n1", "web-0")
        await desk.store.create(
            Checkpoint(
                metadata=meta("cp"),
                spec=CheckpointSpec(pod_name="web-0", containers=(NameReference(name="app"),), keep_running=False),
            )
        )
        (wish,) = await desk.wishes()
        request = read(wish, CheckpointWish).request
        assert not any(name.startswith("stoker.dev/") for name in request.labels)
        assert (request.pod, request.containers, request.stop) == ("ns/web-0", ["app"], True)
        info = CheckpointInfo(id="cp-1", bytes=7, frozen_seconds=0.0123)
        detail = raw(Operation(id="o", kind="Checkpoint", phase="Succeeded", checkpoints=[info]))
        await desk.sharing.on_result(
            "n1", Result(uid=wish.uid, generation=1, kind="checkpoint", phase="Succeeded", detail=detail)
        )
        status = (await desk.store.get(Checkpoint, "cp", "ns")).status
        assert (status.phase, status.checkpoint_id, status.frozen_milliseconds) == ("Succeeded", "cp-1", 12.3)

        auth = SecretAuth(registry="reg", username="u", password="p")
        await desk.store.create(PullSecret(metadata=meta("push"), spec=PullSecretSpec(auths=(auth,))))
        await desk.store.create(
            Commit(
                metadata=meta("cm"),
                spec=CommitSpec(
                    pod_name="web-0",
                    container_name="app",
                    image="reg/new:1",
                    registry_auth=RegistryAuth(secrets=(NameReference(name="push"), NameReference(name="none"))),
                ),
            )
        )
        (wish,) = await desk.wishes()
        asked = read(wish, CommitRequest)
        assert (asked.container, asked.push) == ("ns/web-0/app", True)
        assert [(each.registry, each.username, each.password) for each in asked.auths] == [("reg", "u", "p")]
        detail = raw(
            Operation(id="o", kind="Commit", phase="Succeeded", image=CommittedImage(image="x", digest="sha256:9"))
        )
        await desk.sharing.on_result(
            "n1", Result(uid=wish.uid, generation=1, kind="commit", phase="Succeeded", detail=detail)
        )
        assert (await desk.store.get(Commit, "cm", "ns")).status.digest == "sha256:9"


@virtual
async def test_a_pod_that_nobody_has_and_one_that_several_have() -> None:
    desk = Desk()
    async with desk.open():
        for name in ("n1", "n2"):
            await desk.node(name)
        await recreate(desk)
        await asyncio.sleep(65)
        status = (await desk.store.get(ContainerRecreateRequest, "one", "ns")).status
        assert (status.phase, status.result, status.message) == ("Completed", "Failed", "no node has a pod ns/web-0")
        for name in ("n1", "n2"):
            desk.has_pods(name, "web-0")
        await desk.store.create(Checkpoint(metadata=meta("cp"), spec=CheckpointSpec(pod_name="web-0")))
        await asyncio.sleep(30)
        assert (await desk.store.get(Checkpoint, "cp", "ns")).status.phase == "Pending"
        await desk.node("n1", connected=False)
        await asyncio.sleep(2)
        assert (await desk.store.get(Checkpoint, "cp", "ns")).status.node_name == "n2"


@virtual
async def test_a_node_that_falls_silent_is_waited_for_until_the_deadline_and_a_minute() -> None:
    desk = Desk()
    async with desk.open():
        await desk.node("n1")
        desk.has_pods("n1", "web-0")
        await recreate(desk, active_deadline_seconds=300.0)
        await asyncio.sleep(3)
        await desk.node("n1", connected=False)
        await asyncio.sleep(300)
        assert (await desk.store.get(ContainerRecreateRequest, "one", "ns")).status.phase == "Recreating"
        await asyncio.sleep(70)
        status = (await desk.store.get(ContainerRecreateRequest, "one", "ns")).status
        assert (status.phase, status.result) == ("Completed", "Failed")
        assert "n1 does not answer" in status.message


@virtual
async def test_requests_that_are_over_go_in_time_and_deleted_ones_are_wished_for_no_more() -> None:
    desk = Desk()
    async with desk.open():
        await desk.node("n1")
        desk.has_pods("n1", "web-0")
        await recreate(desk, ttl_seconds_after_finished=10.0)
        (wish,) = await desk.wishes()
        await desk.sharing.on_result("n1", Result(uid=wish.uid, generation=1, kind="recreate", phase="Failed"))
        await asyncio.sleep(13)
        assert await desk.store.find(ContainerRecreateRequest, "one", "ns") is None
        await recreate(desk)
        assert len(await desk.wishes()) == 1
        desk.told.clear()
        await desk.store.delete(ContainerRecreateRequest, "one", "ns")
        assert await desk.wishes() == []
        assert desk.told == ["n1"]


def test_the_pod_index_follows_pods_that_come_go_and_move() -> None:
    index = PodIndex()

    def has(node: str, *names: str, **labels: str) -> bool:
        pods = [PodInfo(id=name, name=name, phase="Ready", namespace="ns", labels=labels) for name in names]
        return index.update(node, PodInventory(pods=pods))

    assert has("n1", "a", "b", app="x")
    assert not has("n1", "a", "b", app="x")
    assert has("n2", "b")
    assert index.nodes_of("ns", "b") == {"n1", "n2"}
    assert index.nodes_with("ns", LabelSelector(match_labels={"app": "x"})) == {"n1"}
    assert index.nodes_with("other", LabelSelector()) == frozenset()
    assert has("n1")
    assert index.nodes_of("ns", "a") == frozenset()
    assert index.nodes_of("ns", "b") == {"n2"}
    assert index.update("n2", None)
    assert index.nodes_of("ns", "b") == frozenset()
    gone = PodInfo(id="c", name="c", phase="NotReady", namespace="ns")
    assert not index.has_told("n3")
    assert index.update("n3", PodInventory(pods=[gone]))  # that it has none is news, once
    assert index.has_told("n3")
    assert not index.update("n3", PodInventory(pods=[gone]))
    index.update("n3", None)
    assert not index.has_told("n3")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1h", 3600),
        ("1h30m", 5400),
        ("90s", 90),
        ("0.5h", 1800),
        ("", None),
        ("soon", None),
        ("1h x", None),
        ("5", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert duration(text) == seconds
    assert START + timedelta(seconds=seconds or 0) >= START
