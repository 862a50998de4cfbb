"""The runtime spec that a memory container gets: as much of containerd's as tells whether two were made alike. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def runtime_spec(
    container_id: str, config: Mapping[str, Any], pod_id: str, pod: Mapping[str, Any], pod_pid: int
) -> dict[str, Any]:
    """Return the OCI runtime spec of a container made from *config* in the sandbox *pod*."""
    linux = config.get("linux") or {}
    security = linux.get("security_context") or {}
    hostname = str(pod.get("hostname") or "")
    return {
        "ociVersion": "1.1.0",
        "process": {
            "args": [*(config.get("command") or []), *(config.get("args") or [])] or ["/image-command"],
            "cwd": config.get("working_dir") or "/",
            "env": [_PATH, f"HOSTNAME={hostname}", *(_variable(entry) for entry in config.get("envs") or [])],
            "terminal": bool(config.get("tty")),
            "noNewPrivileges": bool(security.get("no_new_privs")),
            "user": {
                "uid": _number(security.get("run_as_user")),
                "gid": _number(security.get("run_as_group")),
                "additionalGids": list(security.get("supplemental_groups") or []),
            },
            "capabilities": dict(security.get("capabilities") or {}),
        },
        "root": {"path": "rootfs", "readonly": bool(security.get("readonly_rootfs"))},
        "mounts": [_mount(entry) for entry in config.get("mounts") or []],
        "annotations": _annotations(config, pod_id, pod),
        "linux": {
            "cgroupsPath": f"/k8s.io/{container_id}",
            "resources": dict(linux.get("resources") or {}),
            "devices": [{"path": entry.get("container_path")} for entry in config.get("devices") or []],
            "seccomp": dict(security.get("seccomp") or {}),
            "namespaces": [
                {"type": "pid"},
                {"type": "mount"},
                *({"type": kind, "path": f"/proc/{pod_pid}/ns/{path}"} for kind, path in _SHARED),
            ],
            "maskedPaths": list(security.get("masked_paths") or []),
            "readonlyPaths": list(security.get("readonly_paths") or []),
        },
    }


_SHARED = (("ipc", "ipc"), ("uts", "uts"), ("network", "net"))


def _variable(entry: Mapping[str, Any]) -> str:
    return f"{entry.get('key', '')}={entry.get('value', '')}"


def _number(wrapped: Mapping[str, Any] | None) -> int:
    return int((wrapped or {}).get("value", 0))


def _mount(entry: Mapping[str, Any]) -> dict[str, Any]:
    mode = "ro" if entry.get("readonly") else "rw"
    return {
        "destination": entry.get("container_path"),
        "type": "bind",
        "source": entry.get("host_path"),
        "options": ["rbind", "rprivate", mode],
    }


def _annotations(config: Mapping[str, Any], pod_id: str, pod: Mapping[str, Any]) -> dict[str, str]:
    about, of_pod = config.get("metadata") or {}, pod.get("metadata") or {}
    return {
        "io.kubernetes.cri.container-name": about.get("name", ""),
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.image-name": (config.get("image") or {}).get("image", ""),
        "io.kubernetes.cri.sandbox-id": pod_id,
        "io.kubernetes.cri.sandbox-name": of_pod.get("name", ""),
        "io.kubernetes.cri.sandbox-namespace": of_pod.get("namespace", ""),
        "io.kubernetes.cri.sandbox-uid": of_pod.get("uid", ""),
    }
