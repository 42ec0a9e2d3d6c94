"""Initializers whose data is in another file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import onnx
from onnx import TensorProto as T

from tests.reliability.case import ANALYZE, OK, OPTIMIZE, Case
from tests.reliability.graphs import SIDE, node, proto, save

_BYTES = SIDE * SIDE * 4


def cases() -> list[Case]:
    """Files that are missing, short, or not the model's own to read."""
    found = [
        Case(
            room="external data",
            wrong=wrong,
            arguments=OPTIMIZE if i % 2 else ANALYZE,
            build=partial(_build, fields, files),
            words=("'w'",),
        )
        for i, (wrong, fields, files) in enumerate(_fields())
    ]
    found += [
        Case(room="external data", wrong=wrong, arguments=ANALYZE, build=build, words=words)
        for wrong, build, words in (
            ("the file is a link to outside the folder", _linked_outside, ("'w'", "link")),
            ("the file is a link to itself", _linked_to_itself, ("'w'",)),
            ("the file is a pipe", _pipe, ("'w'",)),
            ("data of a Constant in another file", partial(_constant, T.FLOAT), ("value",)),
            ("data of a Constant in a missing file", partial(_constant_missing), ("value",)),
            ("texts in another file", _texts, ("'w'",)),
            ("a negative dim", partial(_dims, [-SIDE, -SIDE]), ("'w'",)),
            ("dims of 2^40 x 2^40", partial(_dims, [1 << 40, 1 << 40]), ("'w'",)),
        )
    ]
    found.append(
        Case(
            room="external data",
            wrong="the model is a link, its data beside what it links to; legal",
            arguments=(*OPTIMIZE, "--dry-run"),
            build=_linked_model,
            exits=(OK, 4),
        )
    )
    return found


def _external(fields: dict[str, str], *, dtype: int = T.FLOAT, dims: object = None) -> T:
    weight = T(name="w", data_type=dtype, dims=dims or [SIDE, SIDE], data_location=T.EXTERNAL)
    for key, value in {"location": "w.bin", **fields}.items():
        weight.external_data.add(key=key, value=value)
    return weight


def _model(weight: T) -> onnx.ModelProto:
    return proto([node("MatMul", ["x", "w"], ["y"])], initializers=[weight])


def _build(fields: dict[str, str], files: dict[str, int], folder: Path) -> None:
    save(_model(_external(fields)), folder / "model.onnx")
    for name, size in files.items():
        (folder / name).write_bytes(bytes(size))


def _fields() -> Iterator[tuple[str, dict[str, str], dict[str, int]]]:
    whole = {"w.bin": _BYTES}
    yield "the file is missing", {}, {}
    yield "the file lacks a byte", {}, {"w.bin": _BYTES - 1}
    yield "the file is empty", {}, {"w.bin": 0}
    yield "the data is behind the file's end", {"offset": "4096"}, whole
    yield "the offset is no number", {"offset": "abc"}, whole
    yield "the offset is negative", {"offset": "-4"}, whole
    yield "the offset has 5,000 digits", {"offset": "9" * 5000}, whole
    yield "the offset is 2^63 - 1", {"offset": str(2**63 - 1)}, whole
    yield "the offset is 1e3", {"offset": "1e3"}, whole
    yield "the offset is a digit of another script", {"offset": "\u0663"}, whole
    yield "the length is no number", {"length": "many"}, whole
    yield "the length has 5,000 digits", {"length": "1" * 5000}, whole
    yield "the length is not the tensor's", {"length": "8"}, whole
    yield "the length is 0", {"length": "0"}, whole
    yield "the location is empty", {"location": ""}, whole
    yield "the location is the folder", {"location": "."}, whole
    yield "the location is above the folder", {"location": "../w.bin"}, whole
    yield "the location is above the folder by a detour", {"location": "a/../../w.bin"}, whole
    yield "the location is absolute", {"location": "/etc/passwd"}, whole
    yield "the location is a device", {"location": "/dev/zero"}, whole
    yield "the location has 5,000 characters", {"location": "w" * 5000}, whole
    yield "the location is 2,000 folders deep", {"location": "w/" * 2000 + "w.bin"}, whole
    yield "the location has a zero byte", {"location": "w.bin\0.txt"}, whole
    yield "the location is a line of escapes", {"location": "\x1b[2J\nplanner: ok"}, whole
    yield "the location ends in a slash", {"location": "w.bin/x"}, whole


def _linked_outside(folder: Path) -> None:
    outside = folder.parent / f"{folder.name}.outside"
    outside.write_bytes(bytes(_BYTES))
    _build({}, {}, folder)
    (folder / "w.bin").symlink_to(outside)


def _linked_to_itself(folder: Path) -> None:
    _build({}, {}, folder)
    (folder / "w.bin").symlink_to("w.bin")


def _pipe(folder: Path) -> None:
    import os

    _build({}, {}, folder)
    os.mkfifo(folder / "w.bin")


def _linked_model(folder: Path) -> None:
    (folder / "blobs").mkdir()
    _build({}, {"w.bin": _BYTES}, folder / "blobs")
    (folder / "model.onnx").symlink_to("blobs/model.onnx")
    (folder / "w.bin").symlink_to("blobs/w.bin")


def _constant(dtype: int, folder: Path) -> None:
    nodes = [node("Constant", [], ["c"], value=_external({}, dtype=dtype))]
    save(proto([*nodes, node("Mul", ["x", "c"], ["y"])]), folder / "model.onnx")
    (folder / "w.bin").write_bytes(bytes(_BYTES))


def _constant_missing(folder: Path) -> None:
    _constant(T.FLOAT, folder)
    (folder / "w.bin").unlink()


def _texts(folder: Path) -> None:
    save(_model(_external({}, dtype=T.STRING)), folder / "model.onnx")
    (folder / "w.bin").write_bytes(bytes(_BYTES))


def _dims(dims: list[int], folder: Path) -> None:
    save(_model(_external({}, dims=dims)), folder / "model.onnx")
    (folder / "w.bin").write_bytes(bytes(_BYTES))
