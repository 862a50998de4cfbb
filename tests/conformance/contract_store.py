"""The content store and the snapshotter."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from stokerd.errors import RuntimeFailure, RuntimeInvalid, RuntimeNotFound
from stokerd.images.manifests import parse_config, parse_document
from stokerd.runtime.types import UNCOMPRESSED_LABEL
from tests.conformance.subject import MIB, Subject, cancelled, eventually, ingest_of

LEASE = "stoker.dev/conformance"
ABSENT = f"sha256:{'0' * 64}"


class TestContent:
    async def test_info_and_list(self, subject: Subject) -> None:
        made = await subject.make_image("content", [100_000, 50_000])
        content = subject.runtime.content
        await subject.runtime.cri.pull(made.reference)
        infos = {info.digest: info for info in await content.list()}
        sizes = {made.digest: len(made.manifest), made.id: len(made.config)}
        sizes |= {layer.digest: layer.size for layer in made.layers}
        for digest, size in sizes.items():
            assert infos[digest].size == size
            assert infos[digest].created_at is not None
            assert await content.info(digest) == infos[digest]
        assert infos[made.layers[0].digest].labels[UNCOMPRESSED_LABEL] == parse_config(made.config).diff_ids[0]

    async def test_read(self, subject: Subject) -> None:
        made = await subject.make_image("read", [100_000])
        content = subject.runtime.content
        await subject.runtime.cri.pull(made.reference)
        assert await content.read(made.digest) == made.manifest
        assert await content.read(made.id) == made.config
        assert await content.read(made.id, limit=len(made.config)) == made.config
        document = parse_document(await content.read(made.manifest_digest))
        assert document == parse_document(made.manifest)
        assert len(await content.read(made.layers[0].digest)) == made.layers[0].size

    async def test_read_too_much(self, subject: Subject) -> None:
        made = await subject.make_image("too-much", [3_000_000])
        await subject.runtime.cri.pull(made.reference)
        for digest, limit in ((made.layers[0].digest, MIB), (made.id, len(made.config) - 1), (made.id, 0)):
            with pytest.raises(RuntimeInvalid, match="is larger than"):
                await subject.runtime.content.read(digest, limit=limit)
        await subject.runtime.ping()

    async def test_what_is_not_there(self, subject: Subject) -> None:
        assert await subject.runtime.content.info(ABSENT) is None
        with pytest.raises(RuntimeNotFound):
            await subject.runtime.content.read(ABSENT)
        await subject.runtime.content.delete(ABSENT)
        await subject.runtime.content.abort(f"layer-{ABSENT}")

    async def test_delete(self, subject: Subject) -> None:
        made = await subject.make_image("content-deleted")
        content = subject.runtime.content
        await subject.runtime.cri.pull(made.reference)
        await content.delete(made.layers[0].digest)
        assert await content.info(made.layers[0].digest) is None
        await content.delete(made.layers[0].digest)

    async def test_abort(self, subject: Subject) -> None:
        made = await subject.make_image("aborted", [3_000_000])
        runtime, layer = subject.runtime, made.layers[0]
        await runtime.leases.create(LEASE, {})
        barrier = subject.hold(made, 0, 1_500_000)
        task = asyncio.create_task(runtime.cri.pull(made.reference, lease=LEASE))
        await barrier.reached()

        async def stands() -> bool:
            return (await ingest_of(subject, layer.digest) or 0) >= MIB

        await eventually("the ingest to stand", stands)
        await cancelled(subject, task)

        async def aborted() -> bool:
            """While the pull that was broken off still closes the ingest, containerd may fail to remove it."""
            with contextlib.suppress(RuntimeFailure):
                await runtime.content.abort(f"layer-{layer.digest}")
                return await ingest_of(subject, layer.digest) is None
            return False

        await eventually("the ingest to be gone", aborted)
        await runtime.content.abort(f"layer-{layer.digest}")
        subject.clear()
        subject.forget()
        assert await runtime.cri.pull(made.reference, lease=LEASE) == made.id
        assert subject.fetched(layer.digest) == layer.size


class TestSnapshots:
    async def test_are_named_by_chain_ids(self, subject: Subject) -> None:
        made = await subject.make_image("chain", [100_000, 50_000, 20_000])
        snapshots = subject.runtime.snapshots
        await subject.runtime.cri.pull(made.reference)
        parent = ""
        listed = {info.name: info for info in await snapshots.list()}
        for chain_id in made.chain_ids:
            info = await snapshots.stat(chain_id)
            assert info is not None
            assert (info.name, info.parent, info.kind) == (chain_id, parent, "committed")
            assert info.created_at is not None
            assert listed[chain_id] == info
            parent = chain_id

    async def test_usage(self, subject: Subject) -> None:
        made = await subject.make_image("usage", [1_000_000, 50_000])
        await subject.runtime.cri.pull(made.reference)
        big, small = [await subject.runtime.snapshots.usage(chain_id) for chain_id in made.chain_ids]
        assert big is not None
        assert small is not None
        assert big.bytes >= 1_000_000
        assert 50_000 <= small.bytes < 1_000_000
        assert big.inodes >= 1
        assert small.inodes >= 1

    async def test_what_is_not_there(self, subject: Subject) -> None:
        assert await subject.runtime.snapshots.stat(ABSENT) is None
        assert await subject.runtime.snapshots.usage(ABSENT) is None
