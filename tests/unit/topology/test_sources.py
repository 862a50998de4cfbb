"""Sources that hang, fail, print too much or are not there; tools and files."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stokerd.settings import TopologySettings
from stokerd.topology import lldpcli
from stokerd.topology.blocking import Blocking, StillHangs
from stokerd.topology.commands import Command, CommandFailed, find
from stokerd.topology.facts import Ports
from stokerd.topology.knowledge import Nvidia
from stokerd.topology.metadata import Placement
from stokerd.topology.outcomes import Outcome
from stokerd.topology.sources import Sources
from tests.rig.hardware import texts
from tests.rig.hardware.machines import h100, mi300
from tests.rig.hardware.tree import lay_out, set_link
from tests.rig.waiting import until
from tests.unit.deadlines import passes_when, written

QUICK = 5.0


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def sources_of(root: Path, **changes: object) -> Sources:
    settings = TopologySettings(
        root=root, nvidia_library="", nvidia_smi="", smpquery="", lldpcli="", lldp_listen="never"
    )
    return Sources(replace(settings, **changes), time.monotonic)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- calls that hang


async def test_a_call_that_hangs_costs_one_thread_and_is_not_made_twice() -> None:
    release, calls = threading.Event(), []

    def hang(word: str) -> str:
        calls.append(word)
        assert release.wait(20)
        return word

    blocking = Blocking("test", hang)
    with pytest.raises(TimeoutError):
        await blocking.call(0.02, "first")
    with pytest.raises(StillHangs):
        await blocking.call(0.02, "second")
    assert calls == ["first"]
    release.set()
    assert blocking._thread is not None
    await asyncio.to_thread(blocking._thread.join, 20)
    assert await blocking.call(QUICK, "third") == "third"


async def test_what_a_call_raises_is_raised() -> None:
    def fail() -> None:
        raise FileNotFoundError(2, "gone", "/x")

    blocking = Blocking("test", fail)
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            await blocking.call(QUICK)


async def test_sysfs_that_hangs_is_a_source_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    sources = sources_of(lay_out(h100(), tmp_path), read_timeout=0.05)
    monkeypatch.setattr(sources._ports, "_function", lambda *_: release.wait(20))
    assert await sources.collect("ports") == Outcome("failed", "no answer within 0.05 s")
    assert await sources.collect("ports") == Outcome("failed", "its last reading still hangs")
    sources.apply(replace(sources._settings, read_timeout=QUICK))
    assert (await sources.collect("tree")).state == "ok"
    release.set()


# ---------------------------------------------------------------------------------------------- tools


async def test_tools(tmp_path: Path) -> None:
    command = Command()
    said = script(tmp_path / "say", 'echo $PATH; echo noise >&2; read line; echo "[$line]"')
    assert (await command.output([said], timeout=QUICK, most=1000)).endswith(b"/bin\n[]\n")
    cases = [
        ("echo why >&2; exit 3", "say ended with 3: why"),
        ("echo out; exit 1", "say ended with 1: out"),
        ("exit 4", "say ended with 4: it said nothing"),
        ("while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done", "it printed more than 1000 bytes"),
        ("kill -9 $$", "say ended with -9: it said nothing"),
    ]
    for text, why in cases:
        with pytest.raises(CommandFailed) as caught:
            await command.output([script(tmp_path / "say", text)], timeout=QUICK, most=1000)
        assert str(caught.value) == why
    with pytest.raises(CommandFailed, match="cannot be run: No such file"):
        await command.output([str(tmp_path / "none")], timeout=QUICK, most=1)


async def test_a_tool_that_hangs_is_ended_with_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tmp_path / "pid"
    hangs = script(tmp_path / "hang", f"sleep 300 & echo $! > {pid}; wait")
    passes_when(monkeypatch, lambda: written(pid))
    with pytest.raises(CommandFailed, match="no answer within 1 s"):
        await Command().output([hangs], timeout=1.0, most=100)
    child = int(pid.read_text(encoding="ascii"))
    await asyncio.to_thread(until, "its child has ended", lambda: not _alive(child), timeout=QUICK)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


async def test_a_tool_that_a_kill_does_not_end_keeps_a_second_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command()
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, _signal: killed.append(pid))
    monkeypatch.setattr("stokerd.topology.commands._AFTER_KILL", 0.02)
    hangs = script(tmp_path / "hang", "exec sleep 300")
    with pytest.raises(CommandFailed, match="no answer"):
        await command.output([hangs], timeout=0.05, most=100)
    with pytest.raises(CommandFailed, match="its last call still hangs"):
        await command.output([hangs], timeout=0.05, most=100)
    monkeypatch.undo()
    assert command._stuck is not None
    os.killpg(killed[0], signal.SIGKILL)
    await command._stuck.wait()
    ok = script(tmp_path / "ok", "echo fine")
    assert await command.output([ok], timeout=QUICK, most=100) == b"fine\n"


async def test_nvidia_smi(tmp_path: Path) -> None:
    machine = h100()
    (tmp_path / "xml").write_bytes(texts.nvidia_smi(machine))
    (tmp_path / "topo").write_text(texts.topo_m(machine), encoding="utf-8")
    smi = script(tmp_path / "smi", f'if [ "$*" = "-q -x" ]; then cat {tmp_path}/xml; else cat {tmp_path}/topo; fi')
    outcome = await sources_of(tmp_path, nvidia_smi=smi).collect("nvidia")
    assert isinstance(outcome.data, Nvidia)
    assert len(outcome.data.gpus) == 8
    assert set(outcome.data.links.values()) == {"NV18"}
    assert len(outcome.data.links) == 8 * 7
    from_files = sources_of(tmp_path, nvidia_file=str(tmp_path / "xml"), nvidia_matrix_file=str(tmp_path / "topo"))
    assert (await from_files.collect("nvidia")).data == outcome.data
    alone = await sources_of(tmp_path, nvidia_file=str(tmp_path / "xml")).collect("nvidia")
    assert (len(alone.data.gpus), alone.data.links) == (8, {})
    assert await sources_of(tmp_path, nvidia_smi="no-such-smi").collect("nvidia") == Outcome(
        "absent", "nvidia-smi is not installed"
    )
    assert await sources_of(tmp_path).collect("nvidia") == Outcome("absent", "")
    broken = script(tmp_path / "smi", "echo 'NVIDIA-SMI has failed' ; exit 9")
    outcome = await sources_of(tmp_path, nvidia_smi=broken).collect("nvidia")
    assert outcome == Outcome("failed", "smi ended with 9: NVIDIA-SMI has failed")


async def test_lldpd(tmp_path: Path) -> None:
    (tmp_path / "json").write_text(texts.lldpcli(mi300()), encoding="utf-8")
    cli = script(tmp_path / "lldpcli", f'[ "$*" = "-u {tmp_path}/s -f json show neighbors" ] && cat {tmp_path}/json')
    path = tmp_path / "s"
    sources = sources_of(tmp_path, lldpcli=cli, lldp_socket=str(path))
    assert await sources.collect("lldp") == Outcome("absent", f"lldpd does not run: there is no socket {path}")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        outcome = await sources.collect("lldp")
    assert outcome == Outcome("ok", data=lldpcli.parse(texts.lldpcli(mi300())))
    assert len(outcome.data.pairs) == 10
    assert await sources_of(tmp_path, lldpcli="no-such-cli").collect("lldp") == Outcome(
        "absent", "lldpd does not run: it is not installed"
    )
    assert await sources_of(tmp_path).collect("lldp") == Outcome("absent", "")


def test_tools_are_looked_for_in_the_systems_directories_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "lldpcli-of-mine", "true")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find("lldpcli-of-mine") == ""
    assert find(str(tmp_path / "lldpcli-of-mine")) == str(tmp_path / "lldpcli-of-mine")
    assert find("sh").endswith("/bin/sh")


# ---------------------------------------------------------------------------------------------- files and links


async def test_a_file_is_parsed_again_only_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "where.json"
    path.write_text('{"region": "north"}', encoding="utf-8")
    sources = sources_of(tmp_path, placement_file=str(path))
    first, second = await sources.collect("placement"), await sources.collect("placement")
    assert isinstance(first.data, Placement)
    assert first.data is second.data
    fresh = tmp_path / "new"
    fresh.write_text('{"region": "south"}', encoding="utf-8")
    fresh.replace(path)
    third = await sources.collect("placement")
    assert third.data.facts == {"region": "south"}
    path.unlink()
    assert (await sources.collect("placement")).reason == f"{path}: No such file or directory"
    os.mkfifo(path)
    assert (await sources.collect("placement")).reason == f"{path}: it is no file"


async def test_links_that_have_changed_since_the_ports_were_read(tmp_path: Path) -> None:
    machine = h100()
    sources = sources_of(lay_out(machine, tmp_path))
    await sources.collect("ports")
    outcome = await sources.collect("ports")
    assert isinstance(outcome.data, Ports)
    assert not await sources.links_changed()
    for nic in (machine.nics[0], machine.nics[-1]):
        set_link(tmp_path, nic, up=False)
        assert await sources.links_changed()
        assert await sources.links_changed()  # until they are read
        await sources.collect("ports")
        assert not await sources.links_changed()


def test_intervals(tmp_path: Path) -> None:
    sources = sources_of(tmp_path, interval=1.0, hardware_interval=2.0, source_interval=3.0, gpu_interval=4.0)
    assert {name: sources.interval(name) for name in sources.names} == {
        "ports": 1.0, "tree": 2.0, "amd": 2.0, "amd_smi": 48.0, "nvml": 4.0, "nvidia": 4.0, "smp": 4.0, "lldp": 3.0,
        "fabric": 3.0, "contents": 3.0, "placement": 3.0,
    }  # fmt: skip
    assert sources_of(tmp_path, nvidia_file="/x").interval("nvidia") == 30.0
