"""The node's credentials: files that change, and helpers that are real programs."""

from __future__ import annotations

import asyncio
import base64
import io
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stokerd.registry import helpers
from stokerd.registry.credentials import HUB_SERVER, Credential
from stokerd.registry.keyring import Keyring
from stokerd.registry.references import parse_reference
from tests.unit.deadlines import passes_when, written

SECRET = "Hunter2-s3cret"
APP = parse_reference("quay.io/team/app")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def auth(name: str, password: str = SECRET) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{name}:{password}".encode()).decode()}


def write_config(path: Path, document: Any) -> Path:
    """Replace the file, as editors and Kubernetes do: the new one has another inode."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(document))
    return fresh.rename(path)


def write_helper(directory: Path, script: str, name: str = "test") -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\ncd {directory}\n{script}\n")
    path.chmod(0o755)
    return directory


async def users(keyring: Keyring, reference: str = "quay.io/team/app", *extra: Credential) -> list[str]:
    return [item.username for item in await keyring.lookup(parse_reference(reference), extra)]


# ---------------------------------------------------------------------------------------------- files


async def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    keyring = Keyring([path])
    assert await users(keyring) == []
    assert keyring.problems == ()
    write_config(path, {"auths": {"quay.io": auth("one")}})
    assert await users(keyring) == ["one"]
    write_config(path, {"auths": {"quay.io": auth("two")}})
    assert await users(keyring) == ["two"]
    path.unlink()
    assert await users(keyring) == []
    assert keyring.problems == ()


async def test_a_file_that_did_not_change_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_config(tmp_path / "config.json", {"auths": {"quay.io": auth("one")}})
    keyring = Keyring([path])
    assert await users(keyring) == ["one"]
    monkeypatch.setattr("stokerd.registry.keyring.parse_docker_config", lambda *_: pytest.fail("read again"))
    assert await users(keyring) == ["one"]


async def test_other_files_hold_from_the_next_lookup_on(tmp_path: Path) -> None:
    first = write_config(tmp_path / "a", {"auths": {"quay.io": auth("a")}})
    second = write_config(tmp_path / "b", {"auths": {"quay.io": auth("b")}})
    keyring = Keyring([first])
    assert await users(keyring) == ["a"]
    looking = [asyncio.create_task(users(keyring)) for _ in range(3)]
    await asyncio.sleep(0)
    keyring.apply([second, first], helper_timeout=1.0)
    assert [await task for task in looking] == [["a"]] * 3
    assert await users(keyring) == ["b", "a"]
    keyring.apply([], helper_timeout=1.0)
    assert await users(keyring) == []


async def test_files_count_in_their_order_and_the_request_before_them(tmp_path: Path) -> None:
    first = write_config(tmp_path / "a", {"auths": {"quay.io": auth("a"), "quay.io/team": auth("a-team")}})
    second = write_config(tmp_path / "b", {"auths": {"quay.io": auth("b"), "quay.io/": auth("a")}})
    keyring = Keyring([first, second])
    request = Credential("request", "p"), Credential("b", SECRET), Credential("x", "y", server="other.io")
    assert await users(keyring, "quay.io/team/app", *request) == ["request", "b", "a-team", "a"]
    found = await keyring.lookup(APP, request)
    assert [item.source for item in found] == ["request", "request", f"file {first}", f"file {first}"]
    assert await users(keyring, "docker.io/app") == []


async def test_what_is_wrong_is_told_and_the_rest_works(tmp_path: Path) -> None:
    broken, good = tmp_path / "broken", tmp_path / "good"
    broken.write_text("{" + SECRET)
    folder, fifo, large = tmp_path / "folder", tmp_path / "fifo", tmp_path / "large"
    folder.mkdir()
    os.mkfifo(fifo)
    large.write_bytes(b" " * (2 << 20))
    below_a_file = good / "config.json"
    write_config(good, {"auths": {"quay.io": auth("me"), "x.io": {"auth": SECRET}}})
    keyring = Keyring([broken, folder, fifo, large, below_a_file, good])
    assert await users(keyring) == ["me"]
    assert len(keyring.problems) == 5
    for path, problem in zip((broken, folder, fifo, large, good), keyring.problems, strict=True):
        assert problem.startswith(f"file {path}: ")
    assert SECRET not in "".join(keyring.problems) + repr(keyring)
    write_config(broken, {})
    await users(keyring)
    assert len(keyring.problems) == 4


# ---------------------------------------------------------------------------------------------- helpers


def helper_keyring(tmp_path: Path, script: str, clock: Clock | None = None, timeout: float = 20.0) -> Keyring:
    config = write_config(tmp_path / "config.json", {"credHelpers": {"quay.io": "test", HUB_SERVER: "test"}})
    directory = write_helper(tmp_path / "bin", script)
    return Keyring([config], helper_dirs=[tmp_path / "none", directory], helper_timeout=timeout, clock=clock or Clock())


ANSWER = f"""cat > server; echo "$@" > arguments; echo x >> calls
echo noise >&2; echo '{{"ServerURL":"s","Username":"me","Secret":"{SECRET}","More":1}}'"""


async def test_a_helper_is_told_the_server_on_standard_input(tmp_path: Path) -> None:
    keyring = helper_keyring(tmp_path, ANSWER)
    (credential,) = await keyring.lookup(APP)
    assert credential.secret == ("me", SECRET, "", "")
    assert (credential.source, credential.server) == ("helper docker-credential-test", "quay.io")
    assert (tmp_path / "bin/server").read_text().strip() == "quay.io"
    assert (tmp_path / "bin/arguments").read_text().strip() == "get"
    await keyring.lookup(parse_reference("ubuntu"))
    assert (tmp_path / "bin/server").read_text().strip() == HUB_SERVER
    assert keyring.problems == ()


async def test_a_token_user_gives_an_identity_token(tmp_path: Path) -> None:
    keyring = helper_keyring(tmp_path, f"""echo '{{"Username":"<token>","Secret":"{SECRET}"}}'""")
    (credential,) = await keyring.lookup(APP)
    assert credential.secret == ("", "", SECRET, "")


@pytest.mark.parametrize("script", ["echo credentials not found in native keychain; exit 1", "echo '{}'"])
async def test_a_helper_may_know_nothing(tmp_path: Path, script: str) -> None:
    keyring = helper_keyring(tmp_path, script)
    assert await keyring.lookup(APP) == ()
    assert keyring.problems == ()


async def test_answers_are_kept_for_a_minute(tmp_path: Path) -> None:
    clock = Clock()
    keyring = helper_keyring(tmp_path, ANSWER, clock)
    calls = tmp_path / "bin/calls"
    await asyncio.gather(*(keyring.lookup(APP) for _ in range(5)))
    clock.now += 59
    assert await users(keyring) == ["me"]
    assert calls.read_text() == "x\n"
    clock.now += 2
    assert await users(keyring) == ["me"]
    assert calls.read_text() == "x\nx\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (f"echo {SECRET}; echo {SECRET} >&2; exit 3", "failed with exit status 3"),
        (f"echo {SECRET}", "is not an answer"),
        (f"""echo '{{"Username":["{SECRET}"]}}'""", "is not an answer"),
        (f"yes {SECRET}", "printed more than"),
        ("kill -9 $$", "failed with exit status -9"),
    ],
)
async def test_a_helper_that_fails_is_told_of_without_its_output(tmp_path: Path, script: str, said: str) -> None:
    clock = Clock()
    keyring = helper_keyring(tmp_path, f"echo x >> calls\n{script}", clock)
    for _ in range(2):
        assert await keyring.lookup(APP) == ()
        (problem,) = keyring.problems
        assert said in problem
        assert "docker-credential-test" in problem
        assert "quay.io" in problem
        assert SECRET not in problem
    assert (tmp_path / "bin/calls").read_text() == "x\n"
    clock.now += 11
    assert keyring.problems == ()
    write_helper(tmp_path / "bin", ANSWER)
    assert await users(keyring) == ["me"]
    assert keyring.problems == ()


async def test_a_helper_that_is_missing_or_no_program_is_told_of(tmp_path: Path) -> None:
    clock = Clock()
    keyring = helper_keyring(tmp_path, "", clock)
    program = tmp_path / "bin/docker-credential-test"
    program.unlink()
    assert await keyring.lookup(APP) == ()
    assert "there is no docker-credential-test in" in keyring.problems[0]
    clock.now += 11
    program.write_bytes(b"\x7fELF no program")
    program.chmod(0o755)
    assert await keyring.lookup(APP) == ()
    assert "cannot be run" in keyring.problems[0]


async def test_file_credentials_work_beside_a_helper_that_fails(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c", {"credsStore": "test", "auths": {"quay.io": auth("me")}})
    keyring = Keyring([config], helper_dirs=[write_helper(tmp_path / "bin", "exit 1")])
    assert await users(keyring) == ["me"]
    assert len(keyring.problems) == 1


HANGS = "echo $$ > leader; sleep 1000 & echo $! > child; {}\nwait"


def pid_in(path: Path) -> int:
    return int(path.read_text())


async def ends(pid: int) -> None:
    """Wait until the process *pid* has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(20):
            await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)


