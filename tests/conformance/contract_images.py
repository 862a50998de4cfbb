"""What CRI and containerd's image records promise: pulling, asking, naming, pinning, removing."""

from __future__ import annotations

import asyncio

import pytest

from stokerd.errors import RuntimeInvalid, RuntimeNotFound
from stokerd.runtime.types import PIN_LABEL, PIN_VALUE
from tests.conformance.subject import Subject, blobs_of, eventually, records_of, snapshots_of

MANAGED = {"io.cri-containerd.image": "managed"}
NO_DIGEST = f"sha256:{'0' * 64}"


class TestPulling:
    async def test_leaves_the_id_and_three_records(self, subject: Subject) -> None:
        made = await subject.make_image("records", [100_000, 50_000])
        runtime = subject.runtime
        assert await runtime.cri.pull(made.reference) == made.id
        records = {record.name: record for record in await runtime.images.list()}
        assert made.names <= set(records)
        for name in made.names:
            assert records[name].target.digest == made.digest
            assert records[name].target.size == len(made.manifest)
            assert records[name].labels == MANAGED
            assert records[name].created_at is not None

    async def test_by_digest_leaves_no_tag(self, subject: Subject) -> None:
        made = await subject.make_image("by-digest")
        assert await subject.runtime.cri.pull(made.by_digest) == made.id
        names = await records_of(subject)
        assert {made.by_digest, made.id} <= names
        assert made.reference not in names
        image = await subject.runtime.cri.status(made.by_digest)
        assert image is not None
        assert (image.repo_tags, image.repo_digests) == ((), (made.by_digest,))

    async def test_out_of_an_index_takes_what_is_for_this_machine(self, subject: Subject) -> None:
        made = await subject.make_image("index", index=True)
        assert made.digest != made.manifest_digest
        assert await subject.runtime.cri.pull(made.reference) == made.id
        record = await subject.runtime.images.get(made.reference)
        assert record is not None
        assert record.target.digest == made.digest
        assert await blobs_of(subject) >= made.blobs
        image = await subject.runtime.cri.status(made.reference)
        assert image is not None
        assert image.repo_digests == (made.by_digest,)

    async def test_does_not_look_at_the_platform_of_a_lone_manifest(self, subject: Subject) -> None:
        made = await subject.make_image("foreign", foreign=True)
        assert await subject.runtime.cri.pull(made.reference) == made.id

    async def test_fetches_shared_layers_once(self, subject: Subject) -> None:
        first = await subject.make_image("base", [100_000], seed="shared")
        second = await subject.make_image("derived", [100_000, 20_000], seed="shared")
        assert first.layers[0] == second.layers[0]
        await subject.runtime.cri.pull(first.reference)
        subject.forget()
        await subject.runtime.cri.pull(second.reference)
        assert subject.fetched(first.layers[0].digest) == 0
        assert subject.fetched(second.layers[1].digest) == second.layers[1].size

    async def test_does_not_fetch_what_is_unpacked(self, subject: Subject) -> None:
        made = await subject.make_image("unpacked", [100_000, 20_000])
        await subject.runtime.cri.pull(made.reference)
        await subject.runtime.content.delete(made.layers[0].digest)
        subject.forget()
        assert await subject.runtime.cri.pull(made.reference) == made.id
        assert subject.fetched(made.layers[0].digest) == 0
        assert made.layers[0].digest not in await blobs_of(subject)

    async def test_of_one_image_twice_at_once_fetches_it_once(self, subject: Subject) -> None:
        made = await subject.make_image("twice", [1_500_000, 50_000])
        barrier = subject.hold(made, 0, 500_000)
        first = asyncio.create_task(subject.runtime.cri.pull(made.reference))
        await barrier.reached()
        second = asyncio.create_task(subject.runtime.cri.pull(made.reference))
        await eventually("the second pull to begin", lambda: _leases(subject, 2))
        barrier.release()
        assert set(await asyncio.gather(first, second)) == {made.id}
        assert [subject.fetched(layer.digest) for layer in made.layers] == [layer.size for layer in made.layers]


async def _leases(subject: Subject, count: int) -> bool:
    return len(await subject.runtime.leases.list()) >= count


