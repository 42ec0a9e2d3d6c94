"""Switch off random numbers, to compare two models that would draw different ones."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from planner.errors import ModelError
from planner.graph.effects import effect_of
from planner.onnxio.names import FreeNames, initializer

_LIKE = frozenset({"RandomNormalLike", "RandomUniformLike"})


def random_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes that draw random numbers, dropout among them."""
    return [
        node
        for node in model.graph
        if effect_of(
            node.op_type, node.domain, dict.fromkeys(node.attributes), training=_may_train(node)
        ).is_random
    ]


def without_draws(model: ir.Model) -> ir.Model:
    """Return a clone in which dropout drops nothing and every random number is one half.

    Raises:
        ModelError: an operator whose random numbers cannot be switched off.
    """
    clone = model.clone()
    names = FreeNames(clone)
    for node in random_nodes(clone):
        if node.op_type == "Dropout" and len(node.inputs) > 2:
            off = initializer(clone.graph, names.fresh("draws_off"), np.zeros((), np.bool_))
            node.replace_input_with(2, off)
        elif node.op_type in _LIKE:
            _replace_like(clone, names, node)
        else:
            raise ModelError(
                f"node {node.name!r} ({node.op_type}) draws other random numbers in each run, and "
                "planner cannot switch them off to see how micro-batches add up; leave out "
                "--micro-batch"
            )
    return clone


def _may_train(node: ir.Node) -> bool:
    """Tell whether a node may be in training mode; True unless it is a dropout known not to be."""
    if node.op_type != "Dropout":
        return True
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return False
    mode = node.inputs[2].const_value
    return mode is None or bool(mode.numpy().reshape(-1)[0])


def _replace_like(model: ir.Model, names: FreeNames, node: ir.Node) -> None:
    """Replace a random tensor that has another tensor's shape by halves."""
    out, data = node.outputs[0], node.inputs[0]
    dtype = ir.DataType(node.attributes.get_int("dtype", out.dtype or ir.DataType.FLOAT))
    shape = ir.Value(name=names.fresh("draws_shape"))
    half = ir.Value(name=names.fresh("draws_half"), type=ir.TensorType(dtype))
    value = ir.AttrTensor("value", ir.Tensor(np.full(1, 0.5).astype(dtype.numpy())))
    first = ir.Node("", "Shape", [data], outputs=[shape], name=names.fresh("Shape:draws"))
    second = ir.Node(
        "", "ConstantOfShape", [shape], [value], outputs=[half], name=names.fresh("Halves:draws")
    )
    model.graph.insert_before(node, [first, second])
    if out.is_graph_output():
        half.name, out.name = out.name, names.fresh("draws_old")
    out.replace_all_uses_with(half, replace_graph_outputs=True)
    model.graph.remove(node)
