"""Reads and writes of parts of tensors: embeddings, slices, concatenation, gathers, padding.

Gradients that add several rows into one use ScatterElements: ONNX Runtime's CPU ScatterND runs its
additions in parallel, without protection (onnxruntime issues 18048 and 23396).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import fx

from planner.export.aten.registry import (
    HALF,
    Dim,
    Lowering,
    Result,
    dtype_of,
    lowers,
    rank_of,
    shape_of,
)
from planner.export.write.emit import Value


@lowers("embedding_dense_backward", wide=True)
def embedding_backward(
    low: Lowering, dy: fx.Node, rows: fx.Node, count: int, padding: int, by_frequency: bool
) -> Result:
    """Add each row's gradients: [..., width] -> [count, width]."""
    width = int(shape_of(dy)[-1])
    places = math.prod(shape_of(rows))
    index = low.reshape(low.value(rows), [-1, 1], "index")
    updates = low.reshape(low.value(dy), [-1, width], "updates")
    if padding >= 0:
        padded = low.op("Equal", index, low.integers(padding), tag="padded")
        updates = low.op("Where", padded, low.scalar(0), updates, tag="kept")
    if by_frequency:
        ones = low.filled(1, "ones", [places, 1])
        none = low.filled(0, "none", [count, 1])
        counts = low.op("ScatterElements", none, index, ones, tag="counts", axis=0, reduction="add")
        own = low.op("GatherElements", counts, index, tag="own_count", axis=0)
        updates = low.op("Div", updates, own, tag="shares")
    wide = low.op("Expand", index, low.shape_value([places, width]), tag="wide_index")
    zeros = low.filled(0, "zeros", [count, width])
    return low.op("ScatterElements", zeros, wide, updates, axis=0, reduction="add")


@lowers("slice.Tensor")
def slice_tensor(
    low: Lowering,
    x: fx.Node,
    axis: int = 0,
    start: int | None = None,
    stop: Dim | None = None,
    step: int = 1,
) -> Result:
    del stop
    first = _from_front(start or 0, shape_of(x)[axis])
    if low.shape == shape_of(x):
        return low.value(x)
    end = first + low.shape[axis] * step
    return low.op(
        "Slice",
        low.value(x),
        low.extent(first),
        low.extent(end),
        low.integers(axis),
        low.integers(step),
    )


@lowers("slice_backward")
def slice_backward(
    low: Lowering,
    dy: fx.Node,
    shape: Sequence[Dim],
    axis: int,
    start: int,
    stop: Dim,
    step: int,
) -> Result:
    del stop
    if shape_of(dy) == list(shape):
        return low.value(dy)
    axis %= len(shape)
    first, length = _from_front(start, shape[axis]), shape_of(dy)[axis]
    grad = low.value(dy) if step == 1 else _spread(low, dy, axis, step)
    after = shape[axis] - first - length * step
    return _pad(low, grad, len(shape), {axis: (first, after)})


@lowers("select_backward")
def select_backward(
    low: Lowering, dy: fx.Node, shape: Sequence[Dim], axis: int, index: int
) -> Result:
    axis %= len(shape)
    first = _from_front(index, shape[axis])
    thick = [1 if at == axis else size for at, size in enumerate(shape)]
    slab = low.reshape(low.value(dy), thick, "slab")
    return _pad(low, slab, len(shape), {axis: (first, shape[axis] - first - 1)})


@lowers("constant_pad_nd")
def constant_pad(low: Lowering, x: fx.Node, widths: Sequence[int], value: float = 0) -> Result:
    """Lower padding by pairs of widths, the last axis first; negative widths crop."""
    rank = rank_of(x)
    pairs = zip(widths[::2], widths[1::2], strict=True)
    return _pad(
        low, low.value(x), rank, {rank - 1 - back: pair for back, pair in enumerate(pairs)}, value
    )


@lowers("cat")
def concatenate(low: Lowering, parts: Sequence[fx.Node], axis: int = 0) -> Result:
    """Lower cat; ATen skips parts of shape [0], whatever the rank of the others."""
    joined = [part for part in parts if shape_of(part) != [0]] or list(parts[:1])
    if len(joined) == 1:
        return low.value(joined[0])
    return low.op("Concat", *(low.value(part) for part in joined), axis=axis)


@lowers("stack")
def stack(low: Lowering, parts: Sequence[fx.Node], axis: int = 0) -> Result:
    axis %= rank_of(parts[0]) + 1
    dims = shape_of(parts[0])
    dims.insert(axis, 1)
    slabs = [low.reshape(low.value(part), dims, f"slab_{i}") for i, part in enumerate(parts)]
    return low.op("Concat", *slabs, axis=axis)


