"""Running docker credential helpers: ``docker-credential-<name> get``, bounded in time and in output.

The protocol is docker's: the server goes in on standard input; ``{"ServerURL", "Username", "Secret"}`` comes out. The
user name ``<token>`` marks the secret as an identity token.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stoker.service.children import kill_group, start
from stokerd.registry.credentials import Credential, HelperCall

MAX_OUTPUT = 1 << 20
"""Bytes that a helper may print."""

_NOT_FOUND = b"credentials not found"
_IDENTITY_USER = "<token>"


class HelperProblem(Exception):
    """The helper gave no answer; the text says why and holds nothing that the helper printed."""


class _Answer(msgspec.Struct):
    Username: str = ""
    Secret: str = ""


async def ask_helper(call: HelperCall, directories: Sequence[Path], timeout: float) -> Credential | None:
    """Return what the helper knows of ``call.server``, None if it says that it knows nothing.

    *timeout* in seconds. When it passes, or the task is cancelled, the helper and its children are killed and reaped.
    Raises HelperProblem. Only its exit status is told: what a failed helper prints may hold secrets.
    """
    program = f"docker-credential-{call.name}"
    path = shutil.which(program, path=os.pathsep.join(str(directory) for directory in directories))
    if path is None:
        raise HelperProblem(f"there is no {program} in {', '.join(map(str, directories))}")
    try:
        async with asyncio.timeout(timeout):
            status, output = await _run([path, "get"], call.server.encode() + b"\n")
    except TimeoutError:
        raise HelperProblem(f"{program} did not answer within {timeout:g} s") from None
    except OSError as error:
        raise HelperProblem(f"{program} cannot be run: {error.strerror or error}") from None
    if len(output) > MAX_OUTPUT:
        raise HelperProblem(f"{program} printed more than {MAX_OUTPUT} bytes")
    if status != 0:
        if _NOT_FOUND in output:
            return None
        raise HelperProblem(f"{program} failed with exit status {status}")
    return _read_answer(output, program, call.server)


def _read_answer(output: bytes, program: str, server: str) -> Credential | None:
    try:
        answer = msgspec.json.decode(output, type=_Answer)
    except (msgspec.MsgspecError, RecursionError):
        raise HelperProblem(f"{program} printed something that is not an answer") from None
    source = f"helper {program}"
    if answer.Username == _IDENTITY_USER:
        credential = Credential(identity_token=answer.Secret, source=source, server=server)
    else:
        credential = Credential(answer.Username, answer.Secret, source=source, server=server)
    return credential if answer.Secret else None


async def _run(argv: list[str], stdin: bytes) -> tuple[int, bytes]:
    """Run *argv*; return its exit status and what it printed, one byte more than allowed at most.

    The pipes are our own, not the process transport's: a child that keeps one open cannot hold them up then.
    """
    with contextlib.ExitStack() as stack:
        their_in, our_in = _pipe(stack)
        our_out, their_out = _pipe(stack)
        # It fits into the pipe's buffer, so nothing waits for a helper that does not read.
        our_in.write(stdin)
        our_in.close()
        process = await start(
            *argv,
            stdin=their_in,
            stdout=their_out,
            stderr=asyncio.subprocess.DEVNULL,
            cwd="/",
        )
        their_in.close()
        their_out.close()
        return await _finish(process, our_out)


async def _finish(process: asyncio.subprocess.Process, pipe: io.FileIO) -> tuple[int, bytes]:
    finished = False
    try:
        output = await _read(pipe)
        if len(output) > MAX_OUTPUT:
            kill_group(process.pid)
        status = await process.wait()
        finished = True
        return status, output
    finally:
        if not finished:
            # The whole group, also when its leader is gone: a child may still hold the pipe.
            kill_group(process.pid)
            await asyncio.shield(process.wait())


async def _read(pipe: io.FileIO) -> bytes:
    """Read until the end or past the limit, and close *pipe*."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        output = bytearray()
        while len(output) <= MAX_OUTPUT and (chunk := await reader.read(65536)):
            output += chunk
        return bytes(output)
    finally:
        transport.close()


def _pipe(stack: contextlib.ExitStack) -> tuple[io.FileIO, io.FileIO]:
    """Return the reading and the writing end of a new pipe; *stack* closes them."""
    reading, writing = os.pipe()
    return stack.enter_context(io.FileIO(reading, "rb")), stack.enter_context(io.FileIO(writing, "wb"))
