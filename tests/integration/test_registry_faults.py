"""What registries and networks do to a pull: each has a stable reason, and leaves nothing behind."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from stoker.objects.images import InlineAuth, ItemEvent, ItemStatus, WarmRequest
from tests.integration.conftest import MakeStokerd, Publish
from tests.rig.containerd_config import HostsEntry
from tests.rig.faultproxy import FaultProxy
from tests.rig.faults import (
    Fault,
    Gate,
    Hang,
    Hold,
    NoRange,
    Reset,
    Status,
    Trickle,
    Truncate,
    WrongDigest,
    too_many_requests,
    unauthorized,
)
from tests.rig.fixtures import MakeNode, MakeRegistry
from tests.rig.images import ImageSpec, Platform, build, index, random_image
from tests.rig.layers import LayerSpec
from tests.rig.node import Node
from tests.rig.push import Pushed
from tests.rig.registry import Registry, free_port
from tests.rig.stokerd import Stokerd, Store, settle

MANIFEST, BLOB = "/manifests/", "/blobs/"
PATIENCE = 3
"""Seconds without progress after which a slow pull would be taken for one that has stalled."""


def through(proxy: FaultProxy, pushed: Pushed) -> str:
    """The image's name at the proxy."""
    return f"{proxy.address}/{pushed.repository}:{pushed.tag}"


async def failing(stokerd: Stokerd, image: str, attempts: int = 1) -> ItemStatus:
    job = await stokerd.warm(image, attempts=attempts)
    assert job.state == "Failed", job.items[0]
    item = job.items[0]
    assert image.partition("/")[0] in item.reference
    return item


async def test_unknown_host(stokerd: Stokerd, clean_node: Node) -> None:
    before = Store.of(clean_node)
    item = await failing(stokerd, "registry.invalid/some/image:v1")
    assert item.reason == "UnknownHost", item.message
    assert "registry.invalid" in item.message
    assert item.hint
    settle(clean_node, before)


async def test_refused_connection(stokerd: Stokerd) -> None:
    item = await failing(stokerd, f"127.0.0.1:{free_port()}/some/image:v1")
    assert item.reason == "ConnectionRefused"


async def test_tls_error(make_stokerd: MakeStokerd, make_node: MakeNode, make_registry: MakeRegistry) -> None:
    registry = make_registry(tls=True)
    pushed = registry.push("test/tls", build(ImageSpec()))
    node = make_node(expose=(registry.port,))
    node.hosts(registry.address, HostsEntry(registry.url), server=registry.url)
    stokerd = make_stokerd(node)
    item = await failing(stokerd, pushed.reference, attempts=3)
    assert item.reason == "TlsFailed", item.message
    assert item.attempt == 1  # trying again cannot help
    assert "hosts.toml" in item.hint


STATUSES = [
    (unauthorized(), "Unauthorized", 1),
    (unauthorized(None), "Unauthorized", 1),
    (Status(403), "Denied", 1),
    (Status(404), "NotFound", 1),
    (Status(500), "RegistryUnavailable", 2),
    (Status(502), "RegistryUnavailable", 2),
    (Status(503), "RegistryUnavailable", 2),
    (too_many_requests(1), "RateLimited", 2),
]


@pytest.mark.parametrize(("fault", "reason", "attempts"), STATUSES, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("where", [MANIFEST, BLOB], ids=["manifest", "blob"])
async def test_http_status(
    stokerd: Stokerd,
    clean_node: Node,
    proxy: FaultProxy,
    publish: Publish,
    fault: Fault,
    reason: str,
    attempts: int,
    where: str,
) -> None:
    pushed = publish(random_image(seed="status"))
    before = Store.of(clean_node)
    proxy.rule(fault, path=where)
    item = await failing(stokerd, through(proxy, pushed), attempts=2)
    assert (item.reason, item.attempt) == (reason, attempts), item.message
    settle(clean_node, before)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (WrongDigest(), "WrongDigest"),
        (Truncate(at=0), "Truncated"),
        (Truncate(at=10_000, honest=True), "Truncated"),
        (Reset(after=10_000), "ConnectionBroken"),
    ],
    ids=["wrong-digest", "truncated", "truncated-honest", "reset"],
)
async def test_damaged_layer(
    stokerd: Stokerd, clean_node: Node, proxy: FaultProxy, publish: Publish, fault: Fault, reason: str
) -> None:
    pushed = publish(ImageSpec(layers=(LayerSpec(size=200_000, seed="damaged"),)))
    layer = pushed.layers[0].digest
    before = Store.of(clean_node)
    rule = proxy.rule(fault, path=layer)
    item = await failing(stokerd, through(proxy, pushed), attempts=2)
    assert item.reason in {reason, "Truncated"}, item.message
    assert item.attempt == 2
    settle(clean_node, before)
    proxy.remove(rule)
    job = await stokerd.warm(through(proxy, pushed))
    assert job.items[0].reason == "Pulled"


