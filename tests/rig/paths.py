"""Where the rig finds its tools and keeps its things."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from tests.rig.errors import MissingToolError, RigError

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache"
TOOLS = CACHE / "tools"
NODE_IMAGE = REPOSITORY / "images" / "node"
HERE = Path(__file__).resolve().parent

# Short, because unix socket paths are limited to 107 bytes; on a tmpfs of the machine in most places.
RUN = Path("/run/stoker-rig")
# Data of nodes and registries when no other directory is given.
DEFAULT_WORKDIR = REPOSITORY / ".stoker-rig"


def check_names() -> None:
    """Overlay options and shell words know no quoting for these."""
    if set(str(REPOSITORY)) & set(" \t\n,:\\"):
        raise RigError(f"the rig cannot work in {str(REPOSITORY)!r}: move the repository to a path of plain characters")


def node_root(suite: str, image: Path = NODE_IMAGE) -> Path:
    """The cached root filesystem of `suite`, as images/node/build.py names it."""
    check_names()
    spec = importlib.util.spec_from_file_location("stoker_node_build", NODE_IMAGE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    override = os.environ.get("STOKER_RIG_ROOTS")
    root = Path(build.root_path(suite, Path(override) if override else build.DEFAULT_CACHE, image))
    if not root.is_dir():
        raise MissingToolError(f"no root for {suite} at {root}; run `make bootstrap SUITES={suite}`")
    return root


def switches_root() -> Path:
    """The root filesystem with what plays switches: lldpd, ibsim, opensm and the tools that ask them."""
    return node_root("forky", REPOSITORY / "images" / "switches")


def tool(name: str, package: str) -> str:
    """The path of a program of this machine."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin")
    if found is None:
        raise MissingToolError(f"{name} (Debian package {package}) is not installed; run `make bootstrap`")
    return found


def registry_binary() -> Path:
    """docker-registry, which the bootstrap unpacks from Debian's package without installing it."""
    named = os.environ.get("STOKER_RIG_REGISTRY")
    candidates = [Path(named)] if named else [TOOLS / "usr/bin/docker-registry", Path("/usr/bin/docker-registry")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise MissingToolError(f"docker-registry is not at {candidates[0]}; run `make bootstrap`")