class TestAsking:
    async def test_by_tag_digest_and_id(self, subject: Subject) -> None:
        made = await subject.make_image("asked", [100_000, 50_000])
        await subject.runtime.cri.pull(made.reference)
        image = await subject.runtime.cri.status(made.reference)
        assert image is not None
        assert image.id == made.id
        assert image.repo_tags == (made.reference,)
        assert image.repo_digests == (made.by_digest,)
        assert image.size == len(made.manifest) + len(made.config) + sum(layer.size for layer in made.layers)
        assert not image.pinned
        assert await subject.runtime.cri.status(made.by_digest) == image
        assert await subject.runtime.cri.status(made.id) == image
        assert image in await subject.runtime.cri.list()

    async def test_for_what_is_not_there(self, subject: Subject) -> None:
        made = await subject.make_image("elsewhere")
        for name in (made.reference, made.by_digest, made.id, NO_DIGEST):
            assert await subject.runtime.cri.status(name) is None
            assert await subject.runtime.images.get(name) is None

    async def test_with_no_name_is_refused(self, subject: Subject) -> None:
        # CRI takes an empty name for the beginning of every id; with one image on the node it would remove that.
        cri = subject.runtime.cri
        for call in (cri.status, cri.remove, cri.pull):
            with pytest.raises(RuntimeInvalid):
                await call("")

    async def test_where_images_live(self, subject: Subject) -> None:
        made = await subject.make_image("space", [300_000])
        await subject.runtime.cri.pull(made.reference)
        # CRI counts snapshots every ten seconds; until then it tells the state before.
        filesystem = await subject.runtime.cri.fs_info()
        info = subject.runtime.info
        assert filesystem.mountpoint == f"{info.root}/io.containerd.snapshotter.v1.{info.snapshotter}"
        assert filesystem.used_bytes >= 0
        assert filesystem.used_inodes >= 0

    async def test_what_is_in_use(self, subject: Subject) -> None:
        assert await subject.runtime.cri.in_use() == frozenset()


class TestNames:
    async def test_two_tags_are_one_image(self, subject: Subject) -> None:
        one = await subject.make_image("tags", seed="tags")
        two = await subject.make_image("tags", seed="tags", tag="v2")
        assert one.id == two.id
        await subject.runtime.cri.pull(one.reference)
        await subject.runtime.cri.pull(two.reference)

        async def both() -> bool:
            image = await subject.runtime.cri.status(one.reference)
            return image is not None and image.repo_tags == (one.reference, two.reference)

        await eventually("CRI to know both tags", both)
        await subject.runtime.images.delete(two.reference)

        async def single() -> bool:
            image = await subject.runtime.cri.status(one.reference)
            return image is not None and image.repo_tags == (one.reference,)

        await eventually("CRI to forget a tag", single)
        assert await subject.runtime.cri.status(two.reference) is None
        assert await snapshots_of(subject) >= set(one.chain_ids)

    async def test_a_tag_moves(self, subject: Subject) -> None:
        old = await subject.make_image("moving", seed="old")
        await subject.runtime.cri.pull(old.reference)
        new = await subject.make_image("moving", seed="new")
        assert new.reference == old.reference
        assert await subject.runtime.cri.pull(new.reference) == new.id

        async def moved() -> bool:
            image = await subject.runtime.cri.status(new.reference)
            past = await subject.runtime.cri.status(old.id)
            return image is not None and image.id == new.id and past is not None and past.repo_tags == ()

        await eventually("CRI to know where the tag points", moved)
        assert await blobs_of(subject) >= old.blobs | new.blobs


class TestRemoving:
    @pytest.mark.parametrize("by", ["reference", "by_digest", "id"])
    async def test_takes_all_names_and_frees_everything(self, subject: Subject, by: str) -> None:
        made = await subject.make_image("removed", [100_000, 50_000])
        await subject.runtime.cri.pull(made.reference)
        assert await snapshots_of(subject) >= set(made.chain_ids)
        await subject.runtime.cri.remove(getattr(made, by))
        assert made.names.isdisjoint(await records_of(subject))

        async def freed() -> bool:
            subject.nudge()
            blobs, snapshots = await blobs_of(subject), await snapshots_of(subject)
            return made.blobs.isdisjoint(blobs) and snapshots.isdisjoint(made.chain_ids)

        await eventually("content and snapshots to be freed", freed)
        await subject.runtime.cri.remove(getattr(made, by))
        assert await subject.runtime.cri.status(made.reference) is None

    async def test_what_was_never_there(self, subject: Subject) -> None:
        made = await subject.make_image("never")
        for name in (made.reference, made.by_digest, made.id):
            await subject.runtime.cri.remove(name)

    async def test_keeps_what_others_need(self, subject: Subject) -> None:
        base = await subject.make_image("kept-base", [100_000], seed="kept")
        derived = await subject.make_image("kept-derived", [100_000, 20_000], seed="kept")
        await subject.runtime.cri.pull(base.reference)
        await subject.runtime.cri.pull(derived.reference)
        await subject.runtime.cri.remove(derived.reference)

        async def freed() -> bool:
            subject.nudge()
            return derived.layers[1].digest not in await blobs_of(subject)

        await eventually("the layer of its own to be freed", freed)
        assert await blobs_of(subject) >= base.blobs
        assert await snapshots_of(subject) >= set(base.chain_ids)


