"""From the options of ``stoker recreate`` to what is asked for."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from stoker.cli.recreate_options import Changes, targets
from stoker.errors import ManifestError
from stoker.objects.containers import EnvVar, Probe, RecreateTarget

ONE, TWO = ("main",), ("main", "side")
OWN = {"TOKEN": "hush", "EMPTY": ""}


def test_nothing_to_change() -> None:
    assert targets(TWO, Changes(), OWN) == [RecreateTarget(name="main"), RecreateTarget(name="side")]
    assert not Changes()
    assert Changes(unset=("A",))


def test_one_container_needs_no_prefix() -> None:
    changes = Changes(
        images=("reg:5000/a/b:1@sha256:x",),
        env=("MODE=a:b=c", "TOKEN", "EMPTY", "NONE="),
        unset=("OLD",),
        probe_tcp=("80",),
    )
    assert targets(ONE, changes, OWN) == [
        RecreateTarget(
            name="main",
            image="reg:5000/a/b:1@sha256:x",
            env=[
                EnvVar(name="MODE", value="a:b=c"),
                EnvVar(name="TOKEN", value="hush"),
                EnvVar(name="EMPTY", value=""),
                EnvVar(name="NONE", value=""),
                EnvVar(name="OLD", value=None),
            ],
            probe=Probe(tcp_port=80),
        )
    ]


def test_several_containers_are_told_apart() -> None:
    changes = Changes(
        images=("side=nginx:1", "main=busybox"),
        env=("main:MODE=x", "side:MODE=y", "side:TOKEN"),
        unset=("main:OLD",),
        probe_tcp=("side:8080",),
        probe_exec=("main:sh -c 'test -e /ready now:a'",),
    )
    main, side = targets(TWO, changes, OWN)
    assert (main.image, side.image) == ("busybox", "nginx:1")
    assert main.env == [EnvVar(name="MODE", value="x"), EnvVar(name="OLD", value=None)]
    assert side.env == [EnvVar(name="MODE", value="y"), EnvVar(name="TOKEN", value="hush")]
    assert main.probe == Probe(exec=["sh", "-c", "test -e /ready now:a"])
    assert side.probe == Probe(tcp_port=8080)


def test_files_of_variables(tmp_path: Path) -> None:
    file = tmp_path / "a:b.env"
    file.write_text("# comment\n\n  MODE=file # not a comment\r\nexport OTHER='q'\nTOKEN\nEMPTY=\n")
    (target,) = targets(ONE, Changes(env_files=(str(file),), env=("EMPTY=no",)), OWN)
    assert {one.name: one.value for one in target.env} == {
        "MODE": "file # not a comment",
        "OTHER": "'q'",
        "TOKEN": "hush",
        "EMPTY": "no",
    }
    _, side = targets(TWO, Changes(env_files=(f"side:{file}",)), OWN)
    assert len(side.env) == 4


WRONG = [
    (("a", "a"), Changes(), "the container 'a' is named twice"),
    (TWO, Changes(images=("nginx",)), "--image: with several containers it says which one it is for: --image main=..."),
    (TWO, Changes(images=("other=nginx",)), "--image: 'other' is none of the containers main, side"),
    (ONE, Changes(images=("other=nginx",)), "--image: 'other' is none of the containers main"),
    (ONE, Changes(images=("",)), "'' : that is not an image reference".replace(" :", ":")),
    (ONE, Changes(images=("a", "b")), "--image: the container 'main' gets two"),
    (TWO, Changes(env=("MODE=secret",)), "--env: with several containers it says which one it is for: --env main:..."),
    (ONE, Changes(env=("other:MODE=secret",)), "--env: 'other' is none of the containers main"),
    (ONE, Changes(env=("=secret",)), "--env: '' is not the name of an environment variable"),
    (ONE, Changes(env=("A B=secret",)), "--env: 'A B' is not the name of an environment variable"),
    (ONE, Changes(env=("MISSING",)), "MISSING has no value here, and stoker's own environment has no MISSING"),
    (ONE, Changes(unset=("A=B",)), "--unset-env: 'A=B' is not the name"),
    (ONE, Changes(probe_tcp=("http",)), "--probe-tcp: 'http' is not a port"),
    (ONE, Changes(probe_tcp=("65536",)), "--probe-tcp: '65536' is not a port"),
    (ONE, Changes(probe_tcp=("1", "2")), "the container 'main' gets two probes"),
    (ONE, Changes(probe_tcp=("1",), probe_exec=("a",)), "the container 'main' gets two probes"),
    (ONE, Changes(probe_exec=("",)), "--probe-exec: there is no command"),
    (ONE, Changes(probe_exec=("sh 'open",)), "--probe-exec: no closing quotation"),
]


@pytest.mark.parametrize(("containers", "changes", "message"), WRONG)
def test_what_is_refused_and_never_with_a_value(containers: tuple[str, ...], changes: Changes, message: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        targets(containers, changes, {})
    assert message in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"A=1\nB C=secret\n", ":2: a line is NAME=VALUE: 'B C' is not the name of an environment variable"),
        (b"\n\nMISSING\n", ":3: a line without =: MISSING has no value here"),
        (b"A=1\n\xff=2\n", ":2: this is not UTF-8 text"),
        (b"A=" + b"x" * (1 << 20), ": the file is larger than 1 MiB"),
    ],
)
def test_faulty_files_of_variables(raw: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_bytes(raw)
    with pytest.raises(ManifestError) as caught:
        targets(ONE, Changes(env_files=(str(file),)), {})
    assert str(caught.value).startswith(f"{file}{message}")
    assert "secret" not in str(caught.value)


def test_a_missing_file_of_variables(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="No such file"):
        targets(ONE, Changes(env_files=(str(tmp_path / "none"),)), {})
