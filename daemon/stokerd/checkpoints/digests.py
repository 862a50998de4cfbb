"""Digests of files and of whole trees, to tell later whether anything changed. Blocking; runs in a thread."""

from __future__ import annotations

import hashlib
import os
import stat

from stokerd.checkpoints.trees import Entry, Stop, attributes_of, never, opened, walk


def tree_digest(root: str, stop: Stop = never) -> str:
    """Return a digest of all that is in the tree, overlay's marks included: equal trees have equal ones.

    Times of access do not count, nor does where a file's holes are; which names share an inode does.
    """
    found = hashlib.sha256()
    links: dict[tuple[int, int], int] = {}
    descriptor = opened(root)
    try:
        _feed(found, "/", os.fstat(descriptor), attributes_of(descriptor), b"")
        for entry in walk(descriptor, stop):
            if not entry.leaving:
                content = _content(entry)
                number = links.setdefault((entry.stat.st_dev, entry.stat.st_ino), len(links))
                shared = b"" if entry.stat.st_nlink < 2 or entry.kind in {"directory", "whiteout"} else b"%d" % number
                _feed(found, entry.path, entry.stat, entry.attributes(), content + shared)
    finally:
        os.close(descriptor)
    return f"sha256:{found.hexdigest()}"


def _content(entry: Entry) -> bytes:
    if entry.kind == "file":
        with os.fdopen(entry.open(), "rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").digest()
    if entry.kind == "symlink":
        return os.fsencode(os.readlink(entry.name, dir_fd=entry.parent))
    return b""


def _feed(found: hashlib._Hash, path: str, about: os.stat_result, attributes: dict[str, bytes], content: bytes) -> None:
    size = 0 if stat.S_ISDIR(about.st_mode) else about.st_size
    parts = [os.fsencode(path), content]
    parts += [b"%s=%s" % (os.fsencode(name), attributes[name]) for name in sorted(attributes)]
    parts.append(
        b"%o %d %d %d %d %d" % (about.st_mode, about.st_uid, about.st_gid, size, about.st_rdev, about.st_mtime_ns)
    )
    for part in parts:
        found.update(b"%d:" % len(part))
        found.update(part)


def file_digest(path: str) -> str:
    """Return the digest of one file."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - hot: many files, one after the other
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
