"""Network namespaces: which there are, so that a test can tell that none was left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.rig.processes import run


def namespaces() -> set[int]:
    """Inode numbers of the network namespaces that a process or a mount of this machine's namespace holds."""
    found: set[int] = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(_inode(link))
        except OSError:
            continue
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        if " - nsfs " in line:
            text = line.split(" ")[3]  # net:[4026531840]
            if text.startswith("net:["):
                found.add(int(text[5:-1]))
    return found


@contextmanager
def held(pid: int) -> Iterator[int]:
    """The namespace of a process, whose number is given to no other as long as it is held."""
    with Path(f"/proc/{pid}/ns/net").open("rb"):
        yield namespace_of(pid)


def namespace_of(pid: int) -> int:
    return _inode(Path(f"/proc/{pid}/ns/net"))


def _inode(link: Path) -> int:
    return int(str(link.readlink()).removeprefix("net:[").removesuffix("]"))


def links() -> set[str]:
    """The network links of this process's namespace."""
    data = json.loads(run(["ip", "-j", "link", "show"]).stdout)
    return {str(each["ifname"]) for each in data}
