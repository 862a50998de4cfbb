"""Images by code: deterministic, shared where they should be, and wrong where they should be."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import json
import os
import signal
import ssl
import subprocess
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from tests.rig import archive, bundled, images
from tests.rig.errors import CommandError, RigError
from tests.rig.fixtures import MakeRegistry
from tests.rig.images import ImageSpec, Platform
from tests.rig.layers import BlobStore, Entry, LayerSpec
from tests.rig.node import Node
from tests.rig.push import RegistryClient
from tests.rig.registry import Registry


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def test_equal_specifications_give_equal_bytes(tmp_path: Path) -> None:
    spec = images.random_image(layers=3, size=300_000, files=30, seed=7, compressible=0.4)
    one, other = (images.build(spec, BlobStore(tmp_path / name)) for name in ("one", "other"))
    assert one.manifest == other.manifest
    assert len({layer.digest for layer in one.layers}) == 3
    assert images.build(images.random_image(layers=3, size=300_000, files=30, seed=8), BlobStore()).digest != one.digest


@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_layers_are_what_they_say(store: BlobStore, compression: str) -> None:
    spec = LayerSpec(size=500_000, files=250, compressible=0.5, compression=compression)  # type: ignore[arg-type]
    layer = store.layer(spec)
    packed = layer.blob.read_bytes()
    assert (layer.size, layer.digest) == (len(packed), images.digest_of(packed))
    plain = packed
    if compression == "gzip":
        plain = gzip.decompress(packed)
    elif compression == "zstd":
        import zstandard

        plain = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    assert (layer.unpacked_size, layer.diff_id) == (len(plain), f"sha256:{hashlib.sha256(plain).hexdigest()}")
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        members = [each for each in tar.getmembers() if each.isfile()]
    assert (len(members), sum(each.size for each in members)) == (250, 500_000)
    assert layer.files == 250
    if compression != "none":
        assert 240_000 < layer.size < 330_000


def test_random_content_does_not_compress(store: BlobStore) -> None:
    layer = store.layer(LayerSpec(size=40 << 20, files=2, level=1))
    assert layer.size > 40 << 20


def test_the_store_keeps_to_its_limit(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, limit=250_000)
    first = store.layer(LayerSpec(size=100_000, seed=1))
    for seed in (2, 3):
        store.layer(LayerSpec(size=100_000, seed=seed))
    assert not first.blob.exists()
    assert store.layer(LayerSpec(size=100_000, seed=1)).digest == first.digest


def test_a_family_shares_its_base(registry: Registry) -> None:
    base = (LayerSpec(size=200_000, seed="base"), LayerSpec(size=200_000, seed="base", directory="more"))
    members = [images.build(spec) for spec in images.family(4, base=base)]
    assert len({image.digest for image in members}) == 4
    assert len({layer.digest for image in members for layer in image.layers}) == 2 + 4
    pushed = [registry.push(f"family/{number}", image) for number, image in enumerate(members)]
    assert {each.layer_digests[:2] for each in pushed} == {pushed[0].layer_digests[:2]}
    assert pushed[0].diff_ids == tuple(layer.diff_id for layer in members[0].layers)
    assert pushed[0].by_digest == f"{registry.address}/family/0@{members[0].digest}"


def test_an_index_with_platforms_and_attestations(registry: Registry) -> None:
    own, other = (images.build(ImageSpec(platform=each)) for each in (Platform.own(), Platform.foreign()))
    index = images.index([own, other], style="docker", attested=True)
    pushed = registry.push("rig/index", index)
    assert (pushed.digest, pushed.manifest_digest) == (index.digest, own.digest)
    with registry.client() as client:
        accept = {"Accept": index.media_type}
        _, headers, body = client.call("GET", "/v2/rig/index/manifests/v1", headers=accept, expect=200)
    assert headers["docker-content-digest"] == index.digest
    entries = json.loads(body)["manifests"]
    assert [each["platform"]["architecture"] for each in entries[2:]] == ["unknown", "unknown"]
    assert entries[2]["annotations"] == {
        "vnd.docker.reference.type": "attestation-manifest",
        "vnd.docker.reference.digest": own.digest,
    }
    assert index.image_for(Platform.foreign()) == other


# No two share content: a layer whose snapshot is there already need not be fetched.
PULLS = {
    "oci": ImageSpec(layers=(LayerSpec(seed="oci"),)),
    "docker": ImageSpec(layers=(LayerSpec(seed="docker"),), style="docker"),
    "zstd and plain": ImageSpec(
        layers=(LayerSpec(compression="zstd", seed="zstd"), LayerSpec(compression="none", seed="plain"))
    ),
    "no layers": ImageSpec(layers=()),
}


@pytest.mark.parametrize("kind", PULLS)
def test_a_node_pulls_every_kind(node: Node, registry: Registry, kind: str) -> None:
    there = registry.push("rig/kinds", images.build(PULLS[kind]), tag=kind.replace(" ", "-"))
    node.ctr("images", "pull", "--plain-http", there.reference)
    assert set(there.layer_digests) <= set(node.ctr("content", "ls", "-q").stdout.split())
    node.ctr("images", "rm", there.reference)


def test_a_node_refuses_a_wrong_diff_id(node: Node, registry: Registry) -> None:
    spec = ImageSpec(layers=(LayerSpec(seed="wrong"),), wrong_diff_id=0)
    there = registry.push("rig/wrong", images.build(spec))
    with pytest.raises(CommandError, match="wrong diff id"):
        node.ctr("images", "pull", "--plain-http", there.reference)


def test_media_types_are_as_given() -> None:
    """What a node makes of an unknown one differs: the ctr of 2.1 passes over it, those of 1.6 and 1.7 fail."""
    image = images.build(ImageSpec(layers=(LayerSpec(), LayerSpec()), media_types={1: images.UNSUPPORTED_LAYER}))
    types = [each["mediaType"] for each in json.loads(image.manifest)["layers"]]
    assert types == [images.LAYER["oci", "gzip"], images.UNSUPPORTED_LAYER]


def test_a_node_finds_its_platform(node: Node, registry: Registry) -> None:
    own, other = (
        images.build(ImageSpec(layers=(LayerSpec(seed=each.architecture),), platform=each))
        for each in (Platform.own(), Platform.foreign())
    )
    both = registry.push("rig/platforms", images.index([other, own], attested=True), tag="both")
    foreign = registry.push("rig/platforms", images.index([other]), tag="foreign")
    node.ctr("images", "pull", "--plain-http", both.reference)
    assert own.layers[0].digest in node.ctr("content", "ls", "-q").stdout.split()
    node.ctr("images", "pull", "--plain-http", foreign.reference, check=False)
    assert other.layers[0].digest not in node.ctr("content", "ls", "-q").stdout.split()
    node.ctr("images", "rm", both.reference, foreign.reference, check=False)


def test_busybox_runs(node: Node) -> None:
    node.import_image(bundled.busybox_archive())
    script = "echo $PATH; ls -ld /tmp; id -u nobody"
    said = node.ctr("run", "--rm", bundled.BUSYBOX_REFERENCE, "hello", "/bin/sh", "-c", script).stdout
    assert said.splitlines()[0] == "/bin"
    assert said.splitlines()[1].startswith("drwxrwxrwt")
    assert said.splitlines()[2] == "65534"


def test_an_archive_holds_several_images(node: Node, tmp_path: Path) -> None:
    one, other = (images.build(images.random_image(layers=2, seed=f"archive/{n}")) for n in range(2))
    names = ["stoker.test/archive/one:1", "stoker.test/archive/other:2"]
    node.import_image(archive.write(tmp_path / "both.tar", dict(zip(names, (one, other), strict=True))))
    listed = node.ctr("images", "ls", "-q").stdout.split()
    assert set(names) <= set(listed)
    node.ctr("images", "rm", *names)


def test_pause_ends_on_sigterm(tmp_path: Path) -> None:
    from tests.rig.elf import pause_program

    program = tmp_path / "pause"
    program.write_bytes(pause_program())
    program.chmod(0o755)
    # As the first process of a PID namespace, where a signal without a handler is not delivered.
    with subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", program]) as outer:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        from tests.rig.waiting import until

        until("the program to run", lambda: children.read_text(encoding="ascii").split())
        inner = int(children.read_text(encoding="ascii"))
        until(
            "it to have its handlers", lambda: "SigCgt:\t0000000000004002" in Path(f"/proc/{inner}/status").read_text()
        )
        os.kill(inner, signal.SIGTERM)
        assert outer.wait(5) == 0


def test_a_registry_with_a_password(make_registry: MakeRegistry) -> None:
    own = make_registry(auth=("someone", "secret"))
    there = own.push("private/one", images.build(ImageSpec()))
    path = f"/v2/private/one/blobs/{there.layer_digests[0]}"
    with RegistryClient(own.address) as stranger:
        assert stranger.call("GET", path, expect=401)[1]["www-authenticate"].startswith("Basic realm")
    with RegistryClient(own.address, auth=("someone", "wrong")) as wrong:
        wrong.call("GET", path, expect=401)
    with own.client() as right:
        right.call("GET", path, expect=200)


def test_a_registry_with_a_certificate(make_registry: MakeRegistry) -> None:
    own = make_registry(tls=True)
    assert own.url.startswith("https://")
    own.push("secure/one", images.build(ImageSpec()))
    distrustful = http.client.HTTPSConnection(own.address, timeout=10)
    with closing(distrustful), pytest.raises(ssl.SSLCertVerificationError):
        distrustful.request("GET", "/v2/")


def test_a_registry_deletes_keeps_and_restarts(make_registry: MakeRegistry) -> None:
    own = make_registry(delete=True)
    image = images.build(ImageSpec())
    there = own.push("short/lived", image)
    own.restart()
    manifest = "/v2/short/lived/manifests/v1"
    with own.client() as client:
        accept = {"Accept": image.media_type}
        client.call("GET", manifest, headers=accept, expect=200)
        client.delete_manifest("short/lived", there.digest)
        client.call("GET", manifest, headers=accept, expect=404)
    own.kill()
    with pytest.raises(ConnectionRefusedError), own.client() as client:
        client.call("GET", "/v2/", expect=200)


def test_a_registry_that_cannot_start_says_why(make_registry: MakeRegistry, registry: Registry) -> None:
    with pytest.raises(RigError, match="address already in use"):
        make_registry(port=registry.port)


def test_entries_are_written_as_given(store: BlobStore) -> None:
    layer = store.layer(LayerSpec(entries=(Entry("a/b/c", b"x", 0o4755), Entry("a/l", link="b/c")), compression="none"))
    with tarfile.open(layer.blob) as tar:
        assert [each.name for each in tar.getmembers()] == ["a", "a/b", "a/b/c", "a/l"]
        assert tar.getmember("a/b/c").mode == 0o4755
        assert tar.getmember("a/l").linkname == "b/c"
