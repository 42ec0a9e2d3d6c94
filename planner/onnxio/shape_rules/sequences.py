"""Sequences: the items of a list of tensors, and the shapes of items taken out of it.

A sequence is counted in bytes, those of all its items, each rounded as the CPU's pool does. This is
an upper bound: two sequences share the items that both hold. SequenceConstruct, SequenceInsert and
SplitToSequence copy only the items that they add (core/providers/cpu/sequence/sequence_ops.cc;
measured). Where the position of an item is unknown, each item may be as large as the largest, dim by
dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir
from onnx_shape_inference import OpShapeInferenceRegistry, ShapeInferenceContext

from planner.onnxio.kinds import PAGE_BYTES, Items, Shape, items_of, rounded, set_items
from planner.onnxio.shape_rules.like import like

Rule = Callable[[ShapeInferenceContext, ir.Node], None]


def register(registry: OpShapeInferenceRegistry) -> None:
    """Add the rules to `registry`: the library's own, extended by the rules of this module.

    StringNormalizer keeps at most the strings that it is given.
    """
    rules: dict[str, Rule] = {
        "SequenceConstruct": _construct,
        "SequenceEmpty": _empty,
        "SequenceInsert": _insert,
        "SequenceErase": _erase,
        "SequenceAt": _at,
        "SplitToSequence": _split,
        "ConcatFromSequence": _concat,
        "Identity": _same,
    }
    registry.register("", "StringNormalizer", since_version=10)(like(0))
    for name, rule in rules.items():
        since = 1 if name == "Identity" else 11
        registry.register("", name, since_version=since)(_after(registry, name, rule))


def _after(
    registry: OpShapeInferenceRegistry,
    name: str,
    rule: Rule,
) -> Rule:
    of_library = registry.get("", name, version=25)
    assert of_library is not None

    def both(ctx: ShapeInferenceContext, node: ir.Node) -> None:
        of_library(ctx, node)
        rule(ctx, node)

    return both


def _construct(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    shapes = [_shape(value) for value in node.inputs]
    _keep(
        node,
        _dtype(node.inputs[0]),
        None if None in shapes else [s for s in shapes if s is not None],
    )


def _empty(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    kind = node.outputs[0].type
    _keep(node, kind.dtype if isinstance(kind, ir.SequenceType) else None, [])


def _insert(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    before, added = _items(node), _shape(node.inputs[1])
    if before is None or before.shapes is None or added is None:
        return
    shapes = [*before.shapes]
    place = _number(ctx, node, 2, absent=len(shapes))
    if place is None:
        shapes = _widened([*shapes, added])
    else:
        shapes.insert(place if place >= 0 else place + len(shapes), added)
    size = before.bytes + rounded(added, before.dtype)
    _keep(node, before.dtype, shapes, size)


def _erase(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    before = _items(node)
    if before is None or not before.shapes:
        return
    shapes = [*before.shapes]
    place = _number(ctx, node, 1, absent=-1)
    if place is None:
        shapes = _widened(shapes)[1:]
    elif -len(shapes) <= place < len(shapes):
        del shapes[place]
    _keep(node, before.dtype, shapes, before.bytes)


def _at(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    items = _items(node)
    if items is None or not items.shapes:
        return
    place = _number(ctx, node, 1, absent=0)
    known = place is not None and -len(items.shapes) <= place < len(items.shapes)
    widened = _widened(items.shapes)
    if known or widened:
        shape = items.shapes[place] if known and place is not None else widened[0]
        ctx.set_shape_and_dtype(node.outputs[0], ir.Shape(shape), items.dtype)


def _split(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    whole, dtype = _shape(node.inputs[0]), _dtype(node.inputs[0])
    if whole is None or dtype is None or not whole:
        return
    axis = node.attributes.get_int("axis", 0) % len(whole)
    split = node.inputs[1] if len(node.inputs) > 1 else None
    sizes: Sequence[int] | None = [1] * whole[axis]
    exact = True
    if split is not None:
        sizes, exact = _sizes(ctx, split, whole[axis])
    if sizes is None:
        return
    keeps = split is not None or node.attributes.get_int("keepdims", 1)
    shapes = [(*whole[:axis], *((n,) if keeps else ()), *whole[axis + 1 :]) for n in sizes]
    # any split has the bytes of the whole, plus the rounding of each item
    size = rounded(whole, dtype) + len(shapes) * PAGE_BYTES
    _keep(node, dtype, shapes, None if exact else size)


def _sizes(
    ctx: ShapeInferenceContext, split: ir.Value, length: int
) -> tuple[list[int] | None, bool]:
    """Return the largest length of each part, and whether it is exact; None where their number is
    unknown."""
    known = None if split.is_graph_input() else ctx.get_symbolic_value(split)
    rank = None if split.shape is None else split.shape.rank()
    numbers = None if known is None else [n for n in known if isinstance(n, int)]
    if numbers is not None and known is not None and len(numbers) == len(known):
        if rank == 0 and numbers[0] > 0:
            each = numbers[0]
            return [min(each, length - at) for at in range(0, length, each)], True
        if rank == 1:
            return numbers, True
    count = _shape(split)
    return ([length] * count[0], False) if count is not None and len(count) == 1 else (None, False)


def _concat(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    items = _items(node)
    if items is None or not items.shapes:
        return
    most = _widened(items.shapes)
    if not most:
        return
    axis, is_new = node.attributes.get_int("axis", 0), bool(node.attributes.get_int("new_axis", 0))
    rank = len(most[0])
    axis %= rank + is_new
    dims = list(most[0])
    if is_new:
        dims.insert(axis, len(items.shapes))
    else:
        dims[axis] = sum(shape[axis] for shape in items.shapes)
    ctx.set_shape_and_dtype(node.outputs[0], ir.Shape(dims), items.dtype)


def _same(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    items = _items(node)
    if items is not None:
        set_items(node.outputs[0], items)


def _keep(
    node: ir.Node,
    dtype: ir.DataType | None,
    shapes: Sequence[Shape] | None,
    size: int | None = None,
) -> None:
    """Record the items of a node's sequence; `size` replaces the sum of their bytes where given."""
    if dtype is None or shapes is None:
        return
    if size is None:
        size = sum(rounded(shape, dtype) for shape in shapes)
    set_items(node.outputs[0], Items(dtype=dtype, shapes=tuple(shapes), bytes=size))


def _widened(shapes: Sequence[Shape]) -> list[Shape]:
    """Return as many items, each of the largest shape; an empty list where ranks differ."""
    if len({len(shape) for shape in shapes}) != 1:
        return []
    return [tuple(max(column) for column in zip(*shapes, strict=True))] * len(shapes)


def _items(node: ir.Node) -> Items | None:
    value = node.inputs[0] if node.inputs else None
    return None if value is None else items_of(value)


def _shape(value: ir.Value | None) -> Shape | None:
    if value is None or value.shape is None:
        return None
    dims = tuple(dim for dim in value.shape if isinstance(dim, int))
    return dims if len(dims) == len(value.shape) else None


def _dtype(value: ir.Value | None) -> ir.DataType | None:
    return None if value is None else value.dtype


def _number(ctx: ShapeInferenceContext, node: ir.Node, index: int, *, absent: int) -> int | None:
    """Return the integer value of an input; None where it is unknown."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return absent
    if value.is_graph_input():  # a default, which a caller may override
        return None
    known = ctx.get_symbolic_value(value)
    first = known[0] if known is not None and len(known) == 1 else None
    return first if isinstance(first, int) else None
