from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from stokerd.images.manifests import ImageConfig, Manifest, Platform
from stokerd.images.progress import (
    Baseline,
    Layer,
    LayerState,
    Observation,
    PullProgress,
    advance,
    complete,
    measure,
    observe,
    signature,
)
from stokerd.runtime.types import Descriptor, Ingest, LeaseResource

AMD64 = Platform("linux", "amd64")
NOTHING = Observation()
ORDER: list[LayerState] = ["waiting", "downloading", "downloaded", "unpacking", "done", "present"]


def digest(name: str) -> str:
    return f"sha256:{ord(name):064x}"


def image(*layers: tuple[str, int]) -> tuple[Manifest, ImageConfig]:
    manifest = Manifest(
        Descriptor("", digest("%"), 1), tuple(Descriptor("", digest(name), size) for name, size in layers)
    )
    return manifest, ImageConfig(AMD64, tuple(f"sha256:{1000 + n:064x}" for n in range(len(layers))))


def look(
    manifest: Manifest,
    config: ImageConfig | None,
    seen: Observation,
    baseline: Baseline | None = None,
    expected: int = 100,
) -> PullProgress:
    sizes = {layer.digest: expected for layer in manifest.layers}
    return measure(manifest, config, baseline or Baseline(), seen, sizes)


def states(progress: PullProgress) -> list[LayerState]:
    return [layer.state for layer in progress.layers]


# ---------------------------------------------------------------------------------------------- one look


def test_before_the_manifest_is_known_nothing_is() -> None:
    nothing = PullProgress()
    assert not nothing.known
    assert (nothing.percent, nothing.bytes_total, nothing.bytes_done, nothing.fetched) == (0.0, 0, 0, 0)


def test_each_step_of_a_layer_has_its_state() -> None:
    manifest, config = image(("a", 100), ("b", 100), ("c", 100), ("d", 100), ("e", 100))
    chains = config.chain_ids
    seen = Observation(
        ingests={digest("d"): 40},
        blobs=frozenset({digest("a"), digest("b"), digest("c")}),
        committed=frozenset({chains[0]}),
        extracting={chains[1]: "extract-1"},
        growth={chains[1]: 25},
    )
    progress = look(manifest, config, seen)
    assert states(progress) == ["done", "unpacking", "downloaded", "downloading", "waiting"]
    assert [layer.offset for layer in progress.layers] == [100, 100, 100, 40, 0]
    assert [layer.unpacked for layer in progress.layers] == [1.0, 0.25, 0.0, 0.0, 0.0]
    assert (progress.bytes_total, progress.bytes_done, progress.fetched, progress.layers_unpacked) == (500, 340, 340, 1)
    assert progress.percent == 46.5  # 3.4 of 5 layers fetched and 1.25 unpacked, each half of the work


def test_a_snapshot_grows_but_is_not_done_before_it_is_committed() -> None:
    manifest, config = image(("a", 100))
    chain = config.chain_ids[0]
    seen = Observation(blobs=frozenset({digest("a")}), extracting={chain: "extract-1"}, growth={chain: 10_000})
    assert look(manifest, config, seen).layers[0].unpacked == 0.99
    assert look(manifest, config, replace(seen, growth={})).layers[0].unpacked == 0.0
    assert look(manifest, config, seen, expected=0).layers[0].unpacked == 0.0


def test_a_committed_snapshot_means_that_all_beneath_are_there() -> None:
    manifest, config = image(("a", 1), ("b", 1), ("c", 1))
    progress = look(manifest, config, Observation(committed=frozenset({config.chain_ids[1]})))
    assert states(progress) == ["done", "done", "waiting"]


def test_before_the_configuration_is_known_bytes_move_already() -> None:
    manifest, _ = image(("a", 100), ("b", 100))
    progress = look(manifest, None, Observation({digest("a"): 30}, frozenset({digest("b")})))
    assert states(progress) == ["downloading", "downloaded"]
    assert progress.bytes_done == 130


