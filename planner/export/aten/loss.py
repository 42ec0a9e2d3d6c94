"""Losses and their gradients. Reduction codes are ATen's: 0 none, 1 mean, 2 sum.

The gradient of cross-entropy has one non-zero class in each row, and feeds directly into the gradient of
log softmax. Both are lowered together without the zeros (`_at_targets`). This takes less time, and half
of the memory on tensors as large as the logits, which in a language model are the largest.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import fx

from planner.export.aten.registry import (
    HALF,
    RULES,
    Lowering,
    Result,
    dtype_of,
    lowers,
    numpy_dtype,
    rank_of,
    shape_of,
)
from planner.export.write.emit import Value

NONE, MEAN, SUM = 0, 1, 2


@lowers("_log_softmax")
def log_softmax(low: Lowering, x: fx.Node, axis: int, half_to_float: bool) -> Result:
    del half_to_float
    return low.op("LogSoftmax", low.operand(x, low.dtype), axis=axis)


@lowers("_log_softmax_backward_data", wide=True)
def log_softmax_backward(
    low: Lowering, dy: fx.Node, y: fx.Node, axis: int, dtype: torch.dtype
) -> Result:
    """Lower log softmax's gradient from its result: `dy - exp(y) sum(dy)`."""
    del dtype
    if axis == 1 and _is_one_class(dy):
        return _at_targets(low, low.value(y), dy)
    total = low.reduce("Sum", low.value(dy), [axis], keep=True, tag="total")
    share = low.op("Mul", low.op("Exp", low.value(y), tag="softmax"), total, tag="share")
    return low.op("Sub", low.value(dy), share)


def _is_one_class(dy: fx.Node) -> bool:
    """Tell whether a gradient comes from our negative log likelihood rule, not rounded to half."""
    key = str(dy.target).removeprefix("aten.")
    return RULES.get(key) is nll_loss_backward and dtype_of(dy) not in HALF


def _at_targets(low: Lowering, y: Value, loss: fx.Node) -> Value:
    """Lower both gradients: `exp(y) each - each` at each target's class, and `exp(y) each` elsewhere.

    `each` is 0 for an ignored target. The result equals, bit for bit, `dy - exp(y) sum(dy)` with the `dy`
    of `loss`.
    """
    dy, _, target, weight, reduction, ignored, count = cast(tuple[Any, ...], loss.args)
    each = low.operand(dy, low.dtype)
    if reduction == MEAN:
        each = low.op("Div", each, low.operand(count, low.dtype), tag="each")
    skip = low.op("Equal", low.value(target), low.integers(ignored), tag="skip")
    safe = low.op("Where", skip, low.integers(0), low.value(target), tag="safe")
    if weight is not None:
        weights = low.op(
            "Gather", low.operand(weight, low.dtype), safe, tag="class_weights", axis=0
        )
        each = low.op("Mul", each, weights, tag="weighted")
    each = low.op("Where", skip, low.scalar(0), each, tag="counted")
    beside = low.op("Unsqueeze", each, low.integers(1), tag="beside")
    index = low.op("Unsqueeze", safe, low.integers(1), tag="index")
    share = low.op("Mul", low.op("Exp", y, tag="softmax"), beside, tag="share")
    hit = low.op("GatherElements", share, index, tag="hit", axis=1)
    less = low.op("Sub", hit, beside, tag="less")
    return low.op("ScatterElements", share, index, less, axis=1)


@lowers("nll_loss_forward", "nll_loss2d_forward", wide=True)
def nll_loss(
    low: Lowering,
    scores: fx.Node,
    target: fx.Node,
    weight: fx.Node | None,
    reduction: int,
    ignored: int,
) -> Result:
    """Lower scores [batch, classes, ...] and target [batch, ...] to the loss and a mean's divisor.

    The divisor is the number of counted targets, or the sum of their class weights. Scores may also be of
    one target without a batch.
    """
    is_one, labels, all_scores = rank_of(scores) == 1, low.value(target), low.value(scores)
    if is_one:
        labels = low.reshape(labels, [1], "label")
        all_scores = low.reshape(all_scores, [1, *shape_of(scores)], "row")
    skip = low.op("Equal", labels, low.integers(ignored), tag="skip")
    safe = low.op("Where", skip, low.integers(0), labels, tag="safe")
    index = low.op("Unsqueeze", safe, low.integers(1), tag="index")
    picked = low.op("GatherElements", all_scores, index, tag="picked", axis=1)
    picked = low.op("Squeeze", picked, low.integers(1), tag="scores")
    kept = low.op("Where", skip, low.scalar(0), picked, tag="kept")
    counted = low.cast(low.op("Not", skip, tag="counted"), torch.bool, low.dtype, "weights")
    if weight is not None:
        each = low.op("Gather", low.operand(weight, low.dtype), safe, tag="class_weights", axis=0)
        counted = low.op("Mul", counted, each, tag="counted_weights")
        kept = low.op("Mul", kept, each, tag="weighted")
    axes = range(max(1, rank_of(target)))
    count = low.reduce("Sum", counted, axes, tag="count")
    if reduction == NONE:
        each = low.op("Neg", kept, tag="each" if is_one else "")
        return [low.reshape(each, []) if is_one else each, count]
    total = low.op("Neg", low.reduce("Sum", kept, axes, tag="total"), tag="negated")
    return [low.op("Div", total, count) if reduction == MEAN else total, count]


