"""The images that every node needs: pause, and busybox to run things in."""

from __future__ import annotations

import platform
import subprocess
from functools import lru_cache
from pathlib import Path

from tests.rig import archive, paths
from tests.rig.elf import pause_program
from tests.rig.errors import MissingToolError
from tests.rig.images import Image, ImageSpec, build
from tests.rig.layers import Entry, LayerSpec

PAUSE_REFERENCE = "stoker.test/pause:1"
BUSYBOX_REFERENCE = "stoker.test/busybox:1"
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
GROUP = b"root:x:0:\nnogroup:x:65534:\n"


@lru_cache(maxsize=1)
def busybox_binary() -> bytes:
    """Debian's busybox-static of this machine."""
    for place in (Path("/usr/bin/busybox"), Path("/bin/busybox")):
        if place.is_file():
            content = place.read_bytes()
            # A program header of type INTERP would mean that it needs a dynamic loader.
            if b"/lib64/ld-linux" not in content[:4096] and b"/lib/ld-linux" not in content[:4096]:
                return content
    raise MissingToolError("a static busybox (Debian package busybox-static) is not installed; run `make bootstrap`")


@lru_cache(maxsize=1)
def _applets() -> tuple[str, ...]:
    listed = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True)
    return tuple(sorted(set(listed.stdout.split()) - {"busybox"}))


def busybox_entries() -> tuple[Entry, ...]:
    """A root filesystem to run things in: busybox with all its applets, and the usual directories."""
    directories = tuple(Entry(each, None, 0o755) for each in ("bin", "dev", "etc", "proc", "root", "run", "sys", "var"))
    files = (
        Entry("bin/busybox", busybox_binary(), 0o755),
        Entry("etc/passwd", PASSWD),
        Entry("etc/group", GROUP),
        Entry("tmp", None, 0o1777),
    )
    links = tuple(Entry(f"bin/{applet}", link="busybox") for applet in _applets())
    return (*directories, *files, *links)


def busybox(*more: LayerSpec) -> Image:
    """A runnable image: busybox, with further layers on top."""
    config = {"Env": ["PATH=/bin"], "Cmd": ["sh"], "WorkingDir": "/"}
    return build(ImageSpec(layers=(LayerSpec(entries=busybox_entries()), *more), config=config))


def pause() -> Image:
    """The sandbox image: one tiny program that waits and ends on SIGTERM."""
    if platform.machine() == "x86_64":
        entries: tuple[Entry, ...] = (Entry("pause", pause_program(), 0o755),)
        config = {"Entrypoint": ["/pause"], "User": "65535:65535"}
    else:
        entries = (Entry("bin/busybox", busybox_binary(), 0o755),)
        script = "trap 'exit 0' TERM INT; while :; do /bin/busybox sleep 3600 & wait $!; done"
        config = {"Entrypoint": ["/bin/busybox", "sh", "-c", script]}
    return build(ImageSpec(layers=(LayerSpec(entries=entries),), config=config))


def _cached(name: str, image: Image, reference: str) -> Path:
    directory = paths.CACHE / "images" / "archives"
    target = directory / f"{name}-{image.digest.removeprefix('sha256:')[:16]}.tar"
    if not target.is_file():
        directory.mkdir(parents=True, exist_ok=True)
        archive.write(target, {reference: image})
    return target


def pause_archive() -> Path:
    return _cached("pause", pause(), PAUSE_REFERENCE)


def busybox_archive() -> Path:
    return _cached("busybox", busybox(), BUSYBOX_REFERENCE)
