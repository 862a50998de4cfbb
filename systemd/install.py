#!/usr/bin/env python3
"""Puts Stoker on a machine with systemd, or into the root of one (DESTDIR), and takes it off again.

    make install [DESTDIR=/mnt/root] [PREFIX=/usr] [WHEELS=dist/wheels]     (or: python3 systemd/install.py install ...)
    make uninstall

The programs get a virtual environment of their own under PREFIX/lib/stoker, from wheels: where WHEELS has them nothing
is fetched. Standard library only. Exit codes: 0 done, 1 failed, 2 something is missing.
"""

# ruff: noqa: T201 - a program for people

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
PROGRAMS = {
    "stokerd": "stokerd.main",
    "stoker-coordinator": "stoker_coordinator.main",
    "stoker": "stoker.cli.main",
}
UNITS = ("stokerd.service", "stokerd.socket", "stoker-coordinator.service")
CONFIGURATIONS = ("stokerd.toml", "coordinator.toml")
# -I: neither the caller's environment nor the directory that he is in has a say in what a program of root's imports.
LAUNCHER = "#!{python} -I\nfrom {module} import run\n\nrun()\n"
LONGEST_SHEBANG = 250

Command = tuple[str | Path, ...]


class InstallError(Exception):
    """Something could not be done."""


class MissingError(Exception):
    """Something that is needed is not there."""


@dataclass(frozen=True)
class Layout:
    """Where things go. Paths without `in_root` are those that hold on the machine that it is installed for."""

    destdir: Path
    prefix: Path
    sysconfdir: Path

    def in_root(self, path: Path) -> Path:
        return self.destdir / path.relative_to("/")

    @property
    def venv(self) -> Path:
        return self.prefix / "lib" / "stoker"

    def program(self, name: str) -> Path:
        return self.prefix / "bin" / name

    def unit(self, name: str) -> Path:
        return self.prefix / "lib" / "systemd" / "system" / name

    @property
    def sysusers(self) -> Path:
        return self.prefix / "lib" / "sysusers.d" / "stoker.conf"

    @property
    def tmpfiles(self) -> Path:
        return self.prefix / "lib" / "tmpfiles.d" / "stoker.conf"

    def config(self, name: str) -> Path:
        return self.sysconfdir / "stoker" / name

    @property
    def is_this_machine(self) -> bool:
        return self.destdir == Path("/")


def say(text: str) -> None:
    print(f"install: {text}", flush=True)


def run(*argv: str | Path) -> None:
    words = [str(word) for word in argv]
    done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise InstallError(
            f"`{shlex.join(words)}` ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}"
        )


# ---------------------------------------------------------------------------------------------- the programs


