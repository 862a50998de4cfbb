"""Generate the Python code and the type stubs beside our .proto files.

``python -m cri_stubs.generate`` writes them; with ``--check`` it writes nothing, and fails when a committed file is not
what the .proto files give. The output depends on the generators' versions, so they must be those that the ``dev`` group
in pyproject.toml pins.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "cri_stubs"
COMMAND = f"python -m {PACKAGE}.generate"
GENERATORS = ("grpcio-tools", "mypy-protobuf")

_SERVICE = re.compile(r"^service\s", re.MULTILINE)


class GenerateError(Exception):
    """The code could not be generated; the message says what to do."""


def check_versions(pyproject: Path) -> None:
    """Raise unless the installed generators are the ones that *pyproject* pins."""
    group = tomllib.loads(pyproject.read_text(encoding="utf-8"))["dependency-groups"]["dev"]
    for name in GENERATORS:
        pinned = next((line for line in group if line.startswith(f"{name}==")), None)
        if pinned is None:
            raise GenerateError(f"{pyproject}: the dev group does not pin {name} with ==")
        try:
            installed = f"{name}=={importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            installed = "nothing"
        if installed != pinned:
            raise GenerateError(f"{pinned} is needed, {installed} is installed: pip install {pinned}")


def protos(root: Path) -> list[Path]:
    """Return our .proto files, relative to *root*, in a fixed order."""
    return sorted(path.relative_to(root) for path in (root / PACKAGE).rglob("*.proto"))


def generate(root: Path, out: Path) -> None:
    """Compile the .proto files below *root* into the same places below *out*."""
    messages = [str(path) for path in protos(root)]
    services = [name for name in messages if _SERVICE.search((root / name).read_text(encoding="utf-8"))]
    _protoc(root, [f"--python_out={out}", f"--mypy_out=quiet:{out}"], messages)
    # The daemon speaks grpc.aio only, and a servicer may leave methods out: gRPC then answers UNIMPLEMENTED.
    options = "quiet,only_async,generate_concrete_servicer_stubs"
    _protoc(root, [f"--grpc_python_out={out}", f"--mypy_grpc_out={options}:{out}"], services)


def stale(root: Path, fresh: Path) -> list[Path]:
    """Return the generated files that differ between *root* and *fresh* or are in only one of them."""
    ours, theirs = _generated(root), _generated(fresh)
    return sorted(path for path in ours | theirs if _content(root / path) != _content(fresh / path))


def install(fresh: Path, root: Path, paths: list[Path]) -> None:
    """Bring *paths* below *root* to what they are below *fresh*, which for some is to be gone."""
    for path in paths:
        content = _content(fresh / path)
        if content is None:
            (root / path).unlink()
        else:
            (root / path).write_bytes(content)


def googleapis_include() -> Path:
    """Return the directory that holds google/rpc/status.proto (its package ships it beside the code)."""
    spec = importlib.util.find_spec("google.rpc")
    if spec is None or spec.submodule_search_locations is None:
        raise GenerateError("google/rpc/status.proto is missing: pip install googleapis-common-protos")
    return Path(next(iter(spec.submodule_search_locations))).parents[1]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Generate the code beside the .proto files.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is not up to date")
    check: bool = parser.parse_args(arguments).check
    try:
        check_versions(ROOT / "pyproject.toml")
        with tempfile.TemporaryDirectory(prefix="stoker-stubs-") as name:
            fresh = Path(name)
            generate(ROOT, fresh)
            paths = stale(ROOT, fresh)
            if not check:
                install(fresh, ROOT, paths)
    except GenerateError as error:
        sys.exit(str(error))
    listing = "".join(f"  {path}\n" for path in paths)
    if check and paths:
        sys.exit(f"{len(paths)} file(s) do not fit the .proto files:\n{listing}To bring them up to date: {COMMAND}")
    sys.stdout.write(f"{len(paths)} file(s) changed\n{listing}" if paths else "all generated files are up to date\n")


def _protoc(root: Path, outputs: list[str], sources: list[str]) -> None:
    scripts = Path(sysconfig.get_path("scripts"))
    plugins = [f"--plugin=protoc-gen-{name}={scripts / f'protoc-gen-{name}'}" for name in ("mypy", "mypy_grpc")]
    includes = [f"-I{root}", f"-I{googleapis_include()}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", *includes, *plugins, *outputs, *sources]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise GenerateError(f"protoc failed:\n{result.stderr.strip()}")


def _generated(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in (root / PACKAGE).rglob("*_pb2*.py*") if path.suffix in {".py", ".pyi"}}


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


if __name__ == "__main__":
    main()
