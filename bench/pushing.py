"""A push that breaks in the middle of a large layer: what is sent twice."""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Callable

from bench.checkpoint_peers import Peers, Running
from bench.figures import Figure
from stokerd.checkpoints.committing import CommitWish
from stokerd.checkpoints.pushes import ImagePusher
from stokerd.registry.client import RegistryClient
from stokerd.registry.hosts import load_endpoints
from stokerd.registry.keyring import Keyring
from stokerd.registry.push_types import Policy
from tests.rig.faultproxy import FaultProxy
from tests.rig.faults import Cut

MIB = 1 << 20
LAYER = 128 * MIB
UPLOADS = "/blobs/uploads/"


async def run(here: Peers, golden: Running, runs: int, say: Callable[[str], None]) -> list[Figure]:
    """Push a container's changes, of which the connection breaks within the third part; each time other ones."""
    policy, twice = Policy(), []
    async with RegistryClient(hosts=load_endpoints) as client, FaultProxy(here.registry.address) as proxy:
        checkpoints = here.stoker.checkpoints
        pusher = ImagePusher(here.stoker.runtime, client, Keyring([]), checkpoints.holder, policy)
        for number in range(runs):
            name = f"{proxy.address}/bench/pushed{number}:1"
            await asyncio.to_thread((golden.directory / "changed").write_bytes, os.urandom(LAYER))
            made = await checkpoints.commit(golden.id, CommitWish(name))
            proxy.clear()
            proxy.forget()
            proxy.rule(Cut(at=policy.chunk // 2, before=True), path=UPLOADS, method="PATCH", nth=3)
            done = await pusher.push(name)
            assert done.pushed.digest == made.target.digest
            received = sum(each.received for each in proxy.matching(UPLOADS) if each.method in {"PATCH", "PUT"})
            twice.append((received - done.pushed.sent) / MIB)
            await asyncio.to_thread(here.stoker.node.ctr, "images", "rm", "--sync", name, made.id)
    value = statistics.median(twice)
    say(f"push: {value:.1f} MiB of {LAYER // MIB} are sent twice")
    against = f"{LAYER // MIB} MiB again, as where an upload begins anew"
    detail = f"all: {min(twice):.1f}-{max(twice):.1f}"
    target = policy.chunk / MIB
    return [Figure("push.resume_bytes_refetched", round(value, 2), "MiB", target, runs, against, detail=detail)]
