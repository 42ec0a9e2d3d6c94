"""The ways to write a convolution's gradients, and which one is taken for which shapes.

A convolution moves a kernel over a large image and makes a small one. `reports/conv_gradients.md`
has the forms here measured, and others that lost, over the layers of common networks; the choice is by
static shape.

The kernel's gradient is a sum over batch and space for each place in the kernel: one matrix product
for each (`by_places`), or one convolution with the small image as its kernel (`as_convolution`).
Runtimes have fast products everywhere, and no fast convolution with a kernel as large as the image.

The large image's gradient is a convolution with the turned kernel (`with_turned_kernel`), or a transposed
convolution (`as_transposed`), whose kernel on the CPU adds up overlapping windows in one thread.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from planner.export.aten.registry import Dim, Lowering, shape_of
from planner.export.write.emit import Value

MAX_PLACES = 9
"""Largest number of kernel positions with a product each, which costs three nodes and an image copy."""

MIN_CHANNELS = 8
"""Least number of columns of a product: fewer leave most of a processor's vectors empty."""


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution from a large image to a small one; a transposed one goes the other way.

    Attributes:
        weight: [channels of the small image, channels of the large one / groups, *kernel].
        strides, padding, dilations: one entry per spatial axis.
    """

    large: fx.Node
    small: fx.Node
    weight: fx.Node
    strides: Sequence[int]
    padding: Sequence[int]
    dilations: Sequence[int]
    groups: int

    @property
    def kernel(self) -> list[int]:
        return spatial(self.weight)

    @property
    def axes(self) -> list[int]:
        """The spatial axes."""
        return list(range(2, len(shape_of(self.weight))))

    @property
    def channels(self) -> int:
        """Channels of the large image."""
        return int(shape_of(self.large)[1])

    @property
    def filters(self) -> int:
        """Channels of the small image."""
        return int(shape_of(self.small)[1])

    @property
    def is_strided(self) -> bool:
        return any(stride != 1 for stride in self.strides)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of Conv and ConvTranspose."""
        return {
            "kernel_shape": self.kernel,
            "strides": list(self.strides),
            "pads": [*self.padding, *self.padding],
            "dilations": list(self.dilations),
            "group": self.groups,
        }


def spatial(node: fx.Node) -> list[int]:
    """Return sizes of an image or a kernel along its spatial axes."""
    return [int(size) for size in shape_of(node)[2:]]


# -- the kernel's gradient -------------------------------------------------------------------------


def kernel_gradient(low: Lowering, conv: Convolution) -> Value:
    """Lower the kernel's gradient in the fastest form for its shapes."""
    places = math.prod(conv.kernel)
    if conv.groups == 1 and (
        places == 1 or (places <= MAX_PLACES and conv.channels >= MIN_CHANNELS)
    ):
        return by_places(low, conv)
    return as_convolution(low, conv)


def by_places(low: Lowering, conv: Convolution) -> Value:
    """Multiply [filters, batch x space] by [channels, the same], for each position in the kernel.

    The second operand is the part of the image that the position meets: a copy, freed after the product.
    """
    turned = [1, 0, *conv.axes]
    left = flat(
        low, low.transpose(low.value(conv.small), turned, "small.t"), conv.filters, "small.m"
    )
    image = padded(low, conv)
    if math.prod(conv.kernel) == 1:  # what a stride skips is not worth turning
        image = met_by(low, conv, image, [0] * len(conv.axes), "met")
        image = low.transpose(image, turned, "large.t")
        right = flat(low, image, conv.channels, "large.m")
        product = low.op("Gemm", left, right, tag="product", transB=1)
        return low.reshape(product, shape_of(conv.weight), "dweight")
    image = low.transpose(image, turned, "large.t")
    products: list[Value] = []
    for place in itertools.product(*map(range, conv.kernel)):
        at = ".".join(map(str, place))
        met = flat(low, met_by(low, conv, image, place, f"met.{at}"), conv.channels, f"met.{at}.m")
        products.append(low.op("Gemm", left, met, tag=f"product.{at}", transB=1))
    stacked = low.op("Concat", *products, tag="products", axis=0)
    whole = low.reshape(stacked, [*conv.kernel, conv.filters, conv.channels], "by_place")
    rank = len(conv.kernel)
    return low.transpose(whole, [rank, rank + 1, *range(rank)], "dweight")


def flat(low: Lowering, image: Value, channels: int, tag: str) -> Value:
    """Reshape [channels, batch, ...] to [channels, batch x ...]."""
    return low.reshape(image, [channels, -1], tag)


def padded(low: Lowering, conv: Convolution) -> Value:
    """Return the large image with its padding."""
    if not any(conv.padding):
        return low.value(conv.large)
    widths = low.integers(0, 0, *conv.padding, 0, 0, *conv.padding)
    zero = low.scalar(0, low.type_of(conv.large))
    return low.op("Pad", low.value(conv.large), widths, zero, tag="padded")


def met_by(low: Lowering, conv: Convolution, image: Value, place: Sequence[int], tag: str) -> Value:
    """Return the pixels of the padded image under a kernel position, one per pixel of the small image."""
    starts = [at * dilation for at, dilation in zip(place, conv.dilations, strict=True)]
    steps = zip(starts, spatial(conv.small), conv.strides, strict=True)
    ends = [start + (size - 1) * stride + 1 for start, size, stride in steps]
    sizes = zip(spatial(conv.large), conv.padding, strict=True)
    whole = [size + 2 * pad for size, pad in sizes]
    if ends == whole and not any(starts) and not conv.is_strided:
        return image
    bounds = [low.integers(*numbers) for numbers in (starts, ends, conv.axes)]
    if conv.is_strided:
        bounds.append(low.integers(*conv.strides))
    return low.op("Slice", image, *bounds, tag=tag)


