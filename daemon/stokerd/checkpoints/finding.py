"""What names stand for: checkpoints, those that were taken together, clones, containers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from stokerd.checkpoints.clone_types import Clone
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.service import Checkpoints
from stokerd.checkpoints.targets import Names, Target
from stokerd.errors import Conflict, InvalidInput, NotFound
from stokerd.ids import begins

T = TypeVar("T")


class Finder:
    """Finds what is meant by a name, an id, or an unambiguous beginning of an id; NotFound, Conflict."""

    def __init__(self, room: Checkpoints, names: Names) -> None:
        self._room, self._names = room, names

    async def checkpoint(self, name: str) -> Manifest:
        """Return one checkpoint."""
        try:
            return await self._room.inspect(name)
        except NotFound:
            found = [each for each in await self._room.list() if begins(each.id, name) or each.group == name]
            if not found:
                raise
        return _only(found, name, "checkpoints")

    async def together(self, name: str) -> tuple[Manifest, ...]:
        """Return all that were taken together under this id or name, or the one checkpoint."""
        groups = await self._room.groups()
        found = [each for each in groups if each.id == name] or [each for each in groups if each.name == name]
        found = found or [each for each in groups if begins(each.id, name)]
        if found:
            return _only(found, name, "groups of checkpoints").members
        return (await self.checkpoint(name),)

    async def clone(self, name: str) -> Clone:
        clones = await self._room.clones()
        found = [each for each in clones if each.id == name] or [each for each in clones if begins(each.id, name)]
        if not found:
            raise NotFound(f"there is no clone {name!r}", hint="`stoker clone ls` lists them")
        return _only(found, name, "clones")

    async def targets(self, name: str, containers: Sequence[str]) -> tuple[Target, ...]:
        """Return the containers that are meant: of a pod, one alone, or a clone. What was restored in the place of a
        container is meant by that one's name."""
        restored = {each.origin: each.id for each in await self._room.clones() if each.origin}
        try:
            found = await self._names.targets(name, containers, restored.keys())
            return tuple(replace(each, id=restored.get(each.id, each.id)) for each in found)
        except NotFound as error:
            if containers:
                raise
            try:
                return (Target((await self.clone(name)).id),)
            except NotFound:
                raise error from None

    async def target(self, name: str) -> Target:
        """Return the one container that is meant; InvalidInput when there are several."""
        found = await self.targets(name, ())
        if len(found) > 1:
            names = ", ".join(each.name for each in found)
            raise InvalidInput(f"{name} has several containers: {names}", hint="name one: POD/CONTAINER")
        return found[0]


def subject_of(found: Sequence[Manifest]) -> str:
    """Return what checkpoints are called, in few words."""
    first = found[0]
    identity = first.group if len(found) > 1 else first.id
    return f"{identity} {first.name!r}" if first.name and first.name != identity else identity


def _only(found: list[T], name: str, what: str) -> T:
    if len(found) > 1:
        raise Conflict(f"{name!r} may be any of {len(found)} {what}", hint="give more of the id")
    return found[0]
