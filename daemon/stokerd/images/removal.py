"""Taking an image off the node, without pulling the rug from under somebody."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from stoker.objects.images import RemoveResult
from stokerd.errors import Conflict, NotFound
from stokerd.images.tender import Tender
from stokerd.registry.references import Reference, parse_reference
from stokerd.runtime.protocol import Runtime
from stokerd.runtime.types import CriImage


async def remove_image(runtime: Runtime, tender: Tender, reference: Reference, *, force: bool) -> RemoveResult:
    """Remove *reference*. Where other tags lead to the same image only the name goes; else all of it does.

    Raises NotFound; Conflict when it is used by a container, pinned or kept, unless *force*, which ends pin and keep
    (a container's image can be removed: what runs goes on running).
    """
    spec = reference.pull_spec
    image = await runtime.cri.status(spec)
    if image is None:
        raise NotFound(f"{reference} is not on this node")
    alone = spec in image.repo_tags and len(image.repo_tags) > 1
    removed = [spec] if alone else sorted({*image.repo_tags, *image.repo_digests, spec})
    if not force:
        await _check_free(runtime, tender, reference, image, removed)
    for keep in tender.keeps_on(removed):
        with contextlib.suppress(NotFound):  # it has ended by itself meanwhile
            await tender.unkeep(parse_reference(keep.reference))
    for pin in tender.pins_on(removed):
        with contextlib.suppress(NotFound):
            await tender.unpin(parse_reference(pin.reference))
    used = (await runtime.cri.fs_info()).used_bytes
    if alone:
        await runtime.images.delete(spec, sync=True)
    else:
        await runtime.cri.remove(spec)
    freed = used - (await runtime.cri.fs_info()).used_bytes
    return RemoveResult(reference=str(reference), removed=removed, freed_bytes=max(freed, 0))


async def _check_free(
    runtime: Runtime, tender: Tender, reference: Reference, image: CriImage, removed: Collection[str]
) -> None:
    """Raise Conflict when a name that would go is pinned or kept, or a container uses the image."""
    name = str(reference)
    for pin in tender.pins_on(removed):
        what = "is pinned" if pin.reference == name else f"is the image pinned as {pin.reference}"
        raise Conflict(f"{name} {what}", hint=f"stoker image unpin {pin.reference}, or --force")
    for keep in tender.keeps_on(removed):
        what = "is kept warm" if keep.reference == name else f"is the image kept warm as {keep.reference}"
        raise Conflict(f"{name} {what}", hint=f"stoker image unkeep {keep.reference}, or --force")
    used = await runtime.cri.in_use()
    if used & {image.id, *image.repo_tags, *image.repo_digests}:
        raise Conflict(f"{name} is the image of a container on this node", hint="remove the container, or --force")
