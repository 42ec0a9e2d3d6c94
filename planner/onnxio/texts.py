"""Check that names in a model are UTF-8, before anything reads them.

The `onnx` package returns other names as bytes, and every later look-up fails.
"""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from planner.errors import ModelError


def check_texts(message: Message, where: str) -> None:
    """Raise ModelError, naming the place, if a text field of `message` or within it is not UTF-8."""
    found = _broken(message, "")
    if found is not None:
        raise ModelError(f"{where} is not a valid ONNX model: {found} is not UTF-8 text")


def _broken(message: Any, place: str) -> str | None:
    """Return the first field that is not text, as a path of fields."""
    for name, is_message, is_repeated in _fields(message.DESCRIPTOR):
        if is_repeated:
            for index, item in enumerate(getattr(message, name)):
                if is_message:
                    found = _broken(item, f"{place}{name}[{index}].")
                    if found is not None:
                        return found
                elif isinstance(item, bytes):
                    return f"{place}{name}[{index}] ({item[:20]!r})"
        elif not message.HasField(name):
            continue
        elif is_message:
            found = _broken(getattr(message, name), f"{place}{name}.")
            if found is not None:
                return found
        elif isinstance(item := getattr(message, name), bytes):
            return f"{place}{name} ({item[:20]!r})"
    return None


@functools.cache
def _fields(kind: Descriptor) -> tuple[tuple[str, bool, bool], ...]:
    """Return (name, whether it is a message, whether it is repeated) of fields that hold texts or
    messages."""
    return tuple(
        (field.name, field.type == FieldDescriptor.TYPE_MESSAGE, _is_repeated(field))
        for field in kind.fields
        if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE)
    )


def _is_repeated(field: FieldDescriptor) -> bool:
    known: bool | None = getattr(field, "is_repeated", None)  # newer releases of protobuf
    if known is not None:
        return known
    label = field.label  # pyright: ignore[reportAttributeAccessIssue]
    return label == FieldDescriptor.LABEL_REPEATED
