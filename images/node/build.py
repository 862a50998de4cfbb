#!/usr/bin/env python3
"""Build the root filesystem of a node: a Debian suite with containerd, runc, CRIU and the CNI plugins.

Standard library only, so that it runs before any virtual environment exists. `--image` names another directory with a
recipe.toml, whose root has that directory's name before the suite's.
Exit codes: 0 built or already there, 1 the build failed, 2 something is missing on this machine or in the arguments.
"""

# ruff: noqa: T201 - a program for people

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
DEFAULT_CACHE = REPOSITORY / ".cache" / "roots"
HASH_LENGTH = 12
# Raise it when this program builds a different root from the same recipe.toml.
VERSION = 1
MUST_HAVE = ("usr/bin/containerd", "usr/bin/ctr", "usr/bin/mount", "usr/sbin/ip", "usr/lib/cni/bridge")


class BuildError(Exception):
    """The root could not be built."""


class MissingError(Exception):
    """This machine lacks something, or the arguments name something unknown."""


def recipe(image: Path = HERE) -> dict[str, Any]:
    with (image / "recipe.toml").open("rb") as file:
        return tomllib.load(file)


def suites(image: Path = HERE) -> list[str]:
    return sorted(recipe(image)["suites"])


def packages(suite: str, image: Path = HERE) -> list[str]:
    data = recipe(image)
    return sorted({*data["packages"]["common"], *data["suites"][suite]["packages"]})


def recipe_hash(image: Path = HERE) -> str:
    """Names what a root is made of. The templates do not count: they are rendered per node."""
    text = (image / "recipe.toml").read_bytes() + str(VERSION).encode()
    return hashlib.sha256(text).hexdigest()[:HASH_LENGTH]


def root_name(suite: str, image: Path = HERE) -> str:
    """What roots of this suite are called, without the hash."""
    return suite if image == HERE else f"{image.name}-{suite}"


def root_path(suite: str, cache: Path = DEFAULT_CACHE, image: Path = HERE) -> Path:
    """Where the root of the present recipe lies, built or not."""
    return cache / f"{root_name(suite, image)}-{recipe_hash(image)}"


def say(text: str) -> None:
    print(f"node root: {text}", flush=True)


@contextmanager
def building(cache: Path) -> Iterator[None]:
    """One build at a time in one cache, whoever else wants the same root waits and then finds it."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is running, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_machine() -> None:
    if os.geteuid() != 0:
        raise MissingError("building a root needs root (mounts, device nodes, ownership); run this with sudo")
    if shutil.which("mmdebstrap") is None:
        raise MissingError("mmdebstrap is not installed; `apt-get install mmdebstrap` (or `make bootstrap`)")


def mmdebstrap_command(suite: str, target: Path, image: Path = HERE) -> list[str]:
    options = [f"--aptopt={option}" for option in recipe(image)["apt"]["options"]]
    include = ",".join(packages(suite, image))
    variant = recipe(image).get("variant", "essential")
    return ["mmdebstrap", "--mode=root", f"--variant={variant}", *options, f"--include={include}", suite, str(target)]


def run_mmdebstrap(suite: str, target: Path, log: Path, image: Path = HERE) -> None:
    command = mmdebstrap_command(suite, target, image)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    with (
        log.open("w", encoding="utf-8") as sink,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            sink.write(line)
            if line.startswith("I: "):
                say(f"{suite}: {line[3:].rstrip()}")
    if process.returncode != 0:
        tail = "".join(log.read_text(encoding="utf-8").splitlines(keepends=True)[-25:])
        raise BuildError(f"mmdebstrap failed with exit code {process.returncode}; the end of {log}:\n{tail}")


def check_root(root: Path, image: Path = HERE) -> None:
    lacking = [name for name in recipe(image).get("must_have", MUST_HAVE) if not (root / name).exists()]
    if lacking:
        raise BuildError(f"the root was built but lacks {', '.join(lacking)}")


def trim(root: Path) -> None:
    """Drop what a node never reads and what would let a node's root differ from build to build."""
    for name in ("var/lib/apt/lists", "var/cache/apt", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("etc/machine-id", "etc/hostname", "etc/resolv.conf"):
        (root / name).unlink(missing_ok=True)
        (root / name).touch()
    for name in ("proc", "sys", "dev", "run", ".old", "etc/cni/net.d", "var/lib/containerd"):
        (root / name).mkdir(parents=True, exist_ok=True)


def in_use(root: Path) -> bool:
    """True when a mount of any process names this root: a node runs from it."""
    needle = f"lowerdir={root}"
    for table in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            if needle in table.read_text(encoding="utf-8", errors="replace"):
                return True
        except OSError:
            continue
    return False


def remove_stale(suite: str, cache: Path, image: Path = HERE) -> None:
    keep = root_path(suite, cache, image).name
    for other in cache.glob(f"{root_name(suite, image)}-*"):
        if other.name == keep or not other.is_dir():
            continue
        if in_use(other):
            say(f"{other.name} belongs to an older recipe but a node runs from it; left alone")
            continue
        say(f"removing {other.name}, which belongs to an older recipe")
        shutil.rmtree(other)


def detach_mounts(below: Path) -> None:
    """Nothing is removed while something is mounted in it: that would empty the machine's own /dev or /proc."""
    table = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    points = [line.split(" ")[4] for line in table.splitlines()]
    for point in sorted((p for p in points if Path(p).is_relative_to(below)), reverse=True):
        subprocess.run(["umount", "-l", point], check=True)


def remove_aborted(suite: str, cache: Path, image: Path = HERE) -> None:
    """What a killed build left. The lock is held, so no build is running."""
    for aside in cache.glob(f".building-{root_name(suite, image)}-*"):
        detach_mounts(aside)
        shutil.rmtree(aside)


def build(suite: str, cache: Path = DEFAULT_CACHE, *, force: bool = False, image: Path = HERE) -> Path:
    """Return the root of `suite`, building it when it is not there."""
    if suite not in suites(image):
        raise MissingError(f"unknown suite {suite!r}; the recipe has {', '.join(suites(image))}")
    final, name = root_path(suite, cache, image), root_name(suite, image)
    if final.is_dir() and not force:
        return final
    check_machine()
    with building(cache):
        if final.is_dir() and not force:
            return final
        remove_aborted(suite, cache, image)
        aside = cache / f".building-{name}-{os.getpid()}"
        started = time.monotonic()
        say(f"building {final} with {len(packages(suite, image))} packages named")
        try:
            run_mmdebstrap(suite, aside, cache / f"{name}.log", image)
            trim(aside)
            check_root(aside, image)
            if final.is_dir():
                shutil.rmtree(final)
            aside.rename(final)
        finally:
            if aside.exists():
                detach_mounts(aside)
                shutil.rmtree(aside, ignore_errors=True)
        remove_stale(suite, cache, image)
    say(f"{name}: ready after {time.monotonic() - started:.0f} s")
    return final


def show(cache: Path, image: Path) -> None:
    for suite in suites(image):
        root = root_path(suite, cache, image)
        print(f"{suite:10} {'built ' if root.is_dir() else 'absent'} {root}")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Build the root filesystems of nodes.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"any of: {', '.join(suites())}")
    parser.add_argument("--image", type=Path, default=HERE, help="a directory with a recipe.toml")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where roots are kept")
    parser.add_argument("--force", action="store_true", help="build again even when the root is there")
    parser.add_argument("--list", action="store_true", help="say what is there and stop")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    wanted = arguments(argv)
    if wanted.list:
        show(wanted.cache, wanted.image.resolve())
        return 0
    if not wanted.suites:
        print("node root: name at least one suite, or --list", file=sys.stderr)
        return 2
    try:
        for suite in wanted.suites:
            print(build(suite, wanted.cache.resolve(), force=wanted.force, image=wanted.image.resolve()))
    except MissingError as error:
        print(f"node root: {error}", file=sys.stderr)
        return 2
    except (BuildError, OSError) as error:
        print(f"node root: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("node root: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
