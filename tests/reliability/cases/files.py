"""What is given as a model and is none."""

from __future__ import annotations

import gzip
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.reliability.case import ANALYZE, MODEL, OPTIMIZE, USAGE, Build, Case
from tests.reliability.graphs import diamond, proto, save

_WHOLE = proto(diamond()).SerializeToString()
_PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\6\0\0\0\x1f\x15\xc4\x89"


def cases() -> list[Case]:
    """Not a model, part of one, or no file."""
    found = [
        Case(
            room="file", wrong=wrong, arguments=ANALYZE, build=partial(_write, data), exits=(MODEL,)
        )
        for wrong, data in _CONTENTS.items()
    ]
    found += [
        Case(
            room="file",
            wrong=f"the model's last {missing} bytes are missing",
            arguments=ANALYZE,
            build=partial(_write, _WHOLE[:-missing]),
        )
        for missing in (1, 2, 7, 40, 150, len(_WHOLE) // 2, len(_WHOLE) - 1)
    ]
    found += [
        Case(
            room="file",
            wrong=f"byte {at} of the model is another",
            arguments=ANALYZE,
            build=partial(_write, _flipped(at)),
        )
        for at in (0, 2, 8)
    ]
    found += [
        Case(
            room="file",
            wrong=f"the model is {wrong}",
            arguments=OPTIMIZE,
            build=build,
            exits=(USAGE,),
            alone=wrong in ("a pipe", "a character device without end"),
        )
        for wrong, build in _NO_FILES.items()
    ]
    found += [
        Case(
            room="file",
            wrong="the model's name has 300 characters",
            arguments=("analyze", "m" * 300 + ".onnx"),
            exits=(USAGE,),
        ),
        Case(
            room="file",
            wrong="the model's path has 10,000 characters",
            arguments=("analyze", "m/" * 5000 + "model.onnx"),
            exits=(USAGE,),
        ),
        Case(
            room="file",
            wrong="the model's name is empty",
            arguments=("analyze", ""),
            exits=(USAGE,),
        ),
        Case(
            room="file",
            wrong="the model has 3 GiB of zeros, more than a model file can have",
            arguments=ANALYZE,
            build=_three_gib,
            words=("model.onnx",),
            alone=True,
        ),
        Case(
            room="file",
            wrong="the model may not be reached: its folder is a file",
            arguments=("analyze", "file/model.onnx"),
            build=partial(_write_to, "file", b""),
            exits=(USAGE,),
        ),
    ]
    return found


def _write(data: bytes, folder: Path) -> None:
    (folder / "model.onnx").write_bytes(data)


def _write_to(name: str, data: bytes, folder: Path) -> None:
    (folder / name).write_bytes(data)


def _flipped(at: int) -> bytes:
    return _WHOLE[:at] + bytes([_WHOLE[at] ^ 0xFF]) + _WHOLE[at + 1 :]


def _three_gib(folder: Path) -> None:
    with (folder / "model.onnx").open("wb") as file:
        file.truncate(3 << 30)


def _socket(folder: Path) -> None:
    here = Path.cwd()
    os.chdir(folder)  # the path of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("model.onnx")
    finally:
        os.chdir(here)


def _loop(folder: Path) -> None:
    (folder / "model.onnx").symlink_to("model.onnx")


def _link(target: str) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        (folder / "model.onnx").symlink_to(target)

    return build


_CONTENTS = {
    "the model is empty": b"",
    "the model is one zero byte": b"\0",
    "the model is a line of text": b"hello, world\n",
    "the model is JSON": b'{"ir_version": 9}',
    "the model is 1,000 bytes of 0xff": b"\xff" * 1000,
    "the model is a PNG image": _PNG,
    "the model is compressed with gzip": gzip.compress(_WHOLE, mtime=0),
    "the model is text in UTF-16": "ir_version: 9".encode("utf-16"),
    "the model is in ONNX's text form": b'<ir_version: 9, opset_import: ["": 18]> g (float[2] x)',
    "the model is an HTML page": b"<!doctype html><title>404</title>",
    "the model is a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "the model is nested 10,000 deep": b"\x3a\x02" * 10_000,
}

_NO_FILES: dict[str, Build] = {
    "not there": lambda folder: None,
    "a folder": lambda folder: (folder / "model.onnx").mkdir(),
    "a pipe": lambda folder: os.mkfifo(folder / "model.onnx"),
    "a socket": _socket,
    "a link to itself": _loop,
    "a link to nothing": _link("nowhere.onnx"),
    "a null device": _link("/dev/null"),
    "a character device without end": _link("/dev/zero"),
}


def good(folder: Path) -> None:
    """A model that is fine, as `model.onnx`."""
    save(proto(diamond()), folder / "model.onnx")
