from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.images.manifests import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    BadManifest,
    Compression,
    ImageConfig,
    Index,
    IndexEntry,
    Manifest,
    NoMatchingPlatform,
    Platform,
    accepted_platforms,
    check_platform,
    compression_of,
    local_platform,
    parse_config,
    parse_document,
    select_platform,
)
from stokerd.runtime.types import Descriptor

OCI = "application/vnd.oci.image."
DOCKER = "application/vnd.docker."
OCI_MANIFEST, OCI_INDEX = OCI + "manifest.v1+json", OCI + "index.v1+json"
DOCKER_MANIFEST, DOCKER_LIST = (
    DOCKER + "distribution.manifest.v2+json",
    DOCKER + "distribution.manifest.list.v2+json",
)


def digest(number: int) -> str:
    return f"sha256:{number:064d}"


def blob(number: int, size: int = 10, media_type: str = OCI + "layer.v1.tar+gzip", **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(number), "size": size, **more}


def manifest(*layers: dict[str, Any], **more: Any) -> dict[str, Any]:
    config = blob(0, 7, OCI + "config.v1+json")
    return {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": list(layers), **more}


def index(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(entries), **more}


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


def refusal(document: Any) -> str:
    with pytest.raises(BadManifest) as caught:
        parse_document(document if isinstance(document, bytes) else encoded(document))
    return caught.value.message


# ---------------------------------------------------------------------------------------------- manifests


def test_an_oci_manifest() -> None:
    found = parse_document(encoded(manifest(blob(1, 100), blob(2, 50, OCI + "layer.v1.tar+zstd"))))
    assert found == Manifest(
        Descriptor(OCI + "config.v1+json", digest(0), 7),
        (
            Descriptor(OCI + "layer.v1.tar+gzip", digest(1), 100),
            Descriptor(OCI + "layer.v1.tar+zstd", digest(2), 50),
        ),
    )
    assert found.download_size == 150


def test_a_docker_manifest() -> None:
    layer = blob(1, 100, DOCKER + "image.rootfs.diff.tar.gzip")
    found = parse_document(encoded(manifest(layer, mediaType=DOCKER_MANIFEST)))
    assert isinstance(found, Manifest)
    assert found.layers[0].media_type == DOCKER + "image.rootfs.diff.tar.gzip"


def test_a_layer_that_occurs_twice_is_downloaded_once() -> None:
    found = parse_document(encoded(manifest(blob(1, 100), blob(2, 50), blob(1, 100))))
    assert isinstance(found, Manifest)
    assert (len(found.layers), found.download_size) == (3, 150)


@pytest.mark.parametrize("layers", [[], None])
def test_an_image_without_layers(layers: list[Any] | None) -> None:
    found = parse_document(encoded(manifest() | {"layers": layers}))
    assert isinstance(found, Manifest)
    assert (found.layers, found.download_size) == ((), 0)


def test_the_media_type_is_optional_and_may_be_null() -> None:
    for document in (manifest(blob(1)), index(blob(1))):
        assert parse_document(encoded(document | {"mediaType": None})) == parse_document(encoded(document))
        del document["mediaType"]
        assert isinstance(parse_document(encoded(document)), Manifest | Index)


def test_fields_that_we_do_not_know_are_no_matter() -> None:
    document = manifest(
        blob(1, urls=["https://x"], data="eA=="), subject=blob(9), annotations={"a": "b"}, artifactType="x"
    )
    assert isinstance(parse_document(encoded(document)), Manifest)


# ---------------------------------------------------------------------------------------------- indexes


def test_an_index_with_attestations() -> None:
    provenance = blob(
        2,
        platform={"os": "unknown", "architecture": "unknown"},
        annotations={"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": digest(1)},
    )
    found = parse_document(encoded(index(blob(1, platform={"os": "linux", "architecture": "amd64"}), provenance)))
    assert isinstance(found, Index)
    assert [(entry.platform, entry.attestation) for entry in found.entries] == [
        (Platform("linux", "amd64"), False),
        (None, True),
    ]


@pytest.mark.parametrize("more", [{"annotations": {"vnd.docker.reference.type": "x"}}, {"platform": {"os": "unknown"}}])
def test_an_attestation_is_known_by_either_mark(more: dict[str, Any]) -> None:
    found = parse_document(encoded(index(blob(1, **more))))
    assert isinstance(found, Index)
    assert found.entries[0].attestation


def test_a_docker_manifest_list() -> None:
    platform = {"os": "linux", "architecture": "arm", "variant": "v7", "os.features": ["x"]}
    found = parse_document(encoded(index(blob(1, platform=platform), mediaType=DOCKER_LIST)))
    assert isinstance(found, Index)
    assert found.entries[0].platform == Platform("linux", "arm", "v7")


def test_an_index_may_be_empty_and_its_entries_bare() -> None:
    assert parse_document(encoded(index())) == Index(())
    found = parse_document(encoded(index(blob(1), blob(2, platform=None, annotations=None))))
    assert isinstance(found, Index)
    assert [entry.platform for entry in found.entries] == [None, None]


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "document",
    [
        manifest(blob(1), manifests=[]),
        index(blob(1), config=blob(0)),
        index(blob(1), layers=[]),
        manifest(blob(1), mediaType=OCI_INDEX),
        manifest(blob(1), mediaType=DOCKER_LIST),
        index(blob(1), mediaType=OCI_MANIFEST),
        index(blob(1), mediaType=DOCKER_MANIFEST),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(document: dict[str, Any]) -> None:
    assert "a manifest and an index at once" in refusal(document)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "latest",
        "sha256:",
        "sha256:" + "a" * 63,
        "sha256:" + "a" * 65,
        "sha256:" + "A" * 64,
        "sha256:" + "g" * 64,
        "md5:" + "a" * 32,
        "sha512:" + "a" * 64,
        f"{digest(1)}\n",
        "../../etc/passwd",
        "x" * 1_000_000,
    ],
)
def test_a_bad_digest_is_refused_wherever_it_is(bad: str) -> None:
    entry = blob(1) | {"digest": bad}
    for document in (manifest(entry), manifest(config=entry), index(entry)):
        message = refusal(document)
        assert "is not a digest" in message
        assert len(message) < 200
    with pytest.raises(BadManifest, match="is not a digest"):
        parse_config(encoded({"os": "linux", "rootfs": {"diff_ids": [bad]}}))