def test_a_configuration_with_fewer_layers_than_the_manifest_is_no_disaster() -> None:
    manifest, _ = image(("a", 100), ("b", 100))
    _, short = image(("a", 100))
    assert states(look(manifest, short, Observation(blobs=frozenset({digest("b")})))) == ["waiting", "downloaded"]


def test_an_ingest_that_is_larger_than_its_layer_is_no_more_than_all_of_it() -> None:
    manifest, config = image(("a", 100))
    assert look(manifest, config, Observation({digest("a"): 500})).bytes_done == 100


# ---------------------------------------------------------------------------------------------- what was there before


def test_what_was_there_before_is_present_and_not_fetched() -> None:
    manifest, config = image(("a", 100), ("b", 50), ("c", 10))
    progress = look(manifest, config, NOTHING, Baseline(frozenset({digest("a"), digest("b")}), 2))
    assert states(progress) == ["present", "present", "waiting"]
    assert (progress.bytes_done, progress.bytes_present, progress.fetched) == (150, 150, 0)


def test_an_unpacked_layer_whose_blob_is_gone_is_present() -> None:
    manifest, config = image(("a", 100), ("b", 50))
    progress = look(manifest, config, NOTHING, Baseline(unpacked=1))
    assert states(progress) == ["present", "waiting"]
    assert (progress.bytes_present, progress.fetched) == (100, 0)


def test_a_blob_that_was_there_counts_as_present_from_the_first_look_to_the_last() -> None:
    manifest, config = image(("a", 100))
    chain, held = config.chain_ids[0], Baseline(frozenset({digest("a")}))
    steps = [
        NOTHING,  # the lease does not hold it yet
        Observation(blobs=frozenset({digest("a")})),
        Observation(blobs=frozenset({digest("a")}), extracting={chain: "extract-1"}),
        Observation(blobs=frozenset({digest("a")}), committed=frozenset({chain})),
    ]
    expected: list[LayerState] = ["downloaded", "downloaded", "unpacking", "present"]
    for seen, state in zip(steps, expected, strict=True):
        progress = look(manifest, config, seen, held)
        assert states(progress) == [state]
        assert (progress.bytes_done, progress.bytes_present, progress.fetched) == (100, 100, 0)


# ---------------------------------------------------------------------------------------------- odd images


def test_an_image_without_layers_is_done_when_it_is_known() -> None:
    manifest, config = image()
    assert look(manifest, config, NOTHING).percent == 100.0
    assert complete(PullProgress()).percent == 100.0


def test_a_layer_that_occurs_twice_is_one_download() -> None:
    manifest, config = image(("a", 100), ("b", 50), ("a", 100))
    progress = look(manifest, config, Observation({digest("a"): 60}))
    assert (progress.bytes_total, progress.bytes_done) == (150, 60)
    assert complete(progress).bytes_done == complete(progress).fetched == 150


def test_a_layer_that_occurs_twice_and_is_unpacked_once_is_not_counted_back() -> None:
    """Its blob was discarded after it was unpacked: the upper one is fetched again, the lower one is there."""
    manifest, config = image(("a", 100), ("a", 100))
    progress = look(manifest, config, NOTHING, Baseline(unpacked=1))
    assert (progress.bytes_done, progress.bytes_present, progress.fetched) == (100, 100, 0)
    assert states(progress) == ["present", "waiting"]


def test_layers_of_no_bytes_have_their_share_of_the_work() -> None:
    manifest, config = image(("a", 0), ("b", 0))
    chains = config.chain_ids
    assert look(manifest, config, NOTHING).percent == 0.0
    fetched = look(manifest, config, Observation(blobs=frozenset({digest("a"), digest("b")})))
    assert (fetched.percent, fetched.bytes_total) == (50.0, 0)
    half = Observation(blobs=frozenset({digest("a"), digest("b")}), committed=frozenset({chains[0]}))
    assert look(manifest, config, half).percent == 75.0
    assert look(manifest, config, replace(half, committed=frozenset(chains))).percent == 100.0


def test_a_hundred_percent_are_not_shown_while_something_is_missing() -> None:
    manifest, config = image(("a", 10**12), ("b", 1))
    chains = config.chain_ids
    seen = Observation(blobs=frozenset({digest("a")}), committed=frozenset({chains[0]}))
    assert look(manifest, config, seen).percent == 99.9
    assert look(manifest, config, replace(seen, committed=frozenset(chains))).percent == 100.0


