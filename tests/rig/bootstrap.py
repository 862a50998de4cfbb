#!/usr/bin/env python3
"""Make a fresh Debian machine ready for the project: packages, virtual environment, node roots, registry.

    sudo python3 tests/rig/bootstrap.py [--suites forky,trixie] [--only-venv]

Installs what is missing and nothing else, and says so first; a second run finds everything and ends at once. Standard
library only. Exit codes: 0 ready, 1 a step failed, 2 this machine is not one that it can make ready (it says why).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache"
VENV = REPOSITORY / ".venv"
STAMP = VENV / ".bootstrap"
BUILD_ROOT = REPOSITORY / "images" / "node" / "build.py"
PROGRAMS_ROOT, PROGRAMS_SUITE = REPOSITORY / "images" / "programs", "forky"
SWITCHES, SWITCHES_SUITE = REPOSITORY / "images" / "switches", "forky"
BROWSER, BROWSER_SUITE = REPOSITORY / "images" / "browser", "trixie"
FETCH_DEBS = Path(__file__).resolve().with_name("fetch_debs.sh")
OLDEST_PYTHON = (3, 11)
DEPENDENCY_FILES = ("pyproject.toml", "constraints.txt")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Debian package, and the programs that show that it is there.
PROGRAMS = {
    "curl": ("curl",),
    "mmdebstrap": ("mmdebstrap",),
    "e2fsprogs": ("mkfs.ext4",),
    "gcc": ("cc",),
    "iproute2": ("ip",),
    "mount": ("mount", "umount", "losetup"),
    "openssl": ("openssl",),
    "systemd": ("systemctl", "systemd-analyze", "systemd-sysusers", "journalctl"),
    "util-linux": ("unshare", "nsenter", "flock"),
}


class StepError(Exception):
    """A step failed."""


class UnfitError(Exception):
    """This machine lacks something that this program cannot or may not bring."""


@dataclass(frozen=True)
class Step:
    """Something to be done, in words and as a call."""

    what: str
    needs_root: bool
    do: Callable[[], None]


def say(text: str) -> None:
    print(f"bootstrap: {text}", flush=True)


def run(argv: Sequence[str | Path], environment: dict[str, str] | None = None, *, silent: bool = False) -> None:
    """Run a command; what a silent one says is shown only when it fails."""
    words = [str(word) for word in argv]
    out = subprocess.PIPE if silent else None
    done = subprocess.run(
        words,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT if silent else None,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode != 0:
        if silent:
            print(done.stdout.decode(errors="replace")[-8000:], file=sys.stderr)
        raise StepError(f"`{shlex.join(words)}` ended with {done.returncode}")


# Debian packages


def has_program(name: str) -> bool:
    return shutil.which(name, path=SYSTEM_PATH) is not None


def has_static_busybox() -> bool:
    for place in (Path("/usr/bin/busybox"), Path("/bin/busybox")):
        if place.is_file():
            with place.open("rb") as file:
                return b"/ld-" not in file.read(4096)  # no dynamic loader is named in its head
    return False


def can_make_venvs() -> bool:
    return importlib.util.find_spec("ensurepip") is not None and importlib.util.find_spec("venv") is not None


def missing_packages(*, rig: bool) -> list[str]:
    found = [] if can_make_venvs() or VENV.is_dir() else [f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"]
    if rig:
        found += [package for package, programs in PROGRAMS.items() if not all(map(has_program, programs))]
        if not has_static_busybox():
            found.append("busybox-static")
        if not Path("/usr/share/keyrings/debian-archive-keyring.gpg").is_file():
            found.append("debian-archive-keyring")
        if not Path("/usr/include/stdio.h").is_file():
            found.append("libc6-dev")
    return sorted(found)


def install_packages(packages: Sequence[str]) -> None:
    say(f"installing Debian packages: {' '.join(packages)}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if lists_are_there():
        try:
            run(install, quiet, silent=True)
        except StepError:
            say("the package lists may be old; reading them again")
        else:
            return
    run(["apt-get", "update"], quiet, silent=True)
    run(install, quiet, silent=True)


def lists_are_there() -> bool:
    return any(Path("/var/lib/apt/lists").glob("*_Packages*"))


def is_debian_family() -> bool:
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return False
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    words = f"{values.get('ID', '')} {values.get('ID_LIKE', '')}".replace('"', "").split()
    return "debian" in words and has_program("apt-get")


# The virtual environment


def dependencies_hash() -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for name in DEPENDENCY_FILES:
        file = REPOSITORY / name
        digest.update(file.read_bytes() if file.is_file() else b"absent")
    return digest.hexdigest()


def venv_is_ready() -> bool:
    try:
        return STAMP.read_text(encoding="utf-8") == dependencies_hash() and (VENV / "bin" / "python").exists()
    except OSError:
        return False


def make_venv() -> None:
    python = VENV / "bin" / "python"
    if not python.exists() or not _works(python):
        run([sys.executable, "-m", "venv", "--clear", VENV])
    STAMP.unlink(missing_ok=True)
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = REPOSITORY / "constraints.txt"
    bounds: list[str | Path] = ["--constraint", constraints] if constraints.is_file() else []
    run([*pip, "--upgrade", "pip>=25.1"])  # the first that knows --group
    run([*pip, *bounds, "--editable", REPOSITORY, "--group", f"{REPOSITORY / 'pyproject.toml'}:dev"])
    STAMP.write_text(dependencies_hash(), encoding="utf-8")


def _works(python: Path) -> bool:
    script = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"
    try:
        return subprocess.run([python, "-c", script], check=False).returncode == 0
    except OSError:
        return False


# The rig


def builder() -> ModuleType:
    """images/node/build.py, which belongs to no package."""
    spec = importlib.util.spec_from_file_location("stoker_node_build", BUILD_ROOT)
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    return build


def missing_roots(suites: Sequence[str]) -> list[str]:
    if not suites:
        return []
    build = builder()
    unknown = sorted(set(suites) - set(build.suites()))
    if unknown:
        raise UnfitError(f"unknown suites: {', '.join(unknown)}; there are {', '.join(build.suites())}")
    return [suite for suite in suites if not build.root_path(suite).is_dir()]


def other_roots(*, rig: bool, browser: bool) -> list[tuple[str, Path, str]]:
    """Roots that are no nodes and are missing: what each is, its recipe, its suite."""
    wanted = [
        ("the root with lldpd, ibsim and opensm", SWITCHES, SWITCHES_SUITE),
        ("the root with PostgreSQL, Python and a compiler", PROGRAMS_ROOT, PROGRAMS_SUITE),
    ]
    wanted = wanted if rig else []
    wanted += [("the root with a browser", BROWSER, BROWSER_SUITE)] if browser else []
    return [each for each in wanted if not builder().root_path(each[2], image=each[1]).is_dir()]


def fetched_tools_are_fresh() -> bool:
    """What fetch_debs.sh itself looks at, without starting it."""
    if not FETCH_DEBS.is_file():
        return True
    recipe = hashlib.sha256(FETCH_DEBS.read_bytes()).hexdigest()
    stamps = [CACHE / name / ".recipe" for name in ("upstream-protos", "tools")]
    return all(stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == recipe for stamp in stamps)


def steps(*, suites: Sequence[str], rig: bool, browser: bool = False) -> list[Step]:
    """What is to be done, in order; empty when everything is there."""
    found: list[Step] = []
    packages = missing_packages(rig=rig)
    if packages:
        found.append(Step(f"Debian packages: {' '.join(packages)}", True, lambda: install_packages(packages)))
    if not venv_is_ready():
        found.append(Step(f"the virtual environment {VENV}", False, make_venv))
    if rig and not fetched_tools_are_fresh():
        found.append(Step("docker-registry and upstream .proto files", True, lambda: run(["bash", FETCH_DEBS])))
    roots = missing_roots(suites) if rig else []
    if roots:
        build: list[str | Path] = [sys.executable, BUILD_ROOT, *roots]
        found.append(Step(f"node roots: {' '.join(roots)}", True, lambda: run(build)))
    for what, image, suite in other_roots(rig=rig and bool(suites), browser=browser):
        found.append(Step(what, True, partial(run, [sys.executable, BUILD_ROOT, "--image", image, suite])))
    return found


def check_machine(todo: Sequence[Step]) -> None:
    """Raise with everything that is missing when this machine or user cannot do what is to be done."""
    if sys.version_info < OLDEST_PYTHON:
        raise UnfitError(
            f"Python {'.'.join(map(str, OLDEST_PYTHON))} or later is needed; this is {sys.version.split()[0]}"
        )
    for_root = [step.what for step in todo if step.needs_root]
    if not for_root:
        return
    reasons = []
    if not is_debian_family():
        reasons.append("this is not Debian or a descendant of it")
    if os.geteuid() != 0:
        reasons.append("this is not root")
    if reasons:
        lacking = "\n".join(f"  - {what}" for what in for_root)
        raise UnfitError(f"{' and '.join(reasons)}, so this cannot be brought here:\n{lacking}")


def bootstrap(*, suites: Sequence[str], rig: bool, browser: bool = False) -> None:
    todo = steps(suites=suites, rig=rig, browser=browser)
    check_machine(todo)
    if not todo:
        return
    CACHE.mkdir(exist_ok=True)
    with (CACHE / ".bootstrap.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Another bootstrap may have done it meanwhile.
        for step in steps(suites=suites, rig=rig, browser=browser):
            began = time.monotonic()
            say(f"{step.what} ...")
            step.do()
            say(f"{step.what}: {time.monotonic() - began:.0f} s")
    if not can_make_venvs() and not venv_is_ready():
        raise UnfitError(f"{sys.executable} still cannot make virtual environments (no ensurepip)")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make this machine ready for the project.")
    parser.add_argument("--suites", default="forky", help="node roots to have, separated by commas")
    parser.add_argument("--only-venv", action="store_true", help="no rig: for checks and unit tests")
    parser.add_argument("--browser", action="store_true", help="and the browser that looks at pages in tests")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    wanted = arguments(argv)
    try:
        suites = [word for word in wanted.suites.replace(",", " ").split() if word]
        bootstrap(suites=suites, rig=not wanted.only_venv, browser=wanted.browser)
    except UnfitError as error:
        print(f"bootstrap: {error}", file=sys.stderr)
        return 2
    except (StepError, OSError) as error:
        print(f"bootstrap: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bootstrap: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
