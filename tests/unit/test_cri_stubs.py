"""Our subset of CRI and of containerd's API against the originals, and the code generated from it.

The originals are the .proto files in Debian's packages; ``tests/rig/fetch_debs.sh`` brings them.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc.aio
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from cri_stubs import generate
from cri_stubs.anys import WrongType, pack, type_name, unpack
from cri_stubs.containerd.events.task_pb2 import TaskExit, TaskOOM
from cri_stubs.containerd.services.content.v1 import content_pb2
from cri_stubs.containerd.services.content.v1.content_pb2_grpc import (
    ContentServicer,
    ContentStub,
    add_ContentServicer_to_server,
)
from tests.unit.wire_facts import Facts, differences, facts, gaps

ROOT = generate.ROOT
UPSTREAM = ROOT / ".cache" / "upstream-protos"
UPSTREAM_ROOTS = ("k8s.io/cri-api/pkg/apis/runtime/v1", "github.com/containerd/containerd/api")

# Messages that are read from the runtime and sent back to it, or that make the daemon's own things: a field that we do
# not know would be lost on the way.
WHOLE = (
    "runtime.v1.RunPodSandboxRequest",
    "runtime.v1.PodSandboxStatus",
    "runtime.v1.CreateContainerRequest",
    "runtime.v1.ContainerStatus",
    "runtime.v1.UpdateContainerResourcesRequest",
    "runtime.v1.PullImageRequest",
    "containerd.services.containers.v1.Container",
    "containerd.services.content.v1.Info",
    "containerd.services.images.v1.Image",
    "containerd.services.leases.v1.Lease",
    "containerd.services.snapshots.v1.Info",
    "containerd.services.tasks.v1.CreateTaskRequest",
    "containerd.runc.v1.Options",
    "containerd.runc.v1.CheckpointOptions",
)


def generated_modules() -> list[str]:
    files = (ROOT / generate.PACKAGE).rglob("*_pb2*.py")
    return sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files)


def message_files() -> dict[str, FileDescriptorProto]:
    files = {}
    for name in generated_modules():
        if name.endswith("_pb2"):
            files[name] = FileDescriptorProto()
            importlib.import_module(name).DESCRIPTOR.CopyToProto(files[name])
    return files


@pytest.fixture(scope="module")
def ours() -> Facts:
    return facts(message_files().values())


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    sources = [path for root in UPSTREAM_ROOTS for path in sorted((UPSTREAM / root).rglob("*.proto"))]
    if not sources:
        pytest.fail(f"no .proto files in {UPSTREAM}; as root, run tests/rig/fetch_debs.sh")
    out = tmp_path_factory.mktemp("upstream") / "descriptors"
    includes = [f"-I{UPSTREAM}", f"-I{generate.googleapis_include()}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", *includes, f"--descriptor_set_out={out}", "--include_imports"]
    result = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return facts(FileDescriptorSet.FromString(out.read_bytes()).file)


# ------------------------------------------------------------------------------------------------ against the originals


def test_everything_of_ours_is_as_upstream_has_it(ours: Facts, upstream: Facts) -> None:
    assert differences(ours, upstream) == []


def test_what_goes_back_to_the_runtime_lacks_nothing(ours: Facts, upstream: Facts) -> None:
    assert all(name in ours.messages for name in WHOLE)
    assert gaps(ours, upstream, WHOLE) == []


def test_both_sides_of_the_comparison_are_there(ours: Facts, upstream: Facts) -> None:
    packages = {name.rpartition(".")[0] for name in ours.messages}
    assert {"runtime.v1", "containerd.types", "containerd.v1.types", "containerd.events"} <= packages
    assert len(ours.messages) < len(upstream.messages)
    assert len(ours.methods) < len(upstream.methods)
    assert all(len(values) > 1 for values in ours.enums.values())


def _put_into_oneof(message: DescriptorProto) -> None:
    message.oneof_decl.add(name="one")
    message.field[0].oneof_index = 0


SPOILERS: dict[str, Callable[[FileDescriptorProto], object]] = {
    "renamed field": lambda file: setattr(file.message_type[0].field[0], "name", "other"),
    "renumbered field": lambda file: setattr(file.message_type[0].field[0], "number", 77),
    "other type": lambda file: setattr(file.message_type[0].field[0], "type", 3),
    "other label": lambda file: setattr(file.message_type[0].field[0], "label", 3),
    "other message": lambda file: setattr(file.message_type[1].field[0], "type_name", ".a.Other"),
    "in a oneof": lambda file: _put_into_oneof(file.message_type[0]),
    "not packed": lambda file: setattr(file.message_type[0].field[0].options, "packed", False),
    "other syntax": lambda file: setattr(file, "syntax", "proto2"),
    "unknown field": lambda file: file.message_type[0].field.add(name="more", number=9, type=9, label=1),
    "unknown message": lambda file: file.message_type.add(name="More"),
    "unknown enum value": lambda file: file.enum_type[0].value.add(name="MORE", number=9),
    "renumbered enum value": lambda file: setattr(file.enum_type[0].value[0], "number", 9),
    "unknown method": lambda file: file.service[0].method.add(name="More"),
    "other request": lambda file: setattr(file.service[0].method[0], "input_type", ".a.B"),
    "other answer": lambda file: setattr(file.service[0].method[0], "output_type", ".a.A"),
    "streaming": lambda file: setattr(file.service[0].method[0], "server_streaming", True),
    "other package": lambda file: setattr(file, "package", "b"),
}


def small_file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="a.proto", package="a", syntax="proto3")
    file.message_type.add(name="A").field.add(name="x", number=1, type=9, label=1)
    file.message_type.add(name="B").field.add(name="y", number=1, type=11, label=1, type_name=".a.A")
    file.enum_type.add(name="E").value.add(name="ZERO", number=0)
    file.service.add(name="S").method.add(name="Do", input_type=".a.A", output_type=".a.B")
    return file


@pytest.mark.parametrize("spoil", SPOILERS.values(), ids=SPOILERS)
def test_the_comparison_sees(spoil: Callable[[FileDescriptorProto], object]) -> None:
    changed = small_file()
    spoil(changed)
    assert differences(facts([small_file()]), facts([small_file()])) == []
    assert differences(facts([changed]), facts([small_file()])) != []


def test_the_comparison_sees_what_is_missing_further_in() -> None:
    lacking, whole = small_file(), small_file()
    whole.message_type[0].field.add(name="more", number=2, type=14, label=1, type_name=".a.E")
    whole.enum_type[0].value.add(name="ONE", number=1)
    assert differences(facts([lacking]), facts([whole])) == []
    assert gaps(facts([lacking]), facts([whole]), ["a.B"]) == ["a.A: no more = 2", "a.E: no ONE"]
    assert gaps(facts([whole]), facts([whole]), ["a.B"]) == []


# --------------------------------------------------------------------------------------------------- the generated code


def test_descriptors_are_registered_under_our_own_file_names() -> None:
    for module, file in message_files().items():
        assert file.name == module.removesuffix("_pb2").replace(".", "/") + ".proto"
        foreign = [name for name in file.dependency if not name.startswith(("cri_stubs/", "google/"))]
        assert foreign == []


def test_importing_everything_leaves_the_standard_library_alone() -> None:
    imports = "".join(f"import {name}\n" for name in generated_modules())
    code = f"""{imports}
