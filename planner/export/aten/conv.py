"""Convolutions in any number of dimensions, transposed or not, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from planner.export.aten.registry import Dim, Lowering, Result, lowers, shape_of
from planner.export.emit import Value


@dataclass(frozen=True, kw_only=True)
class Window:
    """How a convolution's kernel moves: one entry per spatial dimension."""

    strides: Sequence[int]
    padding: Sequence[int]
    dilations: Sequence[int]
    groups: int

    def attributes(self, kernel: Sequence[int]) -> dict:
        """The attributes of Conv and ConvTranspose."""
        return {
            "kernel_shape": list(kernel),
            "strides": list(self.strides),
            "pads": [*self.padding, *self.padding],
            "dilations": list(self.dilations),
            "group": self.groups,
        }


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
    """-> gradients of x, weight, bias. A transposed convolution swaps the roles of x and dy."""
    del bias_shape, output_padding
    window = _window(weight, strides, padding, dilations, groups)
    dx = dweight = dbias = None
    if wanted[0]:
        attributes = window.attributes(_spatial(weight))
        operands = low.value(dy), low.value(weight)
        if transposed:
            dx = low.op("Conv", *operands, **attributes)
        else:
            padding_out = _lost_to_striding(x, dy, weight, window)
            dx = low.op("ConvTranspose", *operands, output_padding=padding_out, **attributes)
    if wanted[1]:
        large, small = (dy, x) if transposed else (x, dy)
        pointwise = (
            groups == 1
            and all(size == 1 for size in [*_spatial(weight), *window.strides])
            and not any(padding)
        )
        gradient = _pointwise_gradient if pointwise else _weight_gradient
        dweight = gradient(low, large, small, weight, window)
    if wanted[2]:
        axes = [0, *range(2, len(shape_of(dy)))]
        dbias = low.reduce("Sum", low.value(dy), axes, tag="dbias")
    return [dx, dweight, dbias]


def _window(
    weight: fx.Node,
    strides: Sequence[int],
    padding: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Window:
    """One entry per spatial dimension, where ATen may give one for all (`padding="valid"`)."""
    count = len(shape_of(weight)) - 2
    each = [list(n) * count if len(n) == 1 else list(n) for n in (strides, padding, dilations)]
    return Window(strides=each[0], padding=each[1], dilations=each[2], groups=groups)


def _spatial(node: fx.Node) -> list[int]:
    return [int(size) for size in shape_of(node)[2:]]


def _lost_to_striding(x: fx.Node, dy: fx.Node, weight: fx.Node, window: Window) -> list[int]:
    """Rows and columns at the end of x that no kernel position reached."""
    sizes = zip(
        _spatial(x),
        _spatial(dy),
        _spatial(weight),
        window.strides,
        window.padding,
        window.dilations,
        strict=True,
    )
    return [
        size - ((steps - 1) * stride - 2 * pad + dilation * (kernel - 1) + 1)
        for size, steps, kernel, stride, pad, dilation in sizes
    ]


def _pointwise_gradient(
    low: Lowering, large: fx.Node, small: fx.Node, weight: fx.Node, window: Window
) -> Value:
    """A 1x1 kernel's gradient: one product of [out, batch x space] and [channels, same]."""
    del window
    left = _channels_first(low, small, "small")
    right = _channels_first(low, large, "large")
    product = low.op("Gemm", left, right, tag="product", transB=1)
    return low.reshape(product, shape_of(weight), "dweight")


def _channels_first(low: Lowering, node: fx.Node, tag: str) -> Value:
    """[batch, channels, ...] -> [channels, batch x ...]."""
    axes = [1, 0, *range(2, len(shape_of(node)))]
    turned = low.transpose(low.value(node), axes, f"{tag}.t")
    return low.reshape(turned, [int(shape_of(node)[1]), -1], f"{tag}.m")


def _weight_gradient(
    low: Lowering, large: fx.Node, small: fx.Node, weight: fx.Node, window: Window
) -> Value:
    """A kernel's gradient is itself a convolution: of x with dy, channels in place of batch.

    The kernel moves over x by its dilation, and dy is spread by its stride. Groups share the
    batch axis: [batch, groups, c, ...] -> [c, groups x batch, ...].
    """
    batch, channels, *space = shape_of(large)
    rank, groups = len(shape_of(large)), window.groups
    swapped = [1, 0, *range(2, rank)]
    if groups == 1:
        image = low.transpose(low.value(large), swapped, "large.t")
    else:
        share: Dim = int(channels) // groups
        split = low.reshape(low.value(large), [batch, groups, share, *space], "large.g")
        turned = low.transpose(split, [2, 1, 0, *range(3, rank + 1)], "large.t")
        image = low.reshape(turned, [share, -1, *space], "large.m")
    kernel = low.transpose(low.value(small), swapped, "small.t")
    wanted = _spatial(weight)
    product = low.op(
        "Conv",
        image,
        kernel,
        tag="product",
        kernel_shape=_spatial(small),
        strides=list(window.dilations),
        pads=[*window.padding, *window.padding],
        dilations=list(window.strides),
        group=groups,
    )
    produced = [
        (size + 2 * pad - (steps - 1) * stride - 1) // dilation + 1
        for size, steps, stride, pad, dilation in zip(
            _spatial(large),
            _spatial(small),
            window.strides,
            window.padding,
            window.dilations,
            strict=True,
        )
    ]
    if produced != wanted:
        starts, axes = [0] * len(wanted), range(2, rank)
        bounds = low.integers(*starts), low.integers(*wanted), low.integers(*axes)
        product = low.op("Slice", product, *bounds, tag="cropped")
    return low.transpose(product, swapped, "dweight")
