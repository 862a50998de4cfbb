"""Who may use the socket. The children of these tests change their user, so they need root."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import struct
import sys

import pytest

from stokerd.api import peers
from stokerd.api.peers import Peer, may_use, peer_of
from tests.unit.api.fakes import running_api

GROUP = 4242
OTHER = 4343


ASK = """
import json, os, socket, sys
path, uid, gid, groups = json.loads(sys.argv[1])
os.setgroups(groups)
os.setresgid(gid, gid, gid)
os.setresuid(uid, uid, uid)
with socket.socket(socket.AF_UNIX) as client:
    client.connect(path)
    client.sendall(b"GET /healthz HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
    while data := client.recv(65536):
        sys.stdout.buffer.write(data)
"""


async def ask_as(path: str, uid: int, gid: int, groups: list[int]) -> tuple[int, dict[str, object]]:
    """Return status and body of ``GET /healthz``, asked for by a process of that user."""
    arguments = json.dumps([path, uid, gid, groups])
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", ASK, arguments, stdout=pipe, stderr=pipe)
    answer, trouble = await child.communicate()
    if child.returncode != 0:
        raise PermissionError(trouble.decode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize(
    ("uid", "gid", "groups", "status"),
    [
        (0, 0, [], 200),
        (65534, GROUP, [], 200),
        (65534, 65534, [OTHER, GROUP], 200),
        (65534, 65534, [*range(10_000, 10_300), GROUP], 200),
        (65534, 65534, [OTHER], 403),
        (65534, 65534, list(range(10_000, 10_300)), 403),
        (65534, 0, [0], 403),
    ],
)
async def test_root_and_the_group_may(uid: int, gid: int, groups: list[int], status: int) -> None:
    async with running_api(group=str(GROUP)) as api:
        # The file's mode would keep strangers out already; open it up to see the second lock.
        api.socket.parent.chmod(0o755)
        api.socket.chmod(0o666)
        got, body = await ask_as(str(api.socket), uid, gid, groups)
    assert got == status
    if status == 403:
        assert body == {
            "reason": "PeerRefused",
            "message": "uid 65534 may not use this socket",
            "hint": "only root and members of the group '4242' may",
        }


async def test_without_a_group_only_root_may() -> None:
    async with running_api(group="") as api:
        api.socket.parent.chmod(0o755)
        api.socket.chmod(0o666)
        got, body = await ask_as(str(api.socket), 65534, 0, [])
    assert got == 403
    assert body["hint"] == "only root may"


async def test_the_files_mode_keeps_strangers_out() -> None:
    async with running_api(group=str(GROUP)) as api:
        api.socket.parent.chmod(0o755)
        with pytest.raises(PermissionError, match="Permission denied"):
            await ask_as(str(api.socket), 65534, 65534, [])
        assert (await ask_as(str(api.socket), 65534, GROUP, []))[0] == 200


@pytest.mark.parametrize(
    ("peer", "allowed"),
    [
        (Peer(1, 0, 0, frozenset()), True),
        (Peer(1, 1000, 5, frozenset()), True),
        (Peer(1, 1001, 5, frozenset()), False),
        (Peer(1, 1001, 7, frozenset()), True),
        (Peer(1, 1001, 5, frozenset({6, 7})), True),
        (Peer(1, 1001, 5, frozenset({0})), False),
    ],
)
def test_rule(peer: Peer, allowed: bool) -> None:
    assert may_use(peer, own_uid=1000, gid=7) is allowed


def test_no_group_matches_none() -> None:
    assert not may_use(Peer(1, 1001, 0, frozenset({0})), own_uid=1000, gid=None)


def test_credentials_of_this_process() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert peer_of(left) == Peer(os.getpid(), os.geteuid(), os.getegid(), frozenset(os.getgroups()))


class OldKernel:
    """Has no SO_PEERGROUPS."""

    def __init__(self, code: int) -> None:
        self.code = code

    def fileno(self) -> int:
        return -1

    def getsockopt(self, level: int, option: int, buflen: int, /) -> bytes:
        if option == socket.SO_PEERCRED:
            return struct.pack("iII", 7, 8, 9)
        raise OSError(self.code, os.strerror(self.code))


def test_an_old_kernel_knows_the_primary_group_only() -> None:
    assert peer_of(OldKernel(errno.ENOPROTOOPT)) == Peer(7, 8, 9, frozenset())


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        peer_of(OldKernel(errno.EBADF))
    with pytest.raises(OSError, match="Bad file descriptor"):
        peers._many_groups(-1)
