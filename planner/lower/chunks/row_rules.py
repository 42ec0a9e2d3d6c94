"""The ways in which each operator can be split into chunks of rows.

They follow from the operators' definitions (onnx/docs/Operators.md, and for com.microsoft
onnxruntime/docs/ContribOperators.md). `planner.graph.operators` names the rule of each operator; an
operator without a rule has no way: nothing is guessed.

`tests/lower/test_row_rules.py` tests on ONNX Runtime which ways give the same bits for any chunks.
Products do not, whose kernel takes another path for one row or for fewer columns, nor do sums in
parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from planner.graph.operators.row import RowsRule
from planner.graph.operators.table import operator_of
from planner.lower.chunks.rows import Axes, Shape, Subject, Way
from planner.onnxio.products import plain_order

MIN_OPSET = 13
"""The operator set from which on the rules hold: axes may be inputs, and Softmax is along one axis."""

_MAX_ROWS = (1 << 31) - 1
"""The largest row number: 32 bits hold the start and the end of a chunk."""

Rule = Callable[[Subject], Iterator[Way]]


def ways_of(subject: Subject) -> tuple[Way, ...]:
    """Return all ways in which a node can be split; none where its operator has no rule.

    Every axis that is cut has at least two rows.
    """
    node = subject.node
    rule = operator_of(node.op_type, node.domain).rows
    if rule is None or subject.opset < MIN_OPSET or not subject.outputs or not subject.outputs[0]:
        return ()
    return tuple(way for way in RULES[rule](subject) if _has_rows(subject, way))


def _has_rows(subject: Subject, way: Way) -> bool:
    sides = ((subject.inputs, way.inputs), (subject.outputs, way.outputs))
    cut = [
        s[a]
        for shapes, axes in sides
        for s, a in zip(shapes, axes, strict=True)
        if s and a is not None
    ]
    return bool(cut) and min(cut) > 1 and max(cut) <= _MAX_ROWS


def _axis(value: int, rank: int) -> int:
    return value + rank if value < 0 else value


def _aligned(shape: Shape | None, made: Shape, axis: int) -> int | None:
    """Return the axis of a broadcast input that aligns with one of the result; None where it is
    repeated."""
    place = axis - len(made) + len(shape or ())
    return place if shape is not None and place >= 0 and shape[place] == made[axis] else None


def _elementwise(subject: Subject) -> Iterator[Way]:
    made = subject.made
    for axis, dim in enumerate(made):
        if dim > 1:
            inputs = tuple(_aligned(shape, made, axis) for shape in subject.inputs)
            yield Way(inputs=inputs, outputs=_all(subject.outputs, axis))


def _by_vectors(subject: Subject) -> Iterator[Way]:
    """Yield ways of functions whose kernels treat whole vectors of elements and the remainder
    differently.

    These are Eigen's packet operations: the end of a chunk decides which path an element takes.
    """
    for way in _elementwise(subject):
        yield replace(way, exact=False)


def _all(shapes: Sequence[Shape | None], axis: int) -> Axes:
    return tuple(None if shape is None else axis for shape in shapes)


def _only_first(subject: Subject, axis: int) -> Axes:
    return (axis, *(None for _ in subject.inputs[1:]))


def _along(subject: Subject, others: Iterator[int]) -> Iterator[Way]:
    """Yield ways in which rows of the first input make the same rows of every output."""
    for axis in others:
        yield Way(inputs=_only_first(subject, axis), outputs=_all(subject.outputs, axis))


def _beside_axis(subject: Subject, *, unsaid: int) -> Iterator[Way]:
    """Yield ways along every axis but the operator's own, which is `unsaid` where it names none."""
    rank = len(subject.made)
    along = _axis(subject.integer("axis", unsaid), rank)
    for axis in range(rank):
        if axis != along:
            yield Way(inputs=_all(subject.inputs, axis), outputs=(axis,))


def _normalization(subject: Subject) -> Iterator[Way]:
    rank = len(subject.made)
    first = _axis(subject.integer("axis", -1), rank)
    scales = [s for s in subject.inputs[1:] if s is not None]
    if all(len(s) <= rank - first for s in scales):
        yield from _along(subject, iter(range(first)))


def _skip_normalization(subject: Subject) -> Iterator[Way]:
    """Yield ways of (input, skip, gamma, beta, bias) → (result, mean, deviation, sum).

    The CPU's kernel does not make the middle two outputs (contrib_ops/cpu/skip_layer_norm.cc).
    """
    made = subject.made
    if any(subject.outputs[1:3]):
        return
    for axis in range(len(made) - 1):
        both = (_aligned(s, made, axis) for s in subject.inputs[:2])
        rest = (None for _ in subject.inputs[2:])
        yield Way(inputs=(*both, *rest), outputs=_all(subject.outputs, axis))


def _reduced(subject: Subject) -> tuple[tuple[int, ...], bool] | None:
    """Return (the reduced axes, whether they stay as dims of 1); None where the axes are unknown."""
    rank = len(subject.read(0))
    found = subject.numbers(1, "axes")
    if found is None:
        return None
    if not found and not subject.integer("noop_with_empty_axes"):
        found = tuple(range(rank))
    return tuple(_axis(a, rank) for a in found), bool(subject.integer("keepdims", 1))


def _reduce(subject: Subject) -> Iterator[Way]:
    found = _reduced(subject)
    if found is None:
        return
    axes, keeps = found
    kind = subject.node.op_type
    for axis in range(len(subject.read(0))):
        inputs = _only_first(subject, axis)
        if axis not in axes:
            lost = 0 if keeps else sum(a < axis for a in axes)
            # with fewer rows, the kernel may add in another order
            is_exact = kind in ("ReduceMax", "ReduceMin")
            yield Way(inputs=inputs, outputs=(axis - lost,), exact=is_exact)
        elif kind in _SUMS:
            is_mean = kind == "ReduceMean"
            yield Way(inputs=inputs, outputs=(None,), is_partial=True, is_mean=is_mean, exact=False)


_SUMS = frozenset({"ReduceL1", "ReduceMean", "ReduceSum", "ReduceSumSquare"})
"""Reductions whose partial results can be added up."""


def _arg(subject: Subject) -> Iterator[Way]:
    rank, keeps = len(subject.read(0)), bool(subject.integer("keepdims", 1))
    along = _axis(subject.integer("axis", 0), rank)
    for axis in range(rank):
        if axis != along:
            lost = 0 if keeps or axis < along else 1
            yield Way(inputs=(axis,), outputs=(axis - lost,))


def _product(subject: Subject) -> Iterator[Way]:
    """Yield ways of A[…, M, K] · B[…, K, N], with each operand's axes in the order of its attributes."""
    made = subject.made
    if min(len(subject.read(0)), len(subject.read(1))) < 2:
        return
    (*_, rows, inner), (*_, outer, columns) = orders = [_order(subject, i) for i in (0, 1)]
    rank = len(made)
    for axis in range(rank - 2):
        batch = tuple(
            _aligned_in(subject.read(i), order, made, axis) for i, order in enumerate(orders)
        )
        if made[axis] > 1:
            yield Way(inputs=batch, outputs=(axis,), exact=False)
    yield Way(inputs=(rows, None), outputs=(rank - 2,), exact=False)
    yield Way(inputs=(None, columns), outputs=(rank - 1,), exact=False)
    yield Way(inputs=(inner, outer), outputs=(None,), is_partial=True, exact=False)


def _order(subject: Subject, index: int) -> list[int]:
    """Return the axes of an operand in MatMul's order."""
    side = "AB"[index]
    return plain_order(
        len(subject.read(index)),
        swapped=bool(subject.integer(f"trans{side}")),
        batch_behind=bool(subject.integer(f"transBatch{side}")),
    )


def _aligned_in(shape: Shape, order: Sequence[int], made: Shape, axis: int) -> int | None:
    """Return `_aligned` for an operand whose axes are read in this order."""
    place = _aligned(tuple(shape[a] for a in order), made, axis)
    return None if place is None else order[place]


def _gemm(subject: Subject) -> Iterator[Way]:
    """Yield ways to compute A x B + C in parts.

    Where each part is a summand of the product (no output axis), the first part alone adds C.
    """
    for way in _product(subject):
        axis = way.outputs[0]
        if axis is None and subject.node.op_type != "Gemm":
            continue  # an activation needs the whole sum
        more: Axes = ()
        if len(subject.inputs) > 2:
            shape = subject.inputs[2]
            more = (None if axis is None else _aligned(shape, subject.made, axis),)
        yield replace(way, inputs=(*way.inputs, *more))


def _transpose(subject: Subject) -> Iterator[Way]:
    rank = len(subject.made)
    order = subject.node.attributes.get_ints("perm", tuple(range(rank))[::-1])
    for axis in range(rank):
        yield Way(inputs=(order[axis],), outputs=(axis,))


