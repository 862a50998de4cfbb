from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stokerd.images.manifests import Compression, Manifest
from stokerd.images.space import (
    DEFAULT_RATIOS,
    SAMPLE_WEIGHT_LIMIT,
    DiskTooSmall,
    FileSystem,
    Margins,
    Need,
    Presence,
    Ratio,
    check_fits,
    check_floor,
    fits,
    human,
    missing_need,
    sum_needs,
    union_need,
)
from stokerd.runtime.types import Descriptor, Usage

GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
MIB = 1 << 20
RATIOS: Mapping[Compression, Ratio] = {
    "gzip": Ratio(100, 300, 10),  # three times as large, an inode for ten compressed bytes
    "zstd": Ratio(100, 400, 10),
    "none": Ratio(100, 100, 10),
    "unknown": Ratio(100, 400, 10),
}


def image(**layers: int) -> Manifest:
    return Manifest(Descriptor("", "config", 5), tuple(Descriptor(GZIP, name, size) for name, size in layers.items()))


def disk(free: int = 1000, inodes: int = 1000, *, total_inodes: int = 5000) -> FileSystem:
    return FileSystem("/var/lib/containerd", 10_000, free, total_inodes, inodes)


NO_MARGINS = Margins(0, 0, 0, 0)


# ---------------------------------------------------------------------------------------------- what is needed


def test_an_image_that_is_not_there_needs_its_layers_twice_packed_and_unpacked() -> None:
    assert missing_need(image(a=100, b=50), Presence(), RATIOS) == Need(150, 450, 15)


def test_what_is_fetched_is_not_fetched_again() -> None:
    assert missing_need(image(a=100, b=50), Presence(frozenset({"a"})), RATIOS) == Need(50, 450, 15)


def test_what_is_unpacked_needs_nothing_even_if_its_blob_is_gone() -> None:
    assert missing_need(image(a=100, b=50), Presence(unpacked=1), RATIOS) == Need(50, 150, 5)
    assert missing_need(image(a=100, b=50), Presence(unpacked=2), RATIOS) == Need()


def test_a_download_that_was_broken_off_needs_its_rest() -> None:
    assert missing_need(image(a=100), Presence(partial={"a": 30, "other": 9}), RATIOS).download_bytes == 70
    assert missing_need(image(a=100), Presence(partial={"a": 130}), RATIOS).download_bytes == 0


def test_a_layer_that_grows_needs_its_rest_and_takes_nothing_from_those_above() -> None:
    assert missing_need(image(a=100, b=50), Presence(growing=100), RATIOS).unpack_bytes == 350
    assert missing_need(image(a=100, b=50), Presence(growing=10_000), RATIOS).unpack_bytes == 150
    assert missing_need(image(a=100, b=50), Presence(unpacked=2, growing=10), RATIOS) == Need()


def test_a_layer_that_occurs_twice_is_fetched_once_and_unpacked_twice() -> None:
    twice = Manifest(Descriptor("", "c", 1), (Descriptor(GZIP, "a", 100), Descriptor(GZIP, "a", 100)))
    assert missing_need(twice, Presence(), RATIOS) == Need(100, 600, 20)


def test_sizes_that_are_known_are_not_estimated() -> None:
    known = {"a": Usage(111, 3), "empty": Usage(0, 0)}
    assert missing_need(image(a=100, b=50, empty=20), Presence(), RATIOS, known) == Need(170, 111 + 150, 3 + 5)


def test_each_compression_grows_in_its_own_way() -> None:
    mixed = Manifest(Descriptor("", "c", 1), (Descriptor(GZIP, "a", 100), Descriptor(ZSTD, "b", 100)))
    assert missing_need(mixed, Presence(), RATIOS).unpack_bytes == 700
    odd = Manifest(Descriptor("", "c", 1), (Descriptor("application/x-weights", "a", 100),))
    assert missing_need(odd, Presence(), RATIOS).unpack_bytes == 400


def test_an_image_without_layers_needs_nothing() -> None:
    assert missing_need(image(), Presence(), RATIOS) == Need()
    assert missing_need(image(empty=0), Presence(), RATIOS) == Need()


# ---------------------------------------------------------------------------------------------- several images


def test_a_base_that_images_share_is_counted_once() -> None:
    first, second = image(base=100, x=10), image(base=100, y=20)
    together = union_need([(first, Presence()), (second, Presence())], RATIOS)
    assert together == missing_need(image(base=100, x=10, y=20), Presence(), RATIOS)


