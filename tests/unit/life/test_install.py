"""`make install` into a root that is not this machine's: programs, units, and nothing that names where it was made."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.rig.paths import REPOSITORY

INSTALL = REPOSITORY / "systemd" / "install.py"
FILES = {
    "etc/stoker/coordinator.toml",
    "etc/stoker/stokerd.toml",
    "usr/bin/stoker",
    "usr/bin/stoker-coordinator",
    "usr/bin/stokerd",
    "usr/lib/systemd/system/stoker-coordinator.service",
    "usr/lib/systemd/system/stokerd.service",
    "usr/lib/systemd/system/stokerd.socket",
    "usr/lib/sysusers.d/stoker.conf",
    "usr/lib/tmpfiles.d/stoker.conf",
}


def run(*arguments: str | Path, fails: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, INSTALL, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() or path.is_symlink()}


def fake_wheel(directory: Path) -> None:
    """A Stoker of two modules, which needs nothing."""
    directory.mkdir()
    said = "def run():\n    print(__name__)\n"
    info = "stoker-9.9.dist-info"
    contents = {
        "stokerd/__init__.py": "",
        "stokerd/main.py": said,
        "stoker_coordinator/__init__.py": "",
        "stoker_coordinator/main.py": said,
        "stoker/__init__.py": "",
        "stoker/cli/__init__.py": "",
        "stoker/cli/main.py": said,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: stoker\nVersion: 9.9\nProvides-Extra: coordinator\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nstokerd = stokerd.main:run\n",
    }
    contents[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*contents, f"{info}/RECORD"])
    with zipfile.ZipFile(directory / "stoker-9.9-py3-none-any.whl", "w") as wheel:
        for name, text in contents.items():
            wheel.writestr(name, text)


class Installed(NamedTuple):
    """A root, what was installed there, and what was said."""

    root: Path
    wheels: Path
    said: str


def install(root: Path, wheels: Path) -> str:
    return run("install", "--destdir", root, "--wheels", wheels, "--python", sys.executable)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Is to be read only: making it takes long."""
    directory = tmp_path_factory.mktemp("installed")
    root, wheels = directory / "root", directory / "wheels"
    fake_wheel(wheels)
    return Installed(root, wheels, install(root, wheels))


def test_from_wheels_without_a_network(installed: Installed) -> None:
    root = installed.root
    assert files(root) >= FILES
    assert "systemctl enable --now" in installed.said
    venv = root / "usr" / "lib" / "stoker"
    assert (root / "usr/bin/stokerd").readlink() == Path("../lib/stoker/bin/stokerd")
    assert (venv / "bin" / "stokerd").read_text().startswith("#!/usr/lib/stoker/bin/python -I\n")
    named = [path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc" and not path.is_symlink()]
    assert not [path for path in named if str(root).encode() in path.read_bytes()]
    assert not list(venv.glob("bin/pip*"))
    programs = {"stokerd": "stokerd.main", "stoker-coordinator": "stoker_coordinator.main", "stoker": "stoker.cli.main"}
    for program, module in programs.items():
        done = subprocess.run(
            [venv / "bin" / "python", "-I", venv / "bin" / program], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"{module}\n"


def test_an_upgrade_and_the_end_of_it(installed: Installed, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(installed.root, root, symlinks=True)
    (root / "etc/stoker/stokerd.toml").write_text("# mine\n")
    assert "stays as it is" in install(root, installed.wheels)
    assert (root / "etc/stoker/stokerd.toml").read_text() == "# mine\n"
    assert sorted(path.name for path in (root / "usr/lib").glob("stoker*")) == ["stoker"]

    run("uninstall", "--destdir", root)
    assert files(root) == {"etc/stoker/coordinator.toml", "etc/stoker/stokerd.toml"}
    run("uninstall", "--destdir", root)  # nothing is there any more, which is no error


def test_with_an_environment_that_is_there(tmp_path: Path) -> None:
    run("install", "--destdir", tmp_path, "--prefix", "/opt/x", "--sysconfdir", "/opt/etc", "--venv", sys.prefix)
    unit = (tmp_path / "opt/x/lib/systemd/system/stokerd.service").read_text()
    assert "ExecStart=/opt/x/bin/stokerd --config /opt/etc/stoker/stokerd.toml\n" in unit
    unit = (tmp_path / "opt/x/lib/systemd/system/stoker-coordinator.service").read_text()
    assert "ExecStart=/opt/x/bin/stoker-coordinator --config /opt/etc/stoker/coordinator.toml\n" in unit
    launcher = tmp_path / "opt/x/bin/stokerd"
    done = subprocess.run([launcher, "--check-config"], capture_output=True, text=True, check=True)
    assert done.stdout == "stokerd: the defaults: no errors\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("install", "--venv", "/nonexistent"), "no virtual environment"),
        (("install", "--python", "/bin/false"), "is not Python 3.11"),
        (("install", "--prefix", "usr"), "not an absolute path"),
    ],
)
def test_what_is_missing_is_said_and_nothing_is_done(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in run(*arguments, "--destdir", tmp_path, fails=2)
    assert files(tmp_path) == set()