def stoker_wheel(wheels: Path) -> Path | None:
    """The newest wheel of Stoker itself in a directory of wheels."""
    found = sorted(wheels.glob("stoker-*.whl"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def older_than_sources(wheel: Path) -> bool:
    rooms = ("daemon", "client", "coordinator", "cri_stubs")
    sources = [path for room in rooms for path in (REPOSITORY / room).rglob("*.py")]
    return any(path.stat().st_mtime > wheel.stat().st_mtime for path in (*sources, REPOSITORY / "pyproject.toml"))


def build_wheels(wheels: Path, pip: Command) -> None:
    """Build Stoker's wheel and gather those of what it needs: the one step that uses the network."""
    say(f"building wheels into {wheels} (from the package index)")
    wheels.mkdir(parents=True, exist_ok=True)
    run(*pip, "wheel", "--quiet", "--wheel-dir", wheels, f"{REPOSITORY}[coordinator]")


@contextmanager
def pip_of(python: Path) -> Iterator[Command]:
    """A pip of *python*'s, from what comes with it, for a while."""
    with tempfile.TemporaryDirectory(prefix="stoker-install-") as scratch:
        tools = Path(scratch) / "tools"
        run(python, "-m", "venv", tools)
        yield (tools / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input")


def find_wheel(wheels: Path, pip: Command) -> Path:
    """The wheel to install; all wheels are built first when it is not there."""
    wheel = stoker_wheel(wheels)
    if wheel is None:
        build_wheels(wheels, pip)
        wheel = stoker_wheel(wheels)
    elif older_than_sources(wheel):
        say(f"{wheel.name} is older than the sources; `make wheels` builds it anew")
    if wheel is None:
        raise InstallError(f"no wheel of stoker came to {wheels}")
    return wheel


def install_programs(layout: Layout, wheels: Path, python: Path) -> None:
    """A virtual environment, made beside the old one and then put in its place."""
    final = layout.in_root(layout.venv)
    fresh, old = final.with_name("stoker.new"), final.with_name("stoker.old")
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    with pip_of(python) as pip:
        wheel = find_wheel(wheels, pip)
        fresh.parent.mkdir(parents=True, exist_ok=True)
        run(python, "-m", "venv", "--without-pip", fresh)
        target = ("--python", fresh / "bin" / "python")
        wanted = f"stoker[coordinator] @ {wheel.as_uri()}"
        run(*pip, *target, "install", "--quiet", "--no-index", "--find-links", wheels, wanted)
    _settle(fresh, layout.venv)
    if final.exists():
        final.rename(old)
    fresh.rename(final)
    shutil.rmtree(old, ignore_errors=True)
    say(f"{final}: {wheel.name} and what it needs, for {python}")


def _settle(venv: Path, final: Path) -> None:
    """Take out of a fresh environment what names the place where it was made."""
    for script in (venv / "bin").iterdir():
        if not script.name.startswith("python"):
            script.unlink()
    config = venv / "pyvenv.cfg"
    lines = [line for line in config.read_text(encoding="utf-8").splitlines() if not line.startswith("command")]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for record in venv.glob("lib/python*/site-packages/stoker-*.dist-info/direct_url.json"):
        record.unlink()
    for name, module in PROGRAMS.items():
        _launcher(venv / "bin" / name, final / "bin" / "python", module)


def _launcher(path: Path, python: Path, module: str) -> None:
    text = LAUNCHER.format(python=python, module=module)
    if len(text.splitlines()[0]) > LONGEST_SHEBANG:
        raise InstallError(f"{python} is too long a path to start a program by")
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def link_programs(layout: Layout, venv: Path | None) -> None:
    """Put the programs on the PATH; with *venv* those of an environment that is there already."""
    for name, module in PROGRAMS.items():
        place = layout.in_root(layout.program(name))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        if venv is not None:
            _launcher(place, venv / "bin" / "python", module)
        else:
            place.symlink_to(Path("..") / "lib" / "stoker" / "bin" / name)
        say(f"{place}")


# ---------------------------------------------------------------------------------------------- what systemd reads


def put(layout: Layout, source: Path, path: Path) -> None:
    """Write a file of ours, with the paths that were chosen in it."""
    place = layout.in_root(path)
    text = source.read_text(encoding="utf-8")
    for program in PROGRAMS:
        text = text.replace(f"/usr/bin/{program} ", f"{layout.program(program)} ")
    for name in CONFIGURATIONS:
        text = text.replace(f"/etc/stoker/{name}", str(layout.config(name)))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")
    place.chmod(0o644)
    say(f"{place}")


def install_files(layout: Layout) -> None:
    for unit in UNITS:
        put(layout, HERE / unit, layout.unit(unit))
    put(layout, HERE / "sysusers.d" / "stoker.conf", layout.sysusers)
    put(layout, HERE / "tmpfiles.d" / "stoker.conf", layout.tmpfiles)
    for name in CONFIGURATIONS:
        place = layout.in_root(layout.config(name))
        if place.exists():
            say(f"{place} is there and stays as it is")
        else:
            put(layout, HERE / name, layout.config(name))


def tell_systemd(layout: Layout) -> None:
    """Make the group and the directories now, and have the units read; enabling is the operator's decision."""
    if shutil.which("systemd-sysusers"):
        run("systemd-sysusers", layout.sysusers)
    if shutil.which("systemd-tmpfiles"):
        run("systemd-tmpfiles", "--create", layout.tmpfiles)
    if Path("/run/systemd/system").is_dir():
        run("systemctl", "daemon-reload")


def install(layout: Layout, wheels: Path, python: Path, venv: Path | None) -> None:
    if venv is None:
        install_programs(layout, wheels, python)
    link_programs(layout, venv)
    install_files(layout)
    if layout.is_this_machine:
        tell_systemd(layout)
        say("next: systemctl enable --now stokerd.socket stokerd.service; stoker doctor")
        say("on the machine that is to be the cluster's centre: systemctl enable --now stoker-coordinator.service")
    else:
        say("next, on that machine: systemd-sysusers, systemctl enable --now stokerd.socket stokerd.service")


# ---------------------------------------------------------------------------------------------- off again


def uninstall(layout: Layout) -> None:
    """Remove what `install` put there. The configuration, the state and the group stay, and are named."""
    if layout.is_this_machine and Path("/run/systemd/system").is_dir():
        for unit in UNITS:
            subprocess.run(["systemctl", "disable", "--quiet", "--now", unit], check=False)
    paths = [*map(layout.program, PROGRAMS), *map(layout.unit, UNITS), layout.sysusers, layout.tmpfiles, layout.venv]
    for path in map(layout.in_root, paths):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.is_symlink() or path.exists():
            path.unlink()
        else:
            continue
        say(f"removed {path}")
    if layout.is_this_machine and Path("/run/systemd/system").is_dir():
        run("systemctl", "daemon-reload")
    left = f"{layout.config(CONFIGURATIONS[0]).parent}, /var/lib/stoker, /var/lib/stoker-coordinator"
    say(f"left: {left}, the groups and the user; warm images stay in containerd")


# ---------------------------------------------------------------------------------------------- the command line


def absolute(text: str) -> Path:
    path = Path(os.path.normpath(text))
    if not path.is_absolute():
        raise argparse.ArgumentTypeError(f"{text!r} is not an absolute path")
    return path


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Install Stoker as a systemd service, or take it off.")
    parser.add_argument("action", choices=("install", "uninstall", "wheels"))
    parser.add_argument("--destdir", type=Path, default=Path("/"), help="root of the machine that it is for")
    parser.add_argument("--prefix", type=absolute, default=Path("/usr"))
    parser.add_argument("--sysconfdir", type=absolute, default=Path("/etc"))
    parser.add_argument("--wheels", type=Path, default=REPOSITORY / "dist" / "wheels", help="directory of wheels")
    parser.add_argument("--python", type=absolute, default=Path("/usr/bin/python3"), help="as it is on that machine")
    parser.add_argument("--venv", type=absolute, help="use the programs of this environment (for development)")
    return parser.parse_args(argv)


def check(wanted: argparse.Namespace) -> None:
    if wanted.venv is not None:
        if not (wanted.venv / "bin" / "python").exists():
            raise MissingError(f"{wanted.venv} is no virtual environment")
        return
    probe = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
    if subprocess.run([wanted.python, "-c", probe], check=False, capture_output=True).returncode != 0:
        raise MissingError(f"{wanted.python} is not Python 3.11 or later with venv (Debian: python3-venv)")


def main(argv: Sequence[str] | None = None) -> int:
    wanted = arguments(argv)
    layout = Layout(wanted.destdir.resolve(), wanted.prefix, wanted.sysconfdir)
    try:
        if wanted.action == "uninstall":
            uninstall(layout)
            return 0
        check(wanted)
        if wanted.action == "wheels":
            with pip_of(wanted.python) as pip:
                build_wheels(wanted.wheels.resolve(), pip)
        else:
            install(layout, wanted.wheels.resolve(), wanted.python, wanted.venv)
    except MissingError as error:
        print(f"install: {error}", file=sys.stderr)
        return 2
    except (InstallError, OSError) as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
