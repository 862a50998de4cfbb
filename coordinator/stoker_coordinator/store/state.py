"""What is kept, in memory: objects as they are committed, and what of them is on its way to be."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

from stoker.objects.meta import Key, Object
from stoker_coordinator.store import tokens
from stoker_coordinator.store.history import Change, History
from stoker_coordinator.store.protocol import Page

Place = tuple[str, str]
"""Namespace and name."""


class State:
    """Objects by kind and place. Readers see what is committed; writers build on what is about to be."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._objects: dict[str, dict[Place, Object]] = {}
        self._order: dict[str, list[Place]] = {}
        """Places in their order, by kind; missing where it must be made anew."""
        self._ahead: dict[Key, Change] = {}
        """The last change of each object that has one on its way."""

    def get(self, key: Key) -> Object | None:
        """Return an object as everybody sees it."""
        return self._objects.get(key.kind, {}).get((key.namespace, key.name))

    def latest(self, key: Key) -> Object | None:
        """Return an object as it will be when everything under way is committed."""
        ahead = self._ahead.get(key)
        if ahead is None:
            return self.get(key)
        return None if ahead.gone else ahead.object

    def ahead(self, key: Key) -> Change | None:
        """Return the last change of an object that is not committed yet."""
        return self._ahead.get(key)

    def begin(self, change: Change) -> None:
        """Note a change that is on its way."""
        self._ahead[change.key] = change

    def commit(self, change: Change) -> None:
        """Let everybody see a change, all of them in the order of their revisions."""
        if self._ahead.get(change.key) is change:
            del self._ahead[change.key]
        self.place(change)
        self.history.add(change)

    def forget_ahead(self) -> None:
        """What was on its way does not come."""
        self._ahead.clear()

    def place(self, change: Change) -> None:
        """Have the object as a change left it."""
        kind, place = change.key.kind, (change.key.namespace, change.key.name)
        objects = self._objects.setdefault(kind, {})
        if change.gone:
            objects.pop(place, None)
            self._order.pop(kind, None)
            return
        if place not in objects:
            self._order.pop(kind, None)
        objects[place] = change.object

    def count(self) -> dict[str, int]:
        """Return how many objects there are, by kind."""
        return {kind: len(objects) for kind, objects in self._objects.items()}

    def everything(self) -> Iterator[Object]:
        for objects in self._objects.values():
            yield from objects.values()

    def page(self, kind: str, meant: Callable[[Object], bool], limit: int, token: str) -> Page[Object]:
        """Return one page of the objects that are *meant*; see `Store.list`."""
        after = tokens.read(token, kind) if token else None
        revision = after.revision if after is not None else self.history.revision
        objects, order = self._at(kind, revision)
        start = bisect_right(order, (after.namespace, after.name)) if after is not None else 0
        found = [objects[place] for place in order[start:] if meant(objects[place])]
        if not limit or len(found) <= limit:
            return Page(tuple(found), revision)
        last = found[limit - 1].metadata
        place = tokens.Place(kind, revision, last.namespace, last.name)
        return Page(tuple(found[:limit]), revision, tokens.write(place), len(found) - limit)

    def _at(self, kind: str, revision: int) -> tuple[dict[Place, Object], list[Place]]:
        """Return the objects of a kind as they were at a revision, and their order."""
        objects = self._objects.get(kind, {})
        undone = [change for change in self.history.backwards(revision) if change.key.kind == kind]
        if not undone:
            order = self._order.get(kind)
            if order is None:
                order = self._order[kind] = sorted(objects)
            return objects, order
        then = dict(objects)
        for change in undone:
            place = (change.key.namespace, change.key.name)
            if change.old is None:
                then.pop(place, None)
            else:
                then[place] = change.old
        return then, sorted(then)
