"""A coordinator and some nodes with a stokerd each, joined by token: what people have in a rack, on one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.rig.coordinator import Coordinator
from tests.rig.node import Node
from tests.rig.stokerd import Stokerd
from tests.rig.waiting import until

Settings = Mapping[str, Mapping[str, Any]]


class Member:
    """One node of the cluster, by the name that it has there."""

    def __init__(self, name: str, node: Node, stokerd: Stokerd) -> None:
        self.name, self.node, self.stokerd = name, node, stokerd


class Cluster:
    """Start it with `start`, end it with `stop`; the containerd nodes are somebody else's. Every method blocks."""

    def __init__(
        self,
        directory: Path,
        nodes: Sequence[Node],
        *,
        settings: Sequence[Settings] = (),
        coordinator: Settings | None = None,
    ) -> None:
        """*settings*: of each node's stokerd, in the order of *nodes*; *coordinator*: the coordinator's own."""
        self.coordinator = Coordinator(directory / "coordinator", settings=coordinator)
        self.directory = directory
        self._nodes, self._settings = tuple(nodes), tuple(settings) or ({},) * len(nodes)
        self.members: list[Member] = []
        self._stack = ExitStack()

    def start(self) -> None:
        """Start the coordinator, have every node join it, and wait until all are ready."""
        self.coordinator.start()
        self._stack.callback(self.coordinator.stop)
        authority = self.directory / "authority.pem"
        authority.write_text(self._printed("nodes", "authority"), encoding="ascii")
        for number, (node, more) in enumerate(zip(self._nodes, self._settings, strict=True), 1):
            name = f"node{number}"
            directory = self.directory / name
            directory.mkdir()
            token = directory / "join-token"
            token.touch(mode=0o600)
            token.write_text(self._printed("nodes", "token"), encoding="ascii")
            uplink = {
                "coordinator": f"127.0.0.1:{self.coordinator.link_port}",
                "join": f"127.0.0.1:{self.coordinator.join_port}",
                "ca": str(authority),
                "token_file": str(token),
                "node": name,
                "inventory_interval": "500ms",
                "load_interval": "1s",
                "reconnect_initial": "200ms",
                "reconnect_max": "1s",
            }
            wanted = {**more, "uplink": {**uplink, **more.get("uplink", {})}}
            stokerd = Stokerd(node, directory, settings=wanted)
            self._stack.callback(stokerd.stop)
            stokerd.start()
            self.members.append(Member(name, node, stokerd))
        until("all nodes are ready", self._all_ready, timeout=60)

    def _printed(self, *arguments: str) -> str:
        done = self.coordinator.cli(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _all_ready(self) -> bool:
        return all(self.is_ready(member.name) for member in self.members)

    def is_ready(self, name: str) -> bool:
        """Say whether the coordinator counts the node as ready."""
        for node in self.coordinator.all("nodes"):
            if node["metadata"]["name"] == name:
                conditions = (node.get("status") or {}).get("conditions", [])
                return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        return False

    def stop(self) -> None:
        """End everything that was started; a second time does nothing."""
        self._stack.close()
