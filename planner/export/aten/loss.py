"""Losses and their gradients. Reduction codes are ATen's: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

import torch
from torch import fx

from planner.export.aten.registry import Lowering, Result, lowers, shape_of

NONE, MEAN, SUM = 0, 1, 2


@lowers("_log_softmax")
def log_softmax(low: Lowering, x: fx.Node, axis: int, half_to_float: bool) -> Result:
    del half_to_float
    return low.op("LogSoftmax", low.value(x), axis=axis)


@lowers("_log_softmax_backward_data")
def log_softmax_backward(
    low: Lowering, dy: fx.Node, y: fx.Node, axis: int, dtype: torch.dtype
) -> Result:
    """`dy - exp(y) sum(dy)`, from the result."""
    del dtype
    total = low.reduce("Sum", low.value(dy), [axis], keep=True, tag="total")
    share = low.op("Mul", low.op("Exp", low.value(y), tag="softmax"), total, tag="share")
    return low.op("Sub", low.value(dy), share)


@lowers("nll_loss_forward", "nll_loss2d_forward")
def nll_loss(
    low: Lowering,
    scores: fx.Node,
    target: fx.Node,
    weight: fx.Node | None,
    reduction: int,
    ignored: int,
) -> Result:
    """Scores [batch, classes, ...], target [batch, ...] -> loss, number of targets counted."""
    if weight is not None:
        raise low.unsupported("class weights")
    labels = low.value(target)
    skip = low.op("Equal", labels, low.integers(ignored), tag="skip")
    safe = low.op("Where", skip, low.integers(0), labels, tag="safe")
    index = low.op("Unsqueeze", safe, low.integers(1), tag="index")
    picked = low.op("GatherElements", low.value(scores), index, tag="picked", axis=1)
    picked = low.op("Squeeze", picked, low.integers(1), tag="scores")
    kept = low.op("Where", skip, low.scalar(0), picked, tag="kept")
    counted = low.cast(low.op("Not", skip, tag="counted"), torch.bool, low.dtype, "weights")
    axes = range(len(shape_of(target)))
    count = low.reduce("Sum", counted, axes, tag="count")
    if reduction == NONE:
        return [low.op("Neg", kept), count]
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
    """`-dy` (over the count, for a mean) at each target's score; zero elsewhere.

    An ignored target becomes the class after the last, which OneHot leaves empty.
    """
    if weight is not None or reduction == NONE:
        raise low.unsupported("class weights or no reduction")
    classes = int(shape_of(scores)[1])
    grad = low.op("Neg", low.value(dy), tag="negated")
    if reduction == MEAN:
        grad = low.op("Div", grad, low.value(count), tag="each")
    levels = low.op(
        "Concat", low.filled(0, "off", [1]), low.reshape(grad, [1], "on"), tag="levels", axis=0
    )
    skip = low.op("Equal", low.value(target), low.integers(ignored), tag="skip")
    column = low.op("Where", skip, low.integers(classes), low.value(target), tag="column")
    return low.op("OneHot", column, low.integers(classes), levels, axis=1)


@lowers("mse_loss")
def mse_loss(low: Lowering, x: fx.Node, y: fx.Node, reduction: int = MEAN) -> Result:
    error = low.op("Sub", low.value(x), low.value(y), tag="error")
    square = low.op("Mul", error, error, tag="square")
    if reduction == NONE:
        return square
    return low.reduce("Mean" if reduction == MEAN else "Sum", square, range(len(shape_of(x))))


@lowers("mse_loss_backward")
def mse_loss_backward(low: Lowering, dy: fx.Node, x: fx.Node, y: fx.Node, reduction: int) -> Result:
    """`2 dy (x - y)`, over the number of elements for a mean."""
    error = low.op("Sub", low.value(x), low.value(y), tag="error")
    factor = low.op("Mul", low.value(dy), low.scalar(2), tag="factor")
    if reduction == MEAN:
        factor = low.op("Div", factor, low.count(shape_of(x)), tag="each")
    return low.op("Mul", error, factor)
