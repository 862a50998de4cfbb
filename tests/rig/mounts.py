"""Mounts and loop devices of this machine: listing, making, and removing them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.rig.processes import run
from tests.rig.waiting import until

LOOPS = Path("/sys/block")


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo."""

    point: Path
    kind: str
    source: str


def mounts(process: str = "self") -> list[Mount]:
    """All mounts that a process sees."""
    found = []
    for line in Path(f"/proc/{process}/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        kind, source, _ = right.split(" ", 2)
        point = left.split(" ")[4].encode().decode("unicode_escape")
        found.append(Mount(Path(point), kind, source))
    return found


def mounts_below(directory: Path, process: str = "self") -> list[Path]:
    """Mount points at or below `directory`, the deepest first."""
    points = [each.point for each in mounts(process) if each.point.is_relative_to(directory)]
    return sorted(points, key=lambda point: len(point.parts), reverse=True)


def file_system_of(path: Path) -> str:
    """The kind of the file system that `path` is on."""
    best = max((m for m in mounts() if path.is_relative_to(m.point)), key=lambda m: len(m.point.parts))
    return best.kind


def loops() -> dict[str, str]:
    """Attached loop devices and their backing files."""
    found = {}
    for backing in LOOPS.glob("loop*/loop/backing_file"):
        try:
            found[f"/dev/{backing.parts[-3]}"] = backing.read_text(encoding="utf-8").strip().removesuffix(" (deleted)")
        except OSError:
            continue
    return found


def loops_below(directory: Path) -> list[str]:
    return [device for device, backing in loops().items() if Path(backing).is_relative_to(directory)]


def make_disk(image: Path, point: Path, size: int, inodes: int | None) -> None:
    """An ext4 of `size` bytes in the sparse file `image`, mounted on `point`; no blocks are kept back for root."""
    point.mkdir(parents=True, exist_ok=True)
    with image.open("wb") as file:
        file.truncate(size)
    few = [] if inodes is None else ["-N", str(inodes)]
    run(["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,nodiscard", *few, image])
    run(["mount", "-o", "loop,noatime", image, point])
    # Its presence confuses whoever lists the directory, and containerd does not need it.
    (point / "lost+found").rmdir()


def unmount(point: Path, timeout: float = 10.0) -> None:
    """Unmount; the last process may still be letting go of it."""

    def attempt() -> bool:
        if not any(each.point == point for each in mounts()):
            return True
        return run(["umount", point], check=False).returncode == 0

    until(f"{point} to be unmounted", attempt, timeout)


def remove_below(directory: Path) -> None:
    """Unmount everything at or below `directory` and detach the loop devices whose files are there."""
    for point in mounts_below(directory):
        unmount(point)
    for device in loops_below(directory):
        run(["losetup", "-d", device], check=False)

    def gone() -> bool:
        if not loops_below(directory):
            return True
        _unmount_elsewhere(directory)
        return False

    until(f"the loop devices of {directory} to go", gone, 10.0, interval=0.1)


def _unmount_elsewhere(directory: Path) -> None:
    """Unmount in other mount namespaces, too: whoever makes one, as any process of the rig may at any time, gets copies
    of all mounts that there are, and would hold them for as long as it lives."""
    own = Path("/proc/self/ns/mnt").stat().st_ino
    for process in (each.name for each in Path("/proc").iterdir() if each.name.isdigit()):
        try:
            points = mounts_below(directory, process) if Path(f"/proc/{process}/ns/mnt").stat().st_ino != own else []
        except (OSError, ValueError):  # it has ended
            continue
        if points:
            run(["nsenter", "--target", process, "--mount", "umount", "--lazy", *points], check=False)
