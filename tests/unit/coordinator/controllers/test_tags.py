"""What jobs ask of a node through its NodeImage: joined, looked at again, given up."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.objects.cluster_images import (
    ImageStatus,
    NodeImage,
    NodeImageStatus,
    SecretReference,
    TagPhase,
    TagStatus,
)
from stoker.objects.meta import ObjectMeta, ObjectReference
from stoker_coordinator.controllers.tags import Order, assign, found, join, owners, release, split

NOW = datetime(2026, 5, 1, tzinfo=UTC)
EMPTY = NodeImage(metadata=ObjectMeta(name="n1"))


def order(uid: str = "job", *images: str, **more: object) -> Order:
    owner = ObjectReference(kind="ImagePullJob", name=uid, namespace="ns", uid=uid)
    return Order(owner, images or ("reg:5000/ai/a:1",), **more)  # type: ignore[arg-type]


def reported(node: NodeImage, image: str, phase: TagPhase, *, version: int | None = None, size: int = 0) -> NodeImage:
    repository, name = split(image)
    asked = next((tag.version for tag in node.spec.images[repository].tags if tag.tag == name), 0)
    mine = TagStatus(name, phase, version=asked if version is None else version, bytes_total=size, bytes_done=size // 2)
    entry = node.status.image_statuses.get(repository, ImageStatus())
    tags = (*(tag for tag in entry.tags if tag.tag != name), mine)
    return replace(
        node, status=NodeImageStatus(image_statuses={**node.status.image_statuses, repository: ImageStatus(tags)})
    )


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("a", ("a", "latest")),
        ("reg:5000/a", ("reg:5000/a", "latest")),
        ("reg:5000/a/b:1.2", ("reg:5000/a/b", "1.2")),
        ("a@sha256:ab", ("a", "sha256:ab")),
        ("reg/a:1@sha256:ab", ("reg/a", "sha256:ab")),
    ],
)
def test_references_fall_into_repository_and_tag(image: str, parts: tuple[str, str]) -> None:
    assert split(image) == parts
    assert split(join(*parts)) == parts


def test_a_job_waits_then_works_then_is_through() -> None:
    job = order("job", "a:1", "b:1")
    assert found(EMPTY, job).state == "waiting"
    node = assign(EMPTY, job, NOW)
    assert found(node, job).state == "active"
    node = reported(node, "a:1", "Succeeded", size=10)
    assert found(node, job) == replace(
        found(node, job), state="active", succeeded=("a:1",), bytes_total=10, bytes_done=5
    )
    assert found(reported(node, "b:1", "Succeeded"), job).state == "succeeded"
    failed = found(reported(node, "b:1", "Failed"), job)
    assert (failed.state, failed.failed[0].image, failed.failed[0].node) == ("failed", "b:1", "n1")


def test_asking_twice_changes_nothing() -> None:
    node = assign(EMPTY, order(), NOW)
    assert assign(node, order(), NOW) == node


def test_a_pull_on_its_way_is_joined_and_one_that_is_over_is_looked_at_again() -> None:
    node = assign(EMPTY, order("first"), NOW)
    joined = assign(node, order("second"), NOW)
    (tag,) = joined.spec.images["reg:5000/ai/a"].tags
    assert (tag.version, set(owners(joined))) == (1, {"first", "second"})
    through = reported(node, "reg:5000/ai/a:1", "Succeeded")
    asked = assign(through, order("second"), NOW)
    assert found(asked, order("second")).state == "active"
    assert found(asked, order("first")).state == "active"


def test_the_next_round_asks_again_for_what_is_through_alone() -> None:
    node = reported(assign(EMPTY, order("job", "a:1", "b:1"), NOW), "a:1", "Failed")
    again = assign(node, order("job", "a:1", "b:1"), NOW, again=True)
    assert [again.spec.images[name].tags[0].version for name in ("a", "b")] == [2, 1]


def test_other_terms_hold_at_once_but_not_for_what_others_want_too() -> None:
    node = assign(EMPTY, order("one"), NOW)
    assert next(iter(assign(node, order("one", priority=7), NOW).spec.images.values())).tags[0].priority == 7
    both = assign(node, order("two", priority=3), NOW)
    both = assign(both, order("one", priority=1), NOW)
    assert next(iter(both.spec.images.values())).tags[0].priority == 3


def test_another_image_replaces_the_old_one() -> None:
    node = assign(assign(EMPTY, order("job", "a:1"), NOW), order("other", "a:1"), NOW)
    node = assign(node, order("job", "a:2"), NOW)
    assert {tag.tag: {each.uid for each in tag.owner_references} for tag in node.spec.images["a"].tags} == {
        "1": {"other"},
        "2": {"job"},
    }


def test_secrets_are_named_once() -> None:
    one = SecretReference("s", "ns")
    node = assign(assign(EMPTY, order("a", secrets=(one,)), NOW), order("b", secrets=(one,)), NOW)
    assert next(iter(node.spec.images.values())).pull_secrets == (one,)


_orders = st.builds(
    lambda uid, images: order(uid, *images),
    st.sampled_from(["j1", "j2", "j3"]),
    st.lists(st.sampled_from(["a:1", "a:2", "b:1", "b@sha256:00"]), min_size=1, max_size=4, unique=True),
)


@given(st.lists(_orders, max_size=8))
def test_whoever_lets_go_takes_away_exactly_what_is_his(orders: list[Order]) -> None:
    node, last = EMPTY, {}
    for each in orders:
        node, last[each.owner.uid] = assign(node, each, NOW), each
    for uid, each in last.items():
        assert found(node, each).state == "active"
        without = release(node, uid)
        assert uid not in owners(without)
        for other, theirs in last.items():
            if other != uid:
                assert found(without, theirs) == found(node, theirs)
    for uid in last:
        node = release(node, uid)
    assert node == EMPTY