@lowers("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    low: Lowering,
    dy: fx.Node,
    scores: fx.Node,
    target: fx.Node,
    weight: fx.Node | None,
    reduction: int,
    ignored: int,
    count: fx.Node,
) -> Result:
    """Lower the gradient of negative log likelihood: at each target's score `-dy`, else zero.

    For a mean it is divided by the count, and with class weights multiplied by the class's. An ignored
    target becomes the class after the last, which OneHot leaves empty.
    """
    is_one = rank_of(scores) == 1
    classes = int(shape_of(scores)[-1 if is_one else 1])
    kind = torch.float32 if low.dtype in HALF else low.dtype
    grad = low.op("Neg", low.operand(dy, kind), tag="negated")
    if reduction == MEAN:
        grad = low.op("Div", grad, low.operand(count, kind), tag="each")
    if weight is None and reduction != NONE and low.dtype != torch.float64 and not is_one:
        grad = low.cast(grad, kind, low.dtype, "each_rounded")
        parts = (low.filled(0, "off", [1]), low.reshape(grad, [1], "on"))
        levels = low.op("Concat", *parts, tag="levels", axis=0)
        return low.op(
            "OneHot", _column(low, target, ignored, classes), low.integers(classes), levels, axis=1
        )
    if reduction == MEAN:  # over no class: infinite, and 0 times that is NaN
        is_none = low.op("IsInf", grad, tag="over_none")
        grad = low.op("Where", is_none, low.scalar(0, kind), grad, tag="of_some")
    column = _column(low, target, ignored, classes)
    if is_one:
        column = low.reshape(column, [1], "one_column")
    if weight is not None:
        safe = low.op("Mod", column, low.integers(classes), tag="safe")
        each = low.op("Gather", low.operand(weight, kind), safe, tag="class_weights", axis=0)
        grad = low.op("Mul", grad, each, tag="weighted")
    grad = low.cast(grad, kind, low.dtype, "each_rounded")
    if weight is not None or reduction == NONE:
        grad = low.op("Unsqueeze", grad, low.integers(-1 if is_one else 1), tag="beside")
    hits = _hits(low, column, classes, max(1, rank_of(target)))
    found = low.op("Mul", hits, grad, tag="row_grad" if is_one else "")
    return low.reshape(found, low.shape) if is_one else found


def _column(low: Lowering, target: fx.Node, ignored: int, classes: int) -> Value:
    """Return each target's class, or for an ignored target the class after the last."""
    skip = low.op("Equal", low.value(target), low.integers(ignored), tag="skip")
    return low.op("Where", skip, low.integers(classes), low.value(target), tag="column")


def _hits(low: Lowering, column: Value, classes: int, rank: int) -> Value:
    """Return 1 at each target's class, 0 elsewhere.

    ONNX Runtime's CPU provider has no OneHot in float64.
    """
    if low.dtype != torch.float64:
        kind = numpy_dtype(low.dtype)
        levels = low.builder.constant(np.array([0, 1], kind))
        return low.op("OneHot", column, low.integers(classes), levels, tag="hits", axis=1)
    places = low.builder.constant(np.arange(classes).reshape(-1, *[1] * (rank - 1)))
    beside = low.op("Unsqueeze", column, low.integers(1), tag="column_beside")
    hit = low.op("Equal", beside, places, tag="hit")
    return low.cast(hit, torch.bool, low.dtype, "hits")


@lowers("mse_loss", wide=True)
def mse_loss(low: Lowering, x: fx.Node, y: fx.Node, reduction: int = MEAN) -> Result:
    error = low.op("Sub", low.value(x), low.value(y), tag="error")
    square = low.op("Mul", error, error, tag="square")
    if reduction == NONE:
        return square
    return low.reduce("Mean" if reduction == MEAN else "Sum", square, range(len(shape_of(x))))


@lowers("mse_loss_backward", wide=True)
def mse_loss_backward(low: Lowering, dy: fx.Node, x: fx.Node, y: fx.Node, reduction: int) -> Result:
    """Lower squared error's gradient: `2 dy (x - y)`, over the number of elements for a mean."""
    error = low.op("Sub", low.value(x), low.value(y), tag="error")
    factor = low.op("Mul", low.value(dy), low.scalar(2), tag="factor")
    if reduction == MEAN:
        factor = low.op("Div", factor, low.count(shape_of(x)), tag="each")
    return low.op("Mul", error, factor)
