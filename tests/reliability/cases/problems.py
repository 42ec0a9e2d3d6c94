"""Problem files for `planner solve`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.reliability.case import INFEASIBLE, MODEL, OK, USAGE, Case
from tests.reliability.cases.plans import DEEP
from tests.reliability.kit import document, kit, take

_SOLVE = ("solve", "problem.json", "--budget", "80%", "--time-limit", "2", "-q")


def cases() -> list[Case]:
    """Damaged, inconsistent, or beyond the stated limits."""
    found = [
        Case(room="problem", wrong=wrong, arguments=_SOLVE, build=build, words=("problem.json",))
        for wrong, build in _damaged()
    ]
    found += [
        Case(
            room="problem",
            wrong=wrong,
            arguments=_SOLVE,
            build=partial(_change, change),
            words=("problem.json",),
        )
        for wrong, change in _edited()
    ]
    found += [
        Case(
            room="problem",
            wrong=wrong,
            arguments=_SOLVE,
            build=partial(_change, change),
            exits=(OK, INFEASIBLE),
        )
        for wrong, change in _extreme()
    ]
    for wrong, arguments in {
        "the budget has 5,002 characters": ("--budget", "9" * 5000 + "GB"),
        "the budget is 2^70 bytes": ("--budget", f"{1 << 70}B"),
        "the seed is -1": ("--seed", "-1"),
        "the time limit is 1e308": ("--time-limit", "1e308"),
    }.items():
        found.append(
            Case(
                room="problem",
                wrong=wrong,
                arguments=("solve", "problem.json", *arguments),
                build=partial(_change, lambda p: None),
                exits=(USAGE,),
            )
        )
    found.append(
        Case(
            room="problem",
            wrong="a model for the problem",
            arguments=("solve", "model.onnx"),
            build=lambda folder: take("model.onnx", into=folder),
            exits=(MODEL,),
        )
    )
    return found


def _write(data: bytes, folder: Path) -> None:
    (folder / "problem.json").write_bytes(data)


def _change(change: Callable[[Any], object], folder: Path) -> None:
    problem = document("problem.json")
    change(problem)
    _write(json.dumps(problem).encode(), folder)


def _damaged() -> Iterator[tuple[str, Callable[[Path], object]]]:
    for wrong, data in {
        "it is empty": b"",
        "it is nested 100,000 deep": DEEP.encode(),
        "it is not UTF-8": b'{"format": "\xff"}',
        "it is a number": b"1e999",
        "it is another format": b'{"format": "planner-solution", "version": 1}',
        "it has format and version alone": b'{"format": "planner-problem", "version": 1}',
        "it has a number of 5,000 digits": b'{"format": ' + b"7" * 5000 + b"}",
    }.items():
        yield wrong, partial(_write, data)
    yield "it is cut", lambda f: _write((kit() / "problem.json").read_bytes()[:500], f)


def _edited() -> Iterator[tuple[str, Callable[[Any], object]]]:
    nan, inf = float("nan"), float("inf")
    for wrong, where, field, value in (
        ("bytes of a tensor are -1", "tensors", "bytes", -1),
        ("bytes of a tensor are 2^63", "tensors", "bytes", 1 << 63),
        ("bytes of a tensor are 10^300", "tensors", "bytes", 10**300),
        ("bytes of a tensor are 1.5", "tensors", "bytes", 1.5),
        ("bytes of a tensor are a text", "tensors", "bytes", "8"),
        ("bytes of a tensor are true", "tensors", "bytes", True),
        ("bytes of a tensor are NaN", "tensors", "bytes", nan),
        ("a producer is out of range", "tensors", "producer", 10**6),
        ("a producer is -1", "tensors", "producer", -1),
        ("uses are a number", "tensors", "uses", 1),
        ("uses repeat", "tensors", "uses", [1, 1]),
        ("uses are out of range", "tensors", "uses", [10**9]),
        ("a tensor's name is null", "tensors", "name", None),
        ("a duration is NaN", "ops", "duration_us", nan),
        ("a duration is infinite", "ops", "duration_us", inf),
        ("a duration is 1e308", "ops", "duration_us", 1e308),
        ("a duration is -1", "ops", "duration_us", -1),
        ("a workspace is -1", "ops", "workspace_bytes", -1),
        ("a workspace is 2^63", "ops", "workspace_bytes", 1 << 63),
        ("inputs are a text", "ops", "inputs", "0"),
        ("inputs hold a list", "ops", "inputs", [[0]]),
        ("outputs are out of range", "ops", "outputs", [10**6]),
        ("an in-place pair of a stranger", "ops", "inplace", [[3, 4]]),
        ("an unknown key", "ops", "cost", 1),
    ):

        def change(
            problem: Any, where: str = where, field: str = field, value: Any = value
        ) -> None:
            problem[where][1][field] = value

        yield wrong, change
    for wrong, key, value in (
        ("there are no operations", "ops", []),
        ("operations are null", "ops", None),
        ("tensors are an object", "tensors", {}),
        ("the fixed bytes are -1", "fixed_bytes", -1),
        ("the fixed bytes are 2^62 + 1", "fixed_bytes", (1 << 62) + 1),
        ("the capacity is a text", "capacity_bytes", "80%"),
        ("copies have a bandwidth of NaN", "swap_in_bytes_per_s", nan),
        ("copies have a bandwidth of -1", "swap_in_bytes_per_s", -1),
    ):
        yield wrong, _set(key, value)
    rates = {"swap_out_bytes_per_s": 1e-300, "swap_in_bytes_per_s": 1e9}
    yield "copies take for ever", lambda problem: problem.update(rates)
    yield "sizes that are too large together", _all_of(1 << 60)


def _set(key: str, value: Any) -> Callable[[Any], object]:
    return lambda problem: problem.update({key: value})


def _all_of(size: int) -> Callable[[Any], object]:
    def change(problem: Any) -> None:
        for tensor in problem["tensors"]:
            tensor["bytes"] = size

    return change


def _extreme() -> Iterator[tuple[str, Callable[[Any], object]]]:
    """At the limits, and legal."""
    yield "every tensor has 2^53 + 1 bytes, which is legal", _all_of((1 << 53) + 1)
    yield "every tensor is empty, which is legal", _all_of(0)

    def slow(problem: Any) -> None:
        for op in problem["ops"]:
            op["duration_us"] = 1e15

    yield "operations of 30 years, which is legal", slow

    def quick(problem: Any) -> None:
        for op in problem["ops"]:
            op["duration_us"] = 1e-300

    yield "operations of 1e-300 us, which is legal", quick

    def timeless(problem: Any) -> None:
        for op in problem["ops"]:
            op["duration_us"] = 0

    yield "operations of no time, which is legal", timeless
