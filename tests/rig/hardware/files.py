"""A tree of files in memory, which can be read as sysfs is, or be written to a disk.

A thousand small files take a disk longer to remove than all the tests that read them; most tests read them in memory.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from stokerd.topology.sysfs import Sysfs

_MOST_LINKS = 40


@dataclass(frozen=True)
class Link:
    """A symbolic link, as it is written."""

    target: str


Node: TypeAlias = "dict[str, Node] | str | Link"


class FakeFiles:
    """Directories, files and links by their paths below a root."""

    def __init__(self) -> None:
        self._top: dict[str, Node] = {}

    def folder(self, path: str) -> dict[str, Node]:
        """Return a directory, made if need be; no link is followed."""
        here = self._top
        for part in path.split("/"):
            below = here.setdefault(part, {})
            assert isinstance(below, dict), f"{path} leads through a file"
            here = below
        return here

    def put(self, path: str, values: dict[str, str]) -> None:
        """Write files into a directory."""
        self.folder(path).update({name: f"{value}\n" for name, value in values.items()})

    def link(self, path: str, target: str) -> None:
        """Make a link, if there is none."""
        folder, _, name = path.rpartition("/")
        self.folder(folder).setdefault(name, Link(target))

    def find(self, path: str, *, follow: bool = True) -> Node | None:
        """Return what is at *path*; links on the way are followed, one at its end if *follow*."""
        stack: list[dict[str, Node]] = [self._top]
        parts = [part for part in path.split("/") if part]
        followed = 0
        while parts:
            part = parts.pop(0)
            if part == "..":
                stack = stack[:-1] or [self._top]
                continue
            below = stack[-1].get(part)
            if isinstance(below, Link) and (parts or follow):
                followed += 1
                if followed > _MOST_LINKS:
                    raise OSError(errno.ELOOP, "too many links")
                parts = [piece for piece in below.target.split("/") if piece] + parts
            elif isinstance(below, dict):
                stack.append(below)
            else:
                return below if not parts else None
        return stack[-1]

    def write(self, root: Path) -> Path:
        """Write everything below *root* on a disk; return *root*."""
        _write(self._top, root)
        return root


def _write(folder: dict[str, Node], path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, node in folder.items():
        if isinstance(node, dict):
            _write(node, path / name)
        elif isinstance(node, Link):
            (path / name).symlink_to(node.target)
        else:
            (path / name).write_text(node, encoding="ascii")


class MemorySysfs(Sysfs):
    """Reads a tree in memory as it would be read from a disk."""

    def __init__(self, files: FakeFiles) -> None:
        super().__init__(Path("/nonexistent"))
        self._files = files

    def data(self, path: str, limit: int = 4096) -> bytes | None:
        node = self._find(path)
        return node.encode()[:limit] if isinstance(node, str) else None

    def names(self, path: str) -> list[str]:
        node = self._find(path)
        return sorted(node) if isinstance(node, dict) else []

    def target(self, path: str) -> str:
        node = self._files.find(path.rstrip("/"), follow=False)
        return node.target if isinstance(node, Link) else ""

    def exists(self, path: str) -> bool:
        return self._files.find(path, follow=path.endswith("/")) is not None

    def _find(self, path: str) -> Node | None:
        try:
            return self._files.find(path)
        except OSError as error:
            self._note(path, error)
            return None
