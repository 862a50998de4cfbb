"""Checkpoints that are pushed, clones of what is pulled: a coordinator wishes, and stokerd is killed in between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from stoker.objects.checkpoints import CheckpointInfo, CheckpointRequest, CloneRequest, Operation
from stoker.objects.images import InlineAuth
from stoker.objects.link import CheckpointWish, CloneWish, Result, Wish
from stokerd.errors import RuntimeUnavailable, StokerError
from stokerd.uplink import staged
from stokerd.uplink.staged import COPY, WISH_LABEL, copy_name
from tests.unit.coordinator.nodes.bench import Bench, Ear, serving
from tests.unit.uplink.fakes import FakeNode
from tests.unit.uplink.test_service import eventually, uplink, warm

PASSWORD = "sesame-7381"
AUTH = InlineAuth(registry="reg", username="ana", password=PASSWORD)
PUSHED = "reg/saved:1@sha256:" + "1" * 64


class Denied(StokerError):
    reason = "Unauthorized"


def wish(kind: Any, spec: Any, uid: str = "u1", **more: Any) -> Wish:
    return Wish(uid=uid, generation=1, kind=kind, spec=msgspec.Raw(msgspec.msgpack.encode(spec)), **more)


def checkpoint(destination: str = "reg/saved:1", *containers: str) -> Wish:
    request = CheckpointRequest(pod="ns/web-0", name="saved", containers=list(containers))
    return wish("checkpoint", CheckpointWish(request=request, destination=destination, auths=[AUTH]))


def clone(uid: str = "u1", here: str = "", reference: str = PUSHED, count: int = 2) -> Wish:
    request = CloneRequest(checkpoint=here, count=count)
    return wish("clone", CloneWish(request=request, reference=reference, trust=True, auths=[AUTH]), uid)


def last(bench: Bench, phase: str) -> Result | None:
    return next((each for _, each in bench.ear.results if each.phase == phase), None)


async def result(bench: Bench, phase: str = "Succeeded") -> tuple[Result, Operation]:
    await bench.ear.until(lambda: last(bench, phase))
    found = last(bench, phase)
    assert found is not None
    return found, msgspec.msgpack.decode(found.detail, type=Operation)


async def test_a_checkpoint_is_made_then_pushed(tmp_path: Path) -> None:
    node, ear = FakeNode(), Ear()
    ear.wishes["n1"] = [checkpoint()]
    async with serving(tmp_path / "c", ear=ear) as bench, uplink(tmp_path, node, coordinator=bench.nodes.ports.plain):
        _, told = await result(bench)
        assert told.pushed is not None
        assert (told.checkpoints[0].id, told.pushed.digest) == ("cp-app", "sha256:cp-app")
        push = node.checkpoints.requests[1]
        assert (push.to, push.auths[0].password) == ("reg/saved:1", PASSWORD)


async def test_a_push_that_fails_is_told_and_the_checkpoint_stays(tmp_path: Path) -> None:
    node, ear = FakeNode(), Ear()
    node.checkpoints.held = {"Push"}
    ear.wishes["n1"] = [checkpoint()]
    async with serving(tmp_path / "c", ear=ear) as bench, uplink(tmp_path, node, coordinator=bench.nodes.ports.plain):
        await eventually(lambda: node.checkpoints.of("Push"))
        node.checkpoints.end(
            node.checkpoints.of("Push")[0], phase="Failed", reason="Unauthorized", message="no", pushed=None
        )
        told, operation = await result(bench, "Failed")
        assert told.reason == "Unauthorized"
        assert "cp-app is made and stays" in told.message
        assert (operation.checkpoints[0].id, operation.pushed) == ("cp-app", None)
        assert "cp-app" in node.checkpoints.kept


async def test_what_cannot_be_pushed_as_one_is_said(tmp_path: Path) -> None:
    node, ear = FakeNode(), Ear()
    ear.wishes["n1"] = [checkpoint("reg/saved:1", "app", "side")]
    async with serving(tmp_path / "c", ear=ear) as bench, uplink(tmp_path, node, coordinator=bench.nodes.ports.plain):
        told, _ = await result(bench, "Failed")
        assert told.reason == "SeveralContainers"


async def test_a_stokerd_killed_before_the_push_and_in_it_pushes_later(tmp_path: Path) -> None:
    node, ear = FakeNode(), Ear()
    node.checkpoints.held = {"Checkpoint", "Push"}
    ear.wishes["n1"] = [checkpoint()]
    async with serving(tmp_path / "c", ear=ear) as bench:
        where = bench.nodes.ports.plain
        async with uplink(tmp_path, node, coordinator=where):
            await eventually(lambda: node.checkpoints.done)
        node.checkpoints.end(node.checkpoints.done[0], phase="Succeeded")
        async with uplink(tmp_path, node, coordinator=where):
            await eventually(lambda: node.checkpoints.of("Push"))
        node.checkpoints.end(node.checkpoints.of("Push")[0], phase="Failed", reason="Interrupted")
        async with uplink(tmp_path, node, coordinator=where):
            await eventually(lambda: len(node.checkpoints.of("Push")) == 2)
            node.checkpoints.end(node.checkpoints.of("Push")[1], phase="Succeeded")
            await result(bench)
        assert [each.request for each in node.checkpoints.of("Push")] == ["u1.push-1", "u1.push-2"]
        assert len(node.checkpoints.of("Checkpoint")) == 1


async def test_clones_of_what_is_here_need_no_registry(tmp_path: Path) -> None:
    node, ear = FakeNode(), Ear()
    node.checkpoints.kept["cp-1"] = CheckpointInfo(id="cp-1")
    ear.wishes["n1"] = [clone(here="cp-1")]
    async with serving(tmp_path / "c", ear=ear) as bench, uplink(tmp_path, node, coordinator=bench.nodes.ports.plain):
        _, told = await result(bench)
        assert (told.kind, len(told.clones)) == ("Clone", 2)
        assert not node.checkpoints.of("Pull")
        assert {each.labels[WISH_LABEL] for each in node.checkpoints.running.values()} == {"u1"}


async def test_clones_are_pulled_once_and_go_with_their_wishes_and_the_copy_with_the_last(tmp_path: Path) -> None:
    node, ear = FakeNode(), Ear()
    ear.wishes["n1"] = [clone("u1")]
    async with serving(tmp_path / "c", ear=ear) as bench, uplink(tmp_path, node, coordinator=bench.nodes.ports.plain):
        await result(bench)
        (pull,) = [each for each in node.checkpoints.requests if hasattr(each, "trust")]
        assert (pull.reference, pull.trust, pull.auths[0].password) == (PUSHED, True, PASSWORD)
        ear.wishes["n1"] = [clone("u1"), clone("u2", count=1)]
        bench.nodes.desired_changed(["n1"])
        await eventually(lambda: len(node.checkpoints.running) == 3)
        await ear.until(lambda: sum(each.phase == "Succeeded" for _, each in ear.results) >= 2)
        assert len(node.checkpoints.of("Pull")) == 1
        # What is over stays while it is wished for, and is not made again.
        ear.wishes["n1"] = [Wish(uid="u1", generation=1, kind="clone", done=True), clone("u2", count=1)]
        bench.nodes.desired_changed(["n1"])
        ear.wishes["n1"] = ear.wishes["n1"][1:]
        bench.nodes.desired_changed(["n1"])
        await eventually(lambda: len(node.checkpoints.running) == 1)
        assert len(node.checkpoints.kept) == 1
        ear.wishes["n1"] = []
        bench.nodes.desired_changed(["n1"])
        await eventually(lambda: not node.checkpoints.running and not node.checkpoints.kept)
        assert len(node.checkpoints.of("Clone")) == 2


async def test_what_went_while_the_node_was_away_or_could_not_be_removed_is_removed_later(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("stokerd.uplink.wishes._RETRY_FIRST", 0.02)
    node, ear = FakeNode(), Ear()
    ear.wishes["n1"] = [clone()]
    async with serving(tmp_path / "c", ear=ear) as bench:
        where = bench.nodes.ports.plain
        async with uplink(tmp_path, node, coordinator=where):
            await result(bench)
        async with uplink(tmp_path, node, coordinator=where) as service:
            await eventually(lambda: service.standing.link.connected)
            assert len(node.checkpoints.of("Clone")) == 1
        ear.wishes["n1"] = []
        node.checkpoints.away = RuntimeUnavailable("containerd is away")
        async with uplink(tmp_path, node, coordinator=where) as service:
            await eventually(lambda: service.standing.link.connected)
            assert len(node.checkpoints.running) == 2
            node.checkpoints.away = None
            await eventually(lambda: not node.checkpoints.running)


async def test_a_node_whose_journal_was_lost_removes_what_it_made_before(tmp_path: Path) -> None:
    node, ear = FakeNode(), Ear()
    ear.wishes["n1"] = [clone()]
    async with serving(tmp_path / "c", ear=ear) as bench:
        where = bench.nodes.ports.plain
        async with uplink(tmp_path / "before", node, coordinator=where):
            await result(bench)
        node.checkpoints.done.clear()
        ear.wishes["n1"] = [Wish(uid="u1", generation=1, kind="clone", done=True), warm("u2", "a")]
        async with uplink(tmp_path / "after", node, coordinator=where):
            await eventually(lambda: node.images.by_id)
            ear.wishes["n1"] = []
            assert len(node.checkpoints.running) == 2
            bench.nodes.desired_changed(["n1"])
            await eventually(lambda: not node.checkpoints.running)
        assert not node.checkpoints.done


async def test_interrupted_clones_are_made_anew_without_one_too_many(tmp_path: Path) -> None:
    node, ear = FakeNode(), Ear()
    node.checkpoints.held = {"Pull", "Clone"}
    ear.wishes["n1"] = [clone()]
    async with serving(tmp_path / "c", ear=ear) as bench:
        where = bench.nodes.ports.plain
        async with uplink(tmp_path, node, coordinator=where):
            await eventually(lambda: node.checkpoints.of("Pull"))
        node.checkpoints.kept.clear()
        node.checkpoints.end(node.checkpoints.of("Pull")[0], phase="Failed", reason="Interrupted")
        async with uplink(tmp_path, node, coordinator=where):
            await eventually(lambda: len(node.checkpoints.of("Pull")) == 2)
            node.checkpoints.end(node.checkpoints.of("Pull")[1], phase="Succeeded")
            await eventually(lambda: node.checkpoints.of("Clone"))
        node.checkpoints.running.pop("clone-1")
        node.checkpoints.end(node.checkpoints.of("Clone")[0], phase="Failed", reason="Interrupted")
        node.checkpoints.held = set()
        async with uplink(tmp_path, node, coordinator=where):
            await result(bench)
        assert len(node.checkpoints.running) == 2
        assert [each.request for each in node.checkpoints.of("Clone")] == ["u1.clone-1", "u1.clone-2"]


async def test_clones_of_which_it_is_known_late_that_they_were_interrupted(tmp_path: Path) -> None:
    """A stokerd that was killed looks at what is there first, while the coordinator says its wishes already."""
    node, ear = FakeNode(), Ear()
    node.checkpoints.held = {"Clone"}
    ear.wishes["n1"] = [clone(here="cp-on-the-other-node")]
    async with serving(tmp_path / "c", ear=ear) as bench:
        where = bench.nodes.ports.plain
        async with uplink(tmp_path, node, coordinator=where):
            await eventually(lambda: node.checkpoints.of("Clone"))
        followed = node.checkpoints.followed
        async with uplink(tmp_path, node, coordinator=where):
            await eventually(lambda: node.checkpoints.followed > followed)
            node.checkpoints.held = set()
            node.checkpoints.end(node.checkpoints.of("Clone")[0], phase="Failed", reason="Interrupted")
            await result(bench)
        copies = {each.checkpoint for each in node.checkpoints.running.values()}
        assert copies == set(node.checkpoints.kept)
        assert len(node.checkpoints.running) == 2


async def test_a_wish_that_goes_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    node, ear = FakeNode(), Ear()
    node.checkpoints.held = {"Pull"}
    ear.wishes["n1"] = [clone()]
    async with serving(tmp_path / "c", ear=ear) as bench, uplink(tmp_path, node, coordinator=bench.nodes.ports.plain):
        await eventually(lambda: node.checkpoints.of("Pull"))
        ear.wishes["n1"] = []
        bench.nodes.desired_changed(["n1"])
        await ear.until(lambda: last(bench, "Cancelled"))
        await eventually(lambda: not node.checkpoints.kept)
        assert not node.checkpoints.of("Clone")


async def test_a_refusal_that_may_pass_is_waited_out_and_another_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(staged, "_RETRY_FIRST", 0.02)
    node, ear = FakeNode(), Ear()
    node.checkpoints.refuses = [RuntimeUnavailable("containerd is away"), Denied("not yours", hint="log in")]
    ear.wishes["n1"] = [clone()]
    async with serving(tmp_path / "c", ear=ear) as bench, uplink(tmp_path, node, coordinator=bench.nodes.ports.plain):
        told, _ = await result(bench, "Failed")
        assert (told.reason, told.message, told.hint) == ("Unauthorized", "not yours", "log in")
        await asyncio.sleep(0)
        assert not node.checkpoints.requests


def test_only_what_is_surely_the_same_is_pulled_once() -> None:
    def name(uid: str, **more: Any) -> str:
        return copy_name(uid, CloneWish(request=CloneRequest(checkpoint=""), **more))

    assert name("u1", reference=PUSHED, trust=True) == name("u2", reference=PUSHED, trust=True)
    assert name("u1", reference=PUSHED, trust=True) != name("u1", reference=PUSHED, like="a/b/c")
    assert name("u1", reference="reg/a:1", trust=True) != name("u2", reference="reg/a:1", trust=True)
    assert name("u1", reference=PUSHED).startswith(COPY)
    assert "/" not in name("u1", reference=PUSHED)