@pytest.mark.parametrize("good", ["sha256:" + "a" * 64, "sha384:" + "b" * 96, "sha512:" + "c" * 128])
def test_digests_of_all_kinds(good: str) -> None:
    assert isinstance(parse_document(encoded(manifest(blob(1) | {"digest": good}))), Manifest)


@pytest.mark.parametrize("size", [-1, (1 << 50) + 1, 10**30])
def test_a_size_that_nobody_can_believe_is_refused(size: int) -> None:
    assert "no believable size" in refusal(manifest(blob(1, size)))


def test_the_largest_sizes_add_up_to_something_that_can_be_stored() -> None:
    found = parse_document(encoded(manifest(*(blob(number, 1 << 50) for number in range(1000)))))
    assert isinstance(found, Manifest)
    assert found.download_size < 1 << 62


@pytest.mark.parametrize(
    "document",
    [
        {"schemaVersion": 1, "name": "x", "tag": "v1", "fsLayers": [], "history": []},
        {"schemaVersion": 2, "fsLayers": None, "config": blob(0)},
        manifest() | {"schemaVersion": 3},
    ],
)
def test_schema_one_is_refused_with_advice(document: dict[str, Any]) -> None:
    with pytest.raises(BadManifest) as caught:
        parse_document(encoded(document))
    assert "schema version" in caught.value.message
    assert caught.value.hint == "push the image again with a current tool"


