"""A real overlay: what a container does to its root, copied and packed, and compared file by file.

Run as root in a mount namespace of its own: ``unshare -m --propagation private python -m ... DIRECTORY``. Prints the
differences as JSON.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from stokerd.checkpoints.copying import copy_tree
from stokerd.checkpoints.errors import TreeUnsupported
from stokerd.checkpoints.layers import pack_layer
from tests.unit.checkpoints.trees import seen

CAPABILITY = b"\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
Seen = dict[str, tuple[object, ...]]


def fill_lower(lower: Path) -> None:
    for name in ("keep", "grow", "touched", "gone", "over", "mine", "to-directory"):
        (lower / name).write_text(f"{name} of the image\n" * 100)
    for directory in ("kept", "gone-directory", "replaced", "to-file", "renamed"):
        (lower / directory / "sub").mkdir(parents=True)
        (lower / directory / "file").write_text(directory)
        (lower / directory / "sub" / "file").write_text(directory)
    os.link(lower / "keep", lower / "keep-too")
    (lower / "link").symlink_to("keep")
    os.setxattr(lower / "mine", "user.image", b"1")


def change(root: Path) -> None:
    """What the container does."""
    with (root / "grow").open("a") as file:
        file.write("more")
    (root / "touched").chmod(0o600)
    os.chown(root / "touched", 1234, 4321)
    (root / "gone").unlink()
    shutil.rmtree(root / "gone-directory")
    shutil.rmtree(root / "replaced")
    (root / "replaced").mkdir(mode=0o711)
    (root / "replaced" / "new").write_text("new")
    (root / "new").write_text("x")
    (root / "new").rename(root / "over")
    (root / "mine").rename(root / "mine-elsewhere")
    (root / "mine-elsewhere").rename(root / "mine")
    (root / "to-directory").unlink()
    (root / "to-directory").mkdir()
    (root / "to-directory" / "file").write_text("y")
    shutil.rmtree(root / "to-file")
    (root / "to-file").write_text("z")
    shutil.move(root / "renamed", root / "renamed-to")
    (root / "link").unlink()
    (root / "link").symlink_to("/etc/passwd")
    (root / "kept" / "sub" / "file").unlink()
    os.link(root / "over", root / "kept" / "linked")
    (root / "program").write_bytes(b"\x7fELF")
    (root / "program").chmod(0o4755)
    os.setxattr(root / "program", "security.capability", CAPABILITY)
    os.mkfifo(root / "fifo")
    os.mknod(root / "device", stat.S_IFBLK | 0o660, os.makedev(7, 300))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(root / "socket"))
    with (root / "sparse").open("wb") as file:
        file.truncate(16 << 20)
        file.seek(8 << 20)
        file.write(b"middle")
    os.setxattr(root / "over", "user.note", b"\x00\xff")
    for path in (root / "over", root / "replaced", root / "link", root / "fifo"):
        os.utime(path, ns=(10**18, 10**18 + 123_456_789), follow_symlinks=False)


def change_again(root: Path) -> None:
    """What a clone of it does on top."""
    (root / "gone").write_text("it is back")
    (root / "gone-directory" / "sub").mkdir(parents=True)
    (root / "gone-directory" / "sub" / "other").write_text("new")
    shutil.rmtree(root / "kept" / "sub")
    (root / "kept" / "sub").mkdir(mode=0o750)
    (root / "kept" / "file").unlink()
    shutil.rmtree(root / "replaced")
    (root / "replaced").write_text("a file now")
    (root / "to-file").unlink()
    (root / "to-file" / "deep").mkdir(parents=True)
    (root / "to-directory" / "file").unlink()
    (root / "over").unlink()
    (root / "renamed-to" / "file").chmod(0o600)
    (root / "program").write_bytes(b"other")


def mount(lower: Path | str, base: Path, *options: str) -> Path:
    for name in ("upper", "work", "merged"):
        (base / name).mkdir(parents=True, exist_ok=True)
    wanted = [f"lowerdir={lower}", f"upperdir={base / 'upper'}", f"workdir={base / 'work'}", "index=off", *options]
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", ",".join(wanted), str(base / "merged")], check=True)
    return base / "merged"


def apply(layer: bytes, root: Path) -> None:
    """Unpack a layer as a runtime does."""
    times: dict[Path, int] = {}
    with tarfile.open(fileobj=io.BytesIO(layer), errors="surrogateescape") as archive:
        for member in archive:
            path = root / member.name
            if path.name == ".wh..wh..opq":
                for each in path.parent.iterdir():
                    _remove(each)
            elif path.name.startswith(".wh."):
                _remove(path.with_name(path.name.removeprefix(".wh.")))
            else:
                if not (member.isdir() and path.is_dir() and not path.is_symlink()):
                    _remove(path)
                _place(archive, member, path, root)
                nanoseconds = member.pax_headers.get("mtime", str(int(member.mtime)))
                seconds, _, rest = nanoseconds.partition(".")
                times[path] = int(seconds) * 10**9 + int(rest.ljust(9, "0") or 0)
    for path, when in sorted(times.items(), reverse=True):
        os.utime(path, ns=(when, when), follow_symlinks=False)


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path, root: Path) -> None:
    if member.islnk():
        os.link(root / member.linkname, path)
        return
    archive.extract(member, root, filter="fully_trusted")
    for key, value in member.pax_headers.items():
        if key.startswith("SCHILY.xattr."):
            os.setxattr(path, key.removeprefix("SCHILY.xattr."), value.encode("utf-8", "surrogateescape"))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def unequal(one: Seen, other: Seen, *, leave_out: frozenset[str] = frozenset(), but: int = -1) -> list[str]:
    """Return the paths that differ; *but* is a column that need not be equal."""

    def plain(what: tuple[object, ...] | None) -> list[object] | None:
        return [each for number, each in enumerate(what) if number != but] if what is not None else None

    paths = (one.keys() | other.keys()) - leave_out
    return sorted(path for path in paths if plain(one.get(path)) != plain(other.get(path)))


LINKS = 6
"""The column of the number of links: what an image has linked falls apart when it is changed."""


def main(base: Path) -> dict[str, Any]:
    lower = base / "lower"
    lower.mkdir()
    fill_lower(lower)
    merged = mount(lower, base / "one")
    change(merged)
    before = seen(merged)
    (base / "two" / "upper").mkdir(parents=True)
    copied = copy_tree(str(base / "one" / "upper"), str(base / "two" / "upper"))
    again = seen(mount(lower, base / "two"))
    stacked = mount(f"{base / 'one' / 'upper'}:{lower}", base / "three")
    change_again(stacked)
    both = io.BytesIO()
    pack_layer(str(base / "three" / "upper"), both.write, lowers=[str(base / "one" / "upper")])
    once = base / "once"
    subprocess.run(["cp", "-a", str(lower), str(once)], check=True)
    apply(both.getvalue(), once)
    merged_copy = base / "merged-copy"
    merged_copy.mkdir()
    copy_tree(str(base / "one" / "upper"), str(merged_copy), lowers=[str(lower)])
    out = io.BytesIO()
    packed = pack_layer(str(base / "one" / "upper"), out.write)
    applied = base / "applied"
    subprocess.run(["cp", "-a", str(lower), str(applied)], check=True)
    apply(out.getvalue(), applied)
    return {
        "copied": unequal(before, again),
        "stacked": unequal(seen(stacked), seen(once), leave_out=frozenset({"socket", "."}), but=LINKS),
        "merged": unequal(before, seen(merged_copy), but=LINKS),
        "packed": unequal(before, seen(applied), leave_out=frozenset({"socket", "."}), but=LINKS),
        "skipped": packed.skipped,
        "linked": (applied / "over").samefile(applied / "kept" / "linked"),
        "entries": copied.entries,
        "changed": len(before),
        "sparse": (base / "two" / "upper" / "sparse").stat().st_blocks * 512,
        "refused": [refused(lower, base / option, option) for option in ("redirect_dir=on", "metacopy=on")],
    }


def refused(lower: Path, base: Path, option: str) -> str:
    """Return why what overlay keeps in its own way is refused."""
    merged = mount(lower, base, option)
    if option.startswith("redirect"):
        (merged / "kept").rename(merged / "moved")
    else:
        (merged / "keep").chmod(0o600)
    try:
        pack_layer(str(base / "upper"), io.BytesIO().write)
    except TreeUnsupported as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
