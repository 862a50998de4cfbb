"""Configurations between CRI's JSON and CRI's messages. Pure.

It follows the descriptors, so it knows every field that the .proto has, and it refuses what the .proto does not have: a
field that is left out could be a restriction. The JSON is what containerd writes in a verbose status: names as in the
.proto, enums as numbers, what is empty left out, and the value of an environment variable as plain text although the
message has bytes. Errors name fields, never values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from cri_stubs.cri.v1 import runtime_pb2
from stokerd.errors import RuntimeInvalid, RuntimeUnsupported

M = TypeVar("M", bound=Message)


def container_config(config: Mapping[str, Any]) -> runtime_pb2.ContainerConfig:
    """Return CRI's message; RuntimeInvalid without a name, which containerd does not look for before it follows it."""
    message = to_message(config, runtime_pb2.ContainerConfig())
    if not message.metadata.name:
        raise RuntimeInvalid("the configuration of the container has no name")
    return message


def pod_config(config: Mapping[str, Any]) -> runtime_pb2.PodSandboxConfig:
    """Return CRI's message, likewise."""
    message = to_message(config, runtime_pb2.PodSandboxConfig())
    if not message.metadata.name:
        raise RuntimeInvalid("the configuration of the pod has no name")
    return message


def to_message(config: Mapping[str, Any], message: M) -> M:
    """Fill *message* from *config* and return it. RuntimeUnsupported, with their names, for fields that it has not."""
    problems: list[str] = []
    _fill(message, config, "", problems)
    if problems:
        raise RuntimeUnsupported(
            f"the configuration has what this version of Stoker cannot carry over: {', '.join(sorted(problems))}",
            hint="update Stoker",
        )
    return message


def from_message(message: Message) -> dict[str, Any]:
    """Return *message* as containerd writes it into a verbose status."""
    return {field.name: _plain(field, value) for field, value in message.ListFields()}


# ------------------------------------------------------------------------------------------------ to messages


def _fill(message: Message, config: Mapping[str, Any], path: str, problems: list[str]) -> None:
    fields = message.DESCRIPTOR.fields_by_name
    for name, value in config.items():
        field = cast("FieldDescriptor | None", fields.get(name))
        if field is None:
            problems.append(f"{path}{name}")
        elif value is not None and not _set(message, field, value, f"{path}{name}", problems):
            problems.append(f"{path}{name} (not what it should be)")


def _set(message: Message, field: FieldDescriptor, value: Any, path: str, problems: list[str]) -> bool:
    """Set one field; False for a value of another kind than the field's."""
    target = getattr(message, field.name)
    try:
        if _is_map(field):
            target.update(value)  # every map of a configuration is of text to text
        elif not field.is_repeated and field.message_type is not None:
            target.SetInParent()  # given, though empty
            _fill(target, _mapping(value), f"{path}.", problems)
        elif not field.is_repeated:
            setattr(message, field.name, _scalar(field, value))
        elif field.message_type is not None:
            for number, entry in enumerate(_list(value)):
                _fill(target.add(), _mapping(entry), f"{path}[{number}].", problems)
        else:
            target.extend(_scalar(field, entry) for entry in _list(value))
    except (TypeError, ValueError, AttributeError):  # their text holds the value, which may be a secret
        return False
    return True


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return value.encode("utf-8", "surrogateescape")
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError
    return list(value)


# ------------------------------------------------------------------------------------------------ from messages


def _plain(field: FieldDescriptor, value: Any) -> Any:
    if _is_map(field):
        return dict(value)
    if field.is_repeated:
        return [_one(field, entry) for entry in value]
    return _one(field, value)


def _one(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return from_message(value)
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _is_map(field: FieldDescriptor) -> bool:
    return field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry
