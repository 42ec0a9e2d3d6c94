"""Keep pools in the plain layout, where ONNX Runtime would store images in blocks of channels.

A pool works channel by channel: channels may as well be images of their own:

    y = Reshape(MaxPool(Reshape(x, [-1, 1, 0, 0])), [-1, channels, 0, 0])

Both reshapes are views. Images of one channel have no whole block, and a session changes no layout
(core/optimizer/nchwc_transformer.cc, `TransformPool`): the plain kernel runs, on the same numbers in
the same order. Where the pool makes a graph output, the second reshape is a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np
import onnx_ir as ir

from planner.onnxio.load import ValueType
from planner.onnxio.names import FreeNames, initializer


def with_plain_pools(
    model: ir.Model, types: Mapping[str, ValueType], names: Set[str]
) -> tuple[ir.Model, dict[str, ValueType]]:
    """Return a clone in which the named pools read and make images of one channel, and types of its
    values.

    Args:
        model: the model, which is not changed.
        types: types of its values.
        names: names of nodes that are pools of images `[batch, channels, height, width]`.
    """
    clone = model.clone()
    fresh = FreeNames(clone).fresh
    found = dict(types)
    graph = clone.graph

    def constant(wish: str, dims: list[int]) -> ir.Value:
        name = fresh(wish)
        found[name] = ValueType(dtype=ir.DataType.INT64, shape=(4,))
        return initializer(graph, name, np.array(dims, dtype=np.int64))

    def image_of(value: ir.Value) -> str:
        """Return the name of a new value for the same elements as images of one channel."""
        kind = types[str(value.name)]
        batch, channels, height, width = kind.shape
        name = fresh(f"{value.name}__apart")
        found[name] = ValueType(dtype=kind.dtype, shape=(batch * channels, 1, height, width))
        return name

    apart = constant("planner__images_apart", [-1, 1, 0, 0])
    together: dict[int, ir.Value] = {}
    for pool in [node for node in graph if node.name in names]:
        source, made = pool.inputs[0], pool.outputs[0]
        assert source is not None
        channels = types[str(source.name)].shape[1]
        if channels not in together:
            together[channels] = constant("planner__images_together", [-1, channels, 0, 0])
        single = ir.Value(name=image_of(source), shape=_static(source), type=source.type)
        pool.replace_input_with(0, single)
        whole = ir.Value(name=made.name, shape=made.shape, type=made.type)
        made.replace_all_uses_with(whole, replace_graph_outputs=True)
        made.shape = _static(made)
        made.name = image_of(whole)
        before, after = fresh(f"{single.name}_node"), fresh(f"{made.name}_back")
        graph.insert_before(pool, _reshape(source, apart, single, before))
        graph.insert_after(pool, _reshape(made, together[channels], whole, after))
    return clone, found


def _static(value: ir.Value) -> ir.Shape | None:
    """Return the dims of a value as images of one channel, where the file states the value's."""
    if value.shape is None or not all(isinstance(dim, int) for dim in value.shape):
        return None
    batch, channels, height, width = value.shape.numpy()
    return ir.Shape([batch * channels, 1, height, width])


def _reshape(source: ir.Value, dims: ir.Value, made: ir.Value, name: str) -> ir.Node:
    return ir.Node("", "Reshape", [source, dims], outputs=[made], name=name)