def assert_reaped(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Is set when what a helper says is being read: until then asyncio is still busy with having started it."""
    began, finish = asyncio.Event(), helpers._finish

    async def finishing(process: asyncio.subprocess.Process, pipe: io.FileIO) -> tuple[int, bytes]:
        began.set()
        return await finish(process, pipe)

    monkeypatch.setattr(helpers, "_finish", finishing)
    return began


async def test_a_helper_that_hangs_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading: asyncio.Event
) -> None:
    keyring = helper_keyring(tmp_path, HANGS.format(""))
    passes_when(monkeypatch, lambda: reading.is_set() and written(tmp_path / "bin/child"))
    assert await keyring.lookup(APP) == ()
    assert "did not answer within 20 s" in keyring.problems[0]
    assert_reaped(pid_in(tmp_path / "bin/leader"))
    await ends(pid_in(tmp_path / "bin/child"))


async def test_a_child_that_keeps_the_pipe_is_killed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading: asyncio.Event
) -> None:
    leader = tmp_path / "bin/leader"
    keyring = helper_keyring(tmp_path, "sleep 1000 & echo $! > child\necho $$ > leader\nexit 0")

    def held() -> bool:
        return reading.is_set() and written(leader) and not Path(f"/proc/{pid_in(leader)}").exists()

    passes_when(monkeypatch, held)
    assert await keyring.lookup(APP) == ()
    assert "did not answer" in keyring.problems[0]
    await ends(pid_in(tmp_path / "bin/child"))


async def test_a_cancelled_lookup_leaves_no_process_behind(tmp_path: Path, reading: asyncio.Event) -> None:
    keyring = helper_keyring(tmp_path, HANGS.format("echo > ready"))
    os.mkfifo(tmp_path / "bin/ready")
    before = asyncio.all_tasks()
    task = asyncio.create_task(keyring.lookup(APP))
    await asyncio.to_thread((tmp_path / "bin/ready").read_text)
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_reaped(pid_in(tmp_path / "bin/leader"))
    await ends(pid_in(tmp_path / "bin/child"))
    assert asyncio.all_tasks() == before
    write_helper(tmp_path / "bin", ANSWER)
    assert await users(keyring) == ["me"]


async def test_one_cancelled_lookup_does_not_stop_another(tmp_path: Path) -> None:
    keyring = helper_keyring(tmp_path, f"echo > ready; cat gate > /dev/null\n{ANSWER}")
    os.mkfifo(tmp_path / "bin/ready")
    os.mkfifo(tmp_path / "bin/gate")
    first = asyncio.create_task(keyring.lookup(APP))
    await asyncio.to_thread((tmp_path / "bin/ready").read_text)
    second = asyncio.create_task(keyring.lookup(APP))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    await asyncio.to_thread((tmp_path / "bin/gate").write_text, "go")
    assert [item.username for item in await first] == ["me"]


async def test_only_so_many_answers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stokerd.registry.keyring._MAX_ANSWERS", 2)
    config = write_config(tmp_path / "config.json", {"credsStore": "test"})
    keyring = Keyring([config], helper_dirs=[write_helper(tmp_path / "bin", ANSWER)], clock=Clock())
    for host in ("a.io", "b.io", "c.io", "b.io", "a.io"):
        assert await users(keyring, f"{host}/app") == ["me"]
    assert (tmp_path / "bin/calls").read_text().count("x") == 4


async def test_the_environment_is_passed_and_the_secret_is_in_no_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_TEST", "yes")
    keyring = helper_keyring(tmp_path, f'tr "\\0" " " < /proc/$$/cmdline > cmdline; echo $STOKER_TEST > env\n{ANSWER}')
    await keyring.lookup(APP)
    assert (tmp_path / "bin/env").read_text() == "yes\n"
    assert (tmp_path / "bin/cmdline").read_text().endswith("docker-credential-test get ")
