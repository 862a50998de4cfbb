"""What files of the machine say about the runtime's process. Parsers are pure; readers are thin, and never
raise but where absence would mean something else."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stokerd.runtime.types import CgroupMode

DEFAULT_REGISTRY_CONFIG = "/etc/containerd/certs.d"
_DEFAULT_CONFIG_FILE = "/etc/containerd/config.toml"
_OCTAL = re.compile(r"\\([0-3][0-7]{2})")
"""How the kernel writes blanks and backslashes of a path (seq_escape, fs/proc_namespace.c)."""
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def shares_mounts(pid: int) -> bool:
    """Say whether process *pid* sees the same file system tree as this one, or may not be looked at.

    ProcessLookupError when it has ended: whoever took its files for ours then would write, and remove, in the wrong
    place.
    """
    try:
        same_namespace = Path(f"/proc/{pid}/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink()
        return same_namespace and Path(f"/proc/{pid}/root").samefile("/")
    except OSError as error:
        if isinstance(error, FileNotFoundError) or not Path(f"/proc/{pid}").exists():
            raise ProcessLookupError(f"process {pid} has ended") from None
        return True


def host_root_of(pid: int) -> str:
    """Return the prefix for paths of process *pid*: empty when it sees what we see, or is not told (0).
    ProcessLookupError when it has ended."""
    return "" if pid <= 0 or shares_mounts(pid) else f"/proc/{pid}/root"


def read_text(path: str, limit: int = 1 << 20) -> str:
    """Return the beginning of a file as text, empty when it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def cgroup_mode(mounts: str) -> CgroupMode:
    """Tell the cgroup mode from the text of /proc/mounts (kernel Documentation/admin-guide/cgroup-v2.rst)."""
    v1 = unified = root_is_v2 = False
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        where, kind = fields[1], fields[2]
        v1 |= kind == "cgroup"
        unified |= kind == "cgroup2"
        root_is_v2 |= kind == "cgroup2" and where == "/sys/fs/cgroup"
    if root_is_v2 and not v1:
        return CgroupMode.UNIFIED
    if v1 and unified:
        return CgroupMode.HYBRID
    if v1:
        return CgroupMode.V1
    return CgroupMode.UNIFIED if unified else CgroupMode.UNKNOWN


def file_system_type(mountinfo: str, path: str) -> str:
    """Return the type of the file system that holds *path*, from the text of /proc/<pid>/mountinfo; "" if unknown."""
    best, found = -1, ""
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5:
            continue
        mount = _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), fields[4])
        inside = mount == "/" or path == mount or path.startswith(f"{mount}/")
        if inside and len(mount) >= best:  # of two mounts on one place the later hides the earlier
            best, found = len(mount), right.split()[0]
    return found


def cri_config(info: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration document of CRI's verbose status, empty when there is none."""
    try:
        document = json.loads(info.get("config", "{}"))
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def dig(document: Any, *keys: str) -> Any:
    """Return what stands under *keys* in nested dictionaries, None when something is missing."""
    for key in keys:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document


def config_file_of(arguments: Iterable[str]) -> str:
    """Return the configuration file named on containerd's command line, or the default one."""
    items = list(arguments)
    for position, argument in enumerate(items):
        name, equals, value = argument.partition("=")
        if name in {"-c", "--config", "-config"}:
            if equals:
                return value
            if position + 1 < len(items):
                return items[position + 1]
    return _DEFAULT_CONFIG_FILE


def registry_config_path(config: str) -> str:
    """Return the hosts.toml directory that containerd's configuration text names, empty when it names none."""
    try:
        document = tomllib.loads(config)
    except tomllib.TOMLDecodeError:
        return ""
    for plugin in ("io.containerd.cri.v1.images", "io.containerd.grpc.v1.cri", "io.containerd.transfer.v1.local"):
        found = dig(document, "plugins", plugin, "registry", "config_path") or dig(
            document, "plugins", plugin, "config_path"
        )
        if isinstance(found, str) and found:
            return found
    return ""


def cni_bin_dirs(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where CRI looks for network plugins: a list since 2.1, one directory before."""
    found = [*(dig(config, "cni", "binDirs") or []), dig(config, "cni", "binDir")]
    return tuple(str(each) for each in found if each) or ("/opt/cni/bin",)


def process_path(pid: int) -> tuple[str, ...]:
    """Return the directories of the PATH that process *pid* was started with."""
    for entry in read_text(f"/proc/{pid}/environ").split("\0"):
        if entry.startswith("PATH="):
            return tuple(part for part in entry.removeprefix("PATH=").split(":") if part.startswith("/"))
    return tuple(_DEFAULT_PATH.split(":"))


def find_program(name: str, directories: Iterable[str], host_root: str) -> str:
    """Return the path of an executable as the runtime would find it, empty when it would not."""
    for directory in directories:
        inside = f"{directory}/{name}"
        if os.access(f"{host_root}{inside}", os.X_OK):
            return inside
    return ""
