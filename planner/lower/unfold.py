"""Undo constant folding where it costs memory and saves nothing.

ONNX Runtime folds `ConstantOfShape` (the zeros that gradients of Gather and MaxPool are scattered
into) to an initializer that is on the device for the whole run. As a node, the same zeros exist only
around their use. The node is written so that ONNX Runtime cannot fold it again: its length comes from
`Size` of a tensor with as many elements, which reads metadata only and is never folded.

    zeros = Reshape(ConstantOfShape(Reshape(Size(t), [1])), shape)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from planner.onnxio.load import ValueType

LEAST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfolded:
    """A clone with nodes in place of folded constants; `types` covers its values."""

    model: ir.Model
    types: Mapping[str, ValueType]
    names: tuple[str, ...]
    bytes: int


def unfold(
    model: ir.Model, types: Mapping[str, ValueType], original_initializers: Set[str]
) -> Unfolded:
    """Turn large initializers that folding made, and that hold one value throughout, into nodes.

    Args:
        model: as ONNX Runtime's optimizers left it; not changed.
        types: of its values.
        original_initializers: names in the user's file; those are left alone.
    """
    clone = model.clone()
    found = dict(types)
    names: list[str] = []
    freed = 0
    outputs = {v.name for v in clone.graph.outputs}
    candidates = _by_count(clone, types)
    for name, value in list(clone.graph.initializers.items()):
        kind = types[name]
        if name in original_initializers or name in outputs or kind.bytes < LEAST_BYTES:
            continue
        fill = _splat(value)
        source = _source(value, candidates.get(math.prod(kind.shape), ()))
        if fill is None or source is None:
            continue
        found.update(_replace(clone, value, kind, fill, source))
        names.append(name)
        freed += kind.bytes
    return Unfolded(model=clone, types=found, names=tuple(names), bytes=freed)


def _splat(value: ir.Value) -> np.ndarray | None:
    """The one element that a constant is full of; None where there are several."""
    tensor = value.const_value
    if tensor is None or isinstance(tensor, ir.ExternalTensor):
        return None
    array = tensor.numpy()
    flat = array.reshape(-1)
    same = flat.view(np.uint8).reshape(len(flat), -1)
    return flat[:1].copy() if bool((same == same[0]).all()) else None


def _by_count(model: ir.Model, types: Mapping[str, ValueType]) -> dict[int, list[ir.Value]]:
    """By number of elements, the tensors with that many: graph inputs, then what nodes make."""
    made = (v for node in model.graph for v in node.outputs if v.name)
    inputs = (v for v in model.graph.inputs if v.name not in model.graph.initializers)
    found: dict[int, list[ir.Value]] = {}
    for value in (*inputs, *made):
        found.setdefault(math.prod(types[str(value.name)].shape), []).append(value)
    return found


def _source(constant: ir.Value, candidates: Sequence[ir.Value]) -> ir.Value | None:
    """The first candidate that does not itself need the constant."""
    needing: set[ir.Node] = set()
    stack = [use.node for use in constant.uses()]
    while stack:
        node = stack.pop()
        if node not in needing:
            needing.add(node)
            stack.extend(use.node for v in node.outputs for use in v.uses())
    return next((v for v in candidates if v.producer() not in needing), None)


def _replace(
    model: ir.Model, value: ir.Value, kind: ValueType, fill: np.ndarray, source: ir.Value
) -> dict[str, ValueType]:
    """Put the nodes where they may stand: before the first reader, behind the source."""
    graph, name = model.graph, str(value.name)
    count = math.prod(kind.shape)
    one = _constant(model, "planner__one_dim", np.array([1], dtype=np.int64))
    shape = _constant(model, f"{name}__shape", np.array(kind.shape, dtype=np.int64))
    integer, dtype = ir.DataType.INT64, kind.dtype

    def made(suffix: str, of: ir.DataType, dims: list[int]) -> ir.Value:
        return ir.Value(name=name + suffix, shape=ir.Shape(dims), type=ir.TensorType(of))

    size = made("__count", integer, [])
    length = made("__length", integer, [1])
    flat = made("__flat", dtype, [count])
    readers = list(value.uses())
    del graph.initializers[name]
    value.name = f"{name}__folded"
    full = made("", dtype, list(kind.shape))
    for use in readers:
        use.node.replace_input_with(use.idx, full)
    nodes = [
        ir.Node("", "Size", [source], outputs=[size], name=f"{name}__count_node"),
        ir.Node("", "Reshape", [size, one], outputs=[length], name=f"{name}__length_node"),
        ir.Node(
            "",
            "ConstantOfShape",
            [length],
            attributes=[ir.AttrTensor("value", ir.Tensor(fill))],
            outputs=[flat],
            name=f"{name}__flat_node",
        ),
        ir.Node("", "Reshape", [flat, shape], outputs=[full], name=f"{name}__node"),
    ]
    producer = source.producer()
    if producer is not None:
        graph.insert_after(producer, nodes)
    else:
        graph.insert_before(next(iter(graph)), nodes)
    graph.sort()
    return {
        str(size.name): ValueType(dtype=integer, shape=()),
        str(length.name): ValueType(dtype=integer, shape=(1,)),
        str(flat.name): ValueType(dtype=dtype, shape=(count,)),
        str(one.name): ValueType(dtype=integer, shape=(1,)),
        str(shape.name): ValueType(dtype=integer, shape=(len(kind.shape),)),
    }


def _constant(model: ir.Model, name: str, array: np.ndarray) -> ir.Value:
    known = model.graph.initializers.get(name)
    if known is not None:
        return known
    value = ir.Value(
        name=name,
        shape=ir.Shape(array.shape),
        type=ir.TensorType(ir.DataType.INT64),
        const_value=ir.Tensor(array, name=name),
    )
    model.graph.register_initializer(value)
    return value
