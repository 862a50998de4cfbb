"""The runtime spec of a clone, made from the one of the container that was checkpointed. Pure.

Only what ties the golden container to its pod and its place is changed; seccomp, capabilities, limits, devices and
mounts of volumes stay as CRI or the kubelet made them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from stokerd.checkpoints.criu import CONFIG_ANNOTATION

CLONE_LABEL = "stoker.dev/clone"
CONTAINER_LABEL = "stoker.dev/container"
"""The name that the container has in its pod's specification, and below it the pod and the image."""
POD_LABEL = "stoker.dev/pod"
IMAGE_LABEL = "stoker.dev/image"
_OF_PROCESS = re.compile(r"/proc/\d+/ns/(\w+)")
_PRIVATE = frozenset({"ipc", "uts"})
_SANDBOXES = ("/sandboxes/", "/.clones/")
"""Where CRI has the files of a pod, and we those of a clone."""


class Places(msgspec.Struct, frozen=True):
    """Where a clone has what the pod had: its network namespace, its /dev/shm, CRIU's configuration file, and files
    that stand for those of the sandbox, by their place in the container."""

    netns: str
    shm: str
    criu_config: str
    files: dict[str, str] = msgspec.field(default_factory=dict)


def sandbox_files(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the sources of mounts that are single files of the pod's sandbox, by their place in the container:
    resolv.conf, hostname and the like, which go with the pod."""
    return {
        str(mount["destination"]): str(mount["source"])
        for mount in spec.get("mounts") or []
        if mount.get("type") == "bind"
        and not _is_shm(mount)
        and any(place in str(mount.get("source")) for place in _SANDBOXES)
    }


def clone_spec(golden: Mapping[str, Any], clone: str, places: Places, hostname: str = "") -> dict[str, Any]:
    """Return the spec of the clone. Its IPC and UTS namespaces are its own; CRIU brings back what was in them."""
    spec: dict[str, Any] = copy.deepcopy(dict(golden))
    linux = spec.setdefault("linux", {})
    linux["namespaces"] = [_namespace(each, places) for each in linux.get("namespaces") or []]
    linux["cgroupsPath"] = cgroup_path(str(linux.get("cgroupsPath") or ""), clone)
    spec["mounts"] = [_mount(each, places) for each in spec.get("mounts") or []]
    spec["annotations"] = {**(spec.get("annotations") or {}), CONFIG_ANNOTATION: places.criu_config}
    if hostname:
        spec["hostname"] = hostname
    return spec


def restored_spec(golden: Mapping[str, Any], name: str, sandbox: int, places: Places) -> dict[str, Any]:
    """Return the spec of a container that takes the place of the golden one in its pod, whose pause process is
    *sandbox*: the pod's namespaces, files and /dev/shm stay."""
    spec: dict[str, Any] = copy.deepcopy(dict(golden))
    linux = spec.setdefault("linux", {})
    linux["namespaces"] = [_of_pod(each, sandbox) for each in linux.get("namespaces") or []]
    linux["cgroupsPath"] = cgroup_path(str(linux.get("cgroupsPath") or ""), name)
    spec["annotations"] = {**(spec.get("annotations") or {}), CONFIG_ANNOTATION: places.criu_config}
    return spec


def _of_pod(namespace: Mapping[str, Any], sandbox: int) -> dict[str, Any]:
    match = _OF_PROCESS.fullmatch(str(namespace.get("path") or ""))
    return {**namespace, "path": f"/proc/{sandbox}/ns/{match.group(1)}"} if match else dict(namespace)


def has_own_network(spec: Mapping[str, Any]) -> bool:
    """Say whether the container is in another network namespace than the node."""
    namespaces = (spec.get("linux") or {}).get("namespaces") or []
    return any(each.get("type") == "network" for each in namespaces)


def cgroup_path(golden: str, clone: str) -> str:
    """Return a cgroup beside the golden container's, so that the same parent accounts for it.

    systemd's driver names a slice, a prefix and a name; cgroupfs has a path.
    """
    parts = golden.split(":")
    if len(parts) == 3 and not golden.startswith("/"):
        return f"{parts[0]}:{parts[1]}:{clone}"
    parent = golden.rpartition("/")[0]
    return f"{parent}/{clone}" if golden else f"/stoker/{clone}"


def _namespace(namespace: Mapping[str, Any], places: Places) -> dict[str, Any]:
    kind = namespace.get("type")
    if kind == "network":
        return {"type": "network", "path": places.netns}
    return {"type": kind} if kind in _PRIVATE else dict(namespace)


def _mount(mount: Mapping[str, Any], places: Places) -> dict[str, Any]:
    destination = str(mount.get("destination"))
    if _is_shm(mount) and places.shm:
        return {**mount, "source": places.shm}
    if destination in places.files:
        return {**mount, "source": places.files[destination]}
    return dict(mount)


def _is_shm(mount: Mapping[str, Any]) -> bool:
    return mount.get("destination") == "/dev/shm"  # noqa: S108 - a name in the spec
