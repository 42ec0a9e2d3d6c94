"""Gradients of convolutions in any number of dimensions, transposed or not."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from planner.export.aten.registry import Lowering, Result, lowers, shape_of
from planner.export.aten.spatial.conv_gradients import Convolution, image_gradient, kernel_gradient


@lowers("convolution_backward")
def convolution_backward(
    low: Lowering,
    dy: fx.Node,
    x: fx.Node,
    weight: fx.Node,
    bias_shape: Sequence[int] | None,
    strides: Sequence[int],
    padding: Sequence[int],
    dilations: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Result:
    """Lower to the gradients of x, weight, bias. A transposed convolution swaps the roles of x and dy."""
    del bias_shape, output_padding
    large, small = (dy, x) if transposed else (x, dy)
    count = len(shape_of(weight)) - 2
    # `padding="valid"` gives one number for all axes.
    strides, padding, dilations = (
        list(sizes) * count if len(sizes) == 1 else list(sizes)
        for sizes in (strides, padding, dilations)
    )
    conv = Convolution(
        large=large,
        small=small,
        weight=weight,
        strides=strides,
        padding=padding,
        dilations=dilations,
        groups=groups,
    )
    dx = dweight = dbias = None
    if wanted[0] and transposed:
        dx = low.op("Conv", low.value(dy), low.value(weight), **conv.attributes)
    elif wanted[0]:
        dx = image_gradient(low, conv)
    if wanted[1]:
        dweight = kernel_gradient(low, conv)
    if wanted[2]:
        axes = [0, *range(2, count + 2)]
        dbias = low.reduce("Sum", low.value(dy), axes, tag="dbias")
    return [dx, dweight, dbias]
