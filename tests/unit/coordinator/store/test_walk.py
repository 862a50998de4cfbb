"""Both stores and a model of them take the same walk: whatever happens, all three agree, and so does who watches."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from stoker.objects.cluster_images import ImagePullJob
from stoker_coordinator.errors import CoordinatorError, Expired
from stoker_coordinator.store.base import Limits
from stoker_coordinator.store.memory import MemoryStore
from stoker_coordinator.store.sqlite import SqliteStore
from tests.unit.coordinator.store.things import job, with_image, with_meta

_NAMES = st.sampled_from(["a", "b", "c"])
_VALUES = st.sampled_from(["1", "2"])
_LIMITS = Limits(history_changes=12)
Model = dict[str, tuple[str, str, int, bool, bool]]
"""By name: image, label, how many succeeded, whether there is a finalizer, whether it is being deleted."""


def _shape(obj: ImagePullJob) -> tuple[str, str, int, bool, bool]:
    meta = obj.metadata
    return (obj.spec.image, meta.labels.get("l", ""), obj.status.succeeded, bool(meta.finalizers), obj.deleting)


# A thousand commits: what survives a crash is tested elsewhere, so that they need not reach a disk.
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Walk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = tempfile.TemporaryDirectory(dir=_MEMORY)
        self.memory = MemoryStore(_LIMITS)
        self.sqlite = SqliteStore(Path(self.directory.name), _LIMITS)
        self.run(self.sqlite.open())
        self.model: Model = {}
        self.mirror: Model = {}
        self.seen = 0
        self.paging: tuple[list[str], str, list[str]] | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def both(self, act: Callable[[Any], Coroutine[Any, Any, Any]]) -> bool:
        """Do the same with both stores; return whether it succeeded, which it does with both or with none."""
        outcomes = []
        for store in (self.memory, self.sqlite):
            try:
                outcomes.append(_shape(self.run(act(store))))
            except CoordinatorError as error:
                outcomes.append(error.reason)  # type: ignore[arg-type]
        assert outcomes[0] == outcomes[1]
        return not isinstance(outcomes[0], str)

    @rule(name=_NAMES, image=_VALUES, held=st.booleans())
    def create(self, name: str, image: str, held: bool) -> None:
        made = self.both(lambda store: store.create(job(name, image, finalizers=("x/y",) if held else ())))
        assert made == (name not in self.model)
        if made:
            self.model[name] = (image, "", 0, held, False)

    @rule(name=_NAMES, image=_VALUES, label=_VALUES)
    def patch(self, name: str, image: str, label: str) -> None:
        patch = {"metadata": {"labels": {"l": label}}, "spec": {"image": image}}
        if self.both(lambda store: store.patch(ImagePullJob, name, "default", patch=patch)):
            self.model[name] = (image, label, *self.model[name][2:])

    @rule(name=_NAMES)
    def count(self, name: str) -> None:
        def more(obj: ImagePullJob) -> ImagePullJob:
            return replace(obj, status=replace(obj.status, succeeded=obj.status.succeeded + 1))

        if self.both(lambda store: store.change(ImagePullJob, name, "default", change=more, status=True)):
            image, label, succeeded, *rest = self.model[name]
            self.model[name] = (image, label, succeeded + 1, *rest)  # type: ignore[assignment]

    @rule(name=_NAMES, image=_VALUES, stale=st.booleans())
    def update(self, name: str, image: str, stale: bool) -> None:
        async def act(store: Any) -> ImagePullJob:
            obj = with_image(await store.get(ImagePullJob, name, "default"), image)
            if stale:
                obj = with_meta(obj, resource_version=str(obj.revision - 1))
            return cast("ImagePullJob", await store.update(obj))

        if self.both(act):
            assert not stale
            self.model[name] = (image, *self.model[name][1:])

    @rule(name=_NAMES)
    def delete(self, name: str) -> None:
        if self.both(lambda store: store.delete(ImagePullJob, name, "default")):
            held = self.model[name][3]
            if held:
                self.model[name] = (*self.model[name][:4], True)
            else:
                del self.model[name]

    @rule(name=_NAMES)
    def release(self, name: str) -> None:
        async def act(store: Any) -> ImagePullJob:
            obj = await store.get(ImagePullJob, name, "default")
            return cast("ImagePullJob", await store.update(with_meta(obj, finalizers=())))

        if self.both(act):
            image, label, succeeded, _, deleting = self.model[name]
            self.model[name] = (image, label, succeeded, False, deleting)
            if deleting:
                del self.model[name]

    @rule()
    def restart(self) -> None:
        self.run(self.sqlite.close())
        self.sqlite = SqliteStore(Path(self.directory.name), _LIMITS)
        self.run(self.sqlite.open())

    @rule()
    def watch(self) -> None:
        """Catch up with all changes since the last time; whoever is too late lists anew."""

        async def catch_up() -> None:
            async with aclosing(self.sqlite.watch([ImagePullJob], since=self.seen, bookmarks=0.001)) as events:
                async for event in events:
                    self.seen = event.revision
                    if event.object is None:
                        return
                    name = event.object.metadata.name
                    assert (event.old is not None) == (name in self.mirror)
                    assert event.old is None or _shape(event.old) == self.mirror[name]
                    self.mirror[name] = _shape(event.object)
                    if event.type == "DELETED":
                        del self.mirror[name]

        try:
            self.run(catch_up())
        except Expired:
            page = self.run(self.sqlite.list(ImagePullJob))
            self.mirror = {each.metadata.name: _shape(each) for each in page.items}
            self.seen = page.revision
        assert self.mirror == self.model

    @precondition(lambda self: self.paging is None and self.model)
    @rule()
    def first_page(self) -> None:
        page = self.run(self.sqlite.list(ImagePullJob, limit=1))
        self.paging = ([each.metadata.name for each in page.items], page.token, sorted(self.model))

    @precondition(lambda self: self.paging is not None)
    @rule()
    def other_pages(self) -> None:
        assert self.paging is not None
        found, token, then = self.paging
        self.paging = None
        try:
            while token:
                page = self.run(self.sqlite.list(ImagePullJob, limit=1, token=token))
                found += [each.metadata.name for each in page.items]
                token = page.token
        except Expired:
            return
        assert found == then

    @invariant()
    def all_agree(self) -> None:
        for store in (self.memory, self.sqlite):
            items = self.run(store.list(ImagePullJob)).items
            assert {each.metadata.name: _shape(each) for each in items} == self.model
        assert self.memory.revision == self.sqlite.revision

    def teardown(self) -> None:
        self.run(self.sqlite.close())
        self.loop.close()
        self.directory.cleanup()


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
