"""Layer and batch normalization, with the gradients of their inputs, scales and shifts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from planner.export.aten.registry import (
    ABSENT,
    HALF,
    Lowering,
    Result,
    dtype_of,
    lowers,
    rank_of,
    shape_of,
)
from planner.export.write.emit import Value


@lowers("native_layer_norm")
def layer_norm(
    low: Lowering,
    x: fx.Node,
    normalized: Sequence[int],
    scale: fx.Node | None,
    shift: fx.Node | None,
    epsilon: float,
) -> Result:
    """Lower layer norm to (result, mean, 1 / standard deviation); the last two keep the reduced axes.

    For half types the last two are float32, as in ONNX. If scales have another type than x, all
    computation is in float32.
    """
    kinds = {dtype_of(node) for node in (x, scale, shift) if node is not None}
    kind = torch.float32 if len(kinds) > 1 else dtype_of(x)
    if kind == torch.float64:
        return _layer_norm_in_double(low, x, len(normalized), scale, shift, epsilon)
    ones = low.filled(1, "ones", normalized, kind) if scale is None else low.operand(scale, kind)
    y, mean, rstd = low.ops(
        "LayerNormalization",
        low.operand(x, kind),
        ones,
        low.operand(shift, kind) if shift is not None else ABSENT,
        tags=("", "mean", "rstd"),
        axis=-len(normalized),
        epsilon=epsilon,
    )
    if kind in HALF or kind != low.dtype:
        mean, rstd = low.keep_wide(mean), low.keep_wide(rstd)
    return [low.cast(y, kind, low.dtype, "rounded"), mean, rstd]


def _layer_norm_in_double(
    low: Lowering,
    x: fx.Node,
    depth: int,
    scale: fx.Node | None,
    shift: fx.Node | None,
    epsilon: float,
) -> Result:
    """Lower layer norm over the last `depth` axes in float64; ONNX's has float32 statistics."""
    axes = list(range(-depth, 0))
    mean = low.reduce("Mean", low.value(x), axes, keep=True, tag="mean")
    centered = low.op("Sub", low.value(x), mean, tag="centered")
    square = low.op("Mul", centered, centered, tag="square")
    var = low.reduce("Mean", square, axes, keep=True, tag="var")
    std = low.op("Sqrt", low.op("Add", var, low.scalar(epsilon), tag="padded"), tag="std")
    rstd = low.op("Reciprocal", std, tag="rstd")
    y = low.op("Mul", centered, rstd, tag="unit")
    if scale is not None:
        y = low.op("Mul", y, low.value(scale), tag="scaled")
    return [y if shift is None else low.op("Add", y, low.value(shift)), mean, rstd]


@lowers("native_layer_norm_backward", wide=True)
def layer_norm_backward(
    low: Lowering,
    dy: fx.Node,
    x: fx.Node,
    normalized: Sequence[int],
    mean: fx.Node,
    rstd: fx.Node,
    scale: fx.Node | None,
    shift: fx.Node | None,
    wanted: Sequence[bool],
) -> Result:
    """Lower to the gradients of x, scale, shift.

    With x̂ the normalized input and g = dy scale: `dx = (g - mean(g) - x̂ mean(g x̂)) rstd`.
    """
    rank = rank_of(x)
    outer, inner = list(range(rank - len(normalized))), list(range(-len(normalized), 0))
    grad = low.value(dy)
    centered = low.op("Sub", low.value(x), low.value(mean), tag="centered")
    unit = low.op("Mul", centered, low.value(rstd), tag="unit")
    dx = dscale = dshift = None
    if wanted[0]:
        dunit = grad if scale is None else low.op("Mul", grad, low.value(scale), tag="dunit")
        offset = low.reduce("Mean", dunit, inner, keep=True, tag="offset")
        product = low.op("Mul", dunit, unit, tag="product")
        slope = low.reduce("Mean", product, inner, keep=True, tag="slope")
        tilt = low.op("Mul", unit, slope, tag="tilt")
        level = low.op("Sub", dunit, offset, tag="level")
        dx = low.op("Mul", low.op("Sub", level, tilt, tag="residual"), low.value(rstd))
    if wanted[1]:
        weighted = low.op("Mul", grad, unit, tag="weighted")
        dscale = low.reduce("Sum", weighted, outer, tag="dscale")
    if wanted[2]:
        dshift = low.reduce("Sum", grad, outer, tag="dshift")
    return [dx, dscale, dshift]


@lowers("_native_batch_norm_legit_functional", wide=True)
def batch_norm(
    low: Lowering,
    x: fx.Node,
    scale: fx.Node | None,
    shift: fx.Node | None,
    running_mean: fx.Node,
    running_var: fx.Node,
    training: bool,
    momentum: float,
    epsilon: float,
) -> Result:
    """Lower to (result, batch mean, batch 1 / standard deviation, new running mean, new running var).

    The batch statistics are computed separately, and BatchNormalization takes them in its inference form:
    every execution provider has that form, and a recompute does not change the running statistics. The
    variance takes two passes: E[x²] - E[x]² loses digits. The mean of the squares is a product and a
    ReduceMean: ONNX Runtime's ReduceSumSquare took three times as long on a CPU, and had a hundred times
    the error.
    """
    if not training:
        raise low.unsupported("evaluation mode")
    rank, axes = rank_of(x), _all_but_channels(x)
    mean = low.reduce("Mean", low.value(x), axes, tag="mean")
    centered = low.op("Sub", low.value(x), low.per_channel(mean, rank, "mean_r"), tag="centered")
    squares = low.op("Mul", centered, centered, tag="squares")
    var = low.reduce("Mean", squares, axes, tag="var")
    std = low.op("Sqrt", low.op("Add", var, low.scalar(epsilon), tag="padded"), tag="std")
    rstd = low.op("Reciprocal", std, tag="rstd")
    channels = [shape_of(x)[1]]
    y = low.op(
        "BatchNormalization",
        low.value(x),
        low.value(scale) if scale is not None else low.filled(1, "ones", channels),
        low.value(shift) if shift is not None else low.filled(0, "zeros", channels),
        mean,
        var,
        epsilon=epsilon,
    )
    count = low.count([shape_of(x)[axis] for axis in axes])
    fewer = low.op("Sub", count, low.scalar(1), tag="fewer")
    total = low.op("Mul", var, count, tag="total")
    unbiased = low.op("Div", total, fewer, tag="unbiased")
    return [
        y,
        low.keep_wide(mean),
        low.keep_wide(rstd),
        low.keep_wide(_blend(low, low.value(running_mean), mean, momentum, "running_mean")),
        low.keep_wide(_blend(low, low.value(running_var), unbiased, momentum, "running_var")),
    ]


