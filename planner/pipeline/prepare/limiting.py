"""User limits: operations that may not be recomputed, tensors that may not leave the device.

A pattern is matched against each tensor and each operation:

    layers.3.*            names of tensors or nodes, as a shell matches file names
    op:Softmax            type of the operation, or of the one that makes the tensor
    category:activation   category of the tensor (`planner.graph.model.Category`)

Tensors and operations that match --exclude stay as they are. With an --include, so do all that do
not match it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from planner.errors import UsageError
from planner.files.reading import closest
from planner.graph.model import Category, Operation, Tensor, TensorId, TrainingGraph
from planner.graph.reasons import WhyOnce, WhyStay
from planner.pipeline.prepare.prepared import Prepared
from planner.request import Levers
from planner.units import parse_bytes

_OP, _CATEGORY = "op:", "category:"
_CLOSEST = 3


def limited(prepared: Prepared) -> Prepared:
    """Bar the tensors and operations that the request excludes.

    Raises:
        UsageError: a pattern matches nothing, or a size cannot be read.
    """
    levers = prepared.request.levers
    if not (levers.include or levers.exclude or levers.min_tensor or levers.disk):
        return prepared
    least = least_copied(levers)
    graph = prepared.graph
    included = _matched(graph, levers.include, "--include")
    excluded = _matched(graph, levers.exclude, "--exclude")
    out = set(excluded)
    if levers.include:
        out |= {t.id for t in graph.tensors if t.id not in included}
    open_ = (t for t in graph.tensors if t.barred is None)
    stay = {t.id: why for t in open_ if (why := _why(t, out, least))}
    alone = (op for op in graph.operations if op.barred is None)
    once = {op.id: WhyOnce.EXCLUDED for op in alone if not out.isdisjoint(op.outputs)}
    return replace(prepared, graph=graph.with_bars(stay, once))


def least_copied(levers: Levers) -> int:
    """Return the size in bytes below which a tensor is not copied.

    This is the size that the request gives; without one, the size below which copies to a disk get
    no faster, or 0 if there is no disk.

    Raises:
        UsageError: the size cannot be read.
    """
    text = levers.min_tensor
    if text is not None:
        return parse_bytes(text, what="--min-tensor", zero_ok=True)
    return 0 if levers.disk is None else levers.disk.least_bytes


def _why(tensor: Tensor, out: set[TensorId], least: int) -> WhyStay | None:
    if tensor.id in out:
        return WhyStay.EXCLUDED
    return WhyStay.SMALL if tensor.bytes < least else None


def _matched(graph: TrainingGraph, patterns: Sequence[str], option: str) -> set[TensorId]:
    """Return the tensors that match any of the patterns, or whose producers do."""
    found: set[TensorId] = set()
    for pattern in patterns:
        here = _of(graph, pattern)
        if not here:
            raise UsageError(f"{option} {pattern!r} matches nothing{_hint(graph, pattern)}")
        found |= here
    return found


def _of(graph: TrainingGraph, pattern: str) -> set[TensorId]:
    """Return the tensors that match one pattern, or whose producers do."""
    found = {t.id for t in graph.tensors if _is_tensor(t, pattern)}
    for op in graph.operations:
        if _is_operation(op, pattern):
            found.update(op.outputs)
    return found


def _is_tensor(tensor: Tensor, pattern: str) -> bool:
    if pattern.startswith(_CATEGORY):
        return fnmatchcase(tensor.category.value, pattern.removeprefix(_CATEGORY))
    return not pattern.startswith(_OP) and fnmatchcase(tensor.name, pattern)


def _is_operation(op: Operation, pattern: str) -> bool:
    if pattern.startswith(_OP):
        return fnmatchcase(op.op_type, pattern.removeprefix(_OP))
    return not pattern.startswith(_CATEGORY) and fnmatchcase(op.name, pattern)


def _hint(graph: TrainingGraph, pattern: str) -> str:
    """Suggest names that resemble a pattern."""
    if pattern.startswith(_CATEGORY):
        return f"; the categories are {', '.join(c.value for c in Category)}"
    if pattern.startswith(_OP):
        known, wish = sorted({op.op_type for op in graph.operations}), pattern.removeprefix(_OP)
    else:
        known, wish = (
            [t.name for t in graph.tensors] + [op.name for op in graph.operations],
            pattern,
        )
    return closest(wish, known, "are", most=_CLOSEST)
