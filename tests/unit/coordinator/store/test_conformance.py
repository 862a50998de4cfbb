"""What every store does: objects in and out, versions, finalizers, pages."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from stoker.objects.cluster_images import ImagePullJob, PullJobStatus
from stoker.objects.cluster_nodes import Node
from stoker.objects.meta import ObjectMeta
from stoker_coordinator.errors import AlreadyExists, Conflict, Expired, Invalid, NotFound, StoreClosed, TooLarge
from stoker_coordinator.objects.selectors import parse_labels
from tests.unit.coordinator.store.conftest import AnyStore
from tests.unit.coordinator.store.things import job, node, with_image, with_meta


async def test_an_object_comes_back_as_it_was_given(store: AnyStore) -> None:
    made = await store.create(job("a", labels={"app": "x"}))

    assert made.metadata.uid
    assert made.metadata.creation_timestamp
    assert made.generation == 1
    assert made.revision == store.revision
    assert await store.get(ImagePullJob, "a", "default") == made
    assert (await store.list(ImagePullJob)).items == (made,)


async def test_a_name_is_taken_once_in_a_namespace(store: AnyStore) -> None:
    await store.create(job("a"))
    await store.create(job("a", namespace="other"))

    with pytest.raises(AlreadyExists, match="ImagePullJob default/a"):
        await store.create(job("a"))


async def test_a_generated_name_is_free(store: AnyStore) -> None:
    made = [await store.create(job("", generate_name="warm-")) for _ in range(20)]

    assert len({each.metadata.name for each in made}) == 20
    assert all(each.metadata.name.startswith("warm-") for each in made)


async def test_an_object_needs_a_name(store: AnyStore) -> None:
    with pytest.raises(Invalid, match=r"metadata\.name is missing"):
        await store.create(job(""))


async def test_what_is_not_there_is_named(store: AnyStore) -> None:
    with pytest.raises(NotFound, match="there is no ImagePullJob default/a"):
        await store.get(ImagePullJob, "a", "default")
    assert await store.find(ImagePullJob, "a", "default") is None
    with pytest.raises(NotFound):
        await store.update(job("a"))
    with pytest.raises(NotFound):
        await store.patch(ImagePullJob, "a", "default", patch={})
    with pytest.raises(NotFound):
        await store.delete(ImagePullJob, "a", "default")


async def test_a_changed_spec_is_another_generation_and_a_changed_label_is_not(store: AnyStore) -> None:
    made = await store.create(job("a"))

    labelled = await store.update(with_meta(made, labels={"a": "b"}))
    imaged = await store.update(with_image(labelled, "other"))

    assert [each.generation for each in (made, labelled, imaged)] == [1, 1, 2]
    assert imaged.metadata.labels == {"a": "b"}
    assert made.revision < labelled.revision < imaged.revision


async def test_who_changes_an_old_object_is_refused(store: AnyStore) -> None:
    made = await store.create(job("a"))
    await store.update(with_image(made, "first"))

    with pytest.raises(Conflict, match="has changed"):
        await store.update(with_image(made, "second"))
    await store.update(with_meta(with_image(made, "second"), resource_version=""))

    assert (await store.get(ImagePullJob, "a", "default")).spec.image == "second"


async def test_another_object_of_the_same_name_is_not_meant(store: AnyStore) -> None:
    first = await store.create(job("a"))
    await store.delete(ImagePullJob, "a", "default")
    await store.create(job("a"))

    with pytest.raises(Conflict, match="another object"):
        await store.update(with_meta(first, resource_version=""))
    with pytest.raises(Conflict, match="another object"):
        await store.delete(ImagePullJob, "a", "default", uid=first.metadata.uid)
    with pytest.raises(Conflict, match="has changed"):
        await store.delete(ImagePullJob, "a", "default", revision=first.revision)


async def test_a_status_and_a_spec_leave_each_other_alone(store: AnyStore) -> None:
    made = await store.create(job("a"))
    both = replace(with_image(made, "new"), status=PullJobStatus(succeeded=3))

    status_only = await store.update(both, status=True)
    assert (status_only.spec.image, status_only.status.succeeded) == (made.spec.image, 3)
    assert status_only.generation == 1

    spec_only = await store.update(replace(with_image(status_only, "new"), status=PullJobStatus()))
    assert (spec_only.spec.image, spec_only.status.succeeded) == ("new", 3)


async def test_what_changes_nothing_writes_nothing(store: AnyStore) -> None:
    made = await store.create(job("a", labels={"a": "b"}))

    assert await store.update(made) == made
    assert await store.update(made, status=True) == made
    assert await store.patch(ImagePullJob, "a", "default", patch={"metadata": {"labels": {"a": "b"}}}) == made
    assert store.revision == made.revision


async def test_what_the_store_gives_cannot_be_set(store: AnyStore) -> None:
    made = await store.create(job("a", uid="mine", generation=7))
    changed = await store.update(with_meta(made, generation=9, creation_timestamp=None, labels={"a": "b"}))

    assert made.metadata.uid != "mine"
    assert (made.generation, changed.generation) == (1, 1)
    assert changed.metadata.creation_timestamp == made.metadata.creation_timestamp
    with pytest.raises(Invalid, match="resourceVersion"):
        await store.create(job("b", resource_version="5"))


async def test_a_patch_merges(store: AnyStore) -> None:
    await store.create(job("a", labels={"keep": "1", "drop": "1"}))

    patch = {"metadata": {"labels": {"drop": None, "add": "2"}}, "spec": {"parallelism": "10%"}}
    patched = await store.patch(ImagePullJob, "a", "default", patch=patch)

    assert patched.metadata.labels == {"keep": "1", "add": "2"}
    assert patched.spec.parallelism == "10%"
    assert patched.generation == 2
    status = await store.patch(ImagePullJob, "a", "default", patch={"status": {"failed": 1}, "spec": None}, status=True)
    assert (status.status.failed, status.spec) == (1, patched.spec)


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        ({"spec": {"image": 5}}, r"\$\.spec\.image"),
        ({"spec": None}, "spec"),
        ({"metadata": {"name": "b"}}, "name"),
        ({"kind": "Node"}, "kind"),
    ],
)
async def test_a_patch_that_makes_no_object_is_refused(store: AnyStore, patch: dict[str, object], says: str) -> None:
    made = await store.create(job("a"))

    with pytest.raises(Invalid, match=says):
        await store.patch(ImagePullJob, "a", "default", patch=patch)
    assert await store.get(ImagePullJob, "a", "default") == made


async def test_a_patch_with_a_version_has_a_condition(store: AnyStore) -> None:
    made = await store.create(job("a"))
    await store.update(with_image(made, "new"))

    patch = {"metadata": {"resourceVersion": made.metadata.resource_version, "labels": {"a": "b"}}}
    with pytest.raises(Conflict):
        await store.patch(ImagePullJob, "a", "default", patch=patch)


async def test_a_hundred_patches_at_once_all_count(store: AnyStore) -> None:
    await store.create(job("a"))

    async with asyncio.TaskGroup() as group:
        for number in range(100):
            patch = {"metadata": {"labels": {f"n{number}": "1"}}}
            group.create_task(store.patch(ImagePullJob, "a", "default", patch=patch))

    assert len((await store.get(ImagePullJob, "a", "default")).metadata.labels) == 100


async def test_a_hundred_updates_of_one_version_count_once(store: AnyStore) -> None:
    made = await store.create(job("a"))

    updates = [store.update(with_image(made, f"image-{number}")) for number in range(100)]
    results = await asyncio.gather(*updates, return_exceptions=True)

    assert sum(isinstance(result, ImagePullJob) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 99


async def test_a_change_sees_what_is_there(store: AnyStore) -> None:
    await store.create(job("a"))

    def count(obj: ImagePullJob) -> ImagePullJob:
        return replace(obj, status=replace(obj.status, succeeded=obj.status.succeeded + 1))

    await asyncio.gather(*[store.change(ImagePullJob, "a", "default", change=count, status=True) for _ in range(50)])

    assert (await store.get(ImagePullJob, "a", "default")).status.succeeded == 50


async def test_an_object_waits_for_its_finalizers(store: AnyStore) -> None:
    made = await store.create(job("a", finalizers=("x/one", "x/two")))

    going = await store.delete(ImagePullJob, "a", "default")
    assert going.deleting
    assert await store.delete(ImagePullJob, "a", "default") == going
    with_more = await store.update(with_meta(going, finalizers=("x/one", "x/three")))
    assert with_more.metadata.finalizers == ("x/one",)

    gone = await store.update(with_meta(with_more, finalizers=()))
    assert gone.metadata.uid == made.metadata.uid
    assert await store.find(ImagePullJob, "a", "default") is None
    assert (await store.create(job("a"))).metadata.uid != made.metadata.uid


async def test_dry_runs_check_everything_and_change_nothing(store: AnyStore) -> None:
    would_be = await store.create(job("a"), dry_run=True)
    assert (would_be.generation, would_be.metadata.resource_version) == (1, "")
    made = await store.create(job("a"))
    before = store.revision

    assert (await store.update(with_image(made, "new"), dry_run=True)).generation == 2
    assert (
        await store.patch(ImagePullJob, "a", "default", patch={"spec": {"image": "new"}}, dry_run=True)
    ).generation == 2
    await store.delete(ImagePullJob, "a", "default", dry_run=True)
    with pytest.raises(AlreadyExists):
        await store.create(job("a"), dry_run=True)

    assert store.revision == before
    assert await store.get(ImagePullJob, "a", "default") == made


async def test_an_object_that_is_too_large_is_refused(store: AnyStore) -> None:
    made = await store.create(job("a"))

    with pytest.raises(TooLarge, match="1048576"):
        await store.create(job("b", annotations={"x": "y" * (1 << 20)}))
    with pytest.raises(TooLarge):
        await store.update(with_meta(made, annotations={"x": "y" * (1 << 20)}))

    assert store.revision == made.revision


# ---------------------------------------------------------------------------------------------- lists


async def test_lists_are_in_order_and_select(store: AnyStore) -> None:
    for name in ("c", "a", "b"):
        await store.create(job(name, labels={"app": name}))
    await store.create(job("z", namespace="first"))
    await store.create(node("n"))

    everything = await store.list(ImagePullJob)
    assert [each.metadata.name for each in everything.items] == ["a", "b", "c", "z"]
    here = await store.list(ImagePullJob, namespace="default", labels=parse_labels("app in (a,c)"))
    assert [each.metadata.name for each in here.items] == ["a", "c"]
    assert [each.metadata.name for each in (await store.list(Node)).items] == ["n"]


async def test_pages_are_of_one_moment(store: AnyStore) -> None:
    for number in range(10):
        await store.create(job(f"j{number}"))
    page = await store.list(ImagePullJob, limit=4)
    assert page.remaining == 6
    await store.delete(ImagePullJob, "j5", "default")
    await store.create(job("j44"))
    await store.patch(ImagePullJob, "j6", "default", patch={"spec": {"image": "later"}})

    found = list(page.items)
    while page.token:
        page = await store.list(ImagePullJob, limit=4, token=page.token)
        found += page.items

    assert [each.metadata.name for each in found] == [f"j{number}" for number in range(10)]
    assert found[6].spec.image != "later"
    assert len((await store.list(ImagePullJob)).items) == 10


async def test_a_token_must_be_ours(store: AnyStore) -> None:
    await store.create(job("a"))
    await store.create(job("b"))
    token = (await store.list(ImagePullJob, limit=1)).token

    for wrong in ("x", "e30", "é", "A" * 5000):
        with pytest.raises(Invalid, match="token"):
            await store.list(ImagePullJob, limit=1, token=wrong)
    with pytest.raises(Invalid, match="ImagePullJob"):
        await store.list(Node, limit=1, token=token)


async def test_a_token_of_another_store_has_expired(store: AnyStore) -> None:
    from stoker_coordinator.store.tokens import Place, write

    with pytest.raises(Expired):
        await store.list(ImagePullJob, limit=1, token=write(Place("ImagePullJob", 10**6, "default", "a")))


async def test_a_closed_store_says_so(store: AnyStore) -> None:
    await store.create(job("a"))
    await store.close()
    await store.close()

    with pytest.raises(StoreClosed):
        await store.create(job("b"))
    with pytest.raises(StoreClosed):
        await store.get(ImagePullJob, "a", "default")


async def test_who_gives_up_takes_nothing_back(store: AnyStore) -> None:
    writing = asyncio.create_task(store.create(job("a")))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait({writing})

    await store.create(job("b"))

    assert await store.find(ImagePullJob, "a", "default") is not None


async def test_names_can_be_anything_that_sorts(store: AnyStore) -> None:
    made = await store.create(node("b\N{SNOWMAN}"))
    await store.create(Node(metadata=ObjectMeta(name="a")))

    assert (await store.list(Node)).items[1] == made
