"""Trees to copy and to pack, and what is seen of them."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

LONG = "n" * 120
MODES = 0o4755


def build_upper(root: Path) -> None:
    """Everything that an upper directory can have and that needs no root."""
    (root / "etc").mkdir(mode=0o750)
    (root / "etc" / "config").write_text("changed")
    (root / "etc" / "config").chmod(0o640)
    (root / "etc" / "link").symlink_to("../../outside")
    (root / "absolute").symlink_to("/absolute")
    (root / LONG).mkdir()
    (root / LONG / LONG).write_bytes(b"deep")
    (root / "naïve ☃").write_text("unicode")
    Path(os.fsdecode(os.fsencode(root) + b"/bytes\xff\xfe")).write_text("no text at all")
    (root / "a").write_bytes(b"shared" * 1000)
    os.link(root / "a", root / "etc" / "b")
    os.link(root / "a", root / "zz")
    os.mkfifo(root / "fifo", 0o600)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(root / "socket"))
    os.mknod(root / "etc" / "gone", stat.S_IFCHR, 0)
    (root / "program").write_bytes(b"\x7fELF")
    (root / "program").chmod(MODES)
    os.setxattr(root / "program", "user.note", b"\x00kept\xff")
    (root / "replaced").mkdir()
    os.setxattr(root / "replaced", "user.overlay.opaque", b"y")
    (root / "replaced" / "new").touch()
    with (root / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(8 << 20)
        file.write(b"middle")
        file.truncate(32 << 20)
    (root / "hole").touch()
    os.truncate(root / "hole", 4 << 20)
    (root / "empty").touch()
    for number, path in enumerate(sorted(root.rglob("*"), reverse=True)):
        os.utime(path, ns=(1_700_000_000_000_000_000, 1_600_000_000_000_000_123 + number), follow_symlinks=False)


def seen(root: Path) -> dict[str, tuple[object, ...]]:
    """Return what matters of each entry, by path."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        about = path.lstat()
        name = os.fsencode(path.relative_to(root)).decode("latin-1")
        content: object = b""
        if stat.S_ISREG(about.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(about.st_mode):
            content = path.readlink()
        handle = os.open(path, os.O_PATH | os.O_NOFOLLOW)
        attributes = {
            each: os.getxattr(f"/proc/self/fd/{handle}", each) for each in os.listxattr(f"/proc/self/fd/{handle}")
        }
        os.close(handle)
        size = 0 if stat.S_ISDIR(about.st_mode) else about.st_size
        links = 1 if stat.S_ISDIR(about.st_mode) else about.st_nlink
        found[name] = (
            oct(about.st_mode),
            about.st_uid,
            about.st_gid,
            size,
            about.st_rdev,
            about.st_mtime_ns,
            links,
            tuple(sorted(attributes.items())),
            content,
        )
    return found
