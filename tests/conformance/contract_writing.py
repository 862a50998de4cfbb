"""What is written by us: blobs, snapshots of our own, image records."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from stokerd.errors import RuntimeAlreadyExists, RuntimeFailure, RuntimeInvalid, RuntimeNotFound
from stokerd.runtime.task_types import Mount
from stokerd.runtime.types import Descriptor
from tests.conformance.subject import MIB, Subject, eventually, held

LEASE = "stoker.dev/writing"
ROOT = {"containerd.io/gc.root": "2026-01-01T00:00:00Z"}
_LAYER = "application/vnd.oci.image.layer.v1.tar"
ABSENT = f"sha256:{'0' * 64}"


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


async def collect(subject: Subject) -> None:
    """Let the garbage collector run."""
    subject.nudge()
    await subject.runtime.leases.create("stoker.dev/collect-writing", {})
    await subject.runtime.leases.delete("stoker.dev/collect-writing", sync=True)


class TestWriting:
    async def test_a_blob_in_pieces(self, subject: Subject) -> None:
        content, parts = subject.runtime.content, (b"a" * (3 * MIB), b"", b"b" * 17)
        body = b"".join(parts)
        await subject.runtime.leases.create(LEASE, {})
        info = await content.write(
            "piece", pieces(*parts), size=len(body), digest=digest(body), labels={"stoker.dev/x": "1"}, lease=LEASE
        )
        assert (info.digest, info.size) == (digest(body), len(body))
        assert info.labels["stoker.dev/x"] == "1"
        assert await content.read(info.digest, limit=len(body)) == body
        assert await content.read_at(info.digest, 2 * MIB, MIB + 5) == body[2 * MIB : 3 * MIB + 5]
        assert await content.read_at(info.digest, len(body) - 3, MIB) == b"bbb"
        for digest_of_it, offset in ((ABSENT, 0), (info.digest, len(body) + 1)):
            with pytest.raises(RuntimeFailure):
                await content.read_at(digest_of_it, offset, 5)
        assert await content.ingests() == ()
        assert (await held(subject, LEASE))["content"] == {info.digest}
        await subject.runtime.leases.delete(LEASE, sync=True)
        assert await content.info(info.digest) is None

    async def test_without_knowing_size_and_digest(self, subject: Subject) -> None:
        info = await subject.runtime.content.write("unknown", pieces(b"abc", b"def"), labels=ROOT)
        assert (info.digest, info.size) == (digest(b"abcdef"), 6)
        await collect(subject)
        assert await subject.runtime.content.info(info.digest) is not None
        await subject.runtime.content.delete(info.digest)

    async def test_what_is_there_already(self, subject: Subject) -> None:
        content = subject.runtime.content
        first = await content.write("one", pieces(b"same"), digest=digest(b"same"), labels=ROOT)
        unknown = await content.write("three", pieces(b"same"))
        assert unknown.digest == first.digest
        again = await content.write("two", pieces(b"same"), digest=digest(b"same"), labels={"stoker.dev/y": "2"})
        assert again.digest == first.digest
        assert again.labels == {**ROOT, "stoker.dev/y": "2"}
        assert await content.ingests() == ()
        await content.delete(first.digest)

    @pytest.mark.parametrize(("size", "expected"), [(4, ABSENT), (5, "")])
    async def test_other_than_was_said(self, subject: Subject, size: int, expected: str) -> None:
        content = subject.runtime.content
        with pytest.raises(RuntimeFailure):
            await content.write("wrong", pieces(b"body"), size=size, digest=expected)
        await content.abort("wrong")
        assert await content.info(digest(b"body")) is None
        assert await content.ingests() == ()


class TestSnapshotsOfOurs:
    async def test_a_chain(self, subject: Subject) -> None:
        snapshots = subject.runtime.snapshots
        (bind,) = await snapshots.prepare("ours-1-active", "", labels={**ROOT, "stoker.dev/a": "1"})
        assert bind.type == "bind"
        assert await snapshots.mounts("ours-1-active") == (bind,)
        await snapshots.commit("ours-1-active", "ours-1", labels=ROOT)
        assert await snapshots.stat("ours-1-active") is None
        (overlay,) = await snapshots.prepare("ours-2", "ours-1", labels=ROOT)
        assert overlay.type == "overlay"
        assert f"lowerdir={bind.source}" in overlay.options
        assert any(option.startswith("upperdir=") for option in overlay.options)
        (view,) = await snapshots.view("ours-view", "ours-1", labels=ROOT)
        assert (view.type, view.source) == ("bind", bind.source)
        assert "ro" in view.options
        info = await snapshots.stat("ours-2")
        assert info is not None
        assert (info.parent, info.kind, info.labels) == ("ours-1", "active", ROOT)
        with pytest.raises(RuntimeInvalid):
            await snapshots.remove("ours-1")
        for name in ("ours-2", "ours-view", "ours-1", "ours-1"):
            await snapshots.remove(name)
        assert await snapshots.stat("ours-1") is None

    async def test_names_and_parents(self, subject: Subject) -> None:
        snapshots = subject.runtime.snapshots
        await snapshots.prepare("ours-taken", "", labels=ROOT)
        with pytest.raises(RuntimeAlreadyExists):
            await snapshots.prepare("ours-taken", "", labels=ROOT)
        with pytest.raises(RuntimeNotFound):
            await snapshots.prepare("ours-orphan", "ours-none", labels=ROOT)
        with pytest.raises(RuntimeNotFound):
            await snapshots.mounts("ours-none")
        with pytest.raises(RuntimeNotFound):
            await snapshots.commit("ours-none", "ours-other")
        await snapshots.remove("ours-taken")

    async def test_labels(self, subject: Subject) -> None:
        snapshots = subject.runtime.snapshots
        await snapshots.prepare("ours-labels", "", labels={**ROOT, "stoker.dev/a": "1", "stoker.dev/b": "2"})
        changed = await snapshots.set_labels("ours-labels", {"stoker.dev/a": None, "stoker.dev/c": "3"})
        assert changed.labels == {**ROOT, "stoker.dev/b": "2", "stoker.dev/c": "3"}
        assert await snapshots.stat("ours-labels") == changed
        await snapshots.remove("ours-labels")
        with pytest.raises(RuntimeNotFound):
            await snapshots.set_labels("ours-labels", {})

    async def test_go_unless_something_keeps_them(self, subject: Subject) -> None:
        runtime = subject.runtime
        await runtime.leases.create(LEASE, {})
        await runtime.snapshots.prepare("ours-leased-active", "", lease=LEASE)
        await runtime.snapshots.commit("ours-leased-active", "ours-leased", lease=LEASE)
        await runtime.snapshots.prepare("ours-loose", "")

        async def gone() -> bool:
            await collect(subject)
            return await runtime.snapshots.stat("ours-loose") is None

        await eventually("what nothing keeps to be gone", gone)
        assert await runtime.snapshots.stat("ours-leased") is not None
        await runtime.leases.delete(LEASE, sync=True)
        assert await runtime.snapshots.stat("ours-leased") is None


class TestImageRecords:
    async def test_are_made_and_changed(self, subject: Subject) -> None:
        content, images = subject.runtime.content, subject.runtime.images
        one = await content.write("record-1", pieces(b"one"), labels=ROOT)
        two = await content.write("record-2", pieces(b"two!"), labels=ROOT)
        name, kind = "stoker.test/made:v1", "application/vnd.oci.image.manifest.v1+json"
        made = await images.put(name, Descriptor(kind, one.digest, one.size), {"a": "1"})
        assert (made.target.digest, made.labels) == (one.digest, {"a": "1"})
        changed = await images.put(name, Descriptor(kind, two.digest, two.size), {"b": "2"})
        assert await images.get(name) == changed
        assert (changed.target.digest, changed.labels, changed.created_at) == (two.digest, {"b": "2"}, made.created_at)
        await images.delete(name)
        for info in (one, two):
            await content.delete(info.digest)


class TestDiffs:
    async def test_a_layer_of_what_was_written_and_back(self, subject: Subject) -> None:
        """Where snapshots are directories that can be written to."""
        runtime = subject.runtime
        await runtime.leases.create(LEASE, {})
        try:
            await self._round_trip(subject)
        finally:
            for name in ("stoker-test-view", "stoker-test-over", "stoker-test-again", "stoker-test-base"):
                await runtime.snapshots.remove(name)
            await runtime.leases.delete(LEASE, sync=True)

    async def _round_trip(self, subject: Subject) -> None:
        runtime = subject.runtime
        await runtime.snapshots.prepare("stoker-test-key", "", lease=LEASE)
        await runtime.snapshots.commit("stoker-test-key", "stoker-test-base", lease=LEASE)
        over = await runtime.snapshots.prepare("stoker-test-over", "stoker-test-base", lease=LEASE)
        lower = await runtime.snapshots.view("stoker-test-view", "stoker-test-base", lease=LEASE)
        written = _upper(runtime.info.host_root, over)
        (written / "file").write_text("content")
        for media_type in (_LAYER, f"{_LAYER}+gzip"):
            made = await runtime.diffs.create(lower, over, media_type=media_type, ref="stoker-diff", lease=LEASE)
            assert made.media_type == media_type
            info = await runtime.content.info(made.digest)
            assert info is not None
            again = await runtime.snapshots.prepare("stoker-test-again", "stoker-test-base", lease=LEASE)
            assert await runtime.diffs.apply(made, again) == info.labels.get("containerd.io/uncompressed", made.digest)
            assert (_upper(runtime.info.host_root, again) / "file").read_text() == "content"
            await runtime.snapshots.remove("stoker-test-again")


def _upper(prefix: str, mounts: Sequence[Mount]) -> Path:
    options = dict(each.partition("=")[::2] for each in mounts[0].options)
    return Path(f"{prefix}{options['upperdir']}")
