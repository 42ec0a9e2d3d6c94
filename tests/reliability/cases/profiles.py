"""Profiles of ONNX Runtime that are none, or hold figures that are none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.reliability.case import MODEL, USAGE, Case
from tests.reliability.cases.plans import DEEP
from tests.reliability.kit import document, kit, take

_ANALYZE = ("analyze", "model.onnx", "--profile", "profile.json", "--time-limit", "2", "-q")


def cases() -> list[Case]:
    """Damaged, or with times that are no times."""
    found = [
        Case(
            room="profile",
            wrong=wrong,
            arguments=_ANALYZE,
            build=build,
            exits=(MODEL,),
            words=("profile.json",),
        )
        for wrong, build in (*_damaged(), *_edited())
    ]
    found += [
        Case(
            room="profile",
            wrong=wrong,
            arguments=_ANALYZE,
            build=build,
            exits=(USAGE,),
            words=("profile.json", "none of the model's nodes"),
        )
        for wrong, build in (
            ("it is an empty list", partial(_write, b"[]")),
            (
                "it is of another model",
                partial(_change, partial(_each, "name", "ghost_kernel_time")),
            ),
        )
    ]
    return found


def _write(data: bytes, folder: Path) -> None:
    take("model.onnx", into=folder)
    (folder / "profile.json").write_bytes(data)


def _change(change: Callable[[Any], object], folder: Path) -> None:
    profile = document("profile.json")
    change(profile)
    _write(json.dumps(profile).encode(), folder)


def _each(key: str, value: Any, profile: Any) -> None:
    for event in profile:
        if event.get("cat") == "Node":
            event[key] = value


def _damaged() -> Iterator[tuple[str, Callable[[Path], object]]]:
    for wrong, data in {
        "it is empty": b"",
        "it is text": b"profile",
        "it is not UTF-8": b'["\xff"]',
        "it is nested 100,000 deep": DEEP.encode(),
        "it is a number": b"7",
        "it is null": b"null",
        "it is an object": b'{"a": 1}',
        "it is a list of numbers": b"[1, 2]",
        "it has a number of 5,000 digits": b"[" + b"1" * 5000 + b"]",
    }.items():
        yield wrong, partial(_write, data)
    yield "it is cut", lambda f: _write((kit() / "profile.json").read_bytes()[:-20], f)
    yield "it is a plan", lambda f: _write((kit() / "plan.json").read_bytes(), f)


def _edited() -> Iterator[tuple[str, Callable[[Path], object]]]:
    for value in (float("nan"), float("inf"), 1e308, -1, "soon", None, [1], 1 << 70, True):
        yield f"durations are {value!r}", partial(_change, partial(_each, "dur", value))
    yield "starts are NaN", partial(_change, partial(_each, "ts", float("nan")))
    yield "arguments are a list", partial(_change, partial(_each, "args", []))
    yield "names are numbers", partial(_change, partial(_each, "name", 5))
    huge = {"op_name": "Tanh", "output_size": "9" * 5000}
    yield "bytes of 5,000 digits", partial(_change, partial(_each, "args", huge))