# ---------------------------------------------------------------------------------------------- two looks


def test_a_layer_that_begins_again_keeps_its_furthest_point() -> None:
    manifest, config = image(("a", 100))
    far = look(manifest, config, Observation({digest("a"): 80}))
    again = advance(far, look(manifest, config, Observation({digest("a"): 5})))
    assert again.bytes_done == 80
    assert advance(again, look(manifest, config, NOTHING)).layers == far.layers
    assert advance(again, look(manifest, config, Observation({digest("a"): 90}))).bytes_done == 90


def test_unpacking_that_begins_again_keeps_its_furthest_point() -> None:
    manifest, config = image(("a", 100))
    chain = config.chain_ids[0]
    seen = Observation(blobs=frozenset({digest("a")}), extracting={chain: "extract-1"}, growth={chain: 60})
    far = look(manifest, config, seen)
    again = advance(far, look(manifest, config, replace(seen, extracting={chain: "extract-2"}, growth={chain: 5})))
    assert again == far
    assert advance(again, look(manifest, config, replace(seen, extracting={}, growth={}))) == far


def test_what_came_over_the_network_is_not_present_later() -> None:
    """A look that takes the fruits of an earlier attempt for something that was there before."""
    manifest, config = image(("a", 100))
    fetched = look(manifest, config, Observation({digest("a"): 100}))
    later = look(manifest, config, NOTHING, Baseline(frozenset({digest("a")}), 1))
    progress = advance(fetched, later)
    assert states(progress) == ["done"]
    assert (progress.fetched, progress.bytes_present) == (100, 0)


def test_a_look_that_knows_nothing_takes_nothing_away() -> None:
    manifest, config = image(("a", 100))
    known = look(manifest, config, Observation({digest("a"): 80}))
    assert advance(known, PullProgress()) is known
    assert advance(PullProgress(), known) is known


def test_another_image_under_the_tag_is_another_progress() -> None:
    old = look(*image(("a", 100)), Observation({digest("a"): 80}))
    new = look(*image(("b", 100)), NOTHING)
    assert advance(old, new) is new


def test_complete_finishes_what_no_look_saw() -> None:
    manifest, config = image(("a", 100), ("b", 50))
    progress = complete(look(manifest, config, NOTHING, Baseline(frozenset({digest("a")}), 1)))
    assert states(progress) == ["present", "done"]
    assert (progress.percent, progress.layers_unpacked, progress.bytes_done, progress.fetched) == (100.0, 2, 150, 50)


# ---------------------------------------------------------------------------------------------- reading the store


def test_observe_narrows_the_store_to_the_lease() -> None:
    snapshots = "snapshots/overlayfs"
    resources = (
        LeaseResource("content", digest("m")),
        LeaseResource("content", digest("a")),
        LeaseResource("ingests", f"layer-{digest('b')}"),
        LeaseResource("ingests", f"layer-sha512:{'c' * 128}"),
        LeaseResource("ingests", "upload-without-a-digest"),
        LeaseResource("ingests", f"layer-{digest('z')}"),
        LeaseResource(snapshots, "sha256:base"),
        LeaseResource(snapshots, "extract-123456-aBcD sha256:top"),
        LeaseResource("something/new", "x"),
    )
    ingests = (
        Ingest(f"layer-{digest('b')}", 10, 100),
        Ingest(f"layer-sha512:{'c' * 128}", 20, 100),
        Ingest("upload-without-a-digest", 30, 0),
        Ingest(f"layer-{digest('d')}", 40, 100),  # another pull's
    )
    assert observe(resources, ingests) == Observation(
        ingests={digest("b"): 10, f"sha512:{'c' * 128}": 20, "upload-without-a-digest": 30},
        blobs=frozenset({digest("m"), digest("a")}),
        committed=frozenset({"sha256:base"}),
        extracting={"sha256:top": "extract-123456-aBcD sha256:top"},
    )
    assert observe((), ingests) == Observation()


