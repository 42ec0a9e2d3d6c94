"""Read the metadata of a model file without its graph: weights within the file are skipped.

A serialized ModelProto is a row of fields, each with its number, its kind and, for long fields, its
length (protobuf.dev/programming-guides/encoding). `onnx.load` would read all of them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO

_GRAPH, _METADATA = 7, 14  # of ModelProto (onnx.proto)
_KEY, _VALUE = 1, 2  # of StringStringEntryProto
_VARINT, _I64, _LONG, _I32 = 0, 1, 2, 5
_FIXED = {_I64: 8, _I32: 4}
_MAX_VARINT_BYTES = 10


def read_metadata(file: BinaryIO) -> dict[str, str]:
    """Return `metadata_props` of a serialized model.

    Raises:
        ValueError: the file is no serialized model.
    """
    found: dict[str, str] = {}
    has_graph = False
    for number, length in _fields(file):
        has_graph = has_graph or number == _GRAPH
        if number == _METADATA:
            entry = io.BytesIO(file.read(length))
            texts = {n: entry.read(size).decode("utf-8") for n, size in _fields(entry)}
            found[texts.get(_KEY, "")] = texts.get(_VALUE, "")
    if not has_graph:
        raise ValueError("no graph")
    return found


def _fields(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yield the number and length of each field that has a length; the file's position is at its
    content."""
    end = file.seek(0, io.SEEK_END)
    at = file.seek(0)
    while at < end:
        tag = _varint(file)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _varint(file)
            at = file.tell()
            continue
        length = _varint(file) if kind == _LONG else _FIXED.get(kind, -1)
        at = file.tell() + length
        if length < 0 or at > end or not number:
            raise ValueError("not a row of fields")
        if kind == _LONG:
            yield number, length
        file.seek(at)


def _varint(file: BinaryIO) -> int:
    """Read an integer in groups of seven bits, lowest first."""
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << (7 * place)
        if byte[0] < 0x80:
            return value
    raise ValueError("a number that does not end")
