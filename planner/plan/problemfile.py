"""The problem file: a planning problem as JSON, solvable without the model.

    {"format": "planner-problem", "version": 1, "name": ..., "fixed_bytes": ..., ...,
     "ops": [{"name", "duration_us", "inputs", "outputs", ...}],
     "tensors": [{"name", "bytes", "producer", "uses", ...}]}

Keys are the fields of `planner.plan.problem`; `inputs`, `outputs` and `inplace` index `tensors`,
`producer` and `uses` index `ops`. Fields with a default may be left out. Reading checks everything
that solvers and the simulator rely on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from planner.errors import ModelError
from planner.files.reading import MAX_BYTES, is_amount, read_text, shown
from planner.files.structuring import Source, fields_of, parse_json, structured
from planner.plan.problem import PlanOp, PlanTensor, Problem

FORMAT = "planner-problem"
VERSION = 1

MAX_US = 1e18
"""The longest operation or copy that planner accepts, in microseconds: some 30,000 years."""


def problem_to_json(problem: Problem) -> str:
    """Return the text of a problem file; reading it gives an equal problem.

    Raises:
        ModelError: the problem is not consistent.
    """
    check_problem(problem, where=f"problem {problem.name!r}")
    data = {"format": FORMAT, "version": VERSION, **fields_of(problem)}
    return json.dumps(data, default=fields_of, ensure_ascii=False) + "\n"


def read_problem(path: Path) -> Problem:
    """Read a problem file.

    Raises:
        ModelError: not a problem file, of another version, or inconsistent; the message names the
            fault.
    """
    return problem_from_json(read_text(path, what="a problem file"), where=str(path))


def problem_from_json(text: str, *, where: str = "the text") -> Problem:
    """Build the problem that `text` describes; `where` names it in errors.

    Raises:
        ModelError: as `read_problem`.
    """
    data = parse_json(text, dict[str, Any], where=where, what="a problem file")
    if data.pop("format", None) != FORMAT:
        raise ModelError(f"{where} is not a problem file (no format {FORMAT!r})")
    version = data.pop("version", None)
    if version != VERSION:
        raise ModelError(
            f"{where} is not a problem file of version {VERSION} (it says {shown(version)})"
        )
    problem = structured(data, Problem, Source(where=where, what="a valid problem file"))
    check_problem(problem, where=where)
    return problem


def check_problem(problem: Problem, *, where: str) -> None:
    """Raise ModelError for the first fault, unless the problem is consistent.

    Indices are in range; operations read only outputs of earlier ones; each tensor's producer lists
    it among its outputs, and its uses are exactly its readers, ascending; bytes, durations and
    bandwidths are finite and not negative.
    """
    for fault in _faults(problem):
        raise ModelError(f"{where} is not a valid problem file: {fault}")


def _faults(problem: Problem) -> Iterator[str]:
    if not problem.ops:
        yield "it has no operations"
    for name in ("fixed_bytes", "capacity_bytes"):
        if not is_amount(getattr(problem, name), at_most=MAX_BYTES):
            yield f"{name} is {shown(getattr(problem, name))}"
    for name in ("swap_out_bytes_per_s", "swap_in_bytes_per_s"):
        if not is_amount(getattr(problem, name)):
            yield f"{name} is {getattr(problem, name)}"
    for i, tensor in enumerate(problem.tensors):
        yield from (f"tensor {i} ({tensor.name!r}) {f}" for f in _tensor_faults(problem, i, tensor))
    readers: list[list[int]] = [[] for _ in problem.tensors]
    for i, op in enumerate(problem.ops):
        yield from (f"operation {i} ({op.name!r}) {f}" for f in _op_faults(problem, i, op))
        for t in op.inputs:
            readers[t].append(i)
    for i, (tensor, reads) in enumerate(zip(problem.tensors, readers, strict=True)):
        if list(tensor.uses) != reads:
            listed, read = set(tensor.uses), set(reads)
            extra, missing = sorted(listed - read), sorted(read - listed)
            fault = f"lists operation {extra[0]}" if extra else f"does not list {missing[0]}"
            yield f"tensor {i} ({tensor.name!r}) {fault} in its uses, unlike the inputs"
    yield from _total_faults(problem)


def _total_faults(problem: Problem) -> Iterator[str]:
    """Yield faults of sums: each value is in range, but their total is not."""
    total = problem.fixed_bytes + sum(t.bytes for t in problem.tensors)
    total += max((op.workspace_bytes for op in problem.ops), default=0)
    if total > MAX_BYTES:
        yield f"its tensors have {total} bytes together, more than {MAX_BYTES}"
    if problem.base_duration_us > MAX_US:
        yield f"its operations take {problem.base_duration_us:g} us together"
    if not problem.allow_swap:
        return
    for t, tensor in enumerate(problem.tensors):
        if problem.swap_out_us(t) > MAX_US or problem.swap_in_us(t) > MAX_US:
            yield f"tensor {t} ({tensor.name!r}) takes {MAX_US:g} us or more to copy"


def _tensor_faults(problem: Problem, index: int, tensor: PlanTensor) -> Iterator[str]:
    count = len(problem.ops)
    if not is_amount(tensor.bytes, at_most=MAX_BYTES):
        yield f"has {shown(tensor.bytes)} bytes"
    if not 0 <= tensor.producer < count:
        yield f"has the producer {tensor.producer}; there are {count} operations"
    elif index not in problem.ops[tensor.producer].outputs:
        yield f"is no output of its producer, operation {tensor.producer}"
    for use in tensor.uses:
        if not 0 <= use < count:
            yield f"has the use {use}; there are {count} operations"
    if any(a >= b for a, b in pairwise(tensor.uses)):
        yield f"has uses that do not ascend: {list(tensor.uses)}"


def _op_faults(problem: Problem, index: int, op: PlanOp) -> Iterator[str]:
    count = len(problem.tensors)
    if not is_amount(op.duration_us, at_most=MAX_US):
        yield f"has a duration of {op.duration_us} us"
    if not is_amount(op.workspace_bytes, at_most=MAX_BYTES):
        yield f"has a workspace of {shown(op.workspace_bytes)} bytes"
    for what, tensors in (("input", op.inputs), ("output", op.outputs)):
        for t in tensors:
            if not 0 <= t < count:
                yield f"has the {what} {t}; there are {count} tensors"
        if len(set(tensors)) != len(tensors):
            yield f"has an {what} twice: {list(tensors)}"
    for t in op.outputs:
        if problem.tensors[t].producer != index:
            yield f"makes tensor {t}, whose producer is {problem.tensors[t].producer}"
    for t in op.inputs:
        if problem.tensors[t].producer >= index:
            maker = problem.tensors[t].producer
            yield f"reads tensor {t}, which operation {maker} makes no earlier"
    for source, target in op.inplace:
        if source not in op.inputs or target not in op.outputs:
            yield f"has the in-place pair ({source}, {target}), not an input and an output of it"