@lowers("split.Tensor", "split_with_sizes", "unsafe_split.Tensor", "unsafe_split_with_sizes")
def split(low: Lowering, x: fx.Node, sizes: int | Sequence[int], axis: int = 0) -> Result:
    del sizes
    lengths = [int(part.shape[axis]) for part in low.node.meta["val"]]
    if len(lengths) == 1:
        return [low.value(x)]
    tags = [f"part_{index}" for index in range(len(lengths))]
    return low.ops("Split", low.value(x), low.integers(*lengths), tags=tags, axis=axis)


@lowers("unbind.int")
def unbind(low: Lowering, x: fx.Node, axis: int = 0) -> Result:
    """Lower unbind to one tensor for each position along the axis, without the axis."""
    tags = [f"slab_{index}" for index in range(int(shape_of(x)[axis]))]
    lengths = low.integers(*[1] * len(tags))
    slabs = low.ops("Split", low.value(x), lengths, tags=tags, axis=axis)
    dims = [dim for at, dim in enumerate(shape_of(x)) if at != axis % rank_of(x)]
    return [low.reshape(slab, dims, tag) for slab, tag in zip(slabs, tags, strict=True)]


@lowers("index.Tensor", "_unsafe_index.Tensor")
def index(low: Lowering, x: fx.Node, indices: Sequence[fx.Node | None]) -> Result:
    """Lower x[i, :, j, ...], with integer tensors for some axes that broadcast together."""
    axes, places = _indexed(low, indices)
    rank, depth = rank_of(x), len(low.shape) - rank_of(x) + len(places)
    if len(places) == 1:
        return low.op("Gather", low.value(x), low.value(places[0]), axis=axes[0])
    others = [axis for axis in range(rank) if axis not in axes]
    first = low.transpose(low.value(x), [*axes, *others], "indexed_first")
    at = _common_axis(axes)
    common = low.shape[at : at + depth]
    found = low.op("GatherND", first, _tuples(low, places, common), tag="found" if at else "")
    order = list(range(depth + len(others)))
    return low.transpose(found, order[depth : depth + at] + order[:depth] + order[depth + at :])


@lowers("index_put", "_unsafe_index_put")
def index_put(
    low: Lowering,
    x: fx.Node,
    indices: Sequence[fx.Node | None],
    values: fx.Node,
    accumulate: bool = False,
) -> Result:
    """Lower to x with `values` written at, or added to, x[i, :, j, ...]."""
    if any(place is not None and dtype_of(place) == torch.bool for place in indices):
        return _put_masked(low, x, indices, values, accumulate)
    axes, places = _indexed(low, indices)
    others = [axis for axis in range(rank_of(x)) if axis not in axes]
    shape = shape_of(x)
    indexed, inner = [shape[axis] for axis in axes], [shape[axis] for axis in others]
    common = list(torch.broadcast_shapes(*(place.meta["val"].shape for place in places)))
    row = low.scalar(0, torch.int64)
    for number, (place, size) in enumerate(zip(places, indexed, strict=True)):
        stride = low.extent(math.prod(indexed[number + 1 :]))
        whole = low.cast(low.value(place), dtype_of(place), torch.int64, f"whole_{number}")
        at = _positive(low, whole, size, f"at_{number}")
        row = low.op("Add", row, low.op("Mul", at, stride, tag=f"step_{number}"), tag="row")
    wide = low.op("Expand", row, low.shape_value(common), tag="rows")
    width, count = math.prod(inner), math.prod(common)
    column = low.reshape(wide, [-1, 1], "column")
    where = low.op("Expand", column, low.shape_value([count, width]), tag="where")
    first = _common_axis(axes)
    apart = [*inner[:first], *common, *inner[first:]]
    kind = torch.float32 if accumulate and low.dtype in HALF else low.dtype
    added = low.operand(values, kind)
    spread = low.op("Expand", added, low.shape_value(apart), tag="spread")
    order = list(range(len(apart)))
    middle = order[first : first + len(common)]
    spread = low.transpose(
        spread, [*middle, *(at for at in order if at not in middle)], "put_first"
    )
    updates = low.reshape(spread, [count, width], "updates")
    turned = low.transpose(low.operand(x, kind), [*axes, *others], "indexed_first")
    flat = low.reshape(turned, [math.prod(indexed), width], "flat")
    attributes = {"axis": 0, "reduction": "add" if accumulate else "none"}
    written = low.op("ScatterElements", flat, where, updates, tag="written", **attributes)
    written = low.cast(written, kind, low.dtype, "rounded")
    back = low.reshape(
        written, [*indexed, *inner], "back" if axes != sorted(range(len(axes))) else ""
    )
    return low.transpose(back, [[*axes, *others].index(axis) for axis in range(rank_of(x))])


