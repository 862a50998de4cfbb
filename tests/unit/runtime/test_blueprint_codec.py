"""Configurations between CRI's JSON and CRI's messages: nothing is lost, nothing is shown."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from cri_stubs.cri.v1 import runtime_pb2
from stokerd.errors import RuntimeInvalid, RuntimeUnsupported
from stokerd.runtime.blueprint_codec import container_config, from_message, pod_config, to_message
from stokerd.runtime.blueprints import renewed
from stokerd.runtime.pod_types import Blueprint

CONFIGS = [runtime_pb2.ContainerConfig, runtime_pb2.PodSandboxConfig]


def filled(message: Message) -> Any:
    """Set every field there is, however deep, to something that is not its default."""
    for field in message.DESCRIPTOR.fields:
        target = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            target["key"] = "value"
        elif field.message_type is not None:
            filled(target.add() if field.is_repeated else target)
        elif field.is_repeated:
            target.extend([plain(field), plain(field)])
        else:
            setattr(message, field.name, plain(field))
    return message


def plain(field: Any) -> Any:
    kinds = {FieldDescriptor.TYPE_STRING: "text ü", FieldDescriptor.TYPE_BYTES: "text ü".encode()}
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    return kinds.get(field.type, 1)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_field_there_is_is_carried_over(kind: type[Message]) -> None:
    message = filled(kind())
    config = from_message(message)
    assert to_message(config, kind()) == message
    assert from_message(to_message(config, kind())) == config


def test_it_is_the_json_that_containerd_writes() -> None:
    config = {
        "metadata": {"name": "app", "attempt": 2},
        "image": {"image": "sha256:1", "user_specified_image": "app:v1"},
        "envs": [{"key": "A", "value": "1 = ü"}, {"key": "EMPTY"}],
        "mounts": [{"container_path": "/a", "host_path": "/b", "propagation": 2, "uidMappings": [{"length": 1}]}],
        "labels": {"a": "b"},
        "CDI_devices": [{"name": "vendor.com/gpu=0"}],
        "stop_signal": 23,
        "linux": {
            "resources": {"memory_limit_in_bytes": 1 << 40, "unified": {"memory.high": "1"}},
            "security_context": {"run_as_user": {}, "seccomp": {"profile_type": 2, "localhost_ref": "/p"}},
        },
    }
    message = container_config(config)
    assert message.envs[0].value == "1 = ü".encode()
    assert message.linux.security_context.HasField("run_as_user")
    assert message.mounts[0].propagation == runtime_pb2.PROPAGATION_BIDIRECTIONAL
    assert from_message(message) == config


def test_what_is_given_though_empty_stays_given() -> None:
    config = {"metadata": {"name": "app"}, "linux": {"security_context": {}}}
    assert from_message(container_config(config)) == config
    assert from_message(to_message({"linux": None, "labels": None, "envs": None}, runtime_pb2.ContainerConfig())) == {}


def test_defaults_are_left_out_as_containerd_does() -> None:
    config = {"metadata": {"name": "app", "attempt": 0}, "command": [], "tty": False, "log_path": ""}
    assert from_message(container_config(config)) == {"metadata": {"name": "app"}}


def test_all_fields_that_nobody_knows_are_named() -> None:
    config = {
        "metadata": {"name": "app"},
        "linux": {"security_context": {"shackles": "s3cret"}},
        "mounts": [{}, {"colour": "s3cret"}],
        "future": {"a": "s3cret"},
    }
    with pytest.raises(RuntimeUnsupported) as caught:
        container_config(config)
    assert "future, linux.security_context.shackles, mounts[1].colour" in caught.value.message
    assert "s3cret" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "config",
    [
        {"envs": [{"key": "A", "value": 5}]},
        {"envs": "s3cret"},
        {"envs": ["s3cret"]},
        {"command": "s3cret"},
        {"command": [5]},
        {"labels": {"a": 5}},
        {"labels": ["s3cret"]},
        {"linux": "s3cret"},
        {"tty": "s3cret"},
        {"stop_signal": "s3cret"},
        {"linux": {"resources": {"cpu_shares": 1 << 70}}},
    ],
)
def test_values_of_another_kind_are_refused_and_not_shown(config: dict[str, Any]) -> None:
    with pytest.raises(RuntimeUnsupported, match="not what it should be") as caught:
        to_message(config, runtime_pb2.ContainerConfig())
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_without_a_name_nothing_goes_to_containerd() -> None:
    nameless: list[dict[str, Any]] = [{}, {"metadata": {}}, {"metadata": {"name": ""}}]
    for config in nameless:
        with pytest.raises(RuntimeInvalid, match="container has no name"):
            container_config(config)
        with pytest.raises(RuntimeInvalid, match="pod has no name"):
            pod_config(config)


@given(
    env=st.dictionaries(st.text(min_size=1), st.text(), max_size=5),
    labels=st.dictionaries(st.text(), st.text(), max_size=3),
    attempt=st.integers(min_value=0, max_value=(1 << 32) - 1),
)
def test_any_text_is_carried_over(env: dict[str, str], labels: dict[str, str], attempt: int) -> None:
    blueprint = renewed(Blueprint({"metadata": {"name": "app"}}), attempt=attempt, env=env, labels=labels)
    message = container_config(blueprint.config)
    assert {entry.key: entry.value.decode() for entry in message.envs} == env
    assert dict(message.labels) == labels
    assert message.metadata.attempt == attempt
    again = from_message(message)
    assert to_message(again, runtime_pb2.ContainerConfig()) == message
