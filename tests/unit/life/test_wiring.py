"""What the wiring itself adds: the containers room warms images through the images room, and secrets that are kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stoker.objects.images import InlineAuth
from stokerd.errors import Conflict, JournalError, NotFound
from stokerd.wiring import ImageNotWarm, PodNames, Warmer, kept_secret
from tests.unit.containers.house import APP, House
from tests.unit.images.node import MIB, Node, full
from tests.unit.images.virtual import virtual


@virtual
async def test_an_image_is_warm_when_the_wait_is_over(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image("app:1", layers=[MIB])
        await Warmer(node.service, lambda: False).warm(full("app:1"), ())
        assert node.present("app:1")
        (job,) = node.service.jobs()
        assert job.state == "Succeeded"
        await Warmer(node.service, lambda: False).warm(full("app:1"), [InlineAuth(registry="x", username="y")])


@virtual
async def test_why_it_could_not_be_warmed_is_passed_on(tmp_path: Path) -> None:
    async with Node(tmp_path, attempts=1) as node:
        with pytest.raises(ImageNotWarm) as caught:
            await Warmer(node.service, lambda: False).warm(full("missing:1"), ())
        (job,) = node.service.jobs()
        item = node.service.job(job.id).items[0]
        assert (caught.value.reason, caught.value.message) == (item.reason, item.message)
        assert item.phase == "Failed"


@pytest.mark.parametrize("stopping", [False, True])
def test_a_wait_that_is_broken_off_drops_the_image_unless_the_daemon_stops(tmp_path: Path, stopping: bool) -> None:
    @virtual
    async def broken_off() -> None:
        async with Node(tmp_path) as node:
            node.image("app:1", layers=[8 * MIB])
            hold = node.runtime.remote.hold(full("app:1"), "layer:0", after=MIB)
            waiting = asyncio.create_task(Warmer(node.service, lambda: stopping).warm(full("app:1"), ()))
            await hold.reached.wait()
            waiting.cancel()
            await asyncio.wait({waiting})
            assert waiting.cancelled()
            (job,) = node.service.jobs()
            assert job.state == ("Active" if stopping else "Cancelled")
            hold.release()
            await node.quiet()
            assert node.present("app:1") is stopping
            node.check()

    broken_off()


def test_a_secret_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "salt"
    first = kept_secret(path)
    assert len(bytes.fromhex(first)) == 16
    assert path.stat().st_mode & 0o777 == 0o600
    assert kept_secret(path) == first
    assert [entry.name for entry in tmp_path.iterdir()] == ["salt"]
    path.write_text("")  # a machine that lost its power
    (tmp_path / "salt.new").write_text("half")
    second = kept_secret(path)
    assert second != first
    assert kept_secret(path) == second


def test_a_secret_that_cannot_be_kept_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be written"):
        kept_secret(tmp_path / "missing" / "salt")


@virtual
async def test_names_stand_for_containers_that_run(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        pod, other = (house.runtime.add_pod(name, namespace="shop") for name in ("web", "db"))
        app, side = (house.runtime.add_container(pod, name, APP) for name in ("app", "side"))
        lone = house.runtime.add_container(other, "app", APP)
        await house.runtime.containers.stop(side, 0)
        again = house.runtime.add_container(pod, "side", APP, attempt=1)
        names = PodNames(house.service)
        assert [each.id for each in await names.targets("shop/web", (), ())] == [app, again]
        assert [each.shown for each in await names.targets("web", ("side",), ())] == ["shop/web/side"]
        assert [each.id for each in await names.targets("web/app", (), ())] == [app]
        assert [each.id for each in await names.targets(lone[:12], (), ())] == [lone]
        with pytest.raises(NotFound, match="no container 'nope' that runs"):
            await names.targets("web", ("app", "nope"), ())
        with pytest.raises(NotFound):
            await names.targets("nope", ("app",), ())
        with pytest.raises(Conflict):
            await names.targets("app", (), ())
        await house.runtime.containers.stop(lone, 0)
        while (await house.service.pod("shop/db")).info.containers[0].phase == "Running":  # noqa: ASYNC110
            await asyncio.sleep(0)  # the event is on its way
        with pytest.raises(NotFound, match="no container that runs"):
            await names.targets("shop/db", (), ())
        assert [each.id for each in await names.targets("shop/db", (), {lone})] == [lone]
