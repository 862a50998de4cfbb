"""How far a pull is, worked out from what the content store and the snapshotter show. Pure.

containerd names what it does: an ingest ``layer-sha256:...`` while a layer is fetched, a blob afterwards, an active
snapshot ``extract-... <chain id>`` while it is unpacked, a committed snapshot named by the chain id in the end. Two
looks may miss a step in between, so every state is derived from what is there now, never from an event, and what a
user sees only moves forward (`advance`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from stokerd.images.manifests import ImageConfig, Manifest
from stokerd.runtime.types import Ingest, LeaseResource

LayerState = Literal["waiting", "downloading", "downloaded", "unpacking", "done", "present"]

_DIGEST_AT_END = re.compile(r"sha\d+:[0-9a-f]+$")

_ORDER: Mapping[LayerState, int] = {
    "waiting": 0,
    "downloading": 1,
    "downloaded": 2,
    "unpacking": 3,
    "done": 4,
    "present": 5,
}
_UNPACK_SHARE = 0.5
"""Share of a layer's work that counts as unpacking: on local disks both halves take about as long."""


class Observation(msgspec.Struct, frozen=True):
    """One look at the store, narrowed to what one pull holds.

    ``ingests``: bytes so far by blob digest; ``blobs``: digests that are complete; ``committed``: chain ids of finished
    snapshots; ``extracting``: active snapshots' keys by chain id; ``growth``: bytes of those that were measured.
    """

    ingests: Mapping[str, int] = msgspec.field(default_factory=dict)
    blobs: frozenset[str] = frozenset()
    committed: frozenset[str] = frozenset()
    extracting: Mapping[str, str] = msgspec.field(default_factory=dict)
    growth: Mapping[str, int] = msgspec.field(default_factory=dict)


class Baseline(msgspec.Struct, frozen=True):
    """What was on the node before the pull: it is shown as present and never counted as fetched."""

    blobs: frozenset[str] = frozenset()
    unpacked: int = 0


class Layer(msgspec.Struct, frozen=True):
    digest: str
    size: int
    state: LayerState = "waiting"
    offset: int = 0
    unpacked: float = 0.0
    """Share of the layer that is unpacked, 0 to 1; an estimate while it runs."""
    held: bool = False
    """The node had its content before the pull: none of it came over the network."""


class PullProgress(msgspec.Struct, frozen=True):
    """Progress of one image. ``fetched`` counts bytes that came over the network for it."""

    layers: tuple[Layer, ...] = ()
    known: bool = False

    @property
    def bytes_total(self) -> int:
        return sum({layer.digest: layer.size for layer in self.layers}.values())

    @property
    def bytes_done(self) -> int:
        done: dict[str, int] = {}
        for layer in self.layers:
            done[layer.digest] = max(layer.offset, done.get(layer.digest, 0))
        return sum(done.values())

    @property
    def bytes_present(self) -> int:
        return sum({layer.digest: layer.size for layer in self.layers if layer.held}.values())

    @property
    def fetched(self) -> int:
        return self.bytes_done - self.bytes_present

    @property
    def layers_unpacked(self) -> int:
        return sum(layer.state in {"done", "present"} for layer in self.layers)

    @property
    def percent(self) -> float:
        """0 to 100, and 100 not before everything is unpacked; an image without layers is at 100 once it is known."""
        if self.layers_unpacked == len(self.layers):
            return 100.0 if self.known else 0.0
        total = float(sum(max(layer.size, 1) for layer in self.layers))
        done = 0.0
        for layer in self.layers:
            size = max(layer.size, 1)
            fetched = min(layer.offset / layer.size, 1.0) if layer.size else float(_ORDER[layer.state] > 1)
            done += size * ((1 - _UNPACK_SHARE) * fetched + _UNPACK_SHARE * layer.unpacked)
        return min(math.floor(done / total * 1000) / 10, 99.9)


def observe(resources: tuple[LeaseResource, ...], ingests: tuple[Ingest, ...]) -> Observation:
    """Narrow the store's state to what the pull's lease holds."""
    held = {entry.id for entry in resources if entry.type == "ingests"}
    blobs = frozenset(entry.id for entry in resources if entry.type == "content")
    committed: set[str] = set()
    extracting: dict[str, str] = {}
    for entry in resources:
        if not entry.type.startswith("snapshots/"):
            continue
        if entry.id.startswith("extract-"):
            extracting[entry.id.rpartition(" ")[2]] = entry.id
        else:
            committed.add(entry.id)
    partial = {_digest_of(ingest.ref): ingest.offset for ingest in ingests if ingest.ref in held}
    return Observation(partial, blobs, frozenset(committed), extracting)


