"""The unix socket on disk: at most one daemon behind it, and nobody connects before its mode and group are right."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from stokerd.errors import AlreadyRunning, InvalidInput, StokerError

MODE = 0o660
BACKLOG = 512
_PATH_LIMIT = 107  # bytes, what sockaddr_un holds without its NUL


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket and the lock that goes with it. One that was passed to us has no lock, and its file is not
    ours to remove: whoever passed it goes on listening, and the next daemon gets it too."""

    socket: socket.socket
    path: Path
    inode: tuple[int, int] | None
    lock: int | None

    def withdraw(self) -> None:
        """Stop listening, and remove the socket file if it still is ours."""
        with contextlib.suppress(OSError):
            if self.inode is not None and _inode(self.path) == self.inode:
                self.path.unlink()
        self.socket.close()

    def release(self) -> None:
        """Let the next daemon start."""
        if self.lock is not None:
            os.close(self.lock)


def adopt_listener(passed: socket.socket) -> Listener:
    """Take a listening unix socket that the service manager made, with the mode and group that its unit says."""
    name = passed.getsockname()
    return Listener(passed, Path(name if isinstance(name, str) else os.fsdecode(name)), None, None)


def group_id(name: str) -> int | None:
    """Return the gid of a group by name or number; None for an empty name and for a group that does not exist."""
    if not name:
        return None
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def open_listener(path: Path, gid: int | None) -> Listener:
    """Bind and listen on *path* with mode 0660 and group *gid*.

    A missing parent directory is made (0755); the socket of a daemon that died is replaced. AlreadyRunning: a live
    daemon is behind the path. InvalidInput: the path cannot be a socket. Other StokerErrors: the system refuses.
    """
    if len(os.fsencode(path)) > _PATH_LIMIT:
        raise InvalidInput(f"the socket path {path} is longer than {_PATH_LIMIT} bytes")
    try:
        _make_parent(path.parent)
        lock = _take_lock(path)
    except OSError as error:
        raise _failure("prepare", path, error) from error
    try:
        _clear(path)
        listening = _bind(path, gid)
    except OSError as error:
        os.close(lock)
        raise _failure("listen on", path, error) from error
    except BaseException:
        os.close(lock)
        raise
    return Listener(listening, path, _inode(path), lock)


def _make_parent(directory: Path) -> None:
    if directory.is_dir():
        return
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)


def _take_lock(path: Path) -> int:
    """Hold ``<path>.lock`` until the process ends; the file itself stays, for removing it would race."""
    lock_path = path.with_name(path.name + ".lock")
    lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode("ascii", "replace").strip()
        os.close(lock)
        raise _already_running(path, holder) from None
    except BaseException:
        os.close(lock)
        raise
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock


def _clear(path: Path) -> None:
    """Remove a dead daemon's socket; AlreadyRunning when something answers on it in spite of the free lock."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise InvalidInput(f"{path} exists and is not a socket", hint="remove it, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:  # its backlog is full: busy, so alive
            pass
    raise _already_running(path, "")


def _bind(path: Path, gid: int | None) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listening.bind(os.fspath(path))
        try:
            # Connecting fails until listen(), so nobody sees the mode and group that bind() left.
            if gid is not None:
                os.chown(path, -1, gid)
            path.chmod(MODE)
            listening.listen(BACKLOG)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _inode(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _already_running(path: Path, holder: str) -> AlreadyRunning:
    who = f"another stokerd (pid {holder})" if holder else "another program"
    return AlreadyRunning(f"{who} is listening on {path}", hint="stop it first, or choose another socket")


def _failure(doing: str, path: Path, error: OSError) -> StokerError:
    hint = None
    if error.errno in {errno.EPERM, errno.EACCES}:
        hint = "run stokerd as root, or choose a socket and a group that this user may use"
    return StokerError(f"cannot {doing} {path}: {error.strerror or error}", hint=hint)
