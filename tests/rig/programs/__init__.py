"""An image with programs that people run, for tests that checkpoint them: Python, PostgreSQL, and C without libraries.

Taken from a root that images/programs describes; the first call makes it, which takes a minute.
"""

from __future__ import annotations

import hashlib
import importlib.util
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.rig import archive, paths
from tests.rig.bundled import GROUP, PASSWD, busybox_entries
from tests.rig.images import Image, ImageSpec, build
from tests.rig.layers import Entry, LayerSpec

REFERENCE = "stoker.test/programs:1"
POSTGRES = 70
"""The user that PostgreSQL runs as."""

_IMAGE = paths.REPOSITORY / "images" / "programs"
_HERE = Path(__file__).parent
_PATH = "/usr/bin:/usr/sbin"
_TREES = ("usr/lib/python3*", "usr/lib/postgresql", "usr/share/postgresql", "usr/lib64", "usr/share/zoneinfo")
_LIBRARIES_OF_OURS = frozenset({"as_user"})
_LIBRARIES = "usr/lib/*-linux-gnu"
_SKIPPED = (
    "lib/bitcode",
    "__pycache__",
    "idlelib",
    "pydoc_data",
    "/test/",
    "perl",
    "/systemd/",
    "gconv",
    "san.so",
    "libgprof",
)


def image_archive() -> Path:
    """Return an archive with the image, to be imported."""
    root = _root()
    sources = sorted(path for path in _HERE.iterdir() if path.is_file())
    known = hashlib.sha256(root.name.encode())
    for path in sources:
        known.update(path.read_bytes())
    directory = paths.CACHE / "images" / "archives"
    target = directory / f"programs-{known.hexdigest()[:16]}.tar"
    if not target.is_file():
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob("programs-*.tar"):
            old.unlink()
        archive.write(target, {REFERENCE: _build(root)})
    return target


def _root() -> Path:
    spec = importlib.util.spec_from_file_location("stoker_node_build", paths.NODE_IMAGE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root: Path = module.build("forky", image=_IMAGE)
    for name in ("lib", "lib64"):  # a package that was only unpacked leaves them out
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    return root


def _build(root: Path) -> Image:
    entries = (*busybox_entries(), *_own(root), *_taken(root))
    config = {"Env": ["PATH=/bin:/usr/bin", "PYTHONDONTWRITEBYTECODE=1"], "Cmd": ["sh"], "WorkingDir": "/"}
    return build(ImageSpec(layers=(LayerSpec(entries=entries, level=0),), config=config))


def _own(root: Path) -> Iterator[Entry]:
    version = next((root / "usr/lib/postgresql").glob("[0-9]*")).name
    yield Entry("usr/lib/postgresql/bin", link=f"{version}/bin")
    yield Entry("lib", link="usr/lib")
    yield Entry("lib64", link="usr/lib64")
    yield Entry("etc/passwd", PASSWD + b"postgres:x:%d:%d::/tmp:/bin/sh\n" % (POSTGRES, POSTGRES))
    yield Entry("etc/group", GROUP + b"postgres:x:%d:\n" % POSTGRES)
    for path in sorted(_HERE.iterdir()):
        if path.suffix == ".c":
            library = path.stem in _LIBRARIES_OF_OURS
            yield Entry(f"programs/{path.stem}{'.so' if library else ''}", _compiled(root, path, library), 0o755)
        elif path.suffix in {".py", ".sh"} and path.name != "__init__.py":
            yield Entry(f"programs/{path.name}", path.read_bytes())


def _compiled(root: Path, source: Path, library: bool) -> bytes:
    made = root / "tmp" / f"stoker-{source.stem}"
    kind = ("-shared", "-fPIC") if library else ("-static",)
    argv = ["chroot", str(root), "gcc", "-O2", "-Wall", *kind, "-x", "c", "-o", f"/tmp/{made.name}", "-"]
    try:
        subprocess.run(argv, input=source.read_bytes(), check=True, env={"PATH": _PATH})
        return made.read_bytes()
    finally:
        made.unlink(missing_ok=True)


def _taken(root: Path) -> Iterator[Entry]:
    """Yield the files of Python and PostgreSQL, and the libraries."""
    found: set[Path] = set(root.glob("usr/bin/python3*"))
    for pattern in _TREES:
        for tree in root.glob(pattern):
            found.update(tree.rglob("*"))
    for directory in root.glob(_LIBRARIES):
        found.update(path for path in directory.rglob("*") if ".so" in path.name)
    for path in sorted(found):
        name = str(path.relative_to(root))
        if any(part in f"/{name}" for part in _SKIPPED):
            continue
        if path.is_symlink():
            yield Entry(name, link=str(path.readlink()))
        elif path.is_file():
            yield Entry(name, path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
