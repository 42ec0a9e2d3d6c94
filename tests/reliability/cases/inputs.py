"""Inputs to run with: arrays in an `.npz`, and recipes in a sidecar."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.reliability.case import OK, USAGE, Case
from tests.reliability.cases.plans import DEEP
from tests.reliability.graphs import SIDE
from tests.reliability.kit import take

Build = Callable[[Path], object]

_CALIBRATE = ("analyze", "model.onnx", "--calibrate", "--time-limit", "2", "-q")
_WITH = (*_CALIBRATE, "--inputs", "inputs.npz")
_GOOD = np.ones((SIDE, SIDE), np.float32)


def cases() -> list[Case]:
    """Arrays and recipes that are damaged, of another type or shape, or too large to be made."""
    found = [
        Case(
            room="npz",
            wrong=wrong,
            arguments=_WITH,
            build=build,
            exits=(USAGE,),
            words=("inputs.npz",),
        )
        for wrong, build in _arrays()
    ]
    found += [
        Case(
            room="sidecar",
            wrong=wrong,
            arguments=_CALIBRATE,
            build=build,
            exits=(USAGE,),
            words=("model.inputs.json",),
        )
        for wrong, build in _recipes()
    ]
    found += [
        Case(room=room, wrong=wrong, arguments=arguments, build=build, exits=(OK,))
        for room, wrong, arguments, build in (
            ("npz", "nothing: the arrays as they are", _WITH, partial(_npz, {"x": _GOOD})),
            ("npz", "one array too many, which is legal", _WITH, _one_more),
            ("npz", "NaN in an array, which is legal", _WITH, partial(_npz, {"x": _GOOD * np.nan})),
            ("sidecar", "nothing: a recipe as it is", _CALIBRATE, partial(_sidecar, {})),
            (
                "sidecar",
                "no recipe for the input, which is legal",
                _CALIBRATE,
                partial(_text, b"{}"),
            ),
            (
                "sidecar",
                "a recipe for no input, which is legal",
                _CALIBRATE,
                partial(_text, b'{"q": 3}'),
            ),
        )
    ]
    return found


def _one_more(folder: Path) -> None:
    _npz({"x": _GOOD, "more": np.zeros(3)}, folder)


def _npz(arrays: dict[str, Any], folder: Path) -> None:
    take("model.onnx", into=folder)
    np.savez(folder / "inputs.npz", **arrays)


def _bytes(data: bytes, folder: Path) -> None:
    take("model.onnx", into=folder)
    (folder / "inputs.npz").write_bytes(data)


def _good_npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=_GOOD)
    return file.getvalue()


def _member(data: bytes, name: str = "x.npy", *, packed: bool = False) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if packed else 0) as archive:
        archive.writestr(name, data)
    return file.getvalue()


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=True)
    return file.getvalue()


def _header(text: str, *, version: int = 1) -> bytes:
    line = text.encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(line)) + line + bytes(64)


def _flipped(at: int) -> bytes:
    data = bytearray(_good_npz())
    data[at] ^= 0xFF
    return bytes(data)


def _arrays() -> Iterator[tuple[str, Build]]:
    good = _good_npz()
    for wrong, data in {
        "it is empty": b"",
        "it is text": b"nonsense",
        "it is an .npy": _npy(_GOOD),
        "it is a pickle": b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94.",
        "it is cut in the middle": good[: len(good) // 2],
        "it lacks its last byte": good[:-1],
        "it is an empty zip": _member(b"")[-22:],
        "a byte of its data is another": _flipped(300),
        "a byte of its first header is another": _flipped(2),
        "a byte of its directory is another": _flipped(len(good) - 30),
        "it holds no .npy": _member(b"text", "x"),
        "its member is text": _member(b"text"),
        "its member is empty": _member(b""),
        "its member is a pickle in an .npy": _member(_npy(np.array([{"a": 1}], dtype=object))),
        "its member is cut": _member(_npy(_GOOD)[:-5]),
        "its member has more data": _member(_npy(_GOOD) + b"more"),
        "its header is a shape of 10^15": _member(
            _header("{'descr': '<f4', 'fortran_order': False, 'shape': (999899999990001,), }")
        ),
        "its header is a negative shape": _member(
            _header("{'descr': '<f4', 'fortran_order': False, 'shape': (-16, -16), }")
        ),
        "its header is a call": _member(_header("__import__('os').system('id')")),
        "its header is nested 3,000 deep": _member(_header("(" * 3000)),
        "its header is of version 9": _member(_header("{}", version=9)),
        "its member is 64 MiB of zeros, packed": _member(bytes(1 << 26), packed=True),
    }.items():
        yield wrong, partial(_bytes, data)
    for wrong, arrays in {
        "the array is missing": {"z": _GOOD},
        "the array is of doubles": {"x": _GOOD.astype(np.float64)},
        "the array is of the other byte order": {"x": _GOOD.astype(">f4")},
        "the array is of texts": {"x": np.full((SIDE, SIDE), "1")},
        "the array is of another shape": {"x": _GOOD[:, 1:]},
        "the array is of another rank": {"x": _GOOD[0]},
        "the array is a number": {"x": np.float32(1)},
        "the array is of records": {"x": np.zeros((SIDE, SIDE), [("a", "f4")])},
    }.items():
        yield wrong, partial(_npz, arrays)
    yield "it is a folder", _folder


def _folder(folder: Path) -> None:
    take("model.onnx", into=folder)
    (folder / "inputs.npz").mkdir()


def _text(data: bytes, folder: Path) -> None:
    take("model.onnx", into=folder)
    (folder / "model.inputs.json").write_bytes(data)


def _sidecar(change: dict[str, Any], folder: Path) -> None:
    """The sidecar with fields of the recipe changed; None takes one out."""
    recipe = {"dtype": "float32", "shape": [SIDE, SIDE], "kind": "normal", "std": 0.1} | change
    kept = {key: value for key, value in recipe.items() if value is not None}
    _text(json.dumps({"x": kept}).encode(), folder)


def _recipes() -> Iterator[tuple[str, Build]]:
    for wrong, data in {
        "it is empty": b"",
        "it is text": b"recipes",
        "it is not UTF-8": b'{"\xff": 1}',
        "it is nested 100,000 deep": DEEP.encode(),
        "it is a list": b"[]",
        "it is a number": b"1",
        "it is null": b"null",
        "a recipe is a list": b'{"x": []}',
        "a recipe is a number": b'{"x": 1}',
        "a recipe is null": b'{"x": null}',
        "a recipe is empty": b'{"x": {}}',
        "a recipe is nested 100,000 deep": b'{"x": ' + DEEP.encode(),
    }.items():
        yield wrong, partial(_text, data)
    nan, inf = float("nan"), float("inf")
    integers = {"kind": "randint", "std": None}
    for wrong, change in {
        "no dtype": {"dtype": None},
        "no shape": {"shape": None},
        "no kind": {"kind": None},
        "no std": {"std": None},
        "the dtype is foo": {"dtype": "foo"},
        "the dtype is a number": {"dtype": 5},
        "the dtype is object": {"dtype": "O"},
        "the dtype is a record": {"dtype": "f4,f4"},
        "the dtype is another": {"dtype": "float64"},
        "the shape is another": {"shape": [SIDE]},
        "the shape is a number": {"shape": 16},
        "the shape is negative": {"shape": [-16, -16]},
        "the shape has texts": {"shape": ["16", "16"]},
        "the shape is 10^30": {"shape": [10**30, 1]},
        "the kind is unknown": {"kind": "zipf"},
        "the kind is a list": {"kind": ["normal"]},
        "std is a text": {"std": "a"},
        "std is NaN": {"std": nan},
        "std is infinite": {"std": inf},
        "std is -1": {"std": -1},
        "std is 1e308": {"std": 1e308},
        "mean is 1e39": {"mean": 1e39},
        "mean is a list": {"mean": [0]},
        "the value is a list": {"kind": "const", "value": [1, 2, 3]},
        "the value is missing": {"kind": "const"},
        "the value is 1e39": {"kind": "const", "value": 1e39},
        "the value is NaN": {"kind": "const", "value": nan},
        "the value is a text": {"kind": "const", "value": "1"},
        "high is 0": {**integers, "high": 0},
        "high is below low": {**integers, "low": 5, "high": 5},
        "high is missing": integers,
        "high is 1.5": {**integers, "high": 1.5},
        "high is 2^64": {**integers, "high": 1 << 64},
        "low is NaN": {**integers, "low": nan, "high": 5},
    }.items():
        yield wrong, partial(_sidecar, change)
