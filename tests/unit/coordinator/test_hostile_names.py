"""Switches that call themselves what moves cursors, closes tags or quotes: from the stream to everything people see."""

from __future__ import annotations

import asyncio
import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import grpc
import pytest
from aiohttp import ClientSession, CookieJar

from stoker.objects.link import Welcome
from stoker.objects.topology import TopologyReport
from tests.rig.coordinator import Coordinator
from tests.rig.waiting import until
from tests.unit.coordinator.controllers.test_fabrics import report
from tests.unit.coordinator.nodes.bench import FakeNode
from tests.unit.coordinator.web.test_pages import live_parts

HOSTILE = (
    "leaf\x1b]0;owned\x07\x1b[2J\x1b[31m\u202e\u0000\x9b2J",
    '"><script>alert(1)</script><img src=x onerror=alert(1)>\n',
    "a Nodes=n[1-99999] Switches=roce\r\nSwitchName=mine",
    '"]; evil [label="x',
    "${jndi:x}{{7*7}}%s%n',--",
    "x" * 5000,
)
FORMATS = ("json", "svg", "dot", "slurm-tree", "slurm-block", "labels")


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    """Its link is a socket without certificates."""
    address = f"unix:{tmp_path}/link.sock"
    made = Coordinator(tmp_path, settings={"link": {"listen": "", "join_listen": "", "plain_listen": address}})
    made.plain = address  # type: ignore[attr-defined]
    try:
        made.start()
        yield made
    finally:
        made.stop()


def odd(text: str) -> set[str]:
    """Return the characters of a text that do more than stand there."""
    return {
        char for char in text if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and char not in "\n\t"
    }


def lies(node: str) -> TopologyReport:
    """A report whose switches are called so, and have that for their identity, their port and their reasons."""
    return report(node, *HOSTILE, down=True)


async def test_names_of_switches_are_text_wherever_they_are_shown(coordinator: Coordinator) -> None:
    options = FakeNode.OPTIONS
    async with grpc.aio.insecure_channel(coordinator.plain, options=options) as channel:  # type: ignore[attr-defined]
        node = await FakeNode(channel).greet("n1")
        assert isinstance(node.first, Welcome)
        await node.say_full("topology", lies("n1"))
        await asyncio.to_thread(until, "there are domains", lambda: coordinator.all("hypernodes"))
        shown = await asyncio.to_thread(_shown, coordinator)
        shown |= await _pages(coordinator)
    assert {name: odd(text) for name, text in shown.items() if odd(text)} == {}
    assert [name for name, text in shown.items() if "x" * 300 in text] == []
    assert {
        name for name in ("topology", "svg", "ui/topology", "get hypernodes -o") if "owned" not in shown[name]
    } == set()
    assert ET.fromstring(shown["svg"]).tag.endswith("svg")
    for name in ("svg", *(name for name in shown if name.startswith("ui/"))):
        assert live_parts(shown[name]) == [], name
    for line in shown["slurm-tree"].splitlines():
        words = [word.partition("=")[0] for word in line.split()]
        assert line.startswith("#") or set(words) <= {"SwitchName", "Switches", "Nodes"}, line
        assert "mine" not in words
    for each in coordinator.all("hypernodes"):
        assert each["metadata"]["name"].replace("-", "").isalnum()
    assert json.loads(shown["labels"])


def _shown(coordinator: Coordinator) -> dict[str, str]:
    """Return what programs print: the tree, objects, and why a node is where it is."""
    commands = [("topology",), ("get", "hypernodes", "-o", "yaml"), ("describe", "hypernode", "roce")]
    commands += [("topology", "why", "n1", HOSTILE[2])]
    found = {}
    for command in commands:
        done = coordinator.cli(*command)
        assert done.returncode in {0, 1}, (command, done.stderr)
        found[" ".join(command[:3])] = done.stdout + done.stderr
    return found


async def _pages(coordinator: Coordinator) -> dict[str, str]:
    """Return what a browser is given, and who asks for the topology in one of its forms."""
    token = await asyncio.to_thread(coordinator.token, "viewer")
    found = {}
    async with ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        for form in FORMATS:
            async with session.get(f"{coordinator.url}/topology", params={"format": form}) as answer:
                assert answer.status == 200, form
                found[form] = await answer.text()
    async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as session:
        async with session.post(f"{coordinator.url}/ui/login", data={"token": token}) as answer:
            assert answer.status == 200
        for page in ("", "nodes", "nodes/n1", "topology", "topology.svg", "topology.txt?format=slurm-tree", "events"):
            async with session.get(f"{coordinator.url}/ui/{page}") as answer:
                assert answer.status == 200, page
                found[f"ui/{page}"] = await answer.text()
    return found