def test_a_layer_on_another_base_is_fetched_once_and_unpacked_again() -> None:
    first, second = image(base=100, x=10), image(other=100, x=10)
    assert union_need([(first, Presence()), (second, Presence())], RATIOS) == Need(210, 660, 22)


def test_the_same_image_twice_is_one() -> None:
    assert union_need([(image(a=100), Presence())] * 3, RATIOS) == missing_need(image(a=100), Presence(), RATIOS)


def test_growth_counts_for_the_layer_that_grows_alone() -> None:
    first, second = image(base=100), image(base=100, y=20)
    growing = Presence(growing=90)
    assert union_need([(first, Presence()), (second, growing)], RATIOS).unpack_bytes == 300 + 60
    assert union_need([(second, growing), (first, Presence())], RATIOS).unpack_bytes == 300 + 60 - 90


def test_no_images_need_nothing() -> None:
    assert union_need([], RATIOS) == Need()
    assert sum_needs([]) == Need()


@dataclass(frozen=True)
class Store:
    """What a node holds, from which every image's presence follows, as it does on a real one."""

    sizes: Mapping[str, int]
    blobs: frozenset[str]
    partial: Mapping[str, int]
    chains: frozenset[tuple[str, ...]]
    growth: int

    def presence(self, names: tuple[str, ...]) -> Presence:
        unpacked = 0
        while unpacked < len(names) and names[: unpacked + 1] in self.chains:
            unpacked += 1
        return Presence(self.blobs, self.partial, unpacked, self.growth)

    def images(self, stacks: list[tuple[str, ...]]) -> list[tuple[Manifest, Presence]]:
        config = Descriptor("", "config", 1)
        return [
            (
                Manifest(config, tuple(Descriptor(GZIP, name, self.sizes[name]) for name in names)),
                self.presence(names),
            )
            for names in stacks
        ]


NAMES = "abcde"
stacks = st.lists(st.lists(st.sampled_from(NAMES), max_size=4).map(tuple), max_size=3)
usages = st.dictionaries(st.sampled_from(NAMES), st.builds(Usage, st.integers(0, 2000), st.integers(0, 50)))


@st.composite
def stores(draw: st.DrawFn, stacks: list[tuple[str, ...]]) -> Store:
    prefixes = sorted({names[:height] for names in stacks for height in range(1, len(names) + 1)})
    return Store(
        {name: draw(st.integers(0, 1000)) for name in NAMES},
        draw(st.frozensets(st.sampled_from(NAMES))),
        draw(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 1500))),
        draw(st.frozensets(st.sampled_from(prefixes))) if prefixes else frozenset(),
        0,
    )


def parts(need: Need) -> tuple[int, int, int]:
    return need.download_bytes, need.unpack_bytes, need.unpack_inodes


@settings(max_examples=50)
@given(st.data(), stacks, usages, st.integers(0, 3000))
def test_together_images_never_need_more_than_one_by_one(
    data: st.DataObject, stacks: list[tuple[str, ...]], known: dict[str, Usage], growth: int
) -> None:
    store = data.draw(stores(stacks))
    images = replace(store, growth=growth).images(stacks)
    together = union_need(images, RATIOS, known)
    apart = sum_needs(missing_need(manifest, presence, RATIOS, known) for manifest, presence in images)
    assert all(0 <= one <= other for one, other in zip(parts(together), parts(apart), strict=True))
    assert union_need(images * 2, RATIOS, known) == together


@settings(max_examples=50)
@given(st.data(), stacks, usages)
def test_the_more_is_there_the_less_is_needed(
    data: st.DataObject, stacks: list[tuple[str, ...]], known: dict[str, Usage]
) -> None:
    store, other = data.draw(stores(stacks)), data.draw(stores(stacks))
    more = replace(
        store,
        blobs=store.blobs | other.blobs,
        partial={name: max(store.partial.get(name, 0), other.partial.get(name, 0)) for name in NAMES},
        chains=store.chains | other.chains,
    )
    less_there, more_there = store.images(stacks), more.images(stacks)
    for (manifest, before), (_, after) in zip(less_there, more_there, strict=True):
        needs = (
            parts(missing_need(manifest, before, RATIOS, known)),
            parts(missing_need(manifest, after, RATIOS, known)),
        )
        assert all(0 <= later <= earlier for earlier, later in zip(*needs, strict=True))
    together = parts(union_need(less_there, RATIOS, known)), parts(union_need(more_there, RATIOS, known))
    assert all(0 <= later <= earlier for earlier, later in zip(*together, strict=True))


