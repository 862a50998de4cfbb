"""What leaves a node in memory and enters it, as operations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from stoker.objects.archives import CheckpointPullRequest, CheckpointPushRequest, ImagePushRequest
from stoker.objects.checkpoints import CheckpointRequest, CommitRequest
from stoker.objects.images import InlineAuth
from stokerd.checkpoints import freezing
from stokerd.checkpoints.gate import Carriers
from stokerd.errors import InvalidInput, NotFound
from stokerd.registry.client import RegistryClient
from stokerd.registry.keyring import Keyring
from tests.unit.checkpoints.bench import Bench
from tests.unit.checkpoints.counter import NoWarmer, counter
from tests.unit.registry.fakes import refusal
from tests.unit.registry.uploading import PushRegistry

NAME = "reg.example/made/app:v1"
SECRET = "hush-hush-5c9a"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(freezing, "_THAW_PAUSE", 0.01)
    return Bench(tmp_path)


@pytest.fixture
async def registry() -> AsyncIterator[PushRegistry]:
    async with PushRegistry() as made:
        yield made


@pytest.fixture
async def carriers(registry: PushRegistry) -> AsyncIterator[Carriers]:
    async with RegistryClient(hosts=lambda _: (registry.endpoint,)) as client:
        yield Carriers(client, Keyring([]), NoWarmer())


async def test_a_commit_that_is_pushed(
    bench: Bench, tmp_path: Path, registry: PushRegistry, carriers: Carriers
) -> None:
    bench.base(bench.container())
    request = CommitRequest(container="web", image=NAME, squash=True, compression="zstd", push=True)
    async with counter(bench, tmp_path, carriers=carriers) as desk:
        done = await desk.ended(await desk.desk.commit(request))
        assert (done.phase, done.message) == ("Succeeded", "")
        assert done.image is not None
        assert done.pushed is not None
        assert done.pushed.digest == done.image.digest
        assert done.done_bytes == done.total_bytes == done.pushed.sent_bytes
        assert done.steps[-1].name == "pushing"
        again = await desk.ended(await desk.desk.gate.push_image(ImagePushRequest(image=NAME, to="reg.example/two:v2")))
        assert again.pushed is not None
        assert (again.pushed.existing_bytes, again.subject) == (done.pushed.sent_bytes, "reg.example/two:v2")
        with pytest.raises(NotFound):
            await desk.desk.gate.push_image(ImagePushRequest(image="reg.example/none:v1"))


async def test_an_image_stays_when_its_push_fails(
    bench: Bench, tmp_path: Path, registry: PushRegistry, carriers: Carriers
) -> None:
    bench.base(bench.container())
    registry.answers = {("PUT", "/v1"): [refusal(403, "DENIED", f"not with {SECRET}") for _ in range(9)]}
    auths = [InlineAuth(registry="reg.example", username="me", password=SECRET)]
    request = CommitRequest(container="web", image=NAME, squash=True, push=True, auths=auths)
    async with counter(bench, tmp_path, carriers=carriers) as desk:
        done = await desk.ended(await desk.desk.commit(request))
        assert (done.phase, done.reason) == ("Failed", "RegistryDenied")
        assert done.image is not None
        assert await bench.runtime.images.get(NAME) is not None
        assert SECRET not in msgspec.json.encode(done).decode()
        assert [lease.id for lease in await bench.runtime.leases.list()] == []


async def test_a_checkpoint_goes_and_comes(
    bench: Bench, tmp_path: Path, registry: PushRegistry, carriers: Carriers
) -> None:
    bench.container()
    async with counter(bench, tmp_path, carriers=carriers) as desk:
        gate = desk.desk.gate
        (made,) = (
            await desk.ended(await desk.desk.create_checkpoint(CheckpointRequest(pod="web", name="one")))
        ).checkpoints
        sent = await desk.ended(await gate.push_checkpoint("one", CheckpointPushRequest(to=NAME)))
        assert sent.pushed is not None, sent.message
        assert sent.pushed.sent_bytes > 0
        request = CheckpointPullRequest(reference=NAME, like="web/app", name="two")
        got = await desk.ended(await gate.pull_checkpoint(request))
        (taken,) = got.checkpoints
        assert (got.phase, taken.name, taken.memory_bytes) == ("Succeeded", "two", made.memory_bytes)
        for wrong in (
            CheckpointPullRequest(reference=NAME),
            CheckpointPullRequest(reference=NAME, trust=True, name="a/b"),
        ):
            with pytest.raises(InvalidInput):
                await gate.pull_checkpoint(wrong)
        info = await gate.import_checkpoint(gate.export_checkpoint("one"), "web/app", "three", trust=False)
        assert {each.name for each in await desk.desk.checkpoints()} == {"one", "two", "three"}
        assert info.id not in {made.id, taken.id}


async def test_a_pull_that_was_complete_when_stokerd_died_has_succeeded(
    bench: Bench, tmp_path: Path, registry: PushRegistry, carriers: Carriers
) -> None:
    bench.container()
    async with counter(bench, tmp_path, carriers=carriers) as desk:
        gate = desk.desk.gate
        await desk.ended(await desk.desk.create_checkpoint(CheckpointRequest(pod="web", name="one")))
        await desk.ended(await gate.push_checkpoint("one", CheckpointPushRequest(to=NAME)))
        done = await desk.ended(await gate.pull_checkpoint(CheckpointPullRequest(reference=NAME, like="web/app")))
        (row,) = [each for each in await desk.journal.operations() if each.id == done.id]
        assert row.finished_at is not None
        labels = (await desk.room.inspect(done.checkpoints[0].id)).labels
        assert labels["stoker.dev/operation"] == done.id
