"""Pushes, pulls and archives over HTTP, and by the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stoker.client import Client, ClientError, DaemonUnreachable
from stoker.objects.archives import CheckpointPullRequest, CheckpointPushRequest, ImagePushRequest
from stoker.objects.images import InlineAuth
from stokerd.checkpoints.errors import ArchiveRefused
from stokerd.errors import NotFound, RuntimeUnavailable
from tests.unit.api.fakes import Api

AUTHS = [InlineAuth(registry="reg.example", username="me", password="hush-hush-5c9a")]


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_what_is_asked_for(api: Api) -> None:
    async with Client(api.socket) as client:
        image = ImagePushRequest(image="app:v1", to="reg.example/app:v2", auths=AUTHS)
        assert (await client.push_image(image)).kind == "Push"
        assert api.checkpoints.asked("push_image") == image
        push = CheckpointPushRequest(to="reg.example/cp:v1", auths=AUTHS)
        assert (await client.push_checkpoint("a/b", push)).phase == "Pending"
        assert api.checkpoints.asked("push_checkpoint") == ("a/b", push)
        pull = CheckpointPullRequest(reference="reg.example/cp:v1", like="web/app", name="here", auths=AUTHS)
        assert (await client.pull_checkpoint(pull)).kind == "Pull"
        assert api.checkpoints.asked("pull_checkpoint") == pull


async def test_an_archive_out_and_in(api: Api) -> None:
    async with Client(api.socket) as client:
        found = b"".join([piece async for piece in client.export_checkpoint("first")])
        assert found == b"".join(api.archives.archive)
        large = b"y" * (20 << 20)  # more than a body of JSON may have
        made = await client.import_checkpoint(pieces(found, large), like="web/app", name="here")
        assert made.container == "app"
        assert api.archives.taken == found + large
        assert api.checkpoints.asked("import_checkpoint") == ("web/app", "here", False)
        await client.import_checkpoint(pieces(found), trust=True)
        assert api.checkpoints.asked("import_checkpoint") == ("", "", True)


async def test_refusals(api: Api) -> None:
    async with Client(api.socket) as client:
        api.checkpoints.failures["export_checkpoint"] = NotFound("there is none")
        with pytest.raises(ClientError) as caught:
            [piece async for piece in client.export_checkpoint("first")]
        assert (caught.value.reason, caught.value.status) == ("NotFound", 404)
        api.checkpoints.failures["import_checkpoint"] = ArchiveRefused("leads out", "../evil")
        with pytest.raises(ClientError, match="evil") as caught:
            await client.import_checkpoint(pieces(b"x"), trust=True)
        assert caught.value.reason == "ArchiveRefused"
        async with api.http.post(f"{api.url}/v1/checkpoints/import?trust=1", json={}) as response:
            assert response.status == 415
        async with api.http.post(f"{api.url}/v1/checkpoints/import?evil=1", data=b"x") as response:
            assert response.status == 400


async def test_an_export_that_breaks_off_is_noticed(api: Api) -> None:
    api.archives.breaks = RuntimeUnavailable("containerd is away")
    async with Client(api.socket) as client:
        with pytest.raises(DaemonUnreachable):
            [piece async for piece in client.export_checkpoint("first")]


async def test_a_client_that_goes_away_takes_its_archive_back(api: Api) -> None:
    began = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield b"x"
        began.set()
        await asyncio.Event().wait()

    async def send() -> Any:
        async with Client(api.socket) as client:
            return await client.import_checkpoint(stuck(), trust=True)

    task = asyncio.create_task(send())
    await asyncio.wait_for(began.wait(), 20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.wait_for(api.archives.gone.wait(), 20)
