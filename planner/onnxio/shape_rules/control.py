"""Shapes of the results of branches and loops: those that hold for every branch and trip count.

Where a shape depends on data, it is the largest possible one: for an If with branches of two sizes,
or a loop that a condition may end. The library assumes that a carried value has the shape after one
pass of the body, which is wrong where it grows, and requires a condition, which may be left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx_shape_inference import OpShapeInferenceRegistry, ShapeInferenceContext

from planner.onnxio.kinds import Items, is_sequence, items_of, set_items


def register(registry: OpShapeInferenceRegistry) -> None:
    """Add the rules to `registry`."""
    registry.register("", "Loop", since_version=1)(_loop)
    registry.register("", "If", since_version=1)(_if)
    standard = registry.get("", "Scan", version=9)

    def scan(ctx: ShapeInferenceContext, node: ir.Node) -> None:
        """Apply the library's rule where the state keeps its shape."""
        body, count = node.attributes.get_graph("body"), node.attributes.get_int("num_scan_inputs")
        if body is None or count is None or standard is None:
            return
        states = node.inputs[: len(node.inputs) - count]
        if _keeps(states, body.outputs):
            standard(ctx, node)

    registry.register("", "Scan", since_version=9)(scan)


def _if(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    """Infer the larger shape of the branches, dim by dim; nothing where their ranks differ."""
    branches = [node.attributes.get_graph(name) for name in ("then_branch", "else_branch")]
    made = [b.outputs for b in branches if b is not None]
    for target, values in zip(node.outputs, zip(*made, strict=False), strict=False):
        if is_sequence(values[0]):
            _sequence(ctx, target, values)
            continue
        shapes = [value.shape for value in values]
        known = [s for s in shapes if s is not None]
        shape = None
        if len(known) == len(shapes) and len({s.rank() for s in known}) == 1:
            dims = [_largest(ctx, column) for column in zip(*known, strict=True)]
            shape = ir.Shape(dims)
        if target.name:
            ctx.set_shape_and_dtype(target, shape, values[0].dtype)


def _sequence(ctx: ShapeInferenceContext, target: ir.Value, values: Sequence[ir.Value]) -> None:
    """Give a sequence the most bytes that a branch makes."""
    _of_type(ctx, target, values[0])
    found = [items_of(value) for value in values]
    known = [items for items in found if items is not None]
    if len(known) == len(found):
        most = max(items.bytes for items in known)
        set_items(target, Items(dtype=known[0].dtype, shapes=None, bytes=most))


def _of_type(ctx: ShapeInferenceContext, target: ir.Value, like: ir.Value) -> None:
    if like.type is not None:
        ctx.set_type(target, like.type)


def _largest(
    ctx: ShapeInferenceContext, dims: Sequence[int | ir.SymbolicDim]
) -> int | ir.SymbolicDim:
    whole = [dim for dim in dims if isinstance(dim, int)]
    if len(whole) == len(dims):
        return max(whole)
    return _named(ctx, dims[0]) if len(set(dims)) == 1 else ctx.new_symbolic_dim()


def _named(ctx: ShapeInferenceContext, dim: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    """Return a dim, or a new symbol where it is open and nameless: two such dims need not be equal."""
    has_name = isinstance(dim, int) or dim.value is not None
    return dim if has_name else ctx.new_symbolic_dim()


def _loop(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    """Infer the results of a Loop.

    Its inputs are trip count and condition, either of which may be absent, then carried values. The
    body makes the condition, carried values, and one slice of each scan output. A loop with a known
    trip count makes at most that many slices: where a condition may end it, the shape is an upper
    bound.
    """
    body = node.attributes.get_graph("body")
    if body is None:
        return
    made = body.outputs[1:]
    carried = node.inputs[2:]
    keeps = _keeps(carried, made)
    trips = None
    if node.inputs and node.inputs[0] is not None:
        known = ctx.get_symbolic_value(node.inputs[0])
        trips = known[0] if known is not None and len(known) == 1 else None
    for place, (target, value) in enumerate(zip(node.outputs, made, strict=False)):
        if not target.name:
            continue
        if is_sequence(value):
            _of_type(ctx, target, value)  # the number of items is unknown
            continue
        known = value.shape if keeps else None
        shape = None if known is None else ir.Shape([_named(ctx, dim) for dim in known])
        if shape is not None and place >= len(carried):
            length = trips if isinstance(trips, int) else ctx.new_symbolic_dim()
            shape = ir.Shape([length, *shape])
        ctx.set_shape_and_dtype(target, shape, value.dtype)


def _keeps(before: Sequence[ir.Value | None], after: Sequence[ir.Value]) -> bool:
    """Tell whether each carried value has the same known shape before and after the body."""
    return all(
        value is not None and value.shape is not None and value.shape == made.shape
        for value, made in zip(before, after, strict=False)
    )