def test_too_many_entries_are_refused_and_not_cut_off() -> None:
    many = [blob(1)] * 1001
    assert "1001 layers are more than" in refusal(manifest(*many))
    assert "1001 manifests are more than" in refusal(index(*many))
    with pytest.raises(BadManifest, match="1001 layers are more than"):
        parse_config(encoded({"rootfs": {"diff_ids": [digest(1)] * 1001}}))


HOSTILE = [
    b"",
    b"null",
    b"[]",
    b"0",
    b'"manifest"',
    b"{",
    b"<html><body>Sign in to the hotel's network</body></html>",
    b"\x1f\x8b\x08\x00 a layer",
    b'{"mediaType":"\xff\xfe"}',
    b'{"mediaType":"\\ud800"}',
    b"\xef\xbb\xbf{}",
    b'{"schemaVersion":"2"}',
    b'{"schemaVersion":2.5}',
    b'{"config":{"digest":1}}',
    b'{"config":{"digest":"' + digest(1).encode() + b'","size":' + b"9" * 5000 + b"}}",
    b'{"config":{"digest":"' + digest(1).encode() + b'","size":1e400}}',
    b'{"x":' + b"[" * 200_000,
    b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    b'{"x":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"}",
    b'{"manifests":[' * 50_000,
    b'{"manifests":{"0":{}}}',
    b'{"layers":[null]}',
]


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: str(body[:40]))
def test_hostile_documents_are_refused_and_nothing_else_happens(body: bytes) -> None:
    for parse in (parse_document, parse_config):
        with pytest.raises(BadManifest) as caught:
            parse(body)
        assert len(caught.value.message) < 300


FIELDS = (
    "schemaVersion mediaType manifests config layers digest size platform os architecture variant annotations fsLayers "
    "rootfs diff_ids"
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS.split()), inner, max_size=5),
    max_leaves=12,
)


@given(JSON.map(encoded) | st.binary(max_size=60))
def test_any_document_is_either_understood_or_refused(body: bytes) -> None:
    try:
        assert isinstance(parse_document(body), Manifest | Index)
    except BadManifest as error:
        assert error.message  # noqa: PT017 - either way is right
    try:
        assert isinstance(parse_config(body).chain_ids, tuple)
    except BadManifest as error:
        assert error.message  # noqa: PT017


# ---------------------------------------------------------------------------------------------- configurations


def config(*diff_ids: str, **more: Any) -> ImageConfig:
    platform = {"os": "linux", "architecture": "amd64"}
    return parse_config(encoded({**platform, "config": {}, "rootfs": {"type": "layers", "diff_ids": diff_ids}, **more}))


def test_a_configuration() -> None:
    found = config(digest(1), digest(2), architecture="arm64", variant="v8")
    assert (found.platform, found.diff_ids) == (Platform("linux", "arm64"), (digest(1), digest(2)))


@pytest.mark.parametrize("diff_ids", [[], None])
def test_the_configuration_of_an_image_without_layers(diff_ids: list[str] | None) -> None:
    found = parse_config(encoded({"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": diff_ids}}))
    assert (found.diff_ids, found.chain_ids) == ((), ())


@pytest.mark.parametrize("body", [{}, {"rootfs": None}, {"rootfs": 1}, {"rootfs": {"diff_ids": "x"}}])
def test_what_is_no_configuration(body: Any) -> None:
    with pytest.raises(BadManifest, match="not an image configuration"):
        parse_config(encoded(body))


def test_chain_ids_of_known_value() -> None:
    # printf 'sha256:%064d sha256:%064d' 1 2 | sha256sum
    second = "sha256:e0213565073dd272477933ef550455db21856966e444074f1492aef0939305ac"
    third = "sha256:" + hashlib.sha256(f"{second} {digest(3)}".encode()).hexdigest()
    assert config(digest(1)).chain_ids == (digest(1),)
    assert config(digest(1), digest(2), digest(3)).chain_ids == (digest(1), second, third)