@lowers("native_batch_norm_backward", wide=True)
def batch_norm_backward(
    low: Lowering,
    dy: fx.Node,
    x: fx.Node,
    scale: fx.Node | None,
    running_mean: fx.Node | None,
    running_var: fx.Node | None,
    mean: fx.Node,
    rstd: fx.Node,
    training: bool,
    epsilon: float,
    wanted: Sequence[bool],
) -> Result:
    """Lower to the gradients of x, scale, shift.

    As in layer normalization, with the sums over batch and space folded into per-channel factors: `dx =
    scale rstd (dy - (dshift + (x - mean) rstd dscale) / count)`. In evaluation mode the statistics are
    constants: `dx = scale rstd dy`.

    The part with x is linear in x for each channel, and BatchNormalization computes it in one pass over
    memory. The images are not centered for the sums: `sum(dy (x - mean))` is `sum(dy x) - mean sum(dy)`.
    This loses no more digits than the forward pass, where BatchNormalization folds the mean into its
    shift. Centered images would also equal the forward pass's, and ONNX Runtime would share these and
    hold them until here.
    """
    rank, axes = rank_of(x), _all_but_channels(x)
    grad, images = low.value(dy), low.value(x)
    if training:
        center, inverse = low.value(mean), low.value(rstd)
    else:
        assert running_mean is not None and running_var is not None
        center = low.operand(running_mean, low.dtype)
        padded = low.op(
            "Add", low.operand(running_var, low.dtype), low.scalar(epsilon), tag="padded"
        )
        inverse = low.op("Reciprocal", low.op("Sqrt", padded, tag="std"), tag="rstd")
    dshift = low.reduce("Sum", grad, axes, tag="dshift")
    product = low.op("Mul", grad, images, tag="product")
    total = low.reduce("Sum", product, axes, tag="total")
    level = low.op("Mul", center, dshift, tag="level")
    correlation = low.op("Sub", total, level, tag="correlation")
    dscale = low.op("Mul", correlation, inverse, tag="dscale")
    if not wanted[0]:
        return [None, dscale, dshift]

    factor = inverse if scale is None else low.op("Mul", low.value(scale), inverse, tag="factor")
    if not training:
        scaled = low.op("Mul", grad, low.per_channel(factor, rank, "factor_r"), tag="scaled")
        return [scaled, dscale, dshift]
    count = low.count([shape_of(x)[axis] for axis in axes])
    share = low.op("Div", factor, count, tag="share")
    steep = low.op("Mul", dscale, inverse, tag="steep")
    slope = low.op("Mul", steep, share, tag="slope")
    offset = low.op("Mul", dshift, share, tag="offset")
    ones = low.filled(1, "ones", [shape_of(x)[1]])
    plane = low.op(
        "BatchNormalization", images, slope, offset, center, ones, tag="plane", epsilon=0.0
    )
    scaled = low.op("Mul", grad, low.per_channel(factor, rank, "factor_r"), tag="scaled")
    return [low.op("Sub", scaled, plane), dscale, dshift]


def _all_but_channels(x: fx.Node) -> list[int]:
    return [0, *range(2, rank_of(x))]


def _blend(low: Lowering, old: Value, new: Value, momentum: float, tag: str) -> Value:
    """Append `(1 - momentum) old + momentum new`."""
    kept = low.op("Mul", old, low.scalar(1 - momentum), tag=f"{tag}.kept")
    added = low.op("Mul", new, low.scalar(momentum), tag=f"{tag}.added")
    return low.op("Add", kept, added, tag=tag)


@lowers("_weight_norm_interface_backward", wide=True)
def weight_norm_backward(
    low: Lowering, dw: fx.Node, v: fx.Node, g: fx.Node, norms: fx.Node, axis: int
) -> Result:
    """Lower to the gradients of direction v and length g, of w = g v / |v| with lengths along `axis`."""
    rank = rank_of(v)
    others = [at for at in range(rank) if at != axis % rank]
    given, direction, length = low.value(dw), low.value(v), low.value(norms)
    along = low.op("Mul", given, direction, tag="along")
    total = low.reduce("Sum", along, others, keep=True, tag="total")
    dg = low.op("Div", total, length, tag="dg")
    back = low.op("Mul", direction, low.op("Div", dg, length, tag="share"), tag="back")
    scale = low.op("Div", low.value(g), length, tag="scale")
    return [low.op("Mul", scale, low.op("Sub", given, back, tag="across"), tag="dv"), dg]