async def test_a_fault_that_passes_is_outlived(stokerd: Stokerd, proxy: FaultProxy, publish: Publish) -> None:
    pushed = publish(random_image(seed="passing"))
    proxy.rule(Status(503), path=MANIFEST, times=13)  # containerd itself tries a few times
    job = await stokerd.warm(through(proxy, pushed), attempts=20)
    assert job.items[0].reason == "Pulled"
    assert job.items[0].attempt > 1
    async with stokerd.client() as client:
        history = await client.history(through(proxy, pushed))
    assert [entry.result for entry in history][-1] == "Failed"
    assert history[0].result == "Succeeded"
    assert history[-1].reason == "RegistryUnavailable"


async def test_no_matching_platform_names_those_there_are(
    stokerd: Stokerd, clean_node: Node, registry: Registry
) -> None:
    pushed = registry.push("test/foreign", index([build(ImageSpec(platform=Platform.foreign()))], attested=True))
    before = Store.of(clean_node)
    item = await failing(stokerd, pushed.reference, attempts=3)
    assert item.reason == "NoMatchingPlatform"
    assert item.attempt == 1
    foreign = Platform.foreign()
    assert f"{foreign.os}/{foreign.architecture}" in item.message
    settle(clean_node, before)


async def test_single_image_of_another_platform(stokerd: Stokerd, publish: Publish) -> None:
    pushed = publish(ImageSpec(platform=Platform.foreign()))
    job = await stokerd.warm(pushed.reference)  # as containerd and docker do: with a warning
    assert job.items[0].reason == "Pulled"
    assert Platform.foreign().architecture in job.items[0].message


async def test_unsupported_media_type(stokerd: Stokerd, clean_node: Node, publish: Publish) -> None:
    pushed = publish(ImageSpec(media_types={0: "application/vnd.example.weights.v1"}))
    before = Store.of(clean_node)
    item = await failing(stokerd, pushed.reference, attempts=3)
    assert (item.reason, item.attempt) == ("UnsupportedMediaType", 1), item.message
    assert "application/vnd.example.weights.v1" in item.message
    settle(clean_node, before)


async def test_wrong_diff_id(stokerd: Stokerd, clean_node: Node, publish: Publish) -> None:
    pushed = publish(ImageSpec(wrong_diff_id=0))
    before = Store.of(clean_node)
    item = await failing(stokerd, pushed.reference)
    assert item.reason == "BadLayer", item.message
    settle(clean_node, before)


async def test_registry_dies_mid_layer_and_only_the_rest_is_fetched(
    stokerd: Stokerd, proxy: FaultProxy, publish: Publish
) -> None:
    pushed = publish(ImageSpec(layers=(LayerSpec(size=20 << 20, seed="dies"),)))
    layer = pushed.layers[0]
    proxy.rule(Reset(after=12 << 20), path=layer.digest, method="GET", times=1)
    proxy.rule(Status(503), path=layer.digest, method="GET", nth=(2, 3, 4, 5, 6, 7))
    job = await stokerd.warm(through(proxy, pushed), attempts=10)
    assert job.items[0].reason == "Pulled", job.items[0].message
    slack = 2 << 20  # what was on its way when the connection broke
    assert layer.size <= proxy.bytes_sent(layer.digest) <= layer.size + slack
    assert any(record.range for record in proxy.matching(layer.digest))


async def test_without_range_support_it_still_ends_well(stokerd: Stokerd, proxy: FaultProxy, publish: Publish) -> None:
    pushed = publish(ImageSpec(layers=(LayerSpec(size=5 << 20, seed="norange"),)))
    layer = pushed.layers[0].digest
    proxy.rule(NoRange(), path=layer)
    proxy.rule(Reset(after=3 << 20), path=layer, method="GET", times=1)
    proxy.rule(Status(503), path=layer, method="GET", nth=(2, 3, 4, 5, 6, 7))
    job = await stokerd.warm(through(proxy, pushed), attempts=10)
    assert job.items[0].reason == "Pulled", job.items[0].message
    assert job.items[0].progress.percent == 100


async def test_a_stall_is_found_and_broken_off(
    make_stokerd: MakeStokerd, clean_node: Node, proxy: FaultProxy, publish: Publish
) -> None:
    pushed = publish(ImageSpec(layers=(LayerSpec(size=2 << 20, seed="stall"),)))
    before = Store.of(clean_node)
    stokerd = make_stokerd(clean_node, images={"stall_timeout": "1s"})
    gate = Gate()
    rule = proxy.rule(Hold(gate, after=1 << 20), path=pushed.layers[0].digest)
    item = await failing(stokerd, through(proxy, pushed))
    assert item.reason == "Stalled"
    settle(clean_node, before)
    gate.release()
    proxy.remove(rule)
    proxy.rule(Hang(), path=MANIFEST)
    item = await failing(stokerd, through(proxy, pushed))
    assert item.reason == "Stalled"
    assert "resolved" in item.message


