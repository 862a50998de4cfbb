"""Images made of another one and a layer."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from stokerd.checkpoints.imaging import About, Built, NewLayer, build, chain_id, digest_of, parse_change
from stokerd.errors import InvalidInput
from stokerd.images.manifests import parse_config
from stokerd.runtime.types import Descriptor

A, B, C = (digest_of(name) for name in (b"a", b"b", b"c"))
NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
BASE: dict[str, Any] = {
    "architecture": "amd64",
    "os": "linux",
    "config": {"Env": ["PATH=/bin", "A=old"], "Cmd": ["sh"], "Labels": {"x": "1"}},
    "container_config": {"Hostname": "build"},
    "rootfs": {"type": "layers", "diff_ids": [A, B]},
    "history": [{"created_by": "one"}, {"created_by": "two"}],
}
MANIFEST: dict[str, Any] = {
    "layers": [
        {"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "digest": "sha256:1", "size": 1},
        {"mediaType": "application/vnd.oci.image.layer.v1.tar+zstd", "digest": "sha256:2", "size": 2},
    ]
}
LAYER = NewLayer(Descriptor("application/vnd.oci.image.layer.v1.tar+zstd", "sha256:3", 3), C)


def made(*changes: str, **options: Any) -> tuple[Built, dict[str, Any], dict[str, Any]]:
    parsed = [parse_change(each) for each in changes]
    built = build(BASE, MANIFEST, LAYER, About(NOW, "me", "why"), changes=parsed, **options)
    return built, json.loads(built.config), json.loads(built.manifest)


def test_a_layer_on_top() -> None:
    before = json.dumps(BASE)
    built, config, manifest = made()
    assert json.dumps(BASE) == before
    assert config["rootfs"]["diff_ids"] == [A, B, C]
    assert [each["created_by"] for each in config["history"]] == ["one", "two", "stoker commit"]
    assert config["history"][-1]["comment"] == "why"
    assert (config["created"], config["author"], config["architecture"]) == ("2026-05-01T12:00:00Z", "me", "amd64")
    assert "container_config" not in config
    assert config["config"] == BASE["config"]
    kinds = [each["mediaType"].rpartition(".")[2] for each in manifest["layers"]]
    assert kinds == ["tar+gzip", "tar+zstd", "tar+zstd"]
    assert all("docker" not in each["mediaType"] for each in manifest["layers"])
    assert manifest["config"]["digest"] == digest_of(built.config) == built.config_digest
    assert built.target.digest == digest_of(built.manifest)
    assert built.manifest_labels == {
        "containerd.io/gc.ref.content.config": built.config_digest,
        "containerd.io/gc.ref.content.l.0": "sha256:1",
        "containerd.io/gc.ref.content.l.1": "sha256:2",
        "containerd.io/gc.ref.content.l.2": "sha256:3",
    }
    (top,) = built.config_labels.values()
    assert top == chain_id([A, B, C]) == parse_config(built.config).chain_ids[-1]


def test_squashed_there_is_one_layer() -> None:
    built, config, manifest = made(squash=True)
    assert config["rootfs"]["diff_ids"] == [C]
    assert [each["digest"] for each in manifest["layers"]] == ["sha256:3"]
    assert len(config["history"]) == 1
    assert built.config_labels == {"containerd.io/gc.ref.snapshot.overlayfs": C}


def test_changes() -> None:
    _, config, _ = made(
        'ENV A=new B="two words"',
        "env OLD the rest of it",
        'CMD ["a", "b c"]',
        "WORKDIR /srv",
        "USER 1000:1000",
        "LABEL x=2 y=3",
        "EXPOSE 80 53/udp",
    )
    run = config["config"]
    assert run["Env"] == ["PATH=/bin", "A=new", "B=two words", "OLD=the rest of it"]
    assert (run["Cmd"], run["WorkingDir"], run["User"]) == (["a", "b c"], "/srv", "1000:1000")
    assert run["Labels"] == {"x": "2", "y": "3"}
    assert run["ExposedPorts"] == {"80/tcp": {}, "53/udp": {}}
    assert all(each["empty_layer"] for each in config["history"][3:])
    assert len(config["history"]) == 10


def test_an_entrypoint_takes_the_command_away_unless_one_is_given() -> None:
    assert "Cmd" not in made("ENTRYPOINT /start now")[1]["config"]
    assert made("ENTRYPOINT /start now")[1]["config"]["Entrypoint"] == ["/bin/sh", "-c", "/start now"]
    assert made('ENTRYPOINT ["/s"]', 'CMD ["x"]')[1]["config"]["Cmd"] == ["x"]


@pytest.mark.parametrize(
    "text",
    ["", "ENV", "ENV =x", "RUN ls", "CMD [1]", 'CMD ["a"', "WORKDIR srv", "EXPOSE 70000", "EXPOSE x", "EXPOSE 80/icmp",
     'ENV A="open', "LABEL x=1 y"],
)  # fmt: skip
def test_what_is_no_change(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_change(text)


def test_a_base_without_anything() -> None:
    built = build({}, {}, LAYER, About(NOW))
    config = json.loads(built.config)
    assert (config["rootfs"]["diff_ids"], config["config"], len(config["history"])) == ([C], {}, 1)
