"""Exit codes: one table, documented in docs/cli.md and in ``stoker --help``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stoker.errors import ClientError, DaemonUnreachable

if TYPE_CHECKING:
    from stoker.objects.checkpoints import Operation
    from stoker.objects.containers import RecreateStatus
    from stoker.objects.images import ItemStatus

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
NO_SPACE = 4
NOT_FOUND = 5
REFUSED = 6
INTERRUPTED = 130
BROKEN_PIPE = 141

HELP = """\b
Exit codes:
  0    done
  1    some or all of it failed
  2    the command line or a file is malformed
  3    stokerd, or the coordinator, cannot be reached
  4    not enough disk space
  5    there is no such image, job, pin, pod, container, checkpoint, clone, request or device
  6    refused: by a limit, a pin, a running container or a permission
  130  interrupted
"""

_OF_REASON = {
    "DiskTooSmall": NO_SPACE,
    "DiskFull": NO_SPACE,
    "RuntimeNoSpace": NO_SPACE,
    "CheckpointNoSpace": NO_SPACE,
    "NotFound": NOT_FOUND,
    "ManifestNotFound": NOT_FOUND,
    "RuntimeNotFound": NOT_FOUND,
    "ContainerGone": NOT_FOUND,
    "SandboxGone": NOT_FOUND,
    "Conflict": REFUSED,
    "CheckpointRefused": REFUSED,
    "ArchiveRefused": REFUSED,
    "RegistryDenied": REFUSED,
    "RegistryUnauthorized": REFUSED,
    "LimitExceeded": REFUSED,
    "PeerRefused": REFUSED,
    "InvalidInput": USAGE,
    "InvalidReference": USAGE,
}
_OF_STATUS = {
    400: USAGE,
    401: REFUSED,
    403: REFUSED,
    404: NOT_FOUND,
    409: REFUSED,
    413: USAGE,
    415: USAGE,
    422: USAGE,
    429: REFUSED,
    507: NO_SPACE,
}


def of_error(error: ClientError) -> int:
    """Return the exit code for a request that failed."""
    if isinstance(error, DaemonUnreachable):
        return UNREACHABLE
    return _OF_REASON.get(error.reason) or _OF_STATUS.get(error.status) or FAILED


def combine(codes: set[int]) -> int:
    """Return the exit code for several failures: what all of them share, else 1; 0 for none."""
    if not codes:
        return OK
    return next(iter(codes)) if len(codes) == 1 else FAILED


def of_reasons(reasons: Iterable[str]) -> int:
    """Return the exit code for images that failed for *reasons*; 0 when there are none."""
    return combine({_OF_REASON.get(reason, FAILED) for reason in reasons})


def of_recreate(status: RecreateStatus) -> int:
    """Return the exit code for a request to recreate that is over."""
    if status.result == "Succeeded":
        return OK
    return of_reasons(target.reason for target in status.containers if target.phase == "Failed") or FAILED


def of_operation(operation: Operation) -> int:
    """Return the exit code for an operation that is over."""
    return OK if operation.phase == "Succeeded" else of_reasons([operation.reason])


def of_items(items: Iterable[ItemStatus]) -> int:
    """Return the exit code for the images of finished jobs."""
    bad = [item for item in items if item.phase != "Succeeded"]
    failed = [item.reason for item in bad if item.phase == "Failed"]
    return of_reasons(failed) if failed else (FAILED if bad else OK)
