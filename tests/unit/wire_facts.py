"""What .proto files say about the wire, as plain values, and how two of them are compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message: all that its encoding and its presence depend on."""

    name: str
    number: int
    type: str
    of: str  # the message or enum, when it is one
    label: str
    oneof: str
    packed: bool | None  # None leaves it to the syntax
    syntax: str


@dataclass(frozen=True, slots=True)
class Method:
    """One call of a service."""

    request: str
    response: str
    streams: tuple[bool, bool]


@dataclass(frozen=True, slots=True)
class Facts:
    """Messages, enums and methods by their full names."""

    messages: dict[str, dict[int, Field]] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    methods: dict[str, Method] = field(default_factory=dict)


def facts(files: Iterable[FileDescriptorProto]) -> Facts:
    """Gather what *files* declare."""
    found = Facts()
    for file in files:
        for message in file.message_type:
            _add_message(found, message, file.package, file.syntax)
        for enum in file.enum_type:
            _add_enum(found, enum, file.package)
        for service in file.service:
            for method in service.method:
                found.methods[f"{file.package}.{service.name}/{method.name}"] = Method(
                    request=method.input_type.removeprefix("."),
                    response=method.output_type.removeprefix("."),
                    streams=(method.client_streaming, method.server_streaming),
                )
    return found


def differences(ours: Facts, upstream: Facts) -> list[str]:
    """Say where *ours* is not a part of *upstream*, one line for each place."""
    return sorted(
        [
            *_outside(ours.messages, upstream.messages),
            *_outside(ours.enums, upstream.enums),
            *_differing("rpc", ours.methods, upstream.methods),
        ]
    )


def gaps(ours: Facts, upstream: Facts, roots: Iterable[str]) -> list[str]:
    """Say which fields and enum values *ours* lacks in what can be reached from the messages *roots*."""
    lines = []
    for name in sorted(_reachable(upstream, roots)):
        if name in upstream.messages:
            have = ours.messages.get(name, {})
            lines += [f"{name}: no {it.name} = {n}" for n, it in upstream.messages[name].items() if n not in have]
        else:
            values = ours.enums.get(name, {})
            lines += [f"{name}: no {value}" for value in upstream.enums.get(name, {}) if value not in values]
    return lines


def _add_message(found: Facts, message: DescriptorProto, scope: str, syntax: str) -> None:
    name = f"{scope}.{message.name}"
    oneofs = [oneof.name for oneof in message.oneof_decl]
    found.messages[name] = {it.number: _field(it, oneofs, syntax) for it in message.field}
    for nested in message.nested_type:
        _add_message(found, nested, name, syntax)
    for enum in message.enum_type:
        _add_enum(found, enum, name)


def _add_enum(found: Facts, enum: EnumDescriptorProto, scope: str) -> None:
    found.enums[f"{scope}.{enum.name}"] = {value.name: value.number for value in enum.value}


def _field(it: FieldDescriptorProto, oneofs: list[str], syntax: str) -> Field:
    return Field(
        name=it.name,
        number=it.number,
        type=FieldDescriptorProto.Type.Name(it.type),
        of=it.type_name.removeprefix("."),
        label=FieldDescriptorProto.Label.Name(it.label),
        oneof=oneofs[it.oneof_index] if it.HasField("oneof_index") else "",
        packed=it.options.packed if it.options.HasField("packed") else None,
        syntax=syntax,
    )


def _outside(ours: Mapping[str, Mapping[K, V]], upstream: Mapping[str, Mapping[K, V]]) -> Iterator[str]:
    for name, members in ours.items():
        if name not in upstream:
            yield f"{name}: unknown upstream"
        else:
            yield from _differing(name, members, upstream[name])


def _differing(what: str, ours: Mapping[K, V], upstream: Mapping[K, V]) -> Iterator[str]:
    for key, value in ours.items():
        if key not in upstream:
            yield f"{what}: {key} is unknown upstream"
        elif upstream[key] != value:
            yield f"{what}: {key} is {value}, upstream {upstream[key]}"


def _reachable(upstream: Facts, roots: Iterable[str]) -> set[str]:
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found and not name.startswith("google."):
            found.add(name)
            waiting += [it.of for it in upstream.messages.get(name, {}).values() if it.of]
    return found
