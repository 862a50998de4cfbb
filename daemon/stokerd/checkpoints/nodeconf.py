"""CRIU's configuration of the node, where nobody else has written one. Blocking; runs in a thread.

containerd has no field for CRIU's network lock, which runs iptables twice for each dump: longer than all the rest of a
small one; nor for the size up to which deleted files that are open are kept. What containers are made by others read no
configuration of ours, so it is the node's file that says it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from stokerd.checkpoints.criu import GHOST_LIMIT, NODE_CONFIG, Tuning, config, parse_version

MARKER = "# written by stokerd, which keeps it up to date; remove this line to keep your own\n"

State = Literal["ours", "foreign", "none"]


def ensure_node_config(prefix: str, criu: str) -> State:
    """Write, change or remove our file, by the version of CRIU; leave one that is not ours. OSError when it cannot."""
    path = Path(f"{prefix}{NODE_CONFIG}")
    try:
        now = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        now = None
    if now is not None and not now.startswith(MARKER):
        return "foreign"
    wanted = config(parse_version(criu), "dump", Tuning(skip_network_lock=True, ghost_limit=GHOST_LIMIT))
    if not wanted:
        path.unlink(missing_ok=True)
        return "none"
    if now != MARKER + wanted:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.stokerd")
        new.write_text(MARKER + wanted, encoding="utf-8")
        new.chmod(0o644)
        os.replace(new, path)  # noqa: PTH105 - a rename over whatever is there
    return "ours"
