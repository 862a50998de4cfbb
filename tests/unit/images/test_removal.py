from __future__ import annotations

from pathlib import Path

import pytest

from stoker.objects.images import KeepRequest, PinRequest
from stokerd.errors import Conflict, NotFound
from tests.unit.images.node import HOST, MIB, Node, full
from tests.unit.images.virtual import virtual


@virtual
async def test_an_image_goes_with_all_its_names_and_its_space(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        image = node.image(layers=[3 * MIB])
        await node.warmed("app:v1")
        result = await node.service.remove(full("app:v1"))
        assert set(result.removed) == {full("app:v1"), image.by_digest}
        assert result.freed_bytes >= 6 * MIB
        assert not node.runtime.store.records
        assert not node.runtime.store.blobs
        with pytest.raises(NotFound):
            await node.service.remove(full("app:v1"))


@virtual
async def test_of_an_image_with_several_tags_only_the_name_goes(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        for tag in ("v1", "v2"):
            node.image(f"app:{tag}", seed="same")
            await node.warmed(f"app:{tag}")
        result = await node.service.remove(full("app:v1"))
        assert (result.removed, result.freed_bytes) == ([full("app:v1")], 0)
        assert node.present("app:v2")


@pytest.mark.parametrize("how", ["tag", "digest", "tag and digest"])
@pytest.mark.parametrize("by", ["tag", "digest"])
@pytest.mark.parametrize("what", ["pinned", "kept"])
def test_a_pin_or_keep_under_any_name_protects_the_image(tmp_path: Path, how: str, by: str, what: str) -> None:
    @virtual
    async def protected() -> None:
        async with Node(tmp_path) as node:
            image = node.image()
            names = {
                "tag": full("app:v1"),
                "digest": image.by_digest,
                "tag and digest": f"{full('app:v1')}@{image.digest}",
            }
            await node.warmed("app:v1")
            if what == "pinned":
                await node.service.pin(PinRequest(image=names[how]))
            else:
                await node.service.keep(KeepRequest(image=names[how]))
            with pytest.raises(Conflict, match=what) as caught:
                await node.service.remove(names[by])
            assert names[how] in (caught.value.hint or "")
            assert node.present()
            await node.service.remove(names[by], force=True)
            assert not node.runtime.store.records
            assert (await node.service.pins()).pins == []
            assert await node.service.keeps() == []

    protected()


@virtual
async def test_a_pin_on_another_name_does_not_keep_this_one(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        for tag in ("v1", "v2"):
            node.image(f"app:{tag}", seed="same")
            await node.warmed(f"app:{tag}")
        await node.service.pin(PinRequest(image=full("app:v2")))
        assert (await node.service.remove(full("app:v1"))).removed == [full("app:v1")]
        (pin,) = (await node.service.pins()).pins
        assert pin.verified
        with pytest.raises(Conflict):
            await node.service.remove(full("app:v2"))


@pytest.mark.parametrize("used", ["id", "tag", "digest"])
def test_the_image_of_a_container_is_left_alone(tmp_path: Path, used: str) -> None:
    @virtual
    async def left() -> None:
        async with Node(tmp_path) as node:
            image = node.image()
            await node.warmed("app:v1")
            node.runtime.used.add({"id": image.id, "tag": full("app:v1"), "digest": image.by_digest}[used])
            with pytest.raises(Conflict, match="container"):
                await node.service.remove(full("app:v1"))
            await node.service.remove(full("app:v1"), force=True)
            assert not node.present()

    left()


@virtual
async def test_what_is_removed_is_not_kept_or_pinned_behind_the_scenes(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        image = node.image()
        await node.warmed("app:v1", pin_seconds=0)
        await node.service.keep(KeepRequest(image=image.by_digest))
        await node.service.remove(f"{HOST}/app:v1", force=True)
        await node.quiet()
        await node.stop()
        await node.start()
        assert not node.present()
        assert node.service._tender.kept == {}
        assert node.service._tender.pinned == {}