def _view(subject: Subject) -> Iterator[Way]:
    """Yield pairs of axes with as many elements before them: a stretch of one is a stretch of the
    other."""
    before, after = subject.read(0), subject.made
    for i, dim in enumerate(before):
        for j, other in enumerate(after):
            same = math.prod(before[:i]) == math.prod(after[:j])
            if same and math.gcd(dim, other) > 1:
                yield Way(inputs=_only_first(subject, i), outputs=(j,))


def _gather(subject: Subject) -> Iterator[Way]:
    data, indices = subject.read(0), subject.read(1)
    along = _axis(subject.integer("axis", 0), len(data))
    for axis in range(len(indices)):
        yield Way(inputs=(None, axis), outputs=(along + axis,))
    for axis in range(len(data)):
        if axis != along:
            later = len(indices) - 1 if axis > along else 0
            yield Way(inputs=(axis, None), outputs=(axis + later,))


def _gather_elements(subject: Subject) -> Iterator[Way]:
    data, indices = subject.read(0), subject.read(1)
    along = _axis(subject.integer("axis", 0), len(data))
    for axis in range(len(data)):
        if axis == along:
            yield Way(inputs=(None, axis), outputs=(axis,))
        elif data[axis] == indices[axis]:
            yield Way(inputs=(axis, axis), outputs=(axis,))


def _scatter_elements(subject: Subject) -> Iterator[Way]:
    data, indices = subject.read(0), subject.read(1)
    along = _axis(subject.integer("axis", 0), len(data))
    for axis in range(len(data)):
        if axis != along and data[axis] == indices[axis]:
            yield Way(inputs=(axis, axis, axis), outputs=(axis,))


def _one_hot(subject: Subject) -> Iterator[Way]:
    rank = len(subject.made)
    along = _axis(subject.integer("axis", -1), rank)
    for axis in range(rank):
        if axis != along:
            yield Way(inputs=(axis - (axis > along), None, None), outputs=(axis,))


def _slice(subject: Subject) -> Iterator[Way]:
    rank = len(subject.made)
    starts, axes = subject.numbers(1), subject.numbers(3)
    if starts is None or axes is None:
        return
    cut = {_axis(a, rank) for a in axes or range(len(starts))}
    yield from _along(subject, (axis for axis in range(rank) if axis not in cut))


def _pad(subject: Subject) -> Iterator[Way]:
    rank = len(subject.made)
    pads, named = subject.numbers(1), subject.numbers(3)
    if pads is None or named is None:
        return
    axes = [_axis(a, rank) for a in named or range(rank)]
    count = len(axes)
    sides = zip(axes, pads[:count], pads[count:], strict=True)
    padded = {axis for axis, before, behind in sides if before or behind}
    yield from _along(subject, (axis for axis in range(rank) if axis not in padded))


def _split(subject: Subject) -> Iterator[Way]:
    rank = len(subject.read(0))
    along = _axis(subject.integer("axis"), rank)
    yield from _along(subject, (axis for axis in range(rank) if axis != along))


def _expand(subject: Subject) -> Iterator[Way]:
    made = subject.made
    for axis in range(len(made)):
        yield Way(inputs=(_aligned(subject.read(0), made, axis), None), outputs=(axis,))


def _tile(subject: Subject) -> Iterator[Way]:
    repeats = subject.numbers(1)
    if repeats is not None:
        yield from _along(subject, (axis for axis, times in enumerate(repeats) if times == 1))


def _triangle(subject: Subject) -> Iterator[Way]:
    yield from _along(subject, iter(range(len(subject.made) - 2)))


def _running_sum(subject: Subject) -> Iterator[Way]:
    along = subject.numbers(1)
    if along:
        rank = len(subject.made)
        others = (axis for axis in range(rank) if axis != _axis(along[0], rank))
        yield from _along(subject, others)


RULES: Mapping[RowsRule, Rule] = {
    "elementwise": _elementwise,
    "by vectors": _by_vectors,
    "softmax": partial(_beside_axis, unsaid=-1),
    "normalization": _normalization,
    "skip normalization": _skip_normalization,
    "reduce": _reduce,
    "arg": _arg,
    "product": _product,
    "gemm": _gemm,
    "transpose": _transpose,
    "view": _view,
    "gather": _gather,
    "gather elements": _gather_elements,
    "scatter elements": _scatter_elements,
    "one hot": _one_hot,
    "slice": _slice,
    "pad": _pad,
    "concat": partial(_beside_axis, unsaid=0),
    "split": _split,
    "expand": _expand,
    "tile": _tile,
    "triangle": _triangle,
    "running sum": _running_sum,
}