@settings(max_examples=50)
@given(st.data(), stacks, st.integers(0, 3000), st.integers(0, 3000))
def test_growth_only_ever_lessens_the_need(
    data: st.DataObject, stacks: list[tuple[str, ...]], before: int, more: int
) -> None:
    store = data.draw(stores(stacks))
    young, old = replace(store, growth=before).images(stacks), replace(store, growth=before + more).images(stacks)
    assert 0 <= union_need(old, RATIOS).unpack_bytes <= union_need(young, RATIOS).unpack_bytes


@settings(max_examples=50)
@given(st.data(), stacks)
def test_a_node_that_has_everything_needs_nothing(data: st.DataObject, stacks: list[tuple[str, ...]]) -> None:
    store = data.draw(stores(stacks))
    everything = frozenset(names[:height] for names in stacks for height in range(1, len(names) + 1))
    assert union_need(replace(store, chains=everything).images(stacks), RATIOS) == Need()


# ---------------------------------------------------------------------------------------------- what fits


NEED = Need(100, 300, 20)


@pytest.mark.parametrize(
    ("free", "inodes", "margins", "promised", "fit"),
    [
        (400, 20, NO_MARGINS, None, True),  # to the byte, and to the inode
        (399, 20, NO_MARGINS, None, False),
        (400, 19, NO_MARGINS, None, False),
        (1400, 20, Margins(1000, 0, 0, 0), None, True),
        (1399, 20, Margins(1000, 0, 0, 0), None, False),
        (400, 30, Margins(0, 10, 0, 0), None, True),
        (400, 29, Margins(0, 10, 0, 0), None, False),
        (400, 20, Margins(0, 0, 9999, 9999), None, True),  # the floor is for pulls that run
        (800, 40, NO_MARGINS, NEED, True),
        (799, 40, NO_MARGINS, NEED, False),
        (800, 39, NO_MARGINS, NEED, False),
        (0, 0, NO_MARGINS, None, False),
    ],
)
def test_fits(free: int, inodes: int, margins: Margins, promised: Need | None, fit: bool) -> None:
    assert fits(NEED, disk(free, inodes), margins, promised) == fit
    if fit:
        check_fits("app:v1", NEED, disk(free, inodes), margins, promised)
    else:
        with pytest.raises(DiskTooSmall):
            check_fits("app:v1", NEED, disk(free, inodes), margins, promised)


def test_what_needs_nothing_fits_on_a_full_disk() -> None:
    assert fits(Need(), disk(0, 0), Margins(1000, 1000, 0, 0))
    check_fits("app:v1", Need(), disk(0, 0), Margins(1000, 1000, 0, 0), NEED)


def test_a_file_system_without_a_number_of_inodes_never_lacks_them() -> None:
    check_fits("app:v1", NEED, disk(400, 0, total_inodes=0), Margins(0, 10_000, 0, 0))
    check_floor("app:v1", disk(400, 0, total_inodes=0), Margins(0, 0, 0, 5000))


def test_a_refusal_has_the_numbers_that_were_compared() -> None:
    need = Need(1 << 30, 2 << 30, 70_000)
    filesystem = FileSystem("/var/lib/containerd", 100 << 30, 3 << 30, 1000, 900)
    with pytest.raises(DiskTooSmall) as caught:
        check_fits("app:v1", need, filesystem, Margins(1 << 30, 0, 0, 0), Need(512 * MIB, 512 * MIB, 5))
    assert caught.value.message == (
        "app:v1 needs 3.0 GiB (1.0 GiB to download, about 2.0 GiB unpacked), but /var/lib/containerd has 3.0 GiB free, "
        "of which 1.0 GiB are promised to pulls that run and 1.0 GiB are kept in reserve: needed 3221225472 bytes, "
        "available 1073741824 bytes"
    )
    assert caught.value.hint
    assert "stoker image rm" in caught.value.hint


def test_a_refusal_for_inodes_has_their_numbers() -> None:
    with pytest.raises(DiskTooSmall) as caught:
        check_fits("app:v1", Need(1, 1, 70_000), disk(1000, 900), Margins(0, 100, 0, 0), Need(0, 0, 50))
    assert caught.value.message == (
        "app:v1 needs about 70000 inodes, but /var/lib/containerd has 900 free, of which 50 are promised to pulls that "
        "run and 100 are kept in reserve: needed 70000 inodes, available 750 inodes"
    )


