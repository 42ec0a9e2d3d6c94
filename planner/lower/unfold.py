"""Undo constant folding where it costs memory and saves nothing.

ONNX Runtime folds `ConstantOfShape` (the zeros that gradients of Gather and MaxPool are scattered
into) to an initializer that is on the device for the whole run. As a node, the same zeros exist only
around their use. The node is written so that ONNX Runtime cannot fold it again: its length comes from
`Size` of a tensor with as many elements, which reads metadata only and is never folded.

    zeros = Reshape(ConstantOfShape(Reshape(Size(t), [1])), shape)

A target with a memory of its own may have neither operator (`planner.targets`), and cannot take the
size of a tensor on the device without a copy. There any input that stays on the host will do:

    zeros = Reshape(Expand(zero, Size(h) / Size(h) * shape), shape)

with the arithmetic on the CPU, on one integer per dim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from planner.onnxio.bodies import has_bodies, nodes_within
from planner.onnxio.load import ValueType
from planner.onnxio.names import FreeNames, initializer
from planner.targets import HOST, Target

MIN_BYTES = 64 * 1024

_WORDS = frozenset({1, 2, 4, 8})
"""Sizes of elements in bytes that are compared as one number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfolded:
    """A clone with nodes in place of folded constants, or the model itself where there are none.

    `types` covers its values.

    Attributes:
        on_cpu: names of the new nodes that run on the CPU, on a target with a memory of its own.
    """

    model: ir.Model
    types: Mapping[str, ValueType]
    names: tuple[str, ...]
    bytes: int
    on_cpu: frozenset[str] = frozenset()


def unfold(
    model: ir.Model,
    types: Mapping[str, ValueType],
    original_initializers: Set[str],
    *,
    target: Target = HOST,
    on_host: Sequence[str] = (),
    is_open: bool = False,
) -> Unfolded:
    """Turn large initializers that folding made, and that repeat one value, into nodes.

    Args:
        model: as ONNX Runtime's optimizers left it; not changed.
        types: types of its values.
        original_initializers: names in the user's file; those are left alone.
        target: the target that the model is written for.
        on_host: graph inputs that stay on the host there.
        is_open: whether dims of the file are symbolic, and `types` hold for one size of them, or sizes
            depend on data, and `types` are bounds: lengths are then taken from graph inputs of fixed
            shape.
    """
    if not any(_is_folded(v, types, original_initializers) for v in _initializers(model)):
        return Unfolded(model=model, types=types, names=(), bytes=0)
    clone = model.clone()
    build = _UnfoldWriter(clone)
    found = dict(types)
    names: list[str] = []
    freed = 0
    on_cpu: set[str] = set()
    inputs = {str(v.name): v for v in clone.graph.inputs}
    host = next((inputs[n] for n in on_host if n in inputs and types[n].bytes), None)
    outputs = {v.name for v in clone.graph.outputs}
    candidates = _by_count(clone, types, is_open=is_open)
    for value in _initializers(clone):
        name = str(value.name)
        kind = types[name]
        if name in outputs or not _is_folded(value, types, original_initializers):
            continue
        fill = _splat(value)
        if fill is None:
            continue
        if target.own_memory:
            dtypes = target.expand_dtypes
            if host is None or kind.dtype.name.lower() not in dtypes:
                continue
            more, arithmetic = _replace_beside(build, value, kind, fill, host)
            found.update(more)
            on_cpu |= arithmetic
        else:
            source = _source(clone.graph, value, candidates.get(math.prod(kind.shape), ()))
            if source is None:
                continue
            found.update(_replace(build, value, kind, fill, source))
        names.append(name)
        freed += kind.bytes
    return Unfolded(
        model=clone, types=found, names=tuple(names), bytes=freed, on_cpu=frozenset(on_cpu)
    )


def _initializers(model: ir.Model) -> list[ir.Value]:
    return list(model.graph.initializers.values())


def _is_folded(value: ir.Value, types: Mapping[str, ValueType], original: Set[str]) -> bool:
    """Tell whether an initializer is large and not the user's own."""
    return value.name not in original and types[str(value.name)].bytes >= MIN_BYTES


def _splat(value: ir.Value) -> np.ndarray | None:
    """Return the one element that a constant repeats; None where it has several."""
    tensor = value.const_value
    if tensor is None or isinstance(tensor, ir.ExternalTensor):
        return None
    array = tensor.numpy()
    if not any(array.strides):  # one element in memory
        return array[(slice(0, 1),) * array.ndim].reshape(-1).copy()
    flat = array.reshape(-1)
    size = flat.itemsize
    same = flat.view(f"u{size}") if size in _WORDS else flat.view(np.uint8).reshape(-1, size)
    return flat[:1].copy() if bool((same == same[0]).all()) else None


def _by_count(
    model: ir.Model, types: Mapping[str, ValueType], *, is_open: bool
) -> dict[int, list[ir.Value]]:
    """Return the tensors by their number of elements: graph inputs, then outputs of nodes.

    Where dims are open, only inputs of a fixed shape are included.
    """
    made = [v for node in model.graph for v in node.outputs if v.name]
    inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    if is_open:
        made, inputs = [], [v for v in inputs if v.shape is not None and v.shape.is_static()]
    found: dict[int, list[ir.Value]] = {}
    for value in (*inputs, *made):
        found.setdefault(math.prod(types[str(value.name)].shape), []).append(value)
    return found


