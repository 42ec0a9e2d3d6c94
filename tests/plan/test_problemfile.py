"""The problem file: read back as it was written, and refused, with the reason, where it is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import ModelError
from planner.plan.problem import PlanOp, PlanTensor, Problem
from planner.plan.problemfile import (
    FORMAT,
    VERSION,
    check_problem,
    problem_from_json,
    problem_to_json,
    read_problem,
)
from tests.graphs import problems

amounts = st.floats(0, 1e15) | st.integers(0, 1 << 49)
bandwidths = st.just(0.0) | st.floats(1, 1e300)


@settings(max_examples=60, deadline=None)
@given(problem=problems(), data=st.data())
def test_a_problem_is_read_back_as_it_was_written(problem: Problem, data: st.DataObject):
    problem = replace(
        problem,
        name=data.draw(st.text()),
        ops=tuple(replace(op, duration_us=data.draw(amounts)) for op in problem.ops),
        swap_in_bytes_per_s=data.draw(bandwidths),
        overlap=data.draw(st.booleans()),
    )
    assert problem_from_json(problem_to_json(problem)) == problem


def test_the_file_names_every_field(pair: dict[str, Any]):
    def names(kind: type) -> list[str]:
        return [field.name for field in fields(kind)]

    written = json.loads(problem_to_json(problem_from_json(json.dumps(pair))))
    assert list(written) == ["format", "version", *names(Problem)]
    assert list(written["ops"][0]) == names(PlanOp)
    assert list(written["tensors"][0]) == names(PlanTensor)


def test_what_has_a_default_may_be_left_out(pair: dict[str, Any]):
    problem = problem_from_json(json.dumps(pair))
    assert problem.ops[0].recomputable
    assert problem.tensors[0].swappable
    assert problem.allow_recompute
    assert not problem.allow_swap


@pytest.fixture
def pair() -> dict[str, Any]:
    """Two operations, the second reads what the first makes; only what has no default."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": "pair",
        "ops": [
            {"name": "make", "duration_us": 1, "inputs": [], "outputs": [0]},
            {"name": "read", "duration_us": 2.5, "inputs": [0], "outputs": [1]},
        ],
        "tensors": [
            {"name": "x", "bytes": 8, "producer": 0, "uses": [1]},
            {"name": "y", "bytes": 4, "producer": 1, "uses": []},
        ],
        "fixed_bytes": 0,
        "capacity_bytes": 12,
    }


Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("format"), "problem file .no format 'planner-problem'"),
        (lambda d: d.update(version=2), "of version 1 .it says 2"),
        (lambda d: d.pop("version"), "version 1 .it says None"),
        (lambda d: d.pop("tensors"), "missing required field `tensors`"),
        (lambda d: d.update(budget=3), r"unknown key 'budget' - at `\$`"),
        (lambda d: d["ops"][1].update(cost=3), r"unknown key 'cost' - at `\$\.ops\[1\]`"),
        (lambda d: d["ops"][1].update(duration_us="1"), r"got `str` - at `\$\.ops\[1\]\.duration_us`"),
        (lambda d: d["ops"][1].update(inputs="0"), r"`array`, got `str` - at `\$\.ops\[1\]\.inputs`"),
        (lambda d: d["ops"].append(3), r"Expected `object`, got `int` - at `\$\.ops\[2\]`"),
        (lambda d: d["tensors"][0].update(bytes=1.5), r"got `float` - at `\$\.tensors\[0\]\.bytes`"),
        (lambda d: d["tensors"][0].update(bytes=True), r"got `bool` - at `\$\.tensors\[0\]\.bytes`"),
        (lambda d: d["tensors"][0].update(to_end=1), r"got `int` - at `\$\.tensors\[0\]\.to_end`"),
        (lambda d: d.update(name=7), r"Expected `str`, got `int` - at `\$\.name`"),
        (lambda d: d.update(ops=[], tensors=[]), "it has no operations"),
        (lambda d: d.update(fixed_bytes=-1), "fixed_bytes is -1"),
        (lambda d: d.update(swap_in_bytes_per_s=math.inf), r"invalid character \(byte \d+\)"),
        (lambda d: d["ops"][0].update(duration_us=math.nan), r"invalid character \(byte \d+\)"),
        (lambda d: d["ops"][0].update(workspace_bytes=-8), "'make'. has a workspace of -8 bytes"),
        (lambda d: d["ops"][1].update(inputs=[2]), "'read'. has the input 2; there are 2 tensors"),
        (lambda d: d["ops"][1].update(inputs=[-1]), "'read'. has the input -1"),
        (lambda d: d["ops"][1].update(inputs=[0, 0]), r"has an input twice: \[0, 0\]"),
        (lambda d: d["ops"][0].update(inputs=[1]), "reads tensor 1, which operation 1 makes no"),
        (lambda d: d["ops"][1].update(outputs=[1, 0]), "makes tensor 0, whose producer is 0"),
        (lambda d: d["ops"][1].update(outputs=[]), "'y'. is no output of its producer"),
        (lambda d: d["ops"][1].update(inplace=[[1, 0]]), r"has the in-place pair \(1, 0\)"),
        (lambda d: d["tensors"][0].update(bytes=-1), "'x'. has -1 bytes"),
        (lambda d: d["tensors"][0].update(producer=2), "'x'. has the producer 2; there are 2"),
        (lambda d: d["tensors"][0].update(uses=[2]), "'x'. has the use 2; there are 2 operations"),
        (lambda d: d["tensors"][0].update(uses=[1, 1]), r"uses that do not ascend: \[1, 1\]"),
        (lambda d: d["tensors"][0].update(uses=[]), "'x'. does not list 1 in its uses"),
        (lambda d: d["tensors"][1].update(uses=[0]), "'y'. lists operation 0 in its uses"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change: Change, message: str, pair: dict[str, Any], tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(pair))
    assert read_problem(path).name == "pair"
    change(pair)
    path.write_text(json.dumps(pair))
    with pytest.raises(ModelError, match=rf"problem\.json is not a.*{message}") as raised:
        read_problem(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"no JSON", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_problem_file_is_refused(content: bytes, tmp_path):
    path = tmp_path / "problem.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"problem\.json is not a problem file"):
        read_problem(path)


def test_an_inconsistent_problem_is_not_written(pair: dict[str, Any]):
    problem = problem_from_json(json.dumps(pair))
    bad = replace(problem, tensors=(replace(problem.tensors[0], uses=()), problem.tensors[1]))
    with pytest.raises(ModelError, match="problem 'pair' is not a valid problem file"):
        problem_to_json(bad)


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_consistent_problems_pass(problem: Problem):
    check_problem(problem, where="it")
