"""Programs run on the node: in containerd's own mount and network namespaces, wherever this process lives."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from stoker.service.children import communicate, start
from stokerd.checkpoints.errors import CheckpointError
from stokerd.runtime.types import RuntimeInfo

_PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


class Ended(msgspec.Struct, frozen=True):
    """How a program ended."""

    status: int
    output: bytes
    errors: bytes


async def run_on_node(
    info: RuntimeInfo,
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    timeout: float = 30.0,
) -> Ended:
    """Run a program to its end; CheckpointError when it cannot be started or takes too long."""
    whole = list(argv)
    if info.host_root:
        whole = ["nsenter", "--target", str(info.pid), "--mount", "--net", "--root", "--wdns=/", "--", *argv]
    try:
        process = await start(
            *whole,
            env=dict(environment or _PATH),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise CheckpointError(f"{argv[0]} cannot be run on the node: {error.strerror}") from None
    try:
        async with asyncio.timeout(timeout):
            output, errors = await communicate(process, stdin)
    except TimeoutError:
        raise CheckpointError(f"{argv[0]} did not end within {timeout:g} s") from None
    assert process.returncode is not None
    return Ended(process.returncode, output, errors)


async def must(info: RuntimeInfo, *argv: str) -> None:
    """Run a program that is to succeed; CheckpointError in its own words when it does not."""
    ended = await run_on_node(info, argv)
    if ended.status:
        words = ended.errors.decode("utf-8", "replace").strip()[-300:]
        raise CheckpointError(f"{' '.join(argv[:2])} failed: {words or ended.status}")