class TestRecords:
    async def test_set_and_clear_labels(self, subject: Subject) -> None:
        # containerd 1.7 to 2.1 die of an Update whose image has no target, and take all clients' calls with them; so
        # this is also the test that whole records are sent.
        made = await subject.make_image("labels")
        runtime = subject.runtime
        await runtime.cri.pull(made.reference)
        before = await runtime.images.get(made.reference)
        assert before is not None
        record = await runtime.images.set_labels(made.reference, {"stoker.dev/a": "1", "stoker.dev/b": "2"})
        assert record.labels == {**MANAGED, "stoker.dev/a": "1", "stoker.dev/b": "2"}
        assert record == await runtime.images.get(made.reference)
        record = await runtime.images.set_labels(made.reference, {"stoker.dev/a": None, "stoker.dev/none": None})
        assert record.labels == {**MANAGED, "stoker.dev/b": "2"}
        assert record == await runtime.images.get(made.reference)
        assert record.target == before.target
        assert record.created_at == before.created_at
        await runtime.ping()

    async def test_labels_of_what_is_not_there(self, subject: Subject) -> None:
        with pytest.raises(RuntimeNotFound):
            await subject.runtime.images.set_labels("stoker.test/none:v1", {"stoker.dev/a": "1"})

    async def test_the_last_record_deleted_frees_everything(self, subject: Subject) -> None:
        made = await subject.make_image("deleted", [100_000])
        await subject.runtime.cri.pull(made.reference)
        for name in sorted(made.names - {made.id}):
            await subject.runtime.images.delete(name)
        assert await blobs_of(subject) >= made.blobs
        await subject.runtime.images.delete(made.id, sync=True)
        assert made.blobs.isdisjoint(await blobs_of(subject))
        assert (await snapshots_of(subject)).isdisjoint(made.chain_ids)
        await subject.runtime.images.delete(made.id, sync=True)

    async def test_deleted_without_waiting(self, subject: Subject) -> None:
        made = await subject.make_image("deleted-later", [100_000])
        await subject.runtime.cri.pull(made.reference)
        for name in made.names:
            await subject.runtime.images.delete(name, sync=False)
        assert made.names.isdisjoint(await records_of(subject))

        async def freed() -> bool:
            subject.nudge()
            return made.blobs.isdisjoint(await blobs_of(subject))

        await eventually("content to be freed", freed)


class TestPins:
    async def test_any_record_pins_the_image(self, subject: Subject) -> None:
        made = await subject.make_image("pinned")
        await subject.runtime.cri.pull(made.reference)
        for name in sorted(made.names):
            await subject.runtime.images.set_labels(name, {PIN_LABEL: PIN_VALUE})
            await self._becomes(subject, made.reference, pinned=True)
            await subject.runtime.images.set_labels(name, {PIN_LABEL: None})
            await self._becomes(subject, made.reference, pinned=False)

    async def test_pulling_again_clears_the_record_that_is_pulled(self, subject: Subject) -> None:
        """Whoever pulls a tag takes the pin from its record; the records of digest and id keep theirs. All versions."""
        made = await subject.make_image("pinned-again")
        runtime = subject.runtime
        await runtime.cri.pull(made.reference)
        await runtime.images.set_labels(made.reference, {PIN_LABEL: PIN_VALUE, "stoker.dev/a": "1"})
        await self._becomes(subject, made.reference, pinned=True)
        await runtime.cri.pull(made.reference)
        record = await runtime.images.get(made.reference)
        assert record is not None
        assert record.labels == MANAGED
        await self._becomes(subject, made.reference, pinned=False)

        for name in made.names:
            await runtime.images.set_labels(name, {PIN_LABEL: PIN_VALUE})
        await runtime.cri.pull(made.reference)
        pinned = {record.name for record in await runtime.images.list() if record.pinned}
        assert pinned & made.names == {made.by_digest, made.id}
        await self._becomes(subject, made.reference, pinned=True)

    async def _becomes(self, subject: Subject, reference: str, *, pinned: bool) -> None:
        """Wait until CRI says so. containerd 1.6 knows of no pins, and the capability table says that."""
        capability = subject.runtime.info.capability("pin")
        assert capability.available == (subject.generation != "1.6")
        if not capability.available:
            assert subject.runtime.info.version in capability.detail
            image = await subject.runtime.cri.status(reference)
            assert image is not None
            assert not image.pinned
            return

        async def said() -> bool:
            image = await subject.runtime.cri.status(reference)
            return image is not None and image.pinned == pinned

        await eventually(f"CRI to say pinned={pinned}", said)
