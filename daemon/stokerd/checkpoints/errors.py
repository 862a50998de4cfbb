"""What can go wrong with checkpoints, beyond what the runtime says."""

from __future__ import annotations

from stokerd.errors import StokerError


class CheckpointError(StokerError):
    """A checkpoint could not be made, read or removed."""

    reason = "CheckpointFailed"


class CheckpointRefused(CheckpointError):
    """What runs there cannot be checkpointed as it is; ``causes`` has one line for each obstacle."""

    reason = "CheckpointRefused"

    def __init__(self, message: str, *, causes: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.causes = causes


class CriuCrashed(CheckpointError):
    """CRIU itself died, which says nothing about what it was to dump."""

    reason = "CriuCrashed"


class CheckpointNoSpace(CheckpointError):
    """The file system for checkpoints, or the one for snapshots, is full (bytes or inodes)."""

    reason = "CheckpointNoSpace"
    retryable = True


class CheckpointTimeout(CheckpointError):
    """The checkpoint was not complete within its time; the container runs on."""

    reason = "CheckpointTimeout"
    retryable = True


class CheckpointDamaged(CheckpointError):
    """What is on the disk is not what was written; ``problems`` has one line for each difference."""

    reason = "CheckpointDamaged"

    def __init__(self, message: str, *, problems: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems


class HookFailed(CheckpointError):
    """The command that was to run in a clone failed; the clone was taken down again."""

    reason = "HookFailed"


class ArchiveRefused(CheckpointError):
    """An archive, or an artifact of a registry, holds what no checkpoint of ours has; ``entry`` names it."""

    reason = "ArchiveRefused"

    def __init__(self, what: str, entry: str = "", *, hint: str | None = None) -> None:
        shown = "".join(char if char.isprintable() else "?" for char in entry)[:200]
        super().__init__(f"{shown}: {what}" if entry else what, hint=hint or "get it again from where it was made")
        self.what = what
        self.entry = entry


class TreeUnsupported(CheckpointError):
    """A file tree holds something that this way of copying cannot take; ``path`` says where, ``what`` names it."""

    reason = "TreeUnsupported"

    def __init__(self, what: str, path: str, *, hint: str | None = None) -> None:
        super().__init__(f"{path}: {what}", hint=hint)
        self.what = what
        self.path = path


class OverlayUnsupported(TreeUnsupported):
    """It is overlay's own way of keeping things that cannot be taken; through overlay itself it can be read."""


class Stopped(CheckpointError):
    """Somebody asked a copy to stop."""

    reason = "Stopped"
