"""Pooling over images, with its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import fx

from planner.export.aten.registry import Lowering, Result, lowers, numpy_dtype, shape_of
from planner.export.write.emit import Value


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
    """Lower to maxima and their positions.

    ONNX counts positions from the start of the whole tensor, PyTorch from that of each plane. Readers
    other than the gradient get PyTorch's.
    """
    axes = _axes(low, kernel)
    largest, places = low.ops(
        "MaxPool",
        low.value(x),
        tags=("", "indices"),
        kernel_shape=_each(kernel, axes),
        strides=_each(strides or kernel, axes),
        pads=_each(padding, axes) * 2,
        dilations=_each(dilations, axes),
        ceil_mode=int(ceil),
    )
    asked = [user for user in low.node.users if user.args[1] == 1]
    if asked and _is_by_plane(asked[0]):
        plane = low.extent(math.prod(shape_of(x)[-axes:]))
        places = low.op("Mod", places, plane, tag="in_plane")
    return [largest, places]


def _is_by_plane(indices: fx.Node) -> bool:
    """Tell whether the positions of maxima are counted within each plane."""
    return any("_with_indices_backward" not in str(user.target) for user in indices.users)


@lowers("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", wide=True)
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
    """Add each gradient at the position of its maximum; windows may share one."""
    del strides, padding, dilations, ceil
    shape = shape_of(x)
    if _is_by_plane(indices):
        axes = _axes(low, kernel)
        flat = [math.prod(shape[:-axes]), math.prod(shape[-axes:])]
        outs = [flat[0], math.prod(shape_of(dy)[-axes:])]
        rows = low.reshape(low.value(indices), outs, "rows")
        grads = low.reshape(low.value(dy), outs, "grads")
        start = low.filled(0, "zeros", flat)
        total = low.op("ScatterElements", start, rows, grads, tag="flat", axis=1, reduction="add")
        return low.reshape(total, shape)
    size = math.prod(shape)
    zeros = low.filled(0, "zeros", [size])
    flat_indices = low.reshape(low.value(indices), [-1], "flat_indices")
    flat_grad = low.reshape(low.value(dy), [-1], "flat_grad")
    total = low.op(
        "ScatterElements", zeros, flat_indices, flat_grad, tag="flat", axis=0, reduction="add"
    )
    return low.reshape(total, shape)


@dataclass(frozen=True)
class _Windows:
    """The windows of an average pool, with one entry for each image axis.

    Attributes:
        sizes: sizes of the image.
        steps: numbers of windows.
        divisors: divisor of each window's sum, [windows, ...].
    """

    kernel: list[int]
    strides: list[int]
    padding: list[int]
    sizes: list[int]
    steps: list[int]
    divisors: np.ndarray

    @property
    def is_plain(self) -> bool:
        """Whether all windows lie within the padded image and divide by their size."""
        return bool((self.divisors == math.prod(self.kernel)).all()) and all(
            over <= 0 for over in self.behind
        )

    @property
    def behind(self) -> list[int]:
        """Number of elements by which the last window exceeds the padded image, per axis."""
        each = zip(self.steps, self.strides, self.kernel, self.padding, self.sizes, strict=True)
        return [(n - 1) * s + k - 2 * p - size for n, s, k, p, size in each]


def _windows(
    low: Lowering, x: fx.Node, result: fx.Node, kernel: Sequence[int], *rest: Any
) -> _Windows:
    strides, padding, _, count_padding, divisor = rest
    axes = _axes(low, kernel)
    kernel, padding = _each(kernel, axes), _each(padding, axes)
    strides = _each(strides or kernel, axes)
    sizes = [int(size) for size in shape_of(x)[-axes:]]
    steps = [int(size) for size in shape_of(result)[-axes:]]
    counts = np.ones([1] * axes)
    for axis in range(axes):
        first = np.arange(steps[axis]) * strides[axis] - padding[axis]
        last = np.minimum(first + kernel[axis], sizes[axis] + padding[axis])
        if not count_padding:
            first, last = np.maximum(first, 0), np.minimum(last, sizes[axis])
        counts = counts * (last - first).reshape([-1 if a == axis else 1 for a in range(axes)])
    if divisor is not None:
        counts = np.full_like(counts, divisor)
    return _Windows(kernel, strides, padding, sizes, steps, counts)


@lowers("avg_pool2d", "avg_pool3d", wide=True)
def avg_pool(
    low: Lowering,
    x: fx.Node,
    kernel: Sequence[int],
    strides: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> Result:
    """Lower average pooling; rescale windows that cross the padding or have another divisor."""
    at = _windows(low, x, low.node, kernel, strides, padding, ceil, count_padding, divisor)
    plain = {"kernel_shape": at.kernel, "strides": at.strides}
    images, is_one = low.value(x), len(shape_of(x)) == len(at.kernel) + 1
    if is_one:  # without a batch
        images = low.reshape(images, [1, *shape_of(x)], "images")
    if divisor is None and not ceil:
        pads = {"pads": at.padding * 2, "count_include_pad": int(count_padding)}
        if not is_one:
            return low.op("AveragePool", images, **plain, **pads)
        means = low.op("AveragePool", images, tag="means", **plain, **pads)
        return low.reshape(means, shape_of(low.node))
    after = [max(0, pad + over) for pad, over in zip(at.padding, at.behind, strict=True)]
    around = [0, 0, *at.padding, 0, 0, *after]
    wide = low.op("Pad", images, low.integers(*around), low.scalar(0), tag="wide")
    means = low.op("AveragePool", wide, tag="means", **plain)
    if is_one:
        means = low.reshape(means, shape_of(low.node), "each")
    scale = (math.prod(at.kernel) / at.divisors).astype(numpy_dtype(low.dtype))
    return low.op("Mul", means, low.builder.constant(scale))


@lowers("avg_pool2d_backward", "avg_pool3d_backward", wide=True)
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
    """Spread each gradient evenly over its window: a transposed convolution per channel."""
    at = _windows(low, x, dy, kernel, strides, padding, ceil, count_padding, divisor)
    images = low.reshape(low.value(dy), [-1, 1, *at.steps], "images")
    value = 1.0 if not at.is_plain else 1 / math.prod(at.kernel)
    weight = np.full((1, 1, *at.kernel), value, numpy_dtype(low.dtype))
    options = {"kernel_shape": at.kernel, "strides": at.strides}
    if at.is_plain:
        missing = [-over for over in at.behind]
        spread = low.op(
            "ConvTranspose",
            images,
            low.builder.constant(weight),
            tag="spread",
            pads=at.padding * 2,
            output_padding=missing,
            **options,
        )
        return low.reshape(spread, shape_of(x))
    share = low.builder.constant((1 / at.divisors).astype(numpy_dtype(low.dtype)))
    shares = low.op("Mul", images, share, tag="shares")
    spread = low.op("ConvTranspose", shares, low.builder.constant(weight), tag="spread", **options)
    # Crop the padding; elements that no window reaches get 0.
    after = [-(pad + over) for pad, over in zip(at.padding, at.behind, strict=True)]
    around = low.integers(0, 0, *(-pad for pad in at.padding), 0, 0, *after)
    return low.reshape(low.op("Pad", spread, around, low.scalar(0), tag="cut"), shape_of(x))


@lowers("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", wide=True)
def adaptive_avg_pool(low: Lowering, x: fx.Node, sizes: Sequence[int]) -> Result:
    """Lower to means over windows of nearly equal size: a matrix product per axis."""
    axes = len(sizes)
    value = low.value(x)
    for axis, size in enumerate(shape_of(x)[-axes:]):
        value = along(low, value, axis - axes, _means(low, int(size), sizes[axis]).T)
    return value


@lowers("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", wide=True)
def adaptive_avg_pool_backward(low: Lowering, dy: fx.Node, x: fx.Node) -> Result:
    """Lower the gradient to the same products, transposed."""
    axes = 3 if "3d" in str(low.node.target) else 2
    value, steps = low.value(dy), shape_of(dy)[-axes:]
    for axis, size in enumerate(shape_of(x)[-axes:]):
        value = along(low, value, axis - axes, _means(low, int(size), int(steps[axis])))
    return value


def _means(low: Lowering, size: int, steps: int) -> np.ndarray:
    """Return [steps, size]: row i averages the elements from i size / steps on, rounded outwards."""
    matrix = np.zeros((steps, size), numpy_dtype(low.dtype))
    for step in range(steps):
        first, last = step * size // steps, -((step + 1) * size // -steps)
        matrix[step, first:last] = 1 / (last - first)
    return matrix


def along(low: Lowering, value: Value, axis: int, matrix: np.ndarray) -> Value:
    """Multiply by a matrix along one axis, counted from the back."""
    rank = len(low.shape)
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    turned = low.transpose(value, order, f"last{axis}")
    product = low.op("MatMul", turned, low.builder.constant(matrix), tag=f"product{axis}")
    return low.transpose(product, order, f"back{axis}")


def _axes(low: Lowering, kernel: Sequence[int]) -> int:
    """Return the number of spatial axes of an image."""
    return 3 if "3d" in str(low.node.target) else max(2, len(kernel))


def _each(sizes: Sequence[int], axes: int) -> list[int]:
    """Return one size per image axis; ATen may give one for all."""
    return list(sizes) * axes if len(sizes) == 1 else list(sizes)
