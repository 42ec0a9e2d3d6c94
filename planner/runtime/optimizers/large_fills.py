"""Keep large constants of one repeated element away from ONNX Runtime's constant folding.

The zeros into which an embedding's gradient is scattered are as large as the embedding. ONNX Runtime
folds the `ConstantOfShape` that makes them, in memory, and writes the result into the optimized
model, where 2 GiB are too much for a protobuf. Its optimizers therefore see a graph input in place of
such a node. Afterwards the constant is put back as folding would have left it: an initializer, here
with one element in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

LARGE_BYTES = 128 << 20
"""The least bytes of a large fill; ONNX Runtime folds smaller ones itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """A constant of one repeated element; where several nodes make it, ONNX Runtime keeps one.

    Attributes:
        names: names of the values that are this constant; the first is its own.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    element: np.ndarray

    @property
    def name(self) -> str:
        """The name of the constant."""
        return self.names[0]

    @property
    def tensor(self) -> ir.Tensor:
        """The constant, with only its element in memory."""
        return ir.Tensor(np.broadcast_to(self.element.reshape(()), self.shape), name=self.name)


def large_fills(model: ir.Model) -> tuple[Fill, ...]:
    """Return the constants of large `ConstantOfShape` nodes with constant shapes, without graph
    outputs."""
    outputs = set(model.graph.outputs)
    found: dict[tuple[tuple[int, ...], str, bytes], list[str]] = {}
    for node in model.graph:
        if node.op_type != "ConstantOfShape" or node.outputs[0] in outputs:
            continue
        given = node.inputs[0]
        if given is None or given.const_value is None or given in model.graph.inputs:
            continue
        shape = tuple(int(d) for d in given.const_value.numpy())
        value = node.attributes.get_tensor("value")
        element = np.zeros(1, np.float32) if value is None else value.numpy()
        if math.prod(shape) * element.itemsize >= LARGE_BYTES:
            key = shape, element.dtype.name, element.tobytes()
            found.setdefault(key, []).append(str(node.outputs[0].name))
    return tuple(
        Fill(names=tuple(names), shape=shape, element=np.frombuffer(raw, np.dtype(dtype)))
        for (shape, dtype, raw), names in found.items()
    )


def without_fills(model: ir.Model, fills: tuple[Fill, ...]) -> ir.Model:
    """Return a clone with graph inputs in place of the fills."""
    clone = model.clone()
    made = {str(v.name): v for node in clone.graph for v in node.outputs}
    for fill in fills:
        given = ir.Value(
            name=fill.name,
            shape=ir.Shape(fill.shape),
            type=ir.TensorType(ir.DataType.from_numpy(fill.element.dtype)),
        )
        for value in (made[name] for name in fill.names):
            for use in list(value.uses()):
                use.node.replace_input_with(use.idx, given)
            node = value.producer()
            assert node is not None
            clone.graph.remove(node, safe=True)
        clone.graph.inputs.append(given)
    return clone


def with_fills(model: ir.Model, fills: tuple[Fill, ...]) -> None:
    """Put the fills back into an optimized `without_fills` model, as initializers."""
    known = {fill.name: fill for fill in fills}
    for value in [v for v in model.graph.inputs if v.name in known]:
        model.graph.inputs.remove(value)
        if value.uses():
            value.const_value = known[str(value.name)].tensor
            model.graph.register_initializer(value)
