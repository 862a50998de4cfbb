"""The suite on real containerd, of every suite in STOKER_SUITES."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.conformance.containerd_subject import ContainerdSubject
from tests.conformance.contract_disk import SMALL_DISK
from tests.conformance.contracts import *  # noqa: F403
from tests.conformance.subject import Subject
from tests.rig.faultproxy import FaultProxy
from tests.rig.fixtures import MakeNode
from tests.rig.node import Node
from tests.rig.registry import Registry


@pytest.fixture
async def subject(node: Node, registry: Registry, proxy: FaultProxy) -> AsyncIterator[Subject]:
    made = ContainerdSubject(node, registry, proxy)
    async with made.connected():
        yield made


@pytest.fixture
async def small(make_node: MakeNode, registry: Registry, proxy: FaultProxy) -> AsyncIterator[Subject]:
    node = await asyncio.to_thread(make_node, disk_bytes=SMALL_DISK)
    made = ContainerdSubject(node, registry, proxy)
    async with made.connected():
        yield made