async def test_a_slow_pull_that_moves_is_left_alone(
    make_stokerd: MakeStokerd, clean_node: Node, proxy: FaultProxy, publish: Publish
) -> None:
    pushed = publish(ImageSpec(layers=(LayerSpec(size=8 << 20, seed="slow"),)))
    stokerd = make_stokerd(clean_node, images={"stall_timeout": f"{PATIENCE}s"})
    layer, rate = pushed.layers[0], 2 << 20  # containerd shows a layer's progress by the MiB, so twice a second
    assert layer.size / rate > PATIENCE
    proxy.rule(Trickle(rate), path=layer.digest)
    job = await stokerd.warm(through(proxy, pushed), attempts=1)
    assert job.items[0].reason == "Pulled", job.items[0].message


async def test_a_deadline_counts_pulling(
    stokerd: Stokerd, clean_node: Node, proxy: FaultProxy, publish: Publish
) -> None:
    pushed = publish(ImageSpec(layers=(LayerSpec(size=1 << 20, seed="deadline"),)))
    before = Store.of(clean_node)
    gate = Gate()
    proxy.rule(Hold(gate), path=pushed.layers[0].digest)
    job = await stokerd.warm(through(proxy, pushed), timeout_seconds=0.5)
    gate.release()
    assert job.items[0].reason == "DeadlineExceeded"
    settle(clean_node, before)


async def test_a_429_rests_the_whole_registry(stokerd: Stokerd, proxy: FaultProxy, publish: Publish) -> None:
    one, two = publish(random_image(seed="r1")), publish(random_image(seed="r2"))
    rule = proxy.rule(too_many_requests(1), path=one.repository)
    async with stokerd.client() as client:
        first = await client.warm(WarmRequest(images=[through(proxy, one)], attempts=20))
        async for event in client.follow(first.id):
            if isinstance(event, ItemEvent) and event.item.reason == "RateLimited":
                break
        proxy.remove(rule)
        job = await stokerd.warm(through(proxy, two))
        assert job.items[0].reason == "Pulled"
        await client.cancel(first.id)
    assert any(event["event"] == "registry limits the rate; it rests" for event in stokerd.events())


def docker_config(path: Path, server: str, user: str, password: str) -> Path:
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    path.write_text(json.dumps({"auths": {server: {"auth": encoded}}}), encoding="utf-8")
    return path


async def test_credentials_from_file_and_request(
    make_stokerd: MakeStokerd, make_node: MakeNode, make_registry: MakeRegistry, tmp_path: Path
) -> None:
    registry = make_registry(auth=("ana", "sesame-7381"))
    pushed = registry.push("team/private", build(ImageSpec()))
    node = make_node(expose=(registry.port,))
    node.hosts(registry.address)
    wrong = docker_config(tmp_path / "wrong.json", registry.address, "ana", "not-it-5522")
    stokerd = make_stokerd(node, credentials={"docker_configs": [str(wrong)]})
    item = await failing(stokerd, pushed.reference, attempts=3)
    assert item.reason == "Unauthorized"
    assert str(wrong) in item.message
    assert "anonymous" in item.message
    assert registry.address in item.message
    auth = InlineAuth(registry=registry.address, username="ana", password="sesame-7381")
    job = await stokerd.warm(pushed.reference, auths=[auth])
    assert job.items[0].reason == "Pulled", job.items[0].message
    state = b"".join(path.read_bytes() for path in (stokerd.directory / "state").iterdir() if path.is_file())
    for secret in (b"sesame-7381", b"not-it-5522", base64.b64encode(b"ana:sesame-7381")):
        assert secret not in stokerd.log().encode()
        assert secret not in state


async def test_wrong_credentials_give_way_to_right_ones(
    make_stokerd: MakeStokerd, make_node: MakeNode, make_registry: MakeRegistry, tmp_path: Path
) -> None:
    registry = make_registry(auth=("ana", "sesame"))
    pushed = registry.push("team/private", build(ImageSpec()))
    node = make_node(expose=(registry.port,))
    node.hosts(registry.address)
    right = docker_config(tmp_path / "config.json", registry.address, "ana", "sesame")
    stokerd = make_stokerd(node, credentials={"docker_configs": [str(right)]})
    wrong = InlineAuth(registry=f"{registry.address}/team", username="ana", password="wrong")
    job = await stokerd.warm(pushed.reference, auths=[wrong], attempts=1)
    assert job.items[0].reason == "Pulled", job.items[0].message
