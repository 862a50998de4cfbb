"""Documents over a wire that loses, repeats and reorders messages, and between restarts of either end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import link_documents as documents
from stoker.link_documents import Broken, Change
from stoker.objects.images import ImageStatus
from stoker.objects.inventory import ImageInventory
from stoker.objects.link import Delta, Full
from stoker_coordinator.nodes.receiving import Gap, Ignored, Kept, Lie, Taken, take
from stokerd.uplink.sending import Outgoing

SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4)
THINGS = st.fixed_dictionaries(
    {"name": st.sampled_from("abcdef")}, optional={"x": SCALARS, "y": st.lists(SCALARS, max_size=2)}
)
VALUES = (
    SCALARS
    | st.lists(THINGS, max_size=5)
    | st.lists(SCALARS, max_size=3)
    | st.dictionaries(st.text(max_size=2), SCALARS)
)
DOCUMENTS = st.dictionaries(st.sampled_from(["gpus", "nics", "labels", "v"]), VALUES)
INVENTORIES = st.lists(st.sampled_from("abcdefgh"), max_size=6, unique=True).map(
    lambda names: ImageInventory(images=[ImageStatus(id=name, size=len(names)) for name in names])
)


@given(DOCUMENTS, DOCUMENTS)
def test_the_difference_leads_from_one_state_to_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    body = documents.pack(documents.canonical(documents.compare(before, after)))
    assert documents.apply(before, documents.read_change(body)) == after


@given(DOCUMENTS)
def test_no_difference_is_an_empty_one(document: dict[str, Any]) -> None:
    assert documents.canonical(documents.compare(document, document)) == b"{}"


@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_a_difference_that_does_not_fit_is_noticed_or_leads_elsewhere(
    before: dict[str, Any], after: dict[str, Any], other: dict[str, Any]
) -> None:
    change = documents.compare(before, after)
    try:
        made = documents.apply(other, change)
    except Broken:
        return
    assert isinstance(made, dict)


@given(st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)))
def test_cleaned_documents_have_nothing_that_moves_a_cursor(value: Any) -> None:
    text = msgspec.json.encode(documents.cleaned({"v": value}))
    shown = msgspec.json.decode(text)
    assert documents.cleaned(shown) == shown
    assert documents.is_safe(text) or b"\\" in text


@given(st.binary(max_size=200))
def test_rubbish_is_no_document(data: bytes) -> None:
    for work in (documents.unpack, documents.read_change):
        with pytest.raises(Broken):
            work(data)


class Link:
    """A node, a coordinator, and a wire between them that brings messages late, twice, or never."""

    def __init__(self) -> None:
        self.current = ImageInventory()
        self.kept: Kept | None = None
        self._node = Outgoing("images")
        self._flying: list[Full | Delta] = []
        self._resync = False

    def change(self, content: ImageInventory) -> None:
        self.current = content
        self._node.offer(content)

    def send(self) -> None:
        message = self._node.take()
        self._flying += [message] if message is not None else []

    def deliver(self) -> None:
        if self._flying:
            self._arrive(self._flying.pop(0))

    def lose(self) -> None:
        del self._flying[:1]

    def repeat(self) -> None:
        if self._flying:
            self._arrive(self._flying[0])

    def late(self) -> None:
        if self._flying:
            self._arrive(self._flying[-1])

    def resync(self) -> None:
        if self._resync:
            self._node.forget()
            self._resync = False

    def stream(self) -> None:
        """Both ends begin anew; what was under way is lost."""
        self._flying.clear()
        if self.kept is not None:
            self.kept.sequence = 0
        self._node.begin(self.kept.digest if self.kept is not None else "")

    def settle(self) -> None:
        """The wire is whole again, and what is asked for is sent."""
        while self._flying:
            self.deliver()
        for _ in range(3):
            self.resync()
            self.send()
            self.deliver()

    def _arrive(self, message: Full | Delta) -> None:
        outcome = take(self.kept, message, "n1")
        assert not isinstance(outcome, Lie), outcome
        self._resync |= isinstance(outcome, Gap)
        if isinstance(outcome, Taken):
            self.kept = outcome.kept
            text = documents.unpack(outcome.kept.body)
            assert documents.digest_of(text) == outcome.kept.digest == message.digest


STEPS = ("change", "send", "send", "deliver", "lose", "repeat", "late", "resync", "stream")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=30), st.data())
def test_the_other_end_is_right_in_the_end_whatever_the_wire_did(steps: list[str], data: st.DataObject) -> None:
    link = Link()
    for step in steps:
        if step == "change":
            link.change(data.draw(INVENTORIES))
        else:
            getattr(link, step)()
    link.settle()
    # The last message may have been lost: the next change shows that.
    link.change(ImageInventory(images=[ImageStatus(id="last")]))
    link.settle()
    assert link.kept is not None
    assert documents.read(documents.unpack(link.kept.body)) == documents.plain(link.current)


def test_what_is_the_same_is_not_sent_and_what_is_small_is_sent_as_a_delta() -> None:
    node = Outgoing("images")
    many = [ImageStatus(id=f"sha256:{number:064x}") for number in range(100)]
    assert node.offer(ImageInventory(images=many))
    assert isinstance(node.take(), Full)
    assert not node.offer(ImageInventory(images=many))
    assert node.take() is None
    node.offer(ImageInventory(images=many[1:]))
    delta = node.take()
    assert isinstance(delta, Delta)
    assert len(delta.body) < 200
    assert delta.sequence == 2


def test_a_document_that_fits_no_message_is_not_sent_again_and_again() -> None:
    node = Outgoing("images")
    rng = __import__("random").Random(1)
    node.offer({"images": [{"id": rng.randbytes(5000).hex()} for _ in range(1000)]})
    assert node.take() is None
    assert "too large" in node.problem
    assert not node.pending
    node.offer(ImageInventory())
    assert node.take() is not None
    assert not node.problem


def test_a_repeated_message_changes_nothing() -> None:
    node = Outgoing("images")
    node.offer(ImageInventory())
    message = node.take()
    assert message is not None
    first = take(None, message, "n1")
    assert isinstance(first, Taken)
    assert isinstance(take(first.kept, message, "n1"), Ignored)


def test_a_change_names_lists_that_are_lists() -> None:
    with pytest.raises(Broken, match="no list"):
        documents.apply({"x": 3}, Change(put={"x": [{"name": "a"}]}))
    with pytest.raises(Broken, match="order"):
        documents.apply({"x": [{"name": "a"}]}, Change(order={"x": ["name=b"]}))
