"""Taking an image off the node, without pulling the rug from under somebody."""

from __future__ import annotations

from stoker.objects.images import RemoveResult
from stokerd.errors import Conflict, NotFound
from stokerd.images.tender import Tender
from stokerd.registry.references import Reference
from stokerd.runtime.protocol import Runtime
from stokerd.runtime.types import CriImage


async def remove_image(runtime: Runtime, tender: Tender, reference: Reference, *, force: bool) -> RemoveResult:
    """Remove *reference*. Where other tags lead to the same image only the name goes; else all of it does.

    Raises NotFound; Conflict when it is used by a container, pinned or kept, unless *force*, which ends pin and keep
    (a container's image can be removed: what runs goes on running).
    """
    name, spec = str(reference), reference.pull_spec
    image = await runtime.cri.status(spec)
    if image is None:
        raise NotFound(f"{reference} is not on this node")
    if not force:
        await _check_free(runtime, tender, name, image)
    if name in tender.kept:
        await tender.unkeep(reference)
    if name in tender.pinned:
        await tender.unpin(reference)
    used = (await runtime.cri.fs_info()).used_bytes
    others = [tag for tag in image.repo_tags if tag != spec]
    if others and spec in image.repo_tags:
        await runtime.images.delete(spec, sync=True)
        removed = [spec]
    else:
        await runtime.cri.remove(spec)
        removed = sorted({*image.repo_tags, *image.repo_digests, spec})
    freed = used - (await runtime.cri.fs_info()).used_bytes
    return RemoveResult(reference=name, removed=removed, freed_bytes=max(freed, 0))


async def _check_free(runtime: Runtime, tender: Tender, name: str, image: CriImage) -> None:
    if name in tender.pinned:
        raise Conflict(f"{name} is pinned", hint=f"stoker image unpin {name}, or --force")
    if name in tender.kept:
        raise Conflict(f"{name} is kept warm", hint=f"stoker image unkeep {name}, or --force")
    used = await runtime.cri.in_use()
    if used & {image.id, *image.repo_tags, *image.repo_digests}:
        raise Conflict(f"{name} is the image of a container on this node", hint="remove the container, or --force")
