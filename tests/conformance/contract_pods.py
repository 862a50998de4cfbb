"""Pod sandboxes, and what is told of them and of their containers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial

import pytest

from stokerd.errors import RuntimeAlreadyExists, RuntimeInvalid, RuntimeUnavailable, RuntimeUnsupported
from stokerd.runtime.pod_types import ContainerEvent, PodBlueprint
from tests.conformance.pods import MadePod, make_pod, pod_status_of, state_of
from tests.conformance.subject import FAILS, Subject, eventually

_SYSCTLS = {"net.ipv4.ip_unprivileged_port_start": "80", "net.ipv4.ping_group_range": "0 2147483647"}
"""Both, since containerd 2.1 adds the one that is missing to the configuration that it keeps."""


class TestPods:
    async def test_run_and_are_listed(self, subject: Subject) -> None:
        made = await make_pod(subject, labels={"app": "web"}, annotations={"stoker.dev/note": "x"})
        (listed,) = await subject.runtime.pods.list()
        about = made.blueprint.config["metadata"]
        assert (listed.id, listed.name, listed.namespace, listed.uid, listed.attempt) == (
            made.id,
            "web",
            "conformance",
            about["uid"],
            0,
        )
        assert (listed.labels, listed.annotations) == ({"app": "web"}, {"stoker.dev/note": "x"})
        assert (listed.state, listed.runtime_handler) == ("ready", "")
        assert listed.created_at is not None

    async def test_tell_of_themselves(self, subject: Subject) -> None:
        made = await make_pod(subject, labels={"app": "web"})
        status = await pod_status_of(subject, made.id)
        assert (status.pod,) == await subject.runtime.pods.list()
        assert status.pid > 0
        assert len(status.ips) == 1
        assert "/" in status.netns
        assert status.blueprint.config == made.blueprint.config

    async def test_are_made_again_from_what_they_tell(self, subject: Subject) -> None:
        made = await make_pod(
            subject,
            dns_config={"servers": ["192.0.2.1"], "searches": ["test"], "options": ["ndots:2"]},
            labels={"app": "web"},
            linux={"sysctls": _SYSCTLS, "security_context": {}},
        )
        blueprint = (await pod_status_of(subject, made.id)).blueprint
        assert blueprint.config == made.blueprint.config
        await subject.runtime.pods.remove(made.id)
        again = await subject.runtime.pods.run(blueprint)
        assert (await pod_status_of(subject, again)).blueprint.config == made.blueprint.config

    async def test_of_one_name_and_attempt_are_there_once(self, subject: Subject) -> None:
        made = await make_pod(subject)
        with pytest.raises(RuntimeAlreadyExists):
            await subject.runtime.pods.run(made.blueprint)
        about = {**made.blueprint.config["metadata"], "attempt": 1}
        second = await subject.runtime.pods.run(PodBlueprint({**made.blueprint.config, "metadata": about}))
        assert sorted(pod.attempt for pod in await subject.runtime.pods.list()) == [0, 1]
        assert second != made.id

    async def test_stop_with_what_runs_in_them(self, subject: Subject) -> None:
        made = await make_pod(subject)
        runs, waits = await made.run("runs"), await made.create("waits")
        await subject.runtime.pods.stop(made.id)
        await subject.runtime.pods.stop(made.id)
        status = await pod_status_of(subject, made.id)
        assert (status.pod.state, status.pid, status.ips, status.netns) == ("notready", 0, (), "")
        assert (await state_of(subject, runs), await state_of(subject, waits)) == ("exited", "created")
        with pytest.raises(RuntimeInvalid):
            await subject.runtime.containers.start(waits)

    async def test_are_removed_with_what_is_in_them(self, subject: Subject) -> None:
        made, other = await make_pod(subject), await make_pod(subject, "other")
        for name in ("one", "two"):
            await made.run(name)
        stays = await other.run()
        await subject.runtime.pods.remove(made.id)
        await subject.runtime.pods.remove(made.id)
        await subject.runtime.pods.stop(made.id)
        assert await subject.runtime.pods.status(made.id) is None
        assert [pod.id for pod in await subject.runtime.pods.list()] == [other.id]
        assert [each.id for each in await subject.runtime.containers.list()] == [stays]

    async def test_that_are_named_by_nothing(self, subject: Subject) -> None:
        pods = subject.runtime.pods
        await make_pod(subject)
        assert await pods.status("feed") is None
        await pods.stop("feed")
        await pods.remove("feed")
        for call in (pods.status, pods.stop, pods.remove):
            with pytest.raises(RuntimeInvalid):
                await call("")
        assert len(await pods.list()) == 1

    async def test_with_fields_that_nobody_knows(self, subject: Subject) -> None:
        made = await make_pod(subject)
        config = {**made.blueprint.config, "linux": {"chains": {"count": 2}}}
        with pytest.raises(RuntimeUnsupported, match=r"linux\.chains"):
            await subject.runtime.pods.run(PodBlueprint(config))
        with pytest.raises(RuntimeInvalid, match="no name"):
            await subject.runtime.pods.run(PodBlueprint({}))


class _Listener:
    """Collects events, and asks at each of them whether it is so."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.seen: list[ContainerEvent] = []
        self.wrong: list[tuple[ContainerEvent, object]] = []
        self.task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async with aclosing(self._subject.runtime.events.containers()) as events:
            async for event in events:
                shown = await self._shown(event.id)
                if not _agrees(event, shown):
                    self.wrong.append((event, shown))
                self.seen.append(event)

    async def _shown(self, identity: str) -> str:
        container = await self._subject.runtime.containers.status(identity)
        if container is not None:
            return container.container.state
        pod = await self._subject.runtime.pods.status(identity)
        return pod.pod.state if pod is not None else "gone"

    async def has(self, kind: str, identity: str) -> bool:
        return any((event.kind, event.id) == (kind, identity) for event in self.seen)

    def of(self, identity: str) -> list[str]:
        return [event.kind for event in self.seen if event.id == identity]


