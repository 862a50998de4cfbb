"""Files written into a root filesystem that others made: no name in it leads out. Blocking; runs in a thread.

Directories are opened by the kernel's own resolution within a root (openat2, RESOLVE_IN_ROOT), which takes absolute
symlinks and ``..`` as the container itself would. A file is put in its place by a rename, so what is there is replaced
and never followed or opened.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Mapping, Sequence

from stokerd.checkpoints.trees import DIRECTORY
from stokerd.errors import InvalidInput

_OPENAT2 = 437
_NO_MAGICLINKS, _IN_ROOT = 0x02, 0x10
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 20


def plant(root: str, files: Mapping[str, bytes], owner: tuple[int, int]) -> None:
    """Write files by their absolute path within *root*. A new one is *owner*'s alone to read; one that replaces another
    has its owner and mode. InvalidInput where a path cannot be; OSError when the file system fails."""
    top = os.open(root, DIRECTORY)
    try:
        for path, content in files.items():
            steps = path.strip("/").split("/")
            try:
                parent = _directory(top, steps[:-1])
                try:
                    _write(parent, steps[-1], content, owner)
                finally:
                    os.close(parent)
            except (NotADirectoryError, FileExistsError, IsADirectoryError) as error:
                raise InvalidInput(f"{path} cannot be written in the clone: {error.strerror}") from None
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                raise InvalidInput(f"{path} cannot be written in the clone: {error.strerror}") from None
    finally:
        os.close(top)


def _directory(top: int, steps: Sequence[str]) -> int:
    """Open a directory, and make it where it is not there."""
    path = "/".join(steps) or "."
    try:
        return open_in_root(top, path, os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:
        if not steps:
            raise
    above = _directory(top, steps[:-1])
    try:
        os.mkdir(steps[-1], 0o755, dir_fd=above)  # a dangling symlink of that name is an error
    finally:
        os.close(above)
    return open_in_root(top, path, os.O_PATH | os.O_DIRECTORY)


def _write(parent: int, name: str, content: bytes, owner: tuple[int, int]) -> None:
    mode = 0o600
    try:
        there = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        there = None
    if there is not None and stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if there is not None and stat.S_ISREG(there.st_mode):
        owner, mode = (there.st_uid, there.st_gid), stat.S_IMODE(there.st_mode)
    new = f".stoker-{secrets.token_hex(8)}"
    descriptor = os.open(new, _NEW, 0o600, dir_fd=parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
        os.rename(new, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        os.unlink(new, dir_fd=parent)
        raise


def open_in_root(top: int, path: str, flags: int, mode: int = 0) -> int:
    """Open *path* as a process would whose root is the directory *top*."""
    import ctypes  # 1 MiB that most daemons never need

    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, mode, _IN_ROOT | _NO_MAGICLINKS)
    libc = ctypes.CDLL(None, use_errno=True)
    number = errno.EAGAIN
    for _ in range(_TRIES):
        found = libc.syscall(_OPENAT2, top, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if found >= 0:
            return int(found)
        number = ctypes.get_errno()
        if number != errno.EAGAIN:  # something was renamed meanwhile
            break
    raise OSError(number, os.strerror(number), path)
