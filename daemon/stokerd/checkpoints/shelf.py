"""Checkpoints on the disk: one directory each, 0700, files 0600. Blocking; runs in threads.

    <id>/intent.json     written and flushed before anything is frozen
    <id>/images/         CRIU's images
    <id>/work/           CRIU's log, which is no part of it
    <id>/spec.json       the runtime spec
    <id>/record.msgpack  the container's record in containerd
    <id>/files.json      files of the pod that are mounted into it, such as resolv.conf
    <id>/shm/            what was in /dev/shm
    <id>/manifest.json   written last: with it the checkpoint is complete, without it it is none
    .groups/<id>.json    which checkpoints were taken together; written after their manifests, without it they are none

Paths are the node's; ``prefix`` says how this process reaches them now (`RuntimeInfo.host_root`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from stokerd.checkpoints import manifest as manifests
from stokerd.checkpoints.clone_types import Clone
from stokerd.checkpoints.digests import file_digest
from stokerd.checkpoints.errors import CheckpointDamaged
from stokerd.checkpoints.manifest import IDENTITY, Manifest, Part, Together
from stokerd.checkpoints.model import Intent, Pause
from stokerd.errors import RuntimeUnavailable
from stokerd.runtime.task_types import ContainerRecord

INTENT = "intent.json"
MANIFEST = "manifest.json"
CLONE = "clone.json"
SPEC = "spec.json"
RECORD = "record.msgpack"
FILES = "files.json"
IMAGES = "images"
WORK = "work"
SHM = "shm"
_PAUSES = ".pauses"
_CLONES = ".clones"
_GROUPS = ".groups"
_NETWORKS = ".networks"
_NO_PARTS = frozenset({INTENT, MANIFEST})
_LOG_TAIL = 256 << 10
_GLANCE = 256 << 10
"""Files up to this size are read before a restore; of larger ones only the size is looked at."""
_FULL = 64 << 10
"""Fewer free bytes than this are none: an image needs more."""


class Shelf:
    """The directory of all checkpoints of this node."""

    def __init__(self, directory: str, prefix: Callable[[], str] = str) -> None:
        self.directory, self._prefix = directory, prefix

    @property
    def _here(self) -> Path:
        """The directory as this process sees it: beneath a containerd that was started anew it is another."""
        return Path(self._prefix() + self.directory)

    def _absent(self, here: Path) -> None:
        """What was not found beneath *here* is not there, unless *here* itself is out of reach, as what is seen through
        containerd is when that ends: RuntimeUnavailable. To take it for absence would cost people checkpoints."""
        if not os.path.isdir(here):  # noqa: PTH112 - of a process that ends /proc says that it is forbidden
            raise RuntimeUnavailable(f"{self.directory} cannot be reached", hint="it is, when containerd is back")

    def must_be_there(self) -> None:
        """RuntimeUnavailable while the directory cannot be reached."""
        self._absent(self._here)

    def open(self) -> None:
        """Make the directory; OSError when that cannot be."""
        self._here.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in (_PAUSES, _CLONES, _GROUPS, _NETWORKS):
            (self._here / name).mkdir(mode=0o700, exist_ok=True)

    def node_path(self, checkpoint: str, *parts: str) -> str:
        """Return a path as the node sees it."""
        return "/".join((self.directory, checkpoint, *parts))

    def path(self, checkpoint: str, *parts: str) -> Path:
        """Return the same path as this process sees it."""
        return self._here.joinpath(checkpoint, *parts)

    # ------------------------------------------------------------------------------------------ writing

    def begin(self, *intents: Intent) -> None:
        """Make the directories of checkpoints, and write down what is meant; on return it is on the disk."""
        for intent in intents:
            place = self.path(intent.id)
            place.mkdir(mode=0o700)
            for name in (IMAGES, WORK):
                (place / name).mkdir(mode=0o700)
            self.write(intent.id, INTENT, msgspec.json.encode(intent))
        _flush(self._here)

    def write(self, checkpoint: str, name: str, content: bytes) -> None:
        """Write one small file, whole or not at all."""
        _write(self.path(checkpoint, name), content)

    def seal(self, manifest: Manifest) -> None:
        """Write the manifest: from now on the checkpoint is complete."""
        self.write(manifest.id, MANIFEST, manifests.encode(manifest))

    def parts(self, checkpoint: str) -> tuple[Part, ...]:
        """Flush and digest all files that belong to the checkpoint."""
        place, found = self.path(checkpoint), []
        for path in _files(place):
            path.chmod(0o600)
            with path.open("rb") as file:
                os.fdatasync(file.fileno())
            found.append(Part(str(path.relative_to(place)), path.stat().st_size, file_digest(str(path))))
        for directory in (place / IMAGES, place):
            _flush(directory)
        return tuple(found)

    def discard(self, checkpoint: str) -> None:
        """Remove the checkpoint; the manifest goes first, so that half of one is never taken for one."""
        place = self.path(checkpoint)
        (place / MANIFEST).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            _flush(place)
            shutil.rmtree(place)

    # ------------------------------------------------------------------------------------------ reading

    def names(self) -> list[str]:
        """Return the ids of all directories, complete or not; OSError when they cannot be seen, which is not none."""
        return sorted(each.name for each in self._here.iterdir() if IDENTITY.fullmatch(each.name) and each.is_dir())

    def intent(self, checkpoint: str) -> Intent | None:
        """Return what was meant; None when it was never written, and so nothing was frozen."""
        here = self._here
        try:
            return msgspec.json.decode((here / checkpoint / INTENT).read_bytes(), type=Intent)
        except (OSError, msgspec.MsgspecError):
            self._absent(here)
            return None

    def forget_intent(self, checkpoint: str) -> None:
        """What was meant has been done."""
        self.path(checkpoint, INTENT).unlink(missing_ok=True)

    def manifest(self, checkpoint: str) -> Manifest | None:
        """Return the manifest, None when the checkpoint is not complete; CheckpointDamaged when it cannot be read."""
        if not IDENTITY.fullmatch(checkpoint):
            return None
        here = self._here
        try:
            text = (here / checkpoint / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            self._absent(here)
            return None
        except OSError as error:
            self._absent(here)
            raise CheckpointDamaged(f"{checkpoint}: {error.strerror}") from None
        found = manifests.decode(text, checkpoint)
        if found.group and not (here / _GROUPS / f"{found.group}.json").exists():
            self._absent(here)
            return None
        return found

    def verify(self, manifest: Manifest) -> tuple[str, ...]:
        """Compare all files with the manifest; return what differs."""
        here, sizes = self._here, {part.path: part.size for part in manifest.parts}
        place = here / manifest.id
        found: dict[str, tuple[int, str]] = {}
        try:
            for path in _files(place):
                name, size = str(path.relative_to(place)), path.stat().st_size
                found[name] = (size, file_digest(str(path)) if sizes.get(name) == size else "")
        except OSError as error:
            self._absent(here)
            return (f"{os.path.relpath(error.filename or place, place)} cannot be read: {error.strerror}",)
        return self._judged(here, manifests.differences(manifest, found))

    def glance(self, manifest: Manifest) -> tuple[str, ...]:
        """The same, as far as it takes no time: of large files only the size is compared."""
        here = self._here
        found: dict[str, tuple[int, str]] = {}
        for part in manifest.parts:
            path = here / manifest.id / part.path
            with contextlib.suppress(FileNotFoundError):
                size = path.stat().st_size
                whole = size == part.size and size <= _GLANCE
                found[part.path] = (size, file_digest(str(path)) if whole else part.digest)
        return self._judged(here, manifests.differences(manifest, found))

    def _judged(self, here: Path, problems: tuple[str, ...]) -> tuple[str, ...]:
        """What is missing is damage only where it could have been seen."""
        if problems:
            self._absent(here)
        return problems

    def log_tail(self, checkpoint: str, name: str) -> str:
        """Return the end of a log of CRIU's, "" when there is none."""
        return tail(self.path(checkpoint, WORK, name))

    def free(self) -> tuple[int, int]:
        """Return how many bytes and inodes can still be written here; where inodes are not counted, as many as any."""
        state = os.statvfs(self._here)
        return state.f_bavail * state.f_frsize, state.f_favail if state.f_files else 1 << 62

    def is_full(self) -> bool:
        """Say whether nothing more can be written here."""
        state = os.statvfs(self._here)
        return state.f_bfree * state.f_frsize < _FULL or bool(state.f_files and not state.f_ffree)

    def golden(self, checkpoint: str) -> tuple[ContainerRecord, dict[str, bytes]]:
        """Return the record of the container that was checkpointed, and the files of its pod."""
        here = self._here
        place = here / checkpoint
        try:
            record = msgspec.msgpack.decode((place / RECORD).read_bytes(), type=ContainerRecord)
            return record, msgspec.json.decode((place / FILES).read_bytes(), type=dict[str, bytes])
        except (OSError, msgspec.MsgspecError) as error:
            self._absent(here)
            raise CheckpointDamaged(f"{checkpoint}: the container's record cannot be read: {error}") from None

    # ------------------------------------------------------------------------------------------ groups

    def seal_group(self, together: Together) -> None:
        """From now on all members are complete."""
        _write(self._group_path(together.id), msgspec.json.encode(together))

    def break_group(self, group: str) -> None:
        """From now on its members are incomplete, and go with the next reconciliation, if not before."""
        self._group_path(group).unlink(missing_ok=True)
        _flush(self._here / _GROUPS)

    def groups(self) -> tuple[Together, ...]:
        """Return all groups; what cannot be read is damage, and left out."""
        here, found = self._here, []
        for path in sorted((here / _GROUPS).glob("*.json")):
            with contextlib.suppress(OSError, CheckpointDamaged):
                found.append(manifests.decode_group(path.read_bytes(), path.name))
        self._absent(here)
        return tuple(found)

    def _group_path(self, group: str) -> Path:
        return self._here / _GROUPS / f"{group}.json"

    # ------------------------------------------------------------------------------------------ clones

    def clone_path(self, clone: str, *parts: str) -> Path:
        return self._here.joinpath(_CLONES, clone, *parts)

    def clone_node_path(self, clone: str, *parts: str) -> str:
        return "/".join((self.directory, _CLONES, clone, *parts))

    def write_clone(self, clone: Clone, *, durable: bool = True) -> None:
        """Write a clone's description. One that need not outlive the machine is not waited for."""
        place = self.clone_path(clone.id)
        place.mkdir(mode=0o700, exist_ok=True)
        _write(place / CLONE, msgspec.json.encode(clone), durable=durable)

    def clone(self, clone: str) -> Clone | None:
        """Return one clone, None when it is not here."""
        here = self._here
        path = here / _CLONES / clone
        if not path.is_dir():
            self._absent(here)
            return None
        return self._clone_in(here, path)

    def clones(self) -> tuple[Clone, ...]:
        """Return all clones, also those that were never finished; a directory without a description is one too."""
        here = self._here
        return tuple(self._clone_in(here, path) for path in sorted((here / _CLONES).iterdir()))

    def _clone_in(self, here: Path, path: Path) -> Clone:
        try:
            return msgspec.json.decode((path / CLONE).read_bytes(), type=Clone)
        except (FileNotFoundError, msgspec.MsgspecError):
            self._absent(here)
            return Clone(path.name, "", datetime.now(UTC))

    def empty_clone(self, clone: str) -> None:
        """Remove all that a clone has here but its description."""
        with contextlib.suppress(FileNotFoundError):
            for path in self.clone_path(clone).iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != CLONE:
                    path.unlink()

    def discard_clone(self, clone: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.clone_path(clone))

    # ------------------------------------------------------------------------------------------ networks made ahead

    def write_network(self, name: str, content: bytes) -> None:
        _write(self._here / _NETWORKS / f"{name}.json", content)

    def drop_network(self, name: str) -> None:
        (self._here / _NETWORKS / f"{name}.json").unlink(missing_ok=True)

    def networks(self) -> tuple[bytes, ...]:
        here = self._here
        found = tuple(path.read_bytes() for path in sorted((here / _NETWORKS).glob("*.json")))
        self._absent(here)
        return found

    # ------------------------------------------------------------------------------------------ pauses

    def write_pause(self, pause: Pause) -> None:
        _write(self._here / _PAUSES / f"{pause.container_id}.json", msgspec.json.encode(pause))

    def drop_pause(self, container_id: str) -> None:
        (self._here / _PAUSES / f"{container_id}.json").unlink(missing_ok=True)

    def pauses(self) -> tuple[Pause, ...]:
        here, found = self._here, []
        for path in sorted((here / _PAUSES).glob("*.json")):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                found.append(msgspec.json.decode(path.read_bytes(), type=Pause))
        self._absent(here)
        return tuple(found)


def tail(path: Path) -> str:
    """Return the end of a text file, "" when it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _files(place: Path) -> Iterator[Path]:
    """Yield the files that belong to a checkpoint. CRIU's logs do not; /dev/shm has a digest of its own."""
    for path in sorted(place.iterdir()):
        if path.is_file() and path.name not in _NO_PARTS and not path.name.endswith(".new"):
            yield path
    yield from sorted(path for path in (place / IMAGES).iterdir() if path.is_file() and not path.is_symlink())


def _write(path: Path, content: bytes, *, durable: bool = True) -> None:
    new = path.with_name(f"{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        new.rename(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    if durable:
        _flush(path.parent)


def _flush(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
