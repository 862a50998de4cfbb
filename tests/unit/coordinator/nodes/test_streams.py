"""What nodes say over a real stream, and what they are told."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from stoker import link_documents as documents
from stoker.objects.cluster_nodes import Node
from stoker.objects.images import ImageStatus
from stoker.objects.inventory import ImageInventory
from stoker.objects.link import (
    MAX_MESSAGE,
    About,
    Ack,
    Delta,
    Desired,
    Heartbeat,
    Hello,
    Notice,
    Probe,
    Refused,
    Result,
    ResultKey,
    Results,
    Resync,
    Welcome,
    Wish,
)
from stoker.objects.topology import TopologyReport
from tests.unit.coordinator.nodes.bench import Ear, FakeNode, Hand, object_of, serving

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def images(*names: str) -> ImageInventory:
    return ImageInventory(images=[ImageStatus(id=name, size=len(name)) for name in names])


def condition(node: Node, kind: str) -> tuple[str, str]:
    return next((each.status, each.reason) for each in node.status.conditions if each.type == kind)


async def test_a_node_comes_and_its_object_says_what_it_is(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        async with bench.node(
            "gpu-1", runtime="containerd 2.1.4", capabilities={"criu": "", "lazy": "no kernel"}
        ) as node:
            assert node.welcome.protocol == 1
            shown = await object_of(bench, "gpu-1", lambda each: each.status.connected)
            assert (shown.status.runtime_name, shown.status.runtime_version) == ("containerd", "2.1.4")
            assert [(each.name, each.available) for each in shown.status.capabilities] == [
                ("criu", True),
                ("lazy", False),
            ]
            assert condition(shown, "Ready") == ("True", "Connected")
            await node.say(About(runtime="containerd 2.1.9", capabilities={"criu": "", "lazy": ""}))
            shown = await object_of(bench, "gpu-1", lambda each: each.status.runtime_version == "2.1.9")
            assert [each.available for each in shown.status.capabilities] == [True, True]
            await node.say(Heartbeat(ready=False, problem="containerd does not answer"))
            shown = await object_of(bench, "gpu-1", lambda each: condition(each, "Ready")[0] == "False")
            assert shown.status.connected
        shown = await object_of(bench, "gpu-1", lambda each: not each.status.connected)
        assert shown.status.last_seen is not None


async def test_documents_come_whole_then_as_deltas_and_a_gap_is_repaired(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench, bench.node() as node:
        before = documents.read(await node.say_full("images", images("a", "b")))
        after = documents.plain(images("a", "c"))
        change = documents.compare(before, after)
        body = documents.pack(documents.canonical(change))
        base, digest = documents.digest_of(documents.canonical(before)), documents.digest_of(documents.canonical(after))
        delta = Delta(document="images", sequence=2, base=base, digest=digest, body=body)
        await node.say(delta)
        await node.say(delta)  # twice is once
        await bench.ear.until(lambda: len(bench.ear.contents) == 2)
        assert bench.ear.contents[1] == ("n1", images("a", "c"))
        assert bench.nodes.content("n1", "images") == images("a", "c")
        await node.say(Delta(document="images", sequence=9, base="of another state", digest="x", body=body))
        assert (await node.hear_a(Resync)).document == "images"
        await node.say_full("images", images("d"), sequence=10)
        await bench.ear.until(lambda: len(bench.ear.contents) == 3)
        shown = await object_of(bench, "n1", lambda each: each.status.images == 1)
        assert shown.status.pods == 0


async def test_who_comes_back_need_not_send_what_is_known(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        async with bench.node() as node:
            assert node.welcome.known == []
            text = await node.say_full("images", images("a"))
            await bench.ear.until(lambda: bench.ear.contents)
        async with bench.node() as node:
            assert [(each.document, each.digest) for each in node.welcome.known] == [
                ("images", documents.digest_of(text))
            ]
            # Sequences begin anew with the stream.
            await node.say_full("images", images("b"), sequence=1)
            await bench.ear.until(lambda: len(bench.ear.contents) == 2)


@pytest.mark.parametrize(
    ("document", "content", "reason"),
    [
        ("topology", TopologyReport(version=1, node="somebody-else", since=NOW), "WrongName"),
        ("images", b'{"images": [{"id": 7}]}', "UnreadableDocument"),
        ("images", b"{not json", "UnreadableDocument"),
        ("images", b'{"images": ' + b"[" * 100_000, "UnreadableDocument"),
        ("images", b'{"x": "' + b"a" * (3 << 20) + b'"}', "UnreadableDocument"),
    ],
    ids=["name", "type", "syntax", "depth", "bomb"],
)
async def test_lies_are_counted_and_told_and_change_nothing(
    tmp_path: Path, document: Any, content: Any, reason: str
) -> None:
    async with serving(tmp_path) as bench, bench.node() as node:
        await node.say_full(document, content)
        assert (await node.hear_a(Notice)).reason == reason
        assert bench.count("stoker_link_bad_messages_total", reason=reason) == 1
        assert bench.nodes.content("n1", document) is None
        await node.say_full("images", images("a"))
        await bench.ear.until(lambda: bench.ear.contents == [("n1", images("a"))])


async def test_control_characters_are_shown_by_their_numbers(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench, bench.node() as node:
        await node.say_full("images", images("\x1b[31mred\u202e"))
        await bench.ear.until(lambda: bench.ear.contents)
        assert bench.ear.contents[0][1].images[0].id == "\\x1b[31mred\\u202e"  # type: ignore[union-attr,index]
        # Deltas build on what was sent, not on what is shown.
        change = documents.pack(documents.canonical(documents.Change(put={"images": [{"id": "x"}]})))
        text = documents.canonical(documents.plain(images("\x1b[31mred\u202e")))
        after = documents.apply(documents.read(text), documents.read_change(change))
        await node.say(
            Delta(
                document="images",
                sequence=2,
                base=documents.digest_of(text),
                digest=documents.digest_of(documents.canonical(after)),
                body=change,
            )
        )
        await bench.ear.until(lambda: len(bench.ear.contents) == 2)


async def _say_too_much(node: FakeNode) -> None:
    await node.say(b"x" * (MAX_MESSAGE + 1))
    await node.hear_a(Refused)


async def test_a_message_that_is_too_large_costs_the_stream_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench, bench.node("liar") as liar, bench.node("honest") as honest:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _say_too_much(liar)
        # INTERNAL is what gRPC says of its own accord where the end overtakes the message.
        assert caught.value.code() in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL}
        await honest.say_full("images", images("a"))
        await bench.ear.until(lambda: bench.ear.contents)
        assert bench.nodes.connected == 1


async def test_a_stream_of_rubbish_is_ended_with_a_reason(tmp_path: Path) -> None:
    async with serving(tmp_path, messages_per_second=1000.0) as bench, bench.node() as node:
        for _ in range(100):
            await node.say(b"\xc1rubbish")
        refused = await node.hear_a(Refused)
        assert refused.reason == "Invalid"
        await node.call.done_writing()
        assert await node.hear() is None
        await bench.ear.until(lambda: not bench.ear.presences[-1][1].connected)


async def test_newer_nodes_are_understood_as_far_as_they_can_be(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        async with bench.node(protocol=9, least_protocol=1) as node:
            assert node.welcome.protocol == 1
            await node.say(msgspec.msgpack.encode({"t": "sandbox", "what": 1}))
            await node.say(msgspec.msgpack.encode({"t": "beat", "ready": False, "mood": "good"}))
            await bench.ear.until(lambda: not bench.ear.presences[-1][1].ready)
            assert bench.count("stoker_link_messages_total", type="unknown") == 1
        async with bench.node(protocol=9, least_protocol=7) as node:
            assert isinstance(node.first, Refused)
            assert node.first.reason == "ProtocolVersion"
        async with bench.node(protocol=0, least_protocol=0) as node:
            assert isinstance(node.first, Refused)
            assert "bring stokerd" in node.first.hint


@pytest.mark.parametrize("name", ["", "Big", "a b", "../etc", "a" * 300, "-a", "a\x00"])
async def test_names_that_are_none_are_refused(tmp_path: Path, name: str) -> None:
    async with serving(tmp_path) as bench, bench.node(name) as node:
        assert isinstance(node.first, Refused)
        assert node.first.reason == "WrongName"


async def test_the_node_is_told_what_to_do_and_only_when_it_is_something_else(tmp_path: Path) -> None:
    ear = Ear()
    ear.wishes["n1"] = [Wish(uid="u1", generation=1, kind="warm", name="one")]
    async with serving(tmp_path, ear=ear) as bench:
        async with bench.node(generation=41) as node:
            first = await node.hear_a(Desired)
            assert (first.generation, first.wishes) == (42, ear.wishes["n1"])
            bench.nodes.desired_changed(["n1"])  # nothing else: nothing said
            ear.wishes["n1"] = []
            bench.nodes.desired_changed(["n1", "unknown"])
            second = await node.hear_a(Desired)
            assert (second.generation, list(second.wishes)) == (43, [])
        async with bench.node(generation=43) as node:
            # A new stream is always told, whatever the last one heard.
            assert (await node.hear_a(Desired)).generation == 44


async def test_results_are_acknowledged_when_they_are_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench, bench.node() as node:
        over = Result(uid="u1", generation=2, kind="warm", phase="Succeeded")
        bench.ear.fails = True
        await node.say(Results(results=[over]))
        await node.say(Heartbeat(ready=False))
        await bench.ear.until(lambda: not bench.ear.presences[-1][1].ready)
        bench.ear.fails = False
        await node.say(Results(results=[over, Result(uid="u2", generation=1, kind="warm", phase="Running")]))
        assert (await node.hear_a(Ack)).results == [ResultKey("u1", 2)]
        assert [each.uid for _, each in bench.ear.results] == ["u1", "u2"]


async def test_stokerd_started_anew_takes_over_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench, bench.node(instance="run-1") as old, bench.node(instance="run-2") as new:
        assert isinstance(new.first, Welcome)
        assert (await old.hear_a(Refused)).reason == "Replaced"
        await new.say_full("images", images("a"))
        await bench.ear.until(lambda: bench.ear.contents)
        assert bench.nodes.connected == 1


async def test_a_rebooted_node_takes_over_when_the_old_stream_is_dead(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("stoker_coordinator.nodes.streams._PROBE_SECONDS", 0.2)
    async with (
        serving(tmp_path) as bench,
        bench.node(boot_id="before"),
        bench.node(boot_id="after", instance="run-2") as new,
    ):
        assert isinstance(new.first, Welcome)


async def test_two_machines_with_one_name_are_told_and_do_not_take_turns(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench, bench.node(machine_id="first", boot_id="a", instance="i1") as first:

        async def answer() -> Notice:
            probe = await first.hear_a(Probe)
            await first.say(Heartbeat(nonce=probe.nonce))
            return await first.hear_a(Notice)

        answering = asyncio.create_task(answer())
        async with bench.node(machine_id="second", boot_id="b", instance="i2") as second:
            assert isinstance(second.first, Refused)
            assert second.first.reason == "ClonedIdentity"
            assert second.first.retry_seconds >= 60
        assert (await answering).reason == "ClonedIdentity"
        shown = await object_of(
            bench, "n1", lambda each: any(c.type == "IdentityConflict" for c in each.status.conditions)
        )
        assert condition(shown, "IdentityConflict") == ("True", "ClonedIdentity")
        await first.say_full("images", images("a"))
        await bench.ear.until(lambda: bench.ear.contents)


async def test_a_snapshot_of_a_virtual_machine_that_flaps_is_found_out(tmp_path: Path) -> None:
    """The copy has the same boot id; that the replaced one comes back gives it away."""
    async with serving(tmp_path) as bench, bench.node(instance="i1"), bench.node(instance="i2") as second:
        assert isinstance(second.first, Welcome)
        async with bench.node(instance="i1") as again:
            assert isinstance(again.first, Refused)
            assert again.first.reason == "ClonedIdentity"
        assert (await second.hear_a(Notice)).reason == "ClonedIdentity"


async def test_a_silent_node_is_not_ready_and_is_cut_off_later(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("stoker_coordinator.nodes.service._LOOK_EVERY", 0.05)
    clock = Hand()
    async with (
        serving(tmp_path, clock=clock, silent_after=35.0, dropped_after=120.0) as bench,
        bench.node() as node,
    ):
        clock.now += 36
        await bench.ear.until(lambda: bench.ear.presences[-1][1].reason == "Silent")
        assert bench.nodes.connected == 1
        await node.say(Heartbeat())
        await bench.ear.until(lambda: bench.ear.presences[-1][1].ready)
        clock.now += 121
        await bench.ear.until(lambda: not bench.ear.presences[-1][1].connected)
        with pytest.raises(grpc.aio.AioRpcError, match="cut off"):
            await node.hear_a(Refused)
        shown = await object_of(bench, "n1", lambda each: condition(each, "Ready")[1] == "Silent")
        assert condition(shown, "Ready")[0] in {"False", "Unknown"}


async def test_nodes_that_do_not_come_back_after_a_restart_are_missed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("stoker_coordinator.nodes.service._LOOK_EVERY", 0.05)
    async with serving(tmp_path) as bench:
        async with bench.node("left") as left:
            await left.say_full("images", images("a", "b"))
            await object_of(bench, "left", lambda each: each.status.images == 2)
        before = await object_of(bench, "left", lambda each: not each.status.connected)
        async with bench.node("stays"), bench.node("goes"):
            await object_of(bench, "goes", lambda each: each.status.connected)
            await object_of(bench, "stays", lambda each: each.status.connected)
            store = bench.store
    clock = Hand()
    async with (
        serving(tmp_path, store=store, clock=clock, silent_after=35.0) as bench,
        bench.node("stays") as stays,
    ):
        clock.now += 20
        await bench.beat("stays", stays)
        clock.now += 20
        shown = await object_of(bench, "goes", lambda each: condition(each, "Ready")[0] == "Unknown")
        assert not shown.status.connected
        # What was known of one that was away before stays, and so does when it was seen last.
        after = await object_of(bench, "left", lambda each: condition(each, "Ready")[1] == "Silent")
        assert (after.status.images, after.status.last_seen) == (2, before.status.last_seen)
        assert bench.nodes.state("stays").presence.ready


async def test_a_flood_is_read_slowly_and_others_do_not_notice(tmp_path: Path) -> None:
    async with serving(tmp_path, messages_per_second=5.0) as bench, bench.node("flood") as flood:

        async def pour() -> None:
            while True:
                await flood.say(Heartbeat())

        pouring = asyncio.create_task(pour())
        async with bench.node("calm") as calm:
            for number in range(10):
                await calm.say_full("images", images(str(number)))
            await bench.ear.until(lambda: len(bench.ear.contents) == 10)
        # 20 seconds' share may come at once, then five each second.
        assert bench.count("stoker_link_messages_total", type="beat") < 200
        pouring.cancel()


async def test_a_stream_that_says_nothing_or_nonsense_is_no_node(tmp_path: Path, monkeypatch: Any) -> None:
    async with serving(tmp_path) as bench:
        async with grpc.aio.insecure_channel(bench.nodes.ports.plain, options=FakeNode.OPTIONS) as channel:
            with monkeypatch.context() as quick:
                quick.setattr("stoker_coordinator.nodes.streams._HELLO_SECONDS", 0.2)
                assert isinstance(await FakeNode(channel).hear(), Refused)
            rude = FakeNode(channel)
            await rude.say(b"\xc1")
            assert isinstance(await rude.hear(), Refused)
            impatient = FakeNode(channel)
            await impatient.say(Heartbeat())
            refused = await impatient.hear()
            assert isinstance(refused, Refused)
            assert refused.reason == "Invalid"
            twice = await FakeNode(channel).greet("n1")
            await twice.say(Hello(node="n2"))
            await twice.say_full("images", images("a"))
            await bench.ear.until(lambda: bench.ear.contents == [("n1", images("a"))])
        assert len(list(bench.nodes.names())) == 1


async def test_the_end_of_the_coordinator_ends_streams(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        context = bench.node()
        await context.__aenter__()
    await context.__aexit__(None, None, None)


async def test_a_stream_that_is_cancelled_is_a_node_that_is_away(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench, bench.node() as node:
        await bench.ear.until(lambda: bench.ear.presences)
        node.call.cancel()
        await bench.ear.until(lambda: not bench.ear.presences[-1][1].connected)
        assert bench.nodes.connected == 0
        bench.nodes.desired_changed(["n1"])
        async with bench.node() as again:
            assert isinstance(again.first, Welcome)


async def test_a_node_that_does_not_read_loses_its_stream_and_nothing_piles_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as bench, bench.node() as deaf, bench.node("other") as other:
        await other.hear_a(Desired)
        with monkeypatch.context() as quick:
            quick.setattr("stoker_coordinator.nodes.telling._WRITE_SECONDS", 0.3)
            for number in range(200):
                spec = msgspec.Raw(msgspec.msgpack.encode("x" * (1 << 20)))
                bench.ear.wishes["n1"] = [Wish(uid=f"u{number}", generation=1, kind="warm", spec=spec)]
                bench.nodes.desired_changed(["n1"])
                await asyncio.sleep(0)
            await bench.ear.until(lambda: ("n1", False) in {(name, one.connected) for name, one in bench.ear.presences})
        assert bench.count("stoker_link_refused_total", reason="SlowReader") == 1
        # What it would have read is far less than what was wished for meanwhile.
        told = 0
        with contextlib.suppress(grpc.aio.AioRpcError):
            while (message := await deaf.hear()) is not None:
                told += isinstance(message, Desired)
        assert told < 50
        bench.ear.wishes["other"] = [Wish(uid="u", generation=1, kind="warm")]
        bench.nodes.desired_changed(["other"])
        while not (await other.hear_a(Desired)).wishes:
            pass
