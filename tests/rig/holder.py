"""The part of a node that is there before containerd: directories, disk, network configuration, namespaces."""

from __future__ import annotations

import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

from tests.rig import containerd_config, mounts, paths
from tests.rig.cgroups import NodeCgroup, hierarchies, unified
from tests.rig.errors import RigError
from tests.rig.processes import ProcessId
from tests.rig.waiting import until

# Where containerd's root would be an overlay on an overlay, it gets a sparse disk of this size instead.
FALLBACK_DISK = 40 << 30
UNFIT = {"overlay", "tmpfs", "ramfs", "aufs", "fuse.fuse-overlayfs"}


@dataclass(frozen=True)
class Layout:
    """Where a node's things lie and what kind they are."""

    name: str
    own_network: bool
    run_dir: Path
    data_dir: Path
    root_dir: Path
    cni_dir: Path
    directories: tuple[Path, ...]
    disk_bytes: int | None
    inodes: int | None
    bridge: str
    subnet: str
    hide: tuple[str, ...]


def bridge_and_subnet(name: str) -> tuple[str, str]:
    """A bridge name and a subnet that follow from the node's name, so that side by side they differ."""
    number = zlib.crc32(name.encode()) & 0xFFFF
    return f"stk-{number:04x}", f"10.{88 + (number >> 14)}.{(number >> 6) & 0xFF}.{(number & 3) * 64}/26"


def make_directories(layout: Layout) -> None:
    layout.data_dir.mkdir(parents=True, exist_ok=True)
    for directory in (*layout.directories, layout.cni_dir):
        directory.mkdir(parents=True, exist_ok=True)
    size = layout.disk_bytes
    if size is None and mounts.file_system_of(layout.data_dir) in UNFIT:
        size = FALLBACK_DISK
    if size is None:
        layout.root_dir.mkdir()
    else:
        mounts.make_disk(layout.data_dir / "disk.img", layout.root_dir, size, layout.inodes)
    if layout.own_network:
        _write_conflist(layout)


def _write_conflist(layout: Layout) -> None:
    values = {
        "BRIDGE": layout.bridge,
        "SUBNET": layout.subnet,
        "CNI_STATE_DIR": str(layout.run_dir / "cni-state"),
    }
    text = containerd_config.fill((paths.NODE_IMAGE / "bridge.conflist").read_text(encoding="utf-8"), values)
    (layout.cni_dir / "10-stoker.conflist").write_text(text, encoding="utf-8")


def hold(layout: Layout, lower: Path, cgroup: NodeCgroup, children: list[subprocess.Popen[bytes]]) -> ProcessId:
    """Make the node's cgroup and namespaces; returns the process that holds them."""
    cgroup.create()
    area, marker = layout.run_dir / "area", layout.run_dir / "entered"
    area.mkdir()
    log = layout.data_dir / "enter.log"
    with log.open("wb") as sink:
        child = subprocess.Popen(
            ["/bin/sh", str(paths.HERE / "enter.sh")],
            env=_environment(layout, lower, area, marker, cgroup),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    children.append(child)

    def entered() -> bool:
        if child.poll() is not None:
            said = log.read_text(encoding="utf-8", errors="replace").strip()
            raise RigError(f"the namespaces of node {layout.name} could not be made: {said}")
        return marker.exists()

    until(f"the namespaces of node {layout.name}", entered, 20.0, 0.005)
    process = ProcessId.of(child.pid)
    assert process is not None
    return process


def _environment(layout: Layout, lower: Path, area: Path, marker: Path, cgroup: NodeCgroup) -> dict[str, str]:
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "NODE_NAME": layout.name,
        "NODE_NETWORK": "own" if layout.own_network else "host",
        "NODE_LOWER": str(lower),
        "NODE_AREA": str(area),
        "NODE_CGROUP_ROOTS": " ".join(map(str, cgroup.root_entries)),
        "NODE_CGROUP_LEAVES": " ".join(map(str, cgroup.entries)) if unified() else "",
        "NODE_CGROUP_MOUNTS": " ".join(cgroup_mounts()),
        "NODE_RUN_DIR": str(layout.run_dir),
        "NODE_DATA_DIR": str(layout.data_dir),
        "NODE_CNI_DIR": str(layout.cni_dir),
        "NODE_HIDE": " ".join(layout.hide),
        "NODE_READY": str(marker),
    }


def cgroup_mounts() -> list[str]:
    """`directory:type:options` for each hierarchy; the directory of a pure version 2 machine is `.`."""
    found = []
    for each in hierarchies():
        where = each.mount.relative_to("/sys/fs/cgroup")
        kind = "cgroup2" if each.version == 2 else "cgroup"
        # enter.sh splits at blanks, so an option is given with its flag and without them.
        options = f"-o{each.options}" if each.options else "-orw"
        found.append(f"{where}:{kind}:{options}")
    return found
