"""The key for the secrets that a store holds: a new one is made for a store that holds none, and for no other."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stoker.objects.kinds import ALL
from stoker.objects.meta import Key
from stoker_coordinator.objects import shapes
from stoker_coordinator.sealing import SealBroken, Sealer, is_sealed
from stoker_coordinator.store.protocol import Store


async def open_sealer(path: Path, store: Store) -> Sealer:
    """Read the key file, and make one when there is none and nothing was sealed yet; CoordinatorError.

    With a new key beside a store that was restored without its own, pulls would go without their credentials, and
    secrets that are given from then on would hide that the others are lost.
    """
    if not await asyncio.to_thread(path.exists):
        holder = await _holder(store)
        if holder is not None:
            raise SealBroken(
                f"there is no key file {path}, and the store has secrets that were sealed with it: {holder} is one",
                hint="put it back from where it is kept; if it is lost, make another one as docs/coordinator.md has it "
                "and give all secrets anew",
            )
    return await asyncio.to_thread(Sealer.load, path)


async def _holder(store: Store) -> Key | None:
    """Return an object with something sealed in it."""
    for kind in ALL:
        if shapes.has_secrets(kind.type):
            for each in (await store.list(kind.type)).items:
                if is_sealed(each):
                    return each.key
    return None