def _source(graph: ir.Graph, constant: ir.Value, candidates: Sequence[ir.Value]) -> ir.Value | None:
    """Return the first candidate that does not itself depend on the constant."""
    needing: set[ir.Node] = set()
    around = {inner: node for node in graph if has_bodies(node) for inner in nodes_within(node)}
    stack = [use.node for use in constant.uses()]
    while stack:
        node = stack.pop()
        node = around.get(node, node)
        if node not in needing:
            needing.add(node)
            stack.extend(use.node for v in node.outputs for use in v.uses())
    return next((v for v in candidates if v.producer() not in needing), None)


def _replace(
    build: _UnfoldWriter, value: ir.Value, kind: ValueType, fill: np.ndarray, source: ir.Value
) -> dict[str, ValueType]:
    """Make the constant `value` at run time: insert nodes that fill its shape, after `source`'s producer.

    The length is computed as `Size(source)`, so that ONNX Runtime does not fold the constant again.

    Returns:
        types of the new values, by name.
    """
    graph, name = build.model.graph, str(value.name)
    count = math.prod(kind.shape)
    one = build.one_dim()
    shape = build.constant(f"{name}__shape", np.array(kind.shape, dtype=np.int64))
    integer, dtype = ir.DataType.INT64, kind.dtype

    size = build.value(f"{name}__count", integer, [])
    length = build.value(f"{name}__length", integer, [1])
    flat = build.value(f"{name}__flat", dtype, [count])
    full = build.in_place_of(value, kind)
    fills = [ir.AttrTensor("value", ir.Tensor(fill))]
    nodes = [
        build.node("Size", [source], size),
        build.node("Reshape", [size, one], length),
        build.node("ConstantOfShape", [length], flat, attributes=fills),
        build.node("Reshape", [flat, shape], full, f"{name}__node"),
    ]
    producer = source.producer()
    if producer is not None:
        graph.insert_after(producer, nodes)
    else:
        graph.insert_before(next(iter(graph)), nodes)
    graph.sort()
    return _types_of(size, length, flat, one, shape)


def _replace_beside(
    build: _UnfoldWriter, value: ir.Value, kind: ValueType, fill: np.ndarray, host: ir.Value
) -> tuple[dict[str, ValueType], set[str]]:
    """Insert the nodes for a target with a memory of its own.

    Return the types of the new values, and the nodes that run on the CPU.
    """
    graph, name = build.model.graph, str(value.name)
    integer = ir.DataType.INT64
    shape = build.constant(f"{name}__shape", np.array(kind.shape, dtype=np.int64))
    element = build.constant(f"{name}__element", fill.reshape(()))
    size = build.value(f"{name}__count", integer, [])
    ratio = build.value(f"{name}__ratio", integer, [])
    dims = build.value(f"{name}__dims", integer, [len(kind.shape)])
    wide = build.value(f"{name}__wide", kind.dtype, list(kind.shape))
    full = build.in_place_of(value, kind)
    arithmetic = [
        build.node("Size", [host], size),
        build.node("Div", [size, size], ratio),
        build.node("Mul", [ratio, shape], dims),
    ]
    nodes = [
        *arithmetic,
        build.node("Expand", [element, dims], wide),
        build.node("Reshape", [wide, shape], full, f"{name}__node"),
    ]
    graph.insert_before(next(iter(graph)), nodes)
    types = _types_of(size, ratio, dims, wide, shape, element)
    return types, {str(node.name) for node in arithmetic}


class _UnfoldWriter:
    """Makes values and nodes of one model, under names that nothing in it has."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._names = FreeNames(model)
        self._one: ir.Value | None = None

    def value(self, wish: str, dtype: ir.DataType, dims: list[int]) -> ir.Value:
        return ir.val(self._names.fresh(wish), dtype, dims)

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        output: ir.Value,
        wish: str = "",
        attributes: Sequence[ir.Attr] = (),
    ) -> ir.Node:
        name = self._names.fresh(wish or f"{output.name}_node")
        return ir.Node("", op_type, inputs, attributes=attributes, outputs=[output], name=name)

    def one_dim(self) -> ir.Value:
        """Return the shape of a vector of one element, the same initializer for all."""
        if self._one is None:
            self._one = self.constant("planner__one_dim", np.array([1], dtype=np.int64))
        return self._one

    def constant(self, wish: str, array: np.ndarray) -> ir.Value:
        return initializer(self.model.graph, self._names.fresh(wish), array)

    def in_place_of(self, constant: ir.Value, kind: ValueType) -> ir.Value:
        """Return a new value with the constant's name that all its readers read instead."""
        name = str(constant.name)
        del self.model.graph.initializers[name]
        constant.name = self._names.fresh(f"{name}__folded")
        full = ir.val(name, kind.dtype, kind.shape)
        constant.replace_all_uses_with(full)
        return full


def _types_of(*values: ir.Value) -> dict[str, ValueType]:
    return {
        str(v.name): ValueType(dtype=v.dtype, shape=tuple(v.shape.numpy()))
        for v in values
        if v.dtype is not None and v.shape is not None
    }