def _indexed(low: Lowering, indices: Sequence[fx.Node | None]) -> tuple[list[int], list[fx.Node]]:
    """Return the indexed axes, and their integer index tensors."""
    found = [(axis, place) for axis, place in enumerate(indices) if place is not None]
    if any(dtype_of(place) == torch.bool for _, place in found):
        raise low.unsupported("a mask as index, whose result's shape depends on its values")
    return [axis for axis, _ in found], [place for _, place in found]


def _common_axis(axes: Sequence[int]) -> int:
    """Return the first axis of the indices' dimensions in the result.

    It is that of the first indexed axis if the indexed axes are adjacent, else 0.
    """
    return axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0


def _put_masked(
    low: Lowering,
    x: fx.Node,
    indices: Sequence[fx.Node | None],
    values: fx.Node,
    accumulate: bool,
) -> Result:
    """Lower an assignment through a mask of one value for all its True positions."""
    found = [(axis, place) for axis, place in enumerate(indices) if place is not None]
    if len(found) > 1:
        raise low.unsupported(
            "a mask beside another index; use torch.where(mask, value, x), or x[i, mask] = value "
            "on a tensor that the step made, with i of one axis"
        )
    (first, mask), rank = found[0], rank_of(x)
    behind = rank - first - rank_of(mask)
    shape = shape_of(values)
    # One axis of the values stands for all True positions of the mask, if they have that many axes.
    at = len(shape) - behind - 1
    if at >= 0 and shape[at] != 1:
        raise low.unsupported(
            "a mask as index, and a value for each place of it; use masked_scatter, or "
            "torch.where with values of x's shape"
        )
    thin = [*[1] * first, *shape_of(mask), *[1] * behind]
    wide = low.reshape(low.value(mask), thin, "mask")
    value = low.value(values)
    if at >= 0:
        ones = [1] * rank_of(mask)
        value = low.reshape(value, [*shape[:at], *ones, *shape[at + 1 :]], "value")
    if accumulate:
        value = low.op("Add", low.value(x), value, tag="added")
    return low.op("Where", wide, value, low.value(x))


def _tuples(low: Lowering, places: Sequence[fx.Node], common: Sequence[Dim]) -> Value:
    """Broadcast index tensors to `common`, and concatenate them on a new last axis."""
    shape = low.shape_value(common)
    columns: list[Value] = []
    for number, place in enumerate(places):
        wide = low.op("Expand", low.value(place), shape, tag=f"wide_{number}")
        columns.append(low.op("Unsqueeze", wide, low.integers(-1), tag=f"column_{number}"))
    return low.op("Concat", *columns, tag="tuples", axis=-1)


def _positive(low: Lowering, place: Value, size: Dim, tag: str) -> Value:
    """Convert negative indices to indices from the front."""
    negative = low.op("Less", place, low.scalar(0, torch.int64), tag=f"{tag}.negative")
    turned = low.op("Add", place, low.extent(size), tag=f"{tag}.turned")
    return low.op("Where", negative, turned, place, tag=tag)


def _from_front(index: int, size: Dim) -> Dim:
    """Convert a negative slice start or index to one from the front."""
    if isinstance(index, int) and index >= 0:
        return index
    if isinstance(size, torch.SymInt):
        return size + index  # in range for all sizes that the trace holds for
    return max(0, size + index)


def _spread(low: Lowering, x: fx.Node, axis: int, step: int) -> Value:
    """Insert `step - 1` zeros after every position of x along the axis."""
    dims, rank = shape_of(x), rank_of(x)
    apart = low.reshape(low.value(x), [*dims[: axis + 1], 1, *dims[axis + 1 :]], "apart")
    padded = _pad(low, apart, rank + 1, {axis + 1: (0, step - 1)}, tag="padded")
    return low.reshape(padded, [*dims[:axis], dims[axis] * step, *dims[axis + 1 :]], "spread")


def _pad(
    low: Lowering,
    value: Value,
    rank: int,
    widths: dict[int, tuple[Dim, Dim]],
    fill: float = 0,
    tag: str = "",
) -> Value:
    """Pad `value` with `fill`: `widths` has (before, after) by axis."""
    before = [widths.get(axis, (0, 0))[0] for axis in range(rank)]
    after = [widths.get(axis, (0, 0))[1] for axis in range(rank)]
    widths_value = low.shape_value([*before, *after])
    return low.op("Pad", value, widths_value, low.scalar(fill), tag=tag)