def test_what_is_available_is_never_said_to_be_less_than_nothing() -> None:
    with pytest.raises(DiskTooSmall, match=r"which 1000 B are kept in reserve: needed 400 bytes, available 0 bytes"):
        check_fits("app:v1", NEED, disk(10), Margins(1000, 0, 0, 0))


@pytest.mark.parametrize(("free", "inodes", "stops"), [(500, 50, False), (499, 50, True), (500, 49, True)])
def test_the_floor_stops_a_pull_that_runs(free: int, inodes: int, stops: bool) -> None:
    margins = Margins(10_000, 10_000, 500, 50)
    if not stops:
        check_floor("app:v1", disk(free, inodes), margins)
        return
    with pytest.raises(DiskTooSmall) as caught:
        check_floor("app:v1", disk(free, inodes), margins)
    number, floor = (str(free), "500 bytes") if free < 500 else (f"{inodes} inodes", "floor of 50")
    assert number in caught.value.message
    assert floor in caught.value.message
    assert not caught.value.retryable


# ---------------------------------------------------------------------------------------------- ratios


def test_an_estimate_is_rounded_up() -> None:
    assert Ratio(3, 4, 1).unpacked(1) == Usage(2, 1)
    assert Ratio(3, 4, 1).unpacked(0) == Usage(0, 0)
    assert Ratio(0, 0, 0).unpacked(100) == Usage(0, 0)


def test_a_ratio_follows_what_is_seen_and_big_layers_count_for_more() -> None:
    ratio = Ratio(100, 200, 10).learned(300, Usage(1200, 30))
    assert ratio == Ratio(400, 1400, 40)
    assert ratio.unpacked(100) == Usage(350, 10)


def test_old_samples_fade() -> None:
    ratio = DEFAULT_RATIOS["gzip"]
    for _ in range(100):
        ratio = ratio.learned(1 << 30, Usage(2 << 30, 1000))
    for _ in range(40):
        ratio = ratio.learned(1 << 30, Usage(5 << 30, 9000))
    assert abs(ratio.unpacked(1 << 30).bytes / (1 << 30) - 5) < 0.1
    assert abs(ratio.unpacked(1 << 30).inodes - 9000) < 200
    assert ratio.compressed_bytes <= 2 * SAMPLE_WEIGHT_LIMIT


@given(
    st.lists(st.tuples(st.integers(1, 1 << 40), st.integers(0, 1 << 42), st.integers(0, 1 << 30)), max_size=30),
    st.integers(0, 1 << 40),
)
def test_a_learned_ratio_stays_between_the_extremes(samples: list[tuple[int, int, int]], size: int) -> None:
    ratio = DEFAULT_RATIOS["gzip"]
    seen = [(64 * MIB, 128 * MIB, 3200), *samples]
    for compressed, unpacked, inodes in samples:
        ratio = ratio.learned(compressed, Usage(unpacked, inodes))
    estimate = ratio.unpacked(size)
    growths = [unpacked / compressed for compressed, unpacked, _ in seen]
    assert size * min(growths) * 0.99 - 1 <= estimate.bytes <= size * max(growths) * 1.01 + 1
    assert estimate.inodes >= 0


def test_every_compression_has_a_ratio_to_begin_with() -> None:
    assert set(DEFAULT_RATIOS) == {"gzip", "zstd", "none", "unknown"}
    for compression, ratio in DEFAULT_RATIOS.items():
        growth = ratio.unpacked(100 * MIB)
        assert growth.bytes >= 100 * MIB, compression
        assert growth.inodes > 0


# ---------------------------------------------------------------------------------------------- numbers for people


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (MIB - 1, "1.0 MiB"),
        (MIB, "1.0 MiB"),
        ((1 << 30) - 1, "1.0 GiB"),
        (5 << 30, "5.0 GiB"),
        ((1 << 40) - 1, "1.0 TiB"),
        (3000 << 40, "3000.0 TiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_human(size: int, text: str) -> None:
    assert human(size) == text


@given(st.integers(0, 1 << 60))
def test_human_is_near_the_truth_and_never_long(size: int) -> None:
    number, unit = human(size).split()
    factor = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[unit]
    assert abs(float(number) * factor - size) <= 0.051 * factor
    assert float(number) < 1024 or unit == "TiB"
