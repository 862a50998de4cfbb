"""An image that is simply there: what a pull leaves behind, without a pull."""

from __future__ import annotations

from stokerd.runtime.memory_artifacts import Reference, RemoteImage, Variant
from stokerd.runtime.memory_pull import MANAGED, Machine
from stokerd.runtime.types import UNCOMPRESSED_LABEL, Descriptor


def install(machine: Machine, image: RemoteImage, name: Reference) -> str:
    """Put the image for this machine's platform into its stores under *name*, and return the image id."""
    lease = machine.store.temporary_lease()
    variant = image.variant(machine.platform)
    if image.digest != variant.manifest_digest:
        _put(
            machine, lease, image.digest, image.document, {"containerd.io/gc.ref.content.m.0": variant.manifest_digest}
        )
    layers = {f"containerd.io/gc.ref.content.l.{number}": layer.digest for number, layer in enumerate(variant.layers)}
    links = {"containerd.io/gc.ref.content.config": variant.config_digest, **layers}
    _put(machine, lease, variant.manifest_digest, variant.manifest, links)
    top = {f"containerd.io/gc.ref.snapshot.{machine.store.snapshotter}": variant.chain_ids[-1]} if layers else {}
    _put(machine, lease, variant.config_digest, variant.config, top)
    for layer in variant.layers:
        _put(machine, lease, layer.digest, layer.size, {UNCOMPRESSED_LABEL: layer.diff_id})
    _unpack(machine, lease, variant)
    target = Descriptor(image.media_type, image.digest, len(image.document))
    for record in (str(name), f"{name.repository}@{image.digest}", variant.config_digest):
        machine.store.put_record(record, target, MANAGED)
    del machine.store.leases[lease]
    return variant.config_digest


def _put(machine: Machine, lease: str, digest: str, content: bytes | int, labels: dict[str, str]) -> None:
    if digest in machine.store.blobs:
        machine.store.label(digest, labels)
        return
    size = content if isinstance(content, int) else len(content)
    ingest = machine.store.open_ingest(f"install-{digest}", size, lease)
    machine.store.write(ingest, size - ingest.offset)
    machine.store.commit(ingest, digest, labels, content if isinstance(content, bytes) else None, lease)


def _unpack(machine: Machine, lease: str, variant: Variant) -> None:
    parent = ""
    for layer, name in zip(variant.layers, variant.chain_ids, strict=True):
        if name not in machine.store.snapshots:
            key = machine.store.prepare(name, parent, lease)
            machine.store.grow(key, layer.unpacked, layer.inodes)
            machine.store.commit_snapshot(key, name, lease)
        parent = name
