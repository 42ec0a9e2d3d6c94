"""Pooling over images, with its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import fx

from planner.export.aten.registry import Lowering, Result, lowers, numpy_dtype, shape_of


@lowers("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    low: Lowering,
    x: fx.Node,
    kernel: Sequence[int],
    strides: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilations: Sequence[int] = (1,),
    ceil: bool = False,
) -> Result:
    """-> maxima, and where each was found. ONNX counts from the start of the whole tensor."""
    axes = len(shape_of(x)) - 2
    return low.ops(
        "MaxPool",
        low.value(x),
        tags=("", "indices"),
        kernel_shape=_each(kernel, axes),
        strides=_each(strides or kernel, axes),
        pads=_each(padding, axes) * 2,
        dilations=_each(dilations, axes),
        ceil_mode=int(ceil),
    )


@lowers("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def max_pool_backward(
    low: Lowering,
    dy: fx.Node,
    x: fx.Node,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilations: Sequence[int],
    ceil: bool,
    indices: fx.Node,
) -> Result:
    """Adds each gradient where its maximum was found; windows may share one."""
    del kernel, strides, padding, dilations, ceil
    shape = shape_of(x)
    size = math.prod(shape)
    zeros = low.filled(0, "zeros", [size])
    flat_indices = low.reshape(low.value(indices), [-1], "flat_indices")
    flat_grad = low.reshape(low.value(dy), [-1], "flat_grad")
    total = low.op(
        "ScatterElements", zeros, flat_indices, flat_grad, tag="flat", axis=0, reduction="add"
    )
    return low.reshape(total, shape)


@lowers("avg_pool2d")
def avg_pool(
    low: Lowering,
    x: fx.Node,
    kernel: Sequence[int],
    strides: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> Result:
    if divisor is not None or ceil:
        raise low.unsupported("a divisor, or rounding up")
    return low.op(
        "AveragePool",
        low.value(x),
        kernel_shape=_pair(kernel),
        strides=_pair(strides or kernel),
        pads=_pair(padding) * 2,
        count_include_pad=int(count_padding),
    )


@lowers("avg_pool2d_backward")
def avg_pool_backward(
    low: Lowering,
    dy: fx.Node,
    x: fx.Node,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    ceil: bool,
    count_padding: bool,
    divisor: int | None,
) -> Result:
    """Spreads each gradient evenly over its window: a transposed convolution per channel."""
    kernel, strides, padding = _pair(kernel), _pair(strides or kernel), _pair(padding)
    if divisor is not None or ceil or (any(padding) and not count_padding):
        raise low.unsupported("a divisor, rounding up, or padding left out of the count")
    steps = [int(size) for size in shape_of(dy)[2:]]
    sizes = [int(size) for size in shape_of(x)[2:]]
    reached = [
        (steps[axis] - 1) * strides[axis] - 2 * padding[axis] + kernel[axis] for axis in (0, 1)
    ]
    images = low.reshape(low.value(dy), [-1, 1, *steps], "images")
    weight = np.full((1, 1, *kernel), 1 / math.prod(kernel), numpy_dtype(low.dtype))
    spread = low.op(
        "ConvTranspose",
        images,
        low.builder.constant(weight),
        tag="spread",
        kernel_shape=kernel,
        strides=strides,
        pads=padding * 2,
        output_padding=[size - end for size, end in zip(sizes, reached, strict=True)],
    )
    return low.reshape(spread, shape_of(x))


def _pair(sizes: Sequence[int]) -> list[int]:
    return _each(sizes, 2)


def _each(sizes: Sequence[int], axes: int) -> list[int]:
    """One size per spatial axis, where ATen may give one for all."""
    return list(sizes) * axes if len(sizes) == 1 else list(sizes)