@given(st.lists(st.integers(0, 10**6).map(digest), max_size=8))
def test_a_chain_id_is_that_of_the_chain_beneath_and_one_more(diff_ids: list[str]) -> None:
    def chain(parts: list[str]) -> str:  # as the specification defines it, from the top down
        if len(parts) == 1:
            return parts[0]
        return "sha256:" + hashlib.sha256(f"{chain(parts[:-1])} {parts[-1]}".encode()).hexdigest()

    expected = [chain(diff_ids[: height + 1]) for height in range(len(diff_ids))]
    assert list(config(*diff_ids).chain_ids) == expected


# ---------------------------------------------------------------------------------------------- compression

OCI_LAYER, FOREIGN = OCI + "layer.v1.tar", OCI + "layer.nondistributable.v1.tar"
DOCKER_LAYER, DOCKER_FOREIGN = DOCKER + "image.rootfs.diff.tar", DOCKER + "image.rootfs.foreign.diff.tar"


@pytest.mark.parametrize(
    ("media_type", "compression"),
    [
        (OCI_LAYER, "none"),
        (OCI_LAYER + "+gzip", "gzip"),
        (OCI_LAYER + "+zstd", "zstd"),
        (FOREIGN, "none"),
        (FOREIGN + "+gzip", "gzip"),
        (FOREIGN + "+zstd", "zstd"),
        (DOCKER_LAYER, "none"),
        (DOCKER_LAYER + ".gzip", "gzip"),
        (DOCKER_LAYER + ".zstd", "zstd"),
        (DOCKER_FOREIGN, "none"),
        (DOCKER_FOREIGN + ".gzip", "gzip"),
        (DOCKER_FOREIGN + ".zstd", "zstd"),
        (OCI_LAYER + "+gzip+encrypted", "gzip"),
        (OCI_LAYER + "+gzip; charset=x", "gzip"),
        (OCI_LAYER + "+bzip2", "unknown"),
        (OCI + "config.v1+json", "unknown"),
        ("application/vnd.cncf.helm.chart.content.v1.tar+gzip", "unknown"),
        ("text/html", "unknown"),
        ("", "unknown"),
    ],
)
def test_compression_of(media_type: str, compression: Compression) -> None:
    assert compression_of(media_type) == compression


def test_the_types_of_documents() -> None:
    assert frozenset({OCI_INDEX, DOCKER_LIST}) == INDEX_TYPES
    assert frozenset({OCI_MANIFEST, DOCKER_MANIFEST}) == MANIFEST_TYPES


# ---------------------------------------------------------------------------------------------- platforms


def platform(text: str) -> Platform:
    parts = (*text.split("/"), "", "")
    return Platform(parts[0], parts[1], parts[2])


def choices(*platforms: str) -> Index:
    """An index with an entry for each, numbered; ``-`` is one without a platform, ``?`` an attestation."""
    entries = []
    for number, text in enumerate(platforms):
        os, _, rest = text.partition("/")
        architecture, _, variant = rest.partition("/")
        more: dict[str, Any] = {}
        if text == "?":
            more = {"platform": {"os": "unknown", "architecture": "unknown"}}
        elif text != "-":
            more = {"platform": {"os": os, "architecture": architecture, "variant": variant}}
        entries.append(blob(number, **more))
    found = parse_document(encoded(index(*entries)))
    assert isinstance(found, Index)
    return found