def _agrees(event: ContainerEvent, shown: str) -> bool:
    """Whether what is shown is what the event tells, or what has become of it since."""
    later = {"started": {"running", "ready"}, "stopped": {"exited", "notready"}, "deleted": {"gone"}}
    order = ("created", "started", "stopped", "deleted")
    since = order[order.index(event.kind) :]
    return event.kind == "created" or any(shown in later[kind] for kind in since)


@asynccontextmanager
async def _listening(pod: MadePod, count: int = 1) -> AsyncIterator[list[_Listener]]:
    """Subscribe; a stream says nothing when it begins, so containers come and go until each listener has heard it."""
    listeners = [_Listener(pod.subject) for _ in range(count)]

    async def heard() -> bool:
        await pod.subject.runtime.containers.remove(await pod.create("knock"))
        return all(listener.seen for listener in listeners)

    try:
        await eventually("the subscriptions to begin", heard)
        yield listeners
    finally:
        for listener in listeners:
            listener.task.cancel()
        await asyncio.gather(*(listener.task for listener in listeners), return_exceptions=True)


async def _life(listener: _Listener, one: str) -> list[str]:
    """Return what was told of one that has ended and is removed; the last two by their names, since containerd tells
    them in any order."""
    for kind in ("stopped", "deleted"):
        await eventually(f"{one} to be {kind}", partial(listener.has, kind, one))
    told = listener.of(one)
    return [*told[:2], *sorted(told[2:])]


class TestPodEvents:
    async def test_tell_the_life_of_a_container(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        async with _listening(pod, count=2) as listeners:
            made = await pod.run()
            await subject.runtime.containers.stop(made, 5)
            await subject.runtime.containers.remove(made)
            for listener in listeners:
                assert await _life(listener, made) == ["created", "started", "deleted", "stopped"]
                assert {event.pod_id for event in listener.seen if event.id == made} <= {pod.id, ""}
                assert not listener.wrong

    async def test_tell_of_many_lives_at_once(self, subject: Subject) -> None:
        pod = await make_pod(subject)

        async def live(name: str) -> str:
            made = await pod.run(name)
            await subject.runtime.containers.remove(made)
            return made

        async with _listening(pod) as (listener,):
            made = await asyncio.gather(*(live(f"c{number}") for number in range(8)))
            for each in made:
                assert await _life(listener, each) == ["created", "started", "deleted", "stopped"]
            assert not listener.wrong

    async def test_tell_of_what_ends_by_itself(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        async with _listening(pod) as (listener,):
            made = await pod.run(program=FAILS)
            await eventually("the end", partial(listener.has, "stopped", made))
            assert await state_of(subject, made) == "exited"
            assert not listener.wrong

    async def test_tell_of_sandboxes(self, subject: Subject) -> None:
        async with _listening(await make_pod(subject)) as (listener,):
            other = await make_pod(subject, "other")
            await eventually("the sandbox", partial(listener.has, "started", other.id))
            await other.run()
            await subject.runtime.pods.remove(other.id)
            assert await _life(listener, other.id) == ["created", "started", "deleted", "stopped"]
            assert not listener.wrong

    async def test_say_nothing_of_commands(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        made = await pod.run()
        async with _listening(pod) as (listener,):
            await subject.runtime.containers.exec(made, ["true"], timeout=5)
            after = await pod.run("after")
            await eventually("what comes after", partial(listener.has, "started", after))
            assert not await listener.has("stopped", made)

    async def test_end_when_the_runtime_does(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        async with _listening(pod) as (listener,):
            await subject.crash()
            with pytest.raises(RuntimeUnavailable):
                await asyncio.wait_for(listener.task, 20)
        await subject.restart()
        await subject.runtime.wait_ready()
        async with _listening(pod) as (listener,):
            assert listener.seen