def as_convolution(low: Lowering, conv: Convolution) -> Value:
    """Convolve the large image with the small one as its kernel, with channels in place of batch.

    The kernel moves over the image by its dilation, and the small image is dilated by its stride. Groups
    share the batch axis: [batch, groups, c, ...] -> [c, groups x batch, ...].
    """
    batch, channels, *space = shape_of(conv.large)
    rank, groups = len(shape_of(conv.large)), conv.groups
    swapped = [1, 0, *range(2, rank)]
    if groups == 1:
        image = low.transpose(low.value(conv.large), swapped, "large.t")
    else:
        share: Dim = int(channels) // groups
        split = low.reshape(low.value(conv.large), [batch, groups, share, *space], "large.g")
        turned = low.transpose(split, [2, 1, 0, *range(3, rank + 1)], "large.t")
        image = low.reshape(turned, [share, -1, *space], "large.m")
    product = low.op(
        "Conv",
        image,
        low.transpose(low.value(conv.small), swapped, "small.t"),
        tag="product",
        kernel_shape=spatial(conv.small),
        strides=list(conv.dilations),
        pads=[*conv.padding, *conv.padding],
        dilations=list(conv.strides),
        group=groups,
    )
    produced = [
        (size + 2 * pad - (steps - 1) * stride - 1) // dilation + 1
        for size, steps, stride, pad, dilation in zip(
            spatial(conv.large),
            spatial(conv.small),
            conv.strides,
            conv.padding,
            conv.dilations,
            strict=True,
        )
    ]
    if produced != conv.kernel:
        starts = [0] * len(conv.kernel)
        bounds = [low.integers(*numbers) for numbers in (starts, conv.kernel, conv.axes)]
        product = low.op("Slice", product, *bounds, tag="cropped")
    return low.transpose(product, swapped, "dweight")


# -- the large image's gradient --------------------------------------------------------------------


def image_gradient(low: Lowering, conv: Convolution) -> Value:
    """Lower the image's gradient in the fastest form for its shapes.

    On a CPU the flipped kernel costs a copy of the small image for each kernel position but a single
    one, and the transposed form a sum into the large one: the former costs more if the small image has
    far more channels. A strided image's phases, written as one convolution each or together, took longer
    than the transposed form in every layer.
    """
    reach = [d * (k - 1) for k, d in zip(conv.kernel, conv.dilations, strict=True)]
    can_turn = not conv.is_strided and all(
        pad <= most for pad, most in zip(conv.padding, reach, strict=True)
    )
    is_pointwise = math.prod(conv.kernel) == 1
    if can_turn and (is_pointwise or 2 * conv.channels >= conv.filters):
        return with_turned_kernel(low, conv)
    return as_transposed(low, conv)


def with_turned_kernel(low: Lowering, conv: Convolution) -> Value:
    """Convolve the small image's gradient, without stride, with the flipped kernel, its channels swapped.

    Each pixel of the large image gathers from the pixels that it contributed to.
    """
    with low.builder.ahead_of(low.value(conv.small)):
        weight = _turned(low, conv)
    sizes = zip(conv.kernel, conv.padding, conv.dilations, strict=True)
    around = [dilation * (size - 1) - pad for size, pad, dilation in sizes]
    attributes = {**conv.attributes, "pads": [*around, *around]}
    return low.op("Conv", low.value(conv.small), weight, **attributes)


def _turned(low: Lowering, conv: Convolution) -> Value:
    """Return the kernel flipped along its spatial axes: [channels, filters / groups, ...]."""
    weight, (filters, share, *kernel) = low.value(conv.weight), shape_of(conv.weight)
    axes, groups = conv.axes, conv.groups
    if any(size != 1 for size in conv.kernel):
        last, before = [-1] * len(axes), [-(1 << 31)] * len(axes)
        bounds = [low.integers(*numbers) for numbers in (last, before, axes, last)]
        weight = low.op("Slice", weight, *bounds, tag="turned")
    if groups == 1:
        return low.transpose(weight, [1, 0, *axes], "weight.t")
    if filters == groups == conv.channels:
        return weight
    split = low.reshape(weight, [groups, int(filters) // groups, share, *kernel], "weight.g")
    swapped = low.transpose(split, [0, 2, 1, *(axis + 1 for axis in axes)], "weight.t")
    return low.reshape(swapped, [conv.channels, -1, *kernel], "weight.m")


def as_transposed(low: Lowering, conv: Convolution) -> Value:
    """Lower to a transposed convolution; trailing rows and columns without a gradient are 0."""
    sizes = zip(
        spatial(conv.large),
        spatial(conv.small),
        conv.kernel,
        conv.strides,
        conv.padding,
        conv.dilations,
        strict=True,
    )
    unmet = [
        size - ((steps - 1) * stride - 2 * pad + dilation * (kernel - 1) + 1)
        for size, steps, kernel, stride, pad, dilation in sizes
    ]
    operands = low.value(conv.small), low.value(conv.weight)
    return low.op("ConvTranspose", *operands, output_padding=unmet, **conv.attributes)