import sys, sysconfig, types
assert types.__file__ == sysconfig.get_path("stdlib") + "/types.py", types.__file__
assert types.SimpleNamespace and sys.modules["types"] is types
strange = {{"containerd", "cri", "runtime", "events", "services"}} & {{name.partition(".")[0] for name in sys.modules}}
assert not strange, strange
"""
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_every_directory_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / generate.PACKAGE).rglob("*.proto")}
    folders |= {parent for path in folders for parent in path.parents if parent.is_relative_to(ROOT / generate.PACKAGE)}
    assert [path for path in sorted(folders) if not (path / "__init__.py").is_file()] == []


def test_committed_code_is_what_the_protos_give(tmp_path: Path) -> None:
    generate.check_versions(ROOT / "pyproject.toml")
    generate.generate(ROOT, tmp_path)
    assert generate.stale(ROOT, tmp_path) == []


def test_stale_files_are_named_and_installed(tmp_path: Path) -> None:
    root, fresh = tmp_path / "root", tmp_path / "fresh"
    for path, old, new in (("a_pb2.py", "1", "1"), ("b_pb2.pyi", "1", "2"), ("c_pb2_grpc.py", "1", None)):
        for place, content in ((root, old), (fresh, new)):
            (place / generate.PACKAGE).mkdir(parents=True, exist_ok=True)
            if content is not None:
                (place / generate.PACKAGE / path).write_text(content)
    (fresh / generate.PACKAGE / "d_pb2.py").write_text("1")
    (root / generate.PACKAGE / "anys.py").write_text("not generated")

    paths = generate.stale(root, fresh)

    assert [path.name for path in paths] == ["b_pb2.pyi", "c_pb2_grpc.py", "d_pb2.py"]
    generate.install(fresh, root, paths)
    assert generate.stale(root, fresh) == []
    assert (root / generate.PACKAGE / "anys.py").exists()


def test_check_fails_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = [Path("cri_stubs/x_pb2.py")]
    monkeypatch.setattr(generate, "generate", lambda root, out: None)
    monkeypatch.setattr(generate, "stale", lambda root, fresh: stale)
    with pytest.raises(SystemExit, match=r"cri_stubs/x_pb2\.py\n.*python -m cri_stubs\.generate$"):
        generate.main(["--check"])


@pytest.mark.parametrize(
    ("group", "problem"),
    [
        ('"grpcio-tools>=1.0", "mypy-protobuf==0.1"', "does not pin grpcio-tools"),
        ('"grpcio-tools==0.1", "mypy-protobuf==0.1"', r"grpcio-tools==0\.1 is needed, grpcio-tools==\d"),
    ],
)
def test_other_generators_than_the_pinned_ones_are_refused(tmp_path: Path, group: str, problem: str) -> None:
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(f"[dependency-groups]\ndev = [{group}]\n")
    with pytest.raises(generate.GenerateError, match=problem):
        generate.check_versions(pyproject)


class OneBlob(ContentServicer):
    """A content store that holds b"abc", read in two pieces."""

    async def Info(self, request: content_pb2.InfoRequest, context: object) -> content_pb2.InfoResponse:
        return content_pb2.InfoResponse(info=content_pb2.Info(digest=request.digest, size=3))

    async def Read(
        self, request: content_pb2.ReadContentRequest, context: object
    ) -> AsyncIterator[content_pb2.ReadContentResponse]:
        yield content_pb2.ReadContentResponse(offset=0, data=b"ab")
        yield content_pb2.ReadContentResponse(offset=2, data=b"c")


async def test_a_stub_talks_to_a_servicer(tmp_path: Path) -> None:
    server = grpc.aio.server()
    add_ContentServicer_to_server(OneBlob(), server)
    address = f"unix://{tmp_path}/s"
    server.add_insecure_port(address)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            content = ContentStub(channel)
            answer = await content.Info(content_pb2.InfoRequest(digest="d"), timeout=5, metadata=(("a", "b"),))
            pieces = [it.data async for it in content.Read(content_pb2.ReadContentRequest(digest="d"), timeout=5)]
    finally:
        await server.stop(None)
    assert answer == content_pb2.InfoResponse(info=content_pb2.Info(digest="d", size=3))
    assert pieces == [b"ab", b"c"]


# --------------------------------------------------------------------------------------------------------------- Any


def test_pack_writes_the_bare_name() -> None:
    packed = pack(TaskExit(container_id="c", pid=7))
    assert packed.type_url == "containerd.events.TaskExit"
    assert unpack(packed, TaskExit) == TaskExit(container_id="c", pid=7)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("containerd.events.TaskExit", "containerd.events.TaskExit"),
        ("type.googleapis.com/containerd.events.TaskExit", "containerd.events.TaskExit"),
        ("types.containerd.io/opencontainers/runtime-spec/1/Spec", "Spec"),
        ("", ""),
    ],
)
def test_type_name_is_what_follows_the_last_slash(url: str, name: str) -> None:
    assert type_name(Any(type_url=url)) == name


def test_unpack_takes_urls_with_a_prefix() -> None:
    value = Any()
    value.Pack(TaskOOM(container_id="c"))
    assert value.type_url.startswith("type.googleapis.com/")
    assert unpack(value, TaskOOM) == TaskOOM(container_id="c")


@pytest.mark.parametrize("value", [pack(TaskOOM(container_id="c")), Any()], ids=["another", "empty"])
def test_unpack_refuses_other_types(value: Any) -> None:
    with pytest.raises(WrongType, match=r"not containerd\.events\.TaskExit"):
        unpack(value, TaskExit)


def test_unpack_refuses_malformed_bytes() -> None:
    with pytest.raises(DecodeError):
        unpack(Any(type_url="containerd.events.TaskExit", value=b"\xff"), TaskExit)
