"""What containerd's mounts and overlay's own marks mean. Pure.

Source: the kernel's Documentation/filesystems/overlayfs.rst.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from stokerd.runtime.task_types import Mount

Kind = Literal["file", "directory", "symlink", "device", "fifo", "socket", "whiteout"]

PREFIXES = ("trusted.overlay.", "user.overlay.")
"""Overlay keeps its marks under the second one where it was mounted with ``userxattr``."""
_OPAQUE = frozenset({b"y", b"x"})
_MARKS: Mapping[str, str] = {
    "redirect": "a directory that was renamed and is kept as a redirection (overlay's redirect_dir)",
    "metacopy": "a file of which overlay keeps only the metadata (metacopy)",
}


class Root(msgspec.Struct, frozen=True):
    """Where a snapshot's own files are: ``upper`` is "" for a view; ``lowers``, the topmost first, are its parents'."""

    upper: str
    lowers: tuple[str, ...] = ()


def root_of(mounts: Sequence[Mount]) -> Root | None:
    """Return where the files of a snapshot are; None when it is not containerd's overlay that keeps them."""
    if len(mounts) != 1:
        return None
    mount = mounts[0]
    if mount.type == "bind":
        return Root("", (mount.source,)) if "ro" in mount.options else Root(mount.source)
    if mount.type != "overlay":
        return None
    options = dict(option.partition("=")[::2] for option in mount.options)
    lowers = tuple(part for part in options.get("lowerdir", "").split(":") if part)
    return Root(options.get("upperdir", ""), lowers)


def kind_of(mode: int, device: int) -> Kind:
    """Tell what an entry of an upper directory is; overlay's whiteouts are character devices 0:0."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISLNK(mode):
        return "symlink"
    if stat.S_ISFIFO(mode):
        return "fifo"
    if stat.S_ISSOCK(mode):
        return "socket"
    return "whiteout" if stat.S_ISCHR(mode) and device == 0 else "device"


class Marks(msgspec.Struct, frozen=True):
    """Extended attributes, told apart: ``own`` are the container's, the others say what overlay keeps in its own."""

    own: dict[str, bytes]
    opaque: bool = False
    whiteout: bool = False
    unsupported: str = ""


def marks_of(attributes: Mapping[str, bytes]) -> Marks:
    """Read overlay's marks off an entry's extended attributes."""
    own: dict[str, bytes] = {}
    opaque = whiteout = False
    unsupported = ""
    for name, value in attributes.items():
        mark = next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), None)
        if mark is None:
            own[name] = value
        elif mark == "opaque":
            opaque = value in _OPAQUE
        elif mark == "whiteout":
            whiteout = True
        else:
            unsupported = unsupported or _MARKS.get(mark, "")
    return Marks(own, opaque, whiteout, unsupported)
