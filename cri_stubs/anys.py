"""``google.protobuf.Any`` as containerd, which is written in Go, fills and reads it.

containerd's type URLs are bare message names, ``containerd.events.TaskExit``. Python's own ``Any.Is`` and
``Any.Unpack`` find no type in a URL without a slash, so they are of no use here; these helpers look at what stands
after the last slash, if there is one, and so take both kinds.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)


class WrongType(ValueError):
    """An ``Any`` holds a message of another type than the one asked for."""


def type_name(value: Any) -> str:
    """Return the name of the message that *value* holds, such as ``containerd.events.TaskExit``."""
    return value.type_url.rpartition("/")[2]


def pack(message: Message) -> Any:
    """Put *message* into an ``Any``, with its bare name as the type URL."""
    return Any(type_url=message.DESCRIPTOR.full_name, value=message.SerializeToString(deterministic=True))


def unpack(value: Any, message_class: type[M]) -> M:
    """Return the message in *value*.

    Raises ``WrongType`` when it is not a *message_class*, and protobuf's ``DecodeError`` when its bytes are malformed.
    """
    expected = message_class.DESCRIPTOR.full_name
    if type_name(value) != expected:
        raise WrongType(f"an Any holds {value.type_url or 'nothing'}, not {expected}")
    message = message_class()
    message.ParseFromString(value.value)
    return message