def _digest_of(ingest_ref: str) -> str:
    """``layer-sha256:abc`` → ``sha256:abc``; containerd prefixes what kind of thing is fetched."""
    match = _DIGEST_AT_END.search(ingest_ref)
    return match.group() if match else ingest_ref


def measure(
    manifest: Manifest,
    config: ImageConfig | None,
    baseline: Baseline,
    seen: Observation,
    expected: Mapping[str, int],
) -> PullProgress:
    """Work out the progress from one look.

    ``expected`` has the unpacked size in bytes by layer digest, to turn a snapshot's growth into a share.
    """
    chains = config.chain_ids if config else ()
    unpacked = _unpacked_count(chains, seen.committed, baseline.unpacked)
    layers = []
    for position, descriptor in enumerate(manifest.layers):
        chain = chains[position] if position < len(chains) else ""
        held = position < baseline.unpacked or descriptor.digest in baseline.blobs
        layer = Layer(descriptor.digest, descriptor.size, held=held)
        if position < unpacked:
            layer = replace(layer, state="present" if held else "done", offset=descriptor.size, unpacked=1.0)
        elif descriptor.digest in seen.blobs or descriptor.digest in baseline.blobs:
            layer = _fetched(layer, chain, seen, expected.get(descriptor.digest, 0))
        elif descriptor.digest in seen.ingests:
            offset = min(seen.ingests[descriptor.digest], descriptor.size)
            layer = replace(layer, state="downloading", offset=offset)
        layers.append(layer)
    return PullProgress(tuple(layers), known=True)


def _unpacked_count(chains: tuple[str, ...], committed: frozenset[str], before: int) -> int:
    """Layers are unpacked in order: a committed chain id means that all beneath it are there too."""
    for position in range(len(chains), before, -1):
        if chains[position - 1] in committed:
            return position
    return before


def _fetched(layer: Layer, chain: str, seen: Observation, expected: int) -> Layer:
    if chain not in seen.extracting:
        return replace(layer, state="downloaded", offset=layer.size)
    share = min(seen.growth.get(chain, 0) / expected, 0.99) if expected else 0.0
    return replace(layer, state="unpacking", offset=layer.size, unpacked=share)


def advance(before: PullProgress, now: PullProgress) -> PullProgress:
    """Return *now* with nothing moved backwards from *before*.

    A retry may begin a layer again from zero (a registry without Range), and a look between two steps may see neither;
    the user is shown the furthest point reached, until the pull passes it. Another image, under a tag that moved, is
    another progress.
    """
    if not now.known:
        return before
    if not before.known or [entry.digest for entry in before.layers] != [entry.digest for entry in now.layers]:
        return now
    return PullProgress(tuple(_later(old, new) for old, new in zip(before.layers, now.layers, strict=True)), known=True)


def _later(old: Layer, new: Layer) -> Layer:
    state = new.state if _ORDER[new.state] >= _ORDER[old.state] else old.state
    # What was seen coming over the network stays fetched, even if a later look takes it for something that was there.
    held = old.held or (new.held and old.offset == 0)
    if state == "present" and not held:
        state = "done"
    return Layer(new.digest, new.size, state, max(old.offset, new.offset), max(old.unpacked, new.unpacked), held)


def complete(progress: PullProgress) -> PullProgress:
    """Return *progress* as it is once containerd said that the image is there."""
    layers = tuple(
        layer if layer.state == "present" else replace(layer, state="done", offset=layer.size, unpacked=1.0)
        for layer in progress.layers
    )
    return PullProgress(layers, known=True)


def signature(seen: Observation) -> tuple[object, ...]:
    """Return what changes when a pull moves; two equal ones, a stall timeout apart, mean that it does not."""
    return (
        tuple(sorted(seen.ingests.items())),
        len(seen.blobs),
        seen.committed,
        tuple(sorted(seen.extracting.items())),
        tuple(sorted(seen.growth.items())),
    )
