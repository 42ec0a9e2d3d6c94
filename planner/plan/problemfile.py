"""The problem file: a planning problem as JSON, so that it can be solved with no model at hand.

    {"format": "planner-problem", "version": 1, "name": ..., "fixed_bytes": ..., ...,
     "ops": [{"name", "duration_us", "inputs", "outputs", ...}],
     "tensors": [{"name", "bytes", "producer", "uses", ...}]}

Keys are the fields of `planner.plan.problem`; `inputs`, `outputs` and `inplace` index `tensors`,
`producer` and `uses` index `ops`. Fields with a default may be left out. What is read is checked: a
problem that comes out of here is one that solvers and the simulator may trust.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import cattrs
from cattrs.gen import make_dict_structure_fn

from planner.errors import ModelError
from planner.plan.problem import PlanOp, PlanTensor, Problem

FORMAT = "planner-problem"
VERSION = 1

_LISTS = frozenset({"ops", "tensors", "inputs", "outputs", "inplace", "uses"})


def problem_to_json(problem: Problem) -> str:
    """The text of a problem file; reading it gives an equal problem.

    Raises:
        ModelError: the problem is not consistent.
    """
    check_problem(problem, where=f"problem {problem.name!r}")
    head = {"format": FORMAT, "version": VERSION}
    return json.dumps(head | cattrs.unstructure(problem), ensure_ascii=False) + "\n"


def read_problem(path: Path) -> Problem:
    """Read a problem file.

    Raises:
        ModelError: not a problem file, of another version, or not consistent; says what is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is not a problem file ({error})") from None
    return problem_from_json(text, where=str(path))


def problem_from_json(text: str, *, where: str = "the text") -> Problem:
    """The problem that `text` describes; `where` names it in errors.

    Raises:
        ModelError: as `read_problem`.
    """
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where} is not a problem file ({error})") from None
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise ModelError(f"{where} is not a problem file (no format {FORMAT!r})")
    version = data.pop("version", None)
    if version != VERSION:
        raise ModelError(
            f"{where} is not a problem file of version {VERSION} (it says {version!r})"
        )
    try:
        problem = _CONVERTER.structure(data, Problem)
    except Exception as error:
        what = cattrs.transform_error(error, path="problem", format_exception=_what)
        raise ModelError(f"{where} is not a valid problem file: {what[0]}") from None
    check_problem(problem, where=where)
    return problem


def check_problem(problem: Problem, *, where: str) -> None:
    """Raise ModelError, with the first thing found, unless the problem is consistent.

    Indices are in range; operations read only what earlier ones made; each tensor's producer lists
    it among its outputs, and its uses are exactly its readers, ascending; bytes, durations and
    bandwidths are finite and not negative.
    """
    for fault in _faults(problem):
        raise ModelError(f"{where} is not a valid problem file: {fault}")


def _faults(problem: Problem) -> Iterator[str]:
    if not problem.ops:
        yield "it has no operations"
    for name in ("fixed_bytes", "capacity_bytes", "swap_out_bytes_per_s", "swap_in_bytes_per_s"):
        if not _is_amount(getattr(problem, name)):
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


def _tensor_faults(problem: Problem, index: int, tensor: PlanTensor) -> Iterator[str]:
    count = len(problem.ops)
    if not _is_amount(tensor.bytes):
        yield f"has {tensor.bytes} bytes"
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
    if not _is_amount(op.duration_us):
        yield f"has a duration of {op.duration_us} us"
    if not _is_amount(op.workspace_bytes):
        yield f"has a workspace of {op.workspace_bytes} bytes"
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


def _is_amount(value: float) -> bool:
    return 0 <= value < math.inf


def _converter() -> cattrs.Converter:
    """Refuses what cattrs would turn into the wanted type: a text of digits, true for 1, 1.5 for 1;
    and keys that no field has."""
    converter = cattrs.Converter()
    converter.register_structure_hook(int, lambda value, _: _of_type(value, int, "a whole number"))
    converter.register_structure_hook(str, lambda value, _: _of_type(value, str, "a text"))
    converter.register_structure_hook(bool, lambda value, _: _of_type(value, bool, "true or false"))
    converter.register_structure_hook(
        float, lambda value, _: float(_of_type(value, (int, float), "a number"))
    )
    for kind in (PlanOp, PlanTensor, Problem):
        make = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True)
        converter.register_structure_hook(kind, partial(_of_object, make))
    return converter


def _of_object(make: Callable[[Any, Any], Any], value: Any, kind: type) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"{_short(value)} is not an object")
    for key in sorted(_LISTS & value.keys()):
        if not isinstance(value[key], list):
            raise TypeError(f"{key} is {_short(value[key])}, not a list")
    return make(value, kind)


def _of_type(value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{_short(value)} is not {what}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _what(error: BaseException, _type: type | None) -> str:
    if isinstance(error, KeyError):
        return f"the key {error.args[0]!r} is missing"
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        return f"unknown key {min(error.extra_fields)!r}"
    return str(error)


_CONVERTER = _converter()
