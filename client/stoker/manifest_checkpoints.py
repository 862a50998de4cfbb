"""``Checkpoint`` and ``Commit`` as requests to keep a container, or to make an image of it.

``agents.kruise.io/v1alpha1`` has the fields of OpenKruise Agents. ``stoker.dev/v1`` has these and more; what belongs to
it is refused elsewhere rather than passed over.
"""

from __future__ import annotations

from stoker.manifest_fields import Fields
from stoker.objects.checkpoints import CheckpointRequest, CommitRequest, Compression, Tcp

OURS = "stoker.dev/v1"

_KEPT = {"memory", "filesystem"}
_TCP: dict[str, Tcp] = {"refuse": "refuse", "close": "close", "established": "established"}


def checkpoint_request(spec: Fields, version: str, name: str, namespace: str, label: str) -> CheckpointRequest:
    """Return what a *spec* asks for; *label* names the object in warnings."""
    if spec.has("sandboxName"):
        spec.refuse("sandboxName", "is not known here: name the pod with podName")
    pod = _pod(spec, namespace)
    keep = spec.flag("keepRunning") if spec.has("keepRunning") else True
    contents = set(spec.texts("persistentContents")) if spec.has("persistentContents") else _KEPT
    if not contents >= _KEPT:
        spec.warn("persistentContents", label, "memory and filesystem are kept, and the pod is described", part=True)
    if spec.has("ttlAfterFinished"):
        spec.warn(
            "ttlAfterFinished", label, "stokerd's settings say how long checkpoints are kept (checkpoints.keep_for)"
        )
    containers = _names(spec, "containers") if _only_ours(spec, "containers", version) else []
    tcp = spec.choice("tcp", *_TCP) if _only_ours(spec, "tcp", version) else None
    timeout = spec.optional_number("timeoutSeconds", 0.001) if _only_ours(spec, "timeoutSeconds", version) else None
    locks = spec.flag("fileLocks") if _only_ours(spec, "fileLocks", version) else True
    sockets = _only_ours(spec, "externalUnixSockets", version) and spec.flag("externalUnixSockets")
    spec.warn_unknown(label)
    return CheckpointRequest(
        pod=pod,
        containers=containers,
        name=name,
        request=_request("checkpoint", namespace, name),
        stop=not keep,
        tcp=_TCP[tcp] if tcp is not None else None,
        file_locks=locks,
        external_unix_sockets=sockets,
        timeout_seconds=timeout,
    )


def commit_request(spec: Fields, version: str, name: str, namespace: str, label: str) -> CommitRequest:
    """Return what a *spec* asks for; *label* names the object in warnings."""
    pod = _pod(spec, namespace)
    container = spec.optional_text("containerName")
    image = spec.text("image")
    squash = spec.flag("squashLayer")
    if spec.has("timeoutSeconds") and spec.optional_number("timeoutSeconds", 0):
        spec.warn("timeoutSeconds", label, "a commit takes as long as it takes; `stoker operations cancel` ends it")
    for field in ("ttl", "ttlAfterFinished"):
        if spec.has(field):
            spec.warn(field, label, "stokerd's settings say how long operations are known (checkpoints.operation_ttl)")
    if spec.has("registryAuth"):
        spec.warn("registryAuth", label, "stokerd cannot read Kubernetes secrets; it uses the node's credentials")
    changes = spec.words("changes") if _only_ours(spec, "changes", version) else []
    author = spec.text("author") if _only_ours(spec, "author", version) else ""
    message = spec.text("message") if _only_ours(spec, "message", version) else ""
    zstd = _only_ours(spec, "compression", version) and spec.choice("compression", "gzip", "zstd") == "zstd"
    compression: Compression = "zstd" if zstd else "gzip"
    push = version != OURS or spec.flag("push")  # OpenKruise's are always pushed
    spec.warn_unknown(label)
    return CommitRequest(
        container=f"{pod}/{container}" if container else pod,
        image=image,
        request=_request("commit", namespace, name),
        changes=changes,
        author=author,
        message=message,
        squash=squash,
        compression=compression,
        push=push,
    )


def _pod(spec: Fields, namespace: str) -> str:
    name = spec.text("podName")
    return f"{namespace}/{name}" if namespace and "/" not in name else name


def _request(kind: str, namespace: str, name: str) -> str:
    """Return what makes the same object the same operation; nothing for one without a name."""
    return ".".join(part for part in (kind, namespace, name) if part) if name else ""


def _names(spec: Fields, field: str) -> list[str]:
    """Containers as in other objects, ``- name: app``."""
    found = []
    for one in spec.maps(field):
        found.append(one.text("name"))
        one.refuse_unknown()
    if not found:
        spec.refuse(field, "is empty")
    return found


def _only_ours(fields: Fields, name: str, version: str) -> bool:
    """Whether the field is there; refused unless the version of the object has it."""
    if not fields.has(name):
        return False
    if version != OURS:
        fields.refuse(name, f"is not a field of {version}; write apiVersion: {OURS}")
    return True
