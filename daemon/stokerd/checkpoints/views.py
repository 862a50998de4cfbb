"""What the room knows, as the API tells it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.objects.checkpoints import (
    CheckpointDetail,
    CheckpointInfo,
    CheckpointNode,
    CheckpointPart,
    CloneInfo,
    ClonePhase,
    CommittedImage,
    PausedContainer,
    Tcp,
)
from stokerd.checkpoints.clone_types import Clone
from stokerd.checkpoints.committing import Committed
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.operations import LABELS_OF_OURS
from stokerd.checkpoints.targets import Target
from stokerd.runtime.task_types import TaskState

_PAGES = "images/pages-"
_TCP: Mapping[str, Tcp] = {"close": "close", "established": "established"}


def memory_of(manifest: Manifest) -> int:
    """Return how many bytes of memory a checkpoint holds."""
    return sum(part.size for part in manifest.parts if part.path.startswith(_PAGES))


def checkpoint(manifest: Manifest, clones: int = 0) -> CheckpointInfo:
    source = manifest.source
    return CheckpointInfo(
        id=manifest.id,
        name=manifest.name,
        group=manifest.group,
        namespace=source.pod_namespace,
        pod=source.pod_name,
        container=source.container_name,
        container_id=source.container_id,
        image=source.image,
        image_digest=source.image_digest,
        created_at=manifest.created_at,
        bytes=manifest.bytes,
        memory_bytes=memory_of(manifest),
        frozen_seconds=round(manifest.frozen_ms / 1000, 6),
        stopped=not manifest.left_running,
        tcp=_TCP.get(manifest.tcp, "refuse"),
        clones=clones,
        labels={name: value for name, value in manifest.labels.items() if not name.startswith(LABELS_OF_OURS)},
    )


def checkpoint_detail(manifest: Manifest, clones: list[str], directory: str) -> CheckpointDetail:
    node = manifest.node
    return CheckpointDetail(
        info=checkpoint(manifest, len(clones)),
        node=CheckpointNode(
            kernel=node.kernel,
            architecture=node.architecture,
            criu=node.criu,
            runc=node.runc,
            containerd=node.containerd,
        ),
        snapshot=manifest.root.snapshot,
        root_bytes=manifest.root.bytes,
        root_entries=manifest.root.entries,
        root_digest=manifest.root.digest,
        parts=[CheckpointPart(path=part.path, size=part.size, digest=part.digest) for part in manifest.parts],
        clones=clones,
        directory=f"{directory}/{manifest.id}",
    )


def clone(found: Clone, state: TaskState | None, *, memory: int = 0, resident: int = 0) -> CloneInfo:
    """*memory*: of its checkpoint; *resident*: what of it is in, where it still comes."""
    phase: ClonePhase = "Running" if state in {"running", "created"} else "Stopped"
    if state in {"paused", "pausing"}:
        phase = "Paused"
    return CloneInfo(
        id=found.id,
        checkpoint=found.checkpoint,
        phase=phase,
        memory=found.memory,
        memory_bytes=memory,
        memory_missing_bytes=max(0, memory - resident) if found.memory == "loading" else 0,
        addresses=list(found.addresses),
        pid=found.pid if phase != "Stopped" else 0,
        pod_id=found.pod,
        created_at=found.created_at,
        message=found.why,
        labels=found.labels,
    )


def image(made: Committed) -> CommittedImage:
    return CommittedImage(
        image=made.name,
        id=made.id,
        digest=made.target.digest,
        layer_digest=made.layer.digest,
        layer_bytes=made.layer.size,
        frozen_seconds=round(made.frozen_ms / 1000, 6),
        skipped=list(made.skipped),
    )


def paused(target: Target, *, frozen: bool) -> PausedContainer:
    return PausedContainer(
        id=target.id,
        state="Paused" if frozen else "Running",
        namespace=target.namespace,
        pod=target.pod,
        container=target.name,
    )