@pytest.mark.parametrize(
    ("wanted", "accepted"),
    [
        ("linux/amd64", ["linux/amd64", "linux/386"]),
        ("linux/amd64/v1", ["linux/amd64", "linux/386"]),
        ("linux/amd64/v2", ["linux/amd64/v2", "linux/amd64", "linux/386"]),
        ("linux/amd64/v3", ["linux/amd64/v3", "linux/amd64/v2", "linux/amd64", "linux/386"]),
        ("linux/amd64/v4", ["linux/amd64/v4", "linux/amd64/v3", "linux/amd64/v2", "linux/amd64", "linux/386"]),
        ("linux/386", ["linux/386"]),
        ("linux/arm64", ["linux/arm64", "linux/arm/v8", "linux/arm/v7", "linux/arm/v6", "linux/arm/v5"]),
        ("linux/arm64/v8", ["linux/arm64", "linux/arm/v8", "linux/arm/v7", "linux/arm/v6", "linux/arm/v5"]),
        (
            "linux/arm64/v9",
            ["linux/arm64/v9", "linux/arm64", "linux/arm/v8", "linux/arm/v7", "linux/arm/v6", "linux/arm/v5"],
        ),
        ("linux/arm/v8", ["linux/arm/v8", "linux/arm/v7", "linux/arm/v6", "linux/arm/v5"]),
        ("linux/arm/v7", ["linux/arm/v7", "linux/arm/v6", "linux/arm/v5"]),
        ("linux/arm", ["linux/arm/v7", "linux/arm/v6", "linux/arm/v5"]),
        ("linux/arm/v6", ["linux/arm/v6", "linux/arm/v5"]),
        ("linux/arm/v5", ["linux/arm/v5"]),
        ("linux/arm/v4", ["linux/arm/v4"]),
        ("linux/arm/odd", ["linux/arm/odd"]),
        ("linux/riscv64", ["linux/riscv64"]),
        ("linux/s390x", ["linux/s390x"]),
        ("Linux/x86_64", ["linux/amd64", "linux/386"]),
    ],
)
def test_accepted_platforms(wanted: str, accepted: list[str]) -> None:
    assert list(map(str, accepted_platforms(platform(wanted)))) == accepted


@pytest.mark.parametrize(
    ("wanted", "there", "chosen"),
    [
        ("linux/amd64", ["linux/arm64", "linux/amd64", "linux/386"], 1),
        ("linux/amd64", ["linux/386", "linux/amd64"], 1),
        ("linux/amd64", ["linux/arm64", "linux/386"], 1),
        ("linux/amd64", ["linux/amd64/v2", "linux/amd64/v1"], 1),
        ("linux/amd64/v3", ["linux/amd64", "linux/amd64/v2", "linux/amd64/v4"], 1),
        ("linux/amd64", ["windows/amd64", "linux/amd64"], 1),
        ("linux/amd64", ["linux/x86_64"], 0),
        ("linux/amd64", ["linux/amd64", "linux/amd64"], 0),  # the first of equals
        ("linux/amd64", ["/amd64"], 0),  # no system is this one's, as containerd has it
        ("linux/arm64", ["linux/arm/v7", "linux/arm/v8", "linux/arm64/v8"], 2),
        ("linux/arm64", ["linux/arm/v5", "linux/arm/v7", "linux/arm/v6"], 1),
        ("linux/arm64", ["linux/aarch64"], 0),
        ("linux/arm/v7", ["linux/arm/v6", "linux/arm/v8"], 0),
        ("linux/arm/v7", ["linux/arm/v6", "linux/arm"], 1),
        ("linux/arm/v7", ["linux/armel", "linux/armhf"], 1),
        ("linux/arm/v6", ["linux/arm/v7", "linux/arm/5"], 1),
        ("linux/386", ["linux/amd64", "linux/i386"], 1),
        ("linux/amd64", ["-", "linux/386"], 1),  # what names no platform comes last
        ("linux/amd64", ["linux/arm64", "?", "-"], 2),
    ],
)
def test_select_platform(wanted: str, there: list[str], chosen: int) -> None:
    assert select_platform(choices(*there), platform(wanted), "app:v1").descriptor.digest == digest(chosen)


