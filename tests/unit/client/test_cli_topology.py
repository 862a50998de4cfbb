"""``stoker topology``, and what ``stoker doctor`` says of it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from stoker.cli import exits
from stoker.objects.node import Advice
from stokerd.topology.room import SwitchedOff
from tests.unit.client.commands import Outcome, Run, complete
from tests.unit.client.conftest import Start
from tests.unit.client.served import Served
from tests.unit.topology.nodes import report_of


@pytest.fixture(autouse=True)
def node(daemon: Served) -> None:
    daemon.api.topology.answer = report_of("h100+link-down")


def test_the_tree(run: Run) -> None:
    outcome = run("topology")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.lines[0].startswith("h100-01  8 GPUs · 12 NICs · 2 NUMA nodes")
    assert "│  │  └─ PIX mlx5_1  compute rail 1 · ibp1 400 Gb/s → MF0;ibleaf-02:MQM9700/U1 17" in outcome.lines
    assert any(line.startswith("✗ mlx5_2: port 1 of mlx5_2 (compute) is down") for line in outcome.lines)


def test_json_is_the_whole_report(run: Run) -> None:
    document = json.loads(run("topology", "--json").out)
    assert (document["version"], len(document["gpus"]), len(document["nics"])) == (1, 8, 12)
    assert document["nics"][0]["virtualFunctions"] == 0  # fields with their default value, too


def test_the_matrix(run: Run) -> None:
    lines = run("topology", "--matrix").lines
    assert lines[0].split()[:3] == ["GPU0", "GPU1", "GPU2"]
    assert lines[4].split()[:5] == ["GPU3", "NV18", "NV18", "NV18", "X"]
    assert "  NIC3: mlx5_3" in lines


def test_a_matrix_of_nothing(daemon: Served, run: Run) -> None:
    daemon.api.topology.answer = report_of("cpu")
    assert run("topology", "--matrix") == Outcome(0, "", "there are no GPUs and no RDMA adapters on this node\n")


def test_a_picture(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "node.svg"
    outcome = run("topology", "--svg", str(path))
    assert (outcome.code, outcome.out, outcome.err) == (0, "", f"{path}: 8 GPUs, 12 network adapters\n")
    assert ET.fromstring(path.read_text(encoding="utf-8")).tag.endswith("svg")
    assert run("topology", "--svg", "-").out == path.read_text(encoding="utf-8")
    outcome = run("topology", "--svg", str(tmp_path / "none" / "x.svg"))
    assert outcome.code == exits.FAILED
    assert "No such file or directory" in outcome.err


def test_explain(run: Run) -> None:
    lines = run("topology", "explain", "GPU3", "mlx5_3").lines
    assert lines[:2] == ["GPU3 - mlx5_3: PIX", "  one PCIe switch (or bridge) is between them"]
    document = json.loads(run("topology", "explain", "GPU3", "ibp7", "--json").out)
    assert (document["devices"], document["distance"]) == (["GPU3", "ibp7"], "SYS")
    outcome = run("topology", "explain", "GPU3", "mlx5_99")
    assert outcome.code == exits.NOT_FOUND
    assert outcome.err.startswith("stoker: there is no mlx5_99 here; there are: GPU0, ")


@pytest.mark.parametrize(
    "words", ["--matrix --watch", "--svg x --matrix", "--json --matrix", "--matrix explain GPU0 GPU1", "explain GPU0"]
)
def test_what_does_not_go_together(run: Run, words: str) -> None:
    assert run("topology", *words.split()).code == exits.USAGE


def test_switched_off(daemon: Served, run: Run) -> None:
    daemon.api.topology.failure = SwitchedOff("the topology is switched off on this node", hint="set topology.mode")
    for words in ("topology", "topology --watch", "topology explain a b"):
        outcome = run(*words.split())
        assert outcome.code == exits.REFUSED
        assert outcome.err == "stoker: the topology is switched off on this node\nhint: set topology.mode\n"


def test_watch(daemon: Served, start: Start) -> None:
    program = start("topology", "--watch", columns=100, rows=60)
    program.read_until(lambda text: "Ctrl-C ends this" in text)
    daemon.call(daemon.api.topology.tell, "nic mlx5_4 port 1", "nic mlx5_5 port 1")
    text = program.read_until(lambda text: "mlx5_5 port 1 state active → down" in text)
    assert "~ nic mlx5_4 port 1 state active → down" in text
    program.signal(signal.SIGINT)
    assert program.wait() == exits.INTERRUPTED


def test_watch_goes_on_after_a_restart(daemon: Served, start: Start) -> None:
    program = start("topology", "--watch", "--json", columns=100)
    program.read_until(lambda text: '"report"' in text)
    daemon.call(daemon.api.restart)
    program.read_until(lambda text: "connecting again" in text and text.count('{"type":"topology"') == 2)
    daemon.call(daemon.api.topology.tell, "nic mlx5_4 port 1")
    program.read_until(lambda text: '"changes":[{"at":' in text)
    program.signal(signal.SIGINT)
    assert program.wait() == exits.INTERRUPTED


def test_lines_are_no_wider_than_the_terminal(start: Start) -> None:
    program = start("topology", columns=60, rows=80)
    assert program.wait() == 0
    assert len(program.screen.lines) < 50
    assert max(len(line) for line in program.screen.lines) <= 60


def test_completion(daemon: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_SOCKET", daemon.socket)
    assert complete(monkeypatch, "topology explain GPU") == [f"GPU{number}" for number in range(8)]
    assert complete(monkeypatch, "topology explain GPU0 mlx5_1") == ["mlx5_1"]
    assert complete(monkeypatch, "topology ex") == ["explain"]


def test_doctor_has_the_topology_looked_at_first(daemon: Served, run: Run) -> None:
    daemon.api.node.node.advice = [Advice(severity="error", subject="topology, mlx5_2", message="it is down")]
    outcome = run("doctor")
    assert (outcome.code, daemon.api.topology.asked) == (exits.FAILED, 1)
    assert "  ✗ topology, mlx5_2: it is down" in outcome.lines
    daemon.api.topology.failure = SwitchedOff("the topology is switched off on this node")
    assert run("doctor").code == exits.FAILED  # and no word of what is switched off
