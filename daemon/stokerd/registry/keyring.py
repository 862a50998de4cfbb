"""The node's credentials: docker configuration files that are read again when they change, and credential helpers."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stokerd.registry.credentials import (
    Credential,
    DockerConfig,
    HelperCall,
    parse_docker_config,
    select,
    select_credentials,
)
from stokerd.registry.helpers import HelperProblem, ask_helper
from stokerd.registry.references import Reference

DEFAULT_HELPER_DIRS = tuple(map(Path, ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")))

_ANSWER_TTL = 60.0
_FAILURE_TTL = 10.0
"""Seconds for which a helper that failed is left alone, so that one that hangs does not hold up every pull."""
_MAX_ANSWERS = 256
_MAX_FILE = 1 << 20

_Signature = tuple[int, int, int, int]


class _File(msgspec.Struct, frozen=True):
    """A configuration file as it was last seen; without a signature when it was not there or not readable."""

    signature: _Signature | None
    config: DockerConfig


class _Answer(msgspec.Struct, frozen=True):
    expires: float
    credential: Credential | None
    problem: str = ""


class Keyring:
    """Finds the credentials of an image. Its repr, its problems and its errors hold no secret."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        helper_timeout: float = 10.0,
        helper_dirs: Sequence[Path] = DEFAULT_HELPER_DIRS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the files *paths*, the first of which count most; ``helper_timeout`` is in seconds."""
        self._paths = tuple(paths)
        self._helper_timeout = helper_timeout
        self._helper_dirs = tuple(helper_dirs)
        self._clock = clock
        self._files: dict[Path, _File] = {}
        self._answers: dict[HelperCall, _Answer] = {}
        self._locks: weakref.WeakValueDictionary[HelperCall, asyncio.Lock] = weakref.WeakValueDictionary()

    def apply(self, paths: Sequence[Path], *, helper_timeout: float) -> None:
        """Let other files, and another deadline of helpers, hold from the next lookup on."""
        self._paths = tuple(paths)
        self._helper_timeout = helper_timeout

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with files and helpers, as of the last lookup: one line for each."""
        files = [line for path in self._paths if path in self._files for line in self._files[path].config.problems]
        now = self._clock()
        helpers = [item.problem for item in self._answers.values() if item.problem and item.expires > now]
        return (*files, *helpers)

    async def lookup(self, reference: Reference, extra: Sequence[Credential] = ()) -> tuple[Credential, ...]:
        """Return all credentials that apply to *reference*, each once: those of *extra*, then the node's.

        Each group has the most specific first. "Anonymous" is not among them; callers try it last. A file or a
        helper that fails is left out and told in ``problems``; nothing is raised.
        """
        files = await self._refresh()
        found = select([file.config for file in files.values()], reference)
        calls = dict.fromkeys(item for item in found if isinstance(item, HelperCall))
        async with asyncio.TaskGroup() as group:
            tasks = {call: group.create_task(self._ask(call)) for call in calls}
        answers = {call: task.result() for call, task in tasks.items()}
        own = (answers[item] if isinstance(item, HelperCall) else item for item in found)
        unique: dict[tuple[str, ...], Credential] = {}
        for credential in (*select_credentials(extra, reference), *own):
            if credential is not None and not credential.empty:
                unique.setdefault(credential.secret, credential)
        return tuple(unique.values())

    async def _refresh(self) -> dict[Path, _File]:
        known, paths = dict(self._files), self._paths
        # In a thread: a configuration file may lie on a file system that hangs.
        self._files = await asyncio.to_thread(lambda: {path: _load(path, known.get(path)) for path in paths})
        return self._files

    async def _ask(self, call: HelperCall) -> Credential | None:
        lock = self._locks.setdefault(call, asyncio.Lock())
        async with lock:
            answer = self._answers.get(call)
            if answer is None or answer.expires <= self._clock():
                answer = await self._run_helper(call)
                self._remember(call, answer)
            return answer.credential

    async def _run_helper(self, call: HelperCall) -> _Answer:
        try:
            credential = await ask_helper(call, self._helper_dirs, self._helper_timeout)
        except HelperProblem as problem:
            return _Answer(self._clock() + _FAILURE_TTL, None, f"{problem}, asked for {call.server}")
        return _Answer(self._clock() + _ANSWER_TTL, credential)

    def _remember(self, call: HelperCall, answer: _Answer) -> None:
        now = self._clock()
        self._answers.pop(call, None)
        # Secrets are not kept longer than they are used.
        self._answers = {key: value for key, value in self._answers.items() if value.expires > now}
        while len(self._answers) >= _MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]
        self._answers[call] = answer


def _load(path: Path, known: _File | None) -> _File:
    """Return what *path* says now; *known* if it has not changed since."""
    source = f"file {path}"
    try:
        with io.BufferedReader(io.FileIO(path, opener=_open)) as file:
            status = os.fstat(file.fileno())
            signature = (status.st_mtime_ns, status.st_dev, status.st_ino, status.st_size)
            if known is not None and known.signature == signature:
                return known
            if not stat.S_ISREG(status.st_mode):
                return _broken(source, "it is not a regular file")
            data = file.read(_MAX_FILE + 1)
    except (FileNotFoundError, NotADirectoryError):
        return _File(None, DockerConfig(source))
    except OSError as error:
        return _broken(source, error.strerror or str(error))
    if len(data) > _MAX_FILE:
        return _broken(source, f"it is larger than {_MAX_FILE} bytes")
    return _File(signature, parse_docker_config(data, source))


def _open(path: str, flags: int) -> int:
    # Not blocking: opening a pipe that nobody writes to would never return.
    return os.open(path, flags | os.O_NONBLOCK)


def _broken(source: str, why: str) -> _File:
    return _File(None, DockerConfig(source, problems=(f"{source}: cannot be read: {why}",)))