MOVED = [
    Observation({"a": 1}),
    Observation({"a": 2}),
    Observation({"b": 1}),
    Observation(blobs=frozenset({"a"})),
    Observation(blobs=frozenset({"a", "b"})),
    Observation(committed=frozenset({"x"})),
    Observation(extracting={"x": "extract-1"}),
    Observation(extracting={"x": "extract-2"}),
    Observation(growth={"x": 1}),
]


@pytest.mark.parametrize("seen", MOVED)
def test_the_signature_changes_with_everything_that_moves(seen: Observation) -> None:
    assert signature(seen) == signature(replace(seen))
    others = [signature(other) for other in [NOTHING, *MOVED] if other is not seen]
    assert signature(seen) not in others


def test_the_signature_does_not_depend_on_the_order_of_a_listing() -> None:
    assert signature(Observation({"a": 1, "b": 2})) == signature(Observation({"b": 2, "a": 1}))


# ---------------------------------------------------------------------------------------------- a whole pull

NAMES = "abcde"


class Pull(RuleBasedStateMachine):
    """A store that a pull works on, in any order that containerd could take, looked at now and then."""

    @initialize(
        names=st.lists(st.sampled_from(NAMES), max_size=5),
        sizes=st.lists(st.sampled_from((0, 1, 7, 1000, 10**9)), min_size=5, max_size=5),
        before=st.sets(st.sampled_from(NAMES)),
        unpacked=st.integers(0, 5),
    )
    def begin(self, names: list[str], sizes: list[int], before: set[str], unpacked: int) -> None:
        self.sizes = dict(zip(map(digest, NAMES), sizes, strict=True))
        self.manifest, self.config = image(*((name, self.sizes[digest(name)]) for name in names))
        self.chains = self.config.chain_ids
        self.height = min(unpacked, len(names))
        self.baseline = Baseline(frozenset(map(digest, before)), self.height)
        self.config_known = False
        self.ingests: dict[str, int] = {}
        self.blobs: set[str] = set()
        self.committed: set[str] = set()
        self.extracting: dict[str, int] = {}
        self.shown = PullProgress()
        self.worst = 0

    def missing(self) -> list[str]:
        """Blobs that the pull still has to get, in the order of their layers."""
        here = self.blobs | self.baseline.blobs
        return [layer.digest for layer in self.manifest.layers[self.height :] if layer.digest not in here]

    @rule(which=st.integers(0, 4), share=st.floats(0, 1.2))
    def fetch(self, which: int, share: float) -> None:
        missing = self.missing()
        if missing:
            wanted = missing[which % len(missing)]
            offset = int(self.sizes[wanted] * share)
            self.ingests[wanted] = max(offset, self.ingests.get(wanted, 0))

    @rule(which=st.integers(0, 4))
    def fetch_whole(self, which: int) -> None:
        missing = self.missing()
        if missing:
            wanted = missing[which % len(missing)]
            self.ingests.pop(wanted, None)
            self.blobs.add(wanted)

    @rule(held=st.sampled_from(NAMES).map(digest))
    def touch(self, held: str) -> None:
        """The pull comes upon a blob that was there, and its lease holds it from now on."""
        if held in self.baseline.blobs:
            self.blobs.add(held)

    @rule()
    def begin_again(self) -> None:
        """A new attempt at a registry without Range."""
        self.ingests = dict.fromkeys(self.ingests, 0)
        self.extracting.clear()

    @rule()
    def lose_ingests(self) -> None:
        self.ingests.clear()

    @rule()
    def know_the_configuration(self) -> None:
        self.config_known = True

    @rule(growth=st.integers(0, 300))
    def unpack(self, growth: int) -> None:
        if self.height < len(self.chains) and self.manifest.layers[self.height].digest in self.blobs:
            chain = self.chains[self.height]
            self.extracting[chain] = max(self.extracting.get(chain, 0), growth)

    @rule()
    def commit(self) -> None:
        if self.height < len(self.chains) and self.chains[self.height] in self.extracting:
            del self.extracting[self.chains[self.height]]
            self.committed.add(self.chains[self.height])
            self.height += 1

    @precondition(lambda self: self.height == len(self.chains))
    @rule()
    def discard_unpacked(self) -> None:
        """containerd can be told to keep no blobs."""
        self.blobs.clear()

    @rule()
    def look(self) -> None:
        """Not every change is looked at: what happens between two looks is missed."""
        extracting = {chain: f"extract-1-x {chain}" for chain in self.extracting}
        seen = Observation(
            dict(self.ingests), frozenset(self.blobs), frozenset(self.committed), extracting, dict(self.extracting)
        )
        config = self.config if self.config_known else None
        baseline = self.baseline if self.config_known else replace(self.baseline, unpacked=0)
        now = measure(self.manifest, config, baseline, seen, dict.fromkeys(self.sizes, 100))
        self.check_bounds(now)
        self.move_to(advance(self.shown, now))

    @rule()
    def look_in_vain(self) -> None:
        self.move_to(advance(self.shown, PullProgress()))

    def move_to(self, after: PullProgress) -> None:
        before = self.shown
        for value in ("bytes_total", "bytes_done", "bytes_present", "layers_unpacked", "percent", "fetched"):
            assert getattr(after, value) >= getattr(before, value), value
        for old, new in zip(before.layers, after.layers, strict=False):
            assert (new.digest, new.size) == (old.digest, old.size)
            assert (new.offset, new.unpacked) >= (old.offset, old.unpacked)
            assert new.unpacked >= old.unpacked
            assert ORDER.index(new.state) >= ORDER.index(old.state)
        self.shown = after

    @staticmethod
    def check_bounds(progress: PullProgress) -> None:
        assert 0.0 <= progress.percent <= 100.0
        assert 0 <= progress.bytes_present <= progress.bytes_done <= progress.bytes_total
        assert 0 <= progress.layers_unpacked <= len(progress.layers)
        assert (progress.percent == 100.0) == (progress.layers_unpacked == len(progress.layers))
        for layer in progress.layers:
            assert 0 <= layer.offset <= layer.size
            assert 0.0 <= layer.unpacked <= 1.0
            assert (layer.state == "waiting") <= (layer.offset == 0)

    @invariant()
    def what_is_shown_makes_sense(self) -> None:
        if self.shown.known:
            self.check_bounds(self.shown)

    def teardown(self) -> None:
        """However it went: when containerd says that it is there, everything is."""
        if not hasattr(self, "shown"):
            return
        before = self.shown
        self.know_the_configuration()
        self.look()
        self.move_to(complete(self.shown))
        assert self.shown.percent == 100.0
        assert self.shown.layers_unpacked == len(self.manifest.layers)
        assert self.shown.bytes_done == self.shown.bytes_total == self.manifest.download_size
        held = {layer.digest for layer in self.manifest.layers[: self.baseline.unpacked]} | self.baseline.blobs
        over_the_network = {layer.digest: layer.size for layer in self.manifest.layers if layer.digest not in held}
        assert self.shown.fetched >= max(before.fetched, sum(over_the_network.values()))


TestPull = Pull.TestCase
TestPull.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_a_pull_that_is_watched_from_the_start_counts_exactly_what_came_over_the_network() -> None:
    manifest, config = image(("a", 100), ("b", 50), ("c", 10), ("b", 50))
    baseline, chains = Baseline(frozenset({digest("c")}), 1), config.chain_ids
    shown = PullProgress()
    for seen in (
        NOTHING,
        Observation({digest("b"): 20}),
        Observation({digest("b"): 3}),
        Observation(blobs=frozenset({digest("b"), digest("c")}), extracting={chains[1]: "extract"}),
        Observation(blobs=frozenset({digest("b"), digest("c")}), committed=frozenset(chains)),
    ):
        shown = advance(shown, look(manifest, config, seen, baseline))
    assert complete(shown) == shown
    assert (shown.fetched, shown.bytes_present, shown.bytes_total) == (50, 110, 160)
    assert states(shown) == ["present", "done", "present", "done"]
    assert shown.layers[0] == Layer(digest("a"), 100, "present", 100, 1.0, held=True)
