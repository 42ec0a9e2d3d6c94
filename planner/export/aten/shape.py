"""Views and copies: operators that move or rename data without computation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from planner.export.aten.registry import Lowering, Result, dtype_of, lowers, rank_of, shape_of

_VIEWS = (
    "view",
    "_unsafe_view",
    "reshape",
    "unsqueeze",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "squeeze_.dim",
)


@lowers("alias", "detach", "clone")
def same(low: Lowering, x: fx.Node, **_: object) -> Result:
    return low.value(x)


@lowers("_assert_tensor_metadata", "_assert_async", "_assert_async.msg")
def nothing(low: Lowering, *_: object, **__: object) -> Result:
    """Drop an assertion about shapes, types (the tracer's) or values (`one_hot`'s)."""
    del low
    return []


@lowers("copy")
def copied(low: Lowering, x: fx.Node, source: fx.Node, *_: object) -> Result:
    """Lower to the source, cast and broadcast to the tensor that it overwrites."""
    value = low.cast(low.value(source), dtype_of(source), low.dtype)
    if shape_of(source) == shape_of(x):
        return value
    return low.op("Expand", value, low.shape_value(shape_of(x)))


@lowers(*_VIEWS)
def view(low: Lowering, x: fx.Node, *_: object) -> Result:
    """Lower a chain of views to one Reshape, or to an earlier value that has this shape."""
    names = {f"aten.{name}" if "." in name else f"aten.{name}.default" for name in _VIEWS}
    source = x
    while True:
        if shape_of(source) == low.shape:
            return low.value(source)
        if str(source.target) not in names:
            return low.reshape(low.value(x), low.shape)
        source = source.all_input_nodes[0]


@lowers("expand")
def expand(low: Lowering, x: fx.Node, sizes: Sequence[int], **_: object) -> Result:
    del sizes
    if shape_of(x) == low.shape:
        return low.value(x)
    return low.op("Expand", low.value(x), low.shape_value(low.shape))


@lowers("permute")
def permute(low: Lowering, x: fx.Node, axes: Sequence[int]) -> Result:
    return low.transpose(low.value(x), [axis % rank_of(x) for axis in axes])


@lowers("transpose.int")
def transpose(low: Lowering, x: fx.Node, first: int, second: int) -> Result:
    axes = list(range(rank_of(x)))
    axes[first], axes[second] = axes[second], axes[first]
    return low.transpose(low.value(x), axes)


@lowers("t")
def matrix_transpose(low: Lowering, x: fx.Node) -> Result:
    return low.transpose(low.value(x), [1, 0] if rank_of(x) == 2 else range(rank_of(x)))
