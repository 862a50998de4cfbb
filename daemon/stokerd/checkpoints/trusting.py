"""The runtime specification of a container that came from elsewhere. Pure.

It is never taken as it came. Either it is that of a container of this node, which CRI made, and the one that came is
only compared with it; or, for those who trust whoever made it, it is made anew of what a plain container needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from stokerd.checkpoints.errors import ArchiveRefused

_CAPABILITIES = frozenset(
    f"CAP_{name}"
    for name in (
        *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP"),
        *("NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
    )
)
"""What CRI gives a container that asks for nothing."""
_MOUNTS: Mapping[str, frozenset[str]] = {
    "proc": frozenset({"/proc"}),
    "sysfs": frozenset({"/sys"}),
    "cgroup": frozenset({"/sys/fs/cgroup"}),
    "mqueue": frozenset({"/dev/mqueue"}),
    "devpts": frozenset({"/dev/pts"}),
    "tmpfs": frozenset({"/dev", "/run", "/tmp", "/dev/shm"}),  # noqa: S108 - places in a container
}
_SHM = "/dev/shm"  # noqa: S108 - a place in a container
_FILES = frozenset({"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"})
_OPTION = re.compile(r"[a-z]{2,16}(?:=[A-Za-z0-9]{1,20})?")
_NOT_OPTIONS = frozenset({"rshared", "shared", "bind", "rbind"})
_NAMESPACES = frozenset({"pid", "ipc", "uts", "mount", "network", "cgroup"})
_NEEDED = frozenset({"pid", "mount", "network"})
_DEVICES: tuple[dict[str, Any], ...] = (
    {"allow": False, "access": "rwm"},
    *(
        {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rwm"}
        for major, minor in ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2))
    ),
    {"allow": True, "type": "c", "major": 136, "access": "rwm"},
)
_SANDBOX = "/sandboxes/imported/"
_WORD = re.compile(r"[A-Za-z0-9._/-]{1,200}")


class Frame(msgspec.Struct, frozen=True):
    """What a clone of what came is put into: a runtime spec, and files of the pod by their place in the container."""

    spec: dict[str, Any]
    files: dict[str, bytes]


def read_spec(body: bytes) -> dict[str, Any]:
    """Read the runtime spec of an archive; ArchiveRefused when it is none."""
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        raise ArchiveRefused("it is no runtime specification", "spec.dump") from None
    shape = {"process": dict, "linux": dict, "mounts": list, "root": dict}
    for name, kind in shape.items():
        if not isinstance(found.get(name), kind):
            raise ArchiveRefused(f"it has no {name}", "spec.dump")
    if not all(isinstance(each, dict) and isinstance(each.get("destination"), str) for each in found["mounts"]):
        raise ArchiveRefused("a mount of it has no destination", "spec.dump")
    return found


def unlike(came: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, ...]:
    """Say in what the container that came differs from the one of this node, where CRIU wants both the same."""
    found: list[str] = []
    theirs, ours = ({str(each.get("destination")) for each in spec.get("mounts") or []} for spec in (came, here))
    found += [f"it has a mount at {each[:200]}, the container of this node has none" for each in sorted(theirs - ours)]
    found += [f"the container of this node has a mount at {each}, it has none" for each in sorted(ours - theirs)]
    if _kinds(came) != _kinds(here):
        found.append("its namespaces are of other kinds")
    if bool((came.get("process") or {}).get("terminal")) != bool((here.get("process") or {}).get("terminal")):
        found.append("only one of both has a terminal")
    return tuple(found)


def trusted(came: Mapping[str, Any], files: Mapping[str, bytes], *, shm: bool) -> Frame:
    """Return a plain container like the one that came; ArchiveRefused, with every cause, for what is more than that."""
    causes: list[str] = []
    linux = came["linux"]
    mounts, kept = _mounts(came["mounts"], files, causes, shm=shm)
    spec = {
        "ociVersion": "1.0.2",
        "process": _process(came["process"], causes),
        "root": {"path": "rootfs", "readonly": bool(came["root"].get("readonly"))},
        "hostname": str(came.get("hostname") or "")[:64],
        "mounts": mounts,
        "linux": {
            "namespaces": _namespaces(linux.get("namespaces"), causes),
            "resources": _resources(linux.get("resources")),
            "cgroupsPath": "",
            "maskedPaths": _paths(linux.get("maskedPaths")),
            "readonlyPaths": _paths(linux.get("readonlyPaths")),
        },
    }
    if isinstance(linux.get("seccomp"), dict):
        spec["linux"]["seccomp"] = linux["seccomp"]  # type: ignore[index]
    if came.get("hooks"):
        causes.append("it has hooks, which would run on this node")
    if linux.get("devices"):
        causes.append("it has devices of the node that it was made on")
    if linux.get("sysctl"):
        causes.append("it sets parameters of the kernel")
    if causes:
        raise ArchiveRefused(
            f"it is no plain container: {'; '.join(causes)}",
            "spec.dump",
            hint="run a container like it on this node, and name that one (--like)",
        )
    return Frame(spec, kept)


def _kinds(spec: Mapping[str, Any]) -> set[str]:
    entries = (spec.get("linux") or {}).get("namespaces") or []
    return {str(each.get("type")) for each in entries if isinstance(each, dict)}


def _process(process: Mapping[str, Any], causes: list[str]) -> dict[str, Any]:
    if process.get("terminal"):
        causes.append("it has a terminal")
    capabilities = process.get("capabilities")
    kept: dict[str, list[str]] = {}
    for kind in ("bounding", "effective", "inheritable", "permitted", "ambient"):
        names = _strings((capabilities or {}).get(kind)) if isinstance(capabilities, dict) else []
        more = sorted(set(names) - _CAPABILITIES)
        if more:
            causes.append(f"it has more rights than a plain one: {', '.join(more)[:200]}")
        kept[kind] = names
    user = process["user"] if isinstance(process.get("user"), dict) else {}
    return {
        "terminal": False,
        "user": {name: value for name, value in user.items() if name in {"uid", "gid", "umask", "additionalGids"}},
        "args": _strings(process.get("args")) or ["/"],
        "env": _strings(process.get("env")),
        "cwd": str(process.get("cwd") or "/"),
        "capabilities": kept,
        "noNewPrivileges": bool(process.get("noNewPrivileges")),
    }


def _mounts(
    mounts: list[dict[str, Any]], files: Mapping[str, bytes], causes: list[str], *, shm: bool
) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    found: list[dict[str, Any]] = []
    kept: dict[str, bytes] = {}
    for mount in mounts:
        kind, place = str(mount.get("type")), str(mount["destination"])
        options = [each for each in _strings(mount.get("options")) if _OPTION.fullmatch(each)]
        options = [each for each in options if each not in _NOT_OPTIONS]
        if kind == "bind" and place in _FILES and place in files:
            kept[place] = files[place]
            source = f"{_SANDBOX}{len(kept)}"
            found.append(
                {"destination": place, "type": "bind", "source": source, "options": ["rbind", "rprivate", "rw"]}
            )
        elif kind == "bind" and place == _SHM and shm:
            found.append({"destination": place, "type": "bind", "source": f"{_SANDBOX}shm", "options": ["rbind", "rw"]})
        elif place in _MOUNTS.get(kind, ()):
            found.append({"destination": place, "type": kind, "source": kind, "options": options})
        else:
            causes.append(f"it has a volume at {place[:200]}")
    return found, kept


def _namespaces(entries: object, causes: list[str]) -> list[dict[str, Any]]:
    kinds = [str(each.get("type")) for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    if _NEEDED - set(kinds) or set(kinds) - _NAMESPACES:
        causes.append(f"its namespaces are {', '.join(kinds)[:200] or 'none'}")
    if isinstance(entries, list) and any(
        isinstance(each, dict) and each.get("type") == "pid" and each.get("path") for each in entries
    ):
        causes.append("it shares the processes of its pod")
    return [{"type": each} for each in kinds]


def _resources(resources: object) -> dict[str, Any]:
    """Keep limits, which can only take away; what devices may be used is said by us."""
    found: dict[str, Any] = {"devices": [dict(each) for each in _DEVICES]}
    if not isinstance(resources, dict):
        return found
    for part, names in (("memory", ("limit",)), ("cpu", ("shares", "quota", "period")), ("pids", ("limit",))):
        values = resources.get(part)
        if isinstance(values, dict):
            kept = {name: values[name] for name in names if isinstance(values.get(name), int)}
            if kept:
                found[part] = kept
    return found


def _paths(paths: object) -> list[str]:
    """Keep what takes away; that CRIU finds the same mounts again is the archive's own interest."""
    return [each for each in _strings(paths) if each.startswith(("/proc/", "/sys/")) and _WORD.fullmatch(each)]


def _strings(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