@pytest.mark.parametrize(
    ("wanted", "there", "listed"),
    [
        ("linux/amd64", ["linux/s390x", "linux/arm64/v8", "linux/arm/v7"], "linux/arm/v7, linux/arm64, linux/s390x"),
        ("linux/amd64", ["linux/arm64", "linux/arm64", "?"], "linux/arm64"),
        ("linux/amd64", ["linux/amd64/v3"], "linux/amd64/v3"),
        ("linux/arm/v6", ["linux/arm/v7"], "linux/arm/v7"),
        ("linux/386", ["linux/amd64"], "linux/amd64"),
        ("linux/amd64", ["?"], "none"),
        ("linux/amd64", [], "none"),
    ],
)
def test_no_platform_for_this_machine_names_those_there_are(wanted: str, there: list[str], listed: str) -> None:
    with pytest.raises(NoMatchingPlatform) as caught:
        select_platform(choices(*there), platform(wanted), "registry.example/app:v1")
    assert caught.value.message == f"registry.example/app:v1 is not available for {wanted}; platforms there: {listed}"


@given(
    st.lists(
        st.builds(
            Platform,
            st.sampled_from(("linux", "windows")),
            st.sampled_from(("amd64", "arm64", "arm", "386")),
            st.sampled_from(("", "v2", "v3", "v5", "v6", "v7", "v8")),
        )
        | st.none(),
        max_size=6,
    ),
    st.sampled_from(("linux/amd64", "linux/amd64/v3", "linux/arm64", "linux/arm/v7", "linux/386")),
)
def test_the_choice_is_never_one_that_another_would_better(there: list[Platform | None], wanted: str) -> None:
    order = list(accepted_platforms(platform(wanted)))
    entries = [
        IndexEntry(Descriptor("", digest(number), 1), entry, attestation=False) for number, entry in enumerate(there)
    ]
    ranks = [len(order) if entry is None else order.index(entry) if entry in order else 99 for entry in there]
    if min(ranks, default=99) == 99:
        with pytest.raises(NoMatchingPlatform):
            select_platform(Index(tuple(entries)), platform(wanted), "x")
    else:
        assert select_platform(Index(tuple(entries)), platform(wanted), "x") == entries[ranks.index(min(ranks))]


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ("x86_64", "linux/amd64"),
        ("aarch64", "linux/arm64"),
        ("armv8l", "linux/arm/v8"),
        ("armv7l", "linux/arm/v7"),
        ("armv6l", "linux/arm/v6"),
        ("i686", "linux/386"),
        ("i386", "linux/386"),
        ("ppc64le", "linux/ppc64le"),
        ("riscv64", "linux/riscv64"),
        ("loongarch64", "linux/loong64"),
    ],
)
def test_local_platform(machine: str, expected: str) -> None:
    assert str(local_platform(machine)) == expected


def test_the_platform_of_this_machine() -> None:
    assert local_platform().os == "linux"
    assert local_platform().architecture


@pytest.mark.parametrize(
    ("made_for", "wanted", "fits"),
    [
        ("linux/amd64", "linux/amd64", True),
        ("linux/386", "linux/amd64", True),
        ("linux/arm/v6", "linux/arm64", True),
        ("/amd64", "linux/amd64", True),
        ("/", "linux/amd64", True),  # says nothing, and containerd pulls it
        ("linux/arm64", "linux/amd64", False),
        ("windows/amd64", "linux/amd64", False),
        ("linux/amd64/v3", "linux/amd64", False),
    ],
)
def test_check_platform(made_for: str, wanted: str, fits: bool) -> None:
    made = platform(made_for)
    image = config(os=made.os, architecture=made.architecture, variant=made.variant)
    if fits:
        check_platform(image, platform(wanted), "app:v1")
    else:
        with pytest.raises(
            NoMatchingPlatform, match=f"app:v1 is not available for {wanted}; platforms there: {made_for}"
        ):
            check_platform(image, platform(wanted), "app:v1")
