"""A small builder of ONNX graphs: values, nodes, constants, and the finished model.

Values are strings, unique in the graph. Constants with equal bytes share one initializer. Chains of
Reshape, of Transpose and of Transpose into Gemm never form: each helper skips the node that made its
operand, and unread nodes are dropped at the end. The module depends on ONNX and numpy only.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from planner.errors import UsageError

OPSET = 18
IR_VERSION = 9

Value = str
"""Name of a tensor in the graph."""

ABSENT: Value = ""
"""Name of an optional operand that is left out."""

_OPTIONAL_RESULTS = {"Dropout", "LayerNormalization", "MaxPool"}
"""Operators used here whose trailing results may be left out."""

_UNIFORM_ABOVE = 256
"""Number of elements above which a constant of equal elements is made at run time, not stored."""


class Builder:
    """A list of nodes in topological order, and the constants that they read."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self._constants: dict[Value, TensorProto] = {}
        self._constant_of: dict[tuple[str, tuple[int, ...], bytes], Value] = {}
        self._maker: dict[Value, NodeProto] = {}
        self._uses: Counter[str] = Counter()
        self._renamed: dict[Value, Value] = {}
        self._promised: set[str] = set()

    # -- names -------------------------------------------------------------------------------

    def fresh(self, base: str) -> Value:
        """Take and return `base`, or the first free name of `base.1`, `base.2`, …."""
        name = base
        while self._uses[name]:
            name = f"{base}.{self._uses[base]}"
            self._uses[base] += 1
        self._uses[name] += 1
        return name

    def reserve(self, name: str) -> Value:
        """Take `name` for a graph input.

        Raises:
            UsageError: another value has this name.
        """
        if self._uses[name]:
            raise UsageError(
                f"the name {name!r} is taken, and two tensors of the graph would have it: rename the "
                "input, the target or the returned tensor that is called so"
            )
        self._uses[name] += 1
        return name

    def promise(self, name: str) -> None:
        """Reserve `name` for the value that `call` gives it to."""
        self._promised.add(self.reserve(name))

    # -- nodes and constants -----------------------------------------------------------------

    def add(self, op_type: str, operands: Sequence[Value], name: str, **attributes: Any) -> Value:
        """Append a node with one result, called `name` or, if that is taken, a name derived from it."""
        return self.add_many(op_type, operands, [name], **attributes)[0]

    def add_many(
        self, op_type: str, operands: Sequence[Value], names: Iterable[str], **attributes: Any
    ) -> list[Value]:
        """Append a node with a result for each of `names`; the node is named after the first."""
        # Trailing absent operands are legal, but onnxruntime 1.31.1 crashes on a LayerNormalization with
        # one.
        operands = list(operands)
        while operands[-1:] == [ABSENT]:
            operands.pop()
        results = [self.fresh(name) for name in names]
        node = helper.make_node(op_type, operands, results, name=results[0], **attributes)
        self.nodes.append(node)
        self._maker.update(dict.fromkeys(results, node))
        return results

    @contextlib.contextmanager
    def ahead_of(self, value: Value) -> Iterator[None]:
        """Move nodes added within the block ahead of the node that made `value`, if they do not read it.

        ONNX Runtime first computes the operand of a node that stands last in the file. A value computed
        from a parameter, or from a result of the forward pass, would run before the whole backward pass
        that leads to `value`, and be held throughout.
        """
        start = len(self.nodes)
        yield
        made, maker = self.nodes[start:], self._maker.get(value)
        if maker is None:
            return
        own = {result for node in made for result in node.output}
        read = {operand for node in made for operand in node.input} - own
        for at in reversed(range(start)):
            if not read.isdisjoint(self.nodes[at].output):
                return
            if self.nodes[at] is maker:
                del self.nodes[start:]
                self.nodes[at:at] = made
                return

    def constant(self, array: np.ndarray) -> Value:
        """Return an initializer that holds `array`; equal arrays share one."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constant_of:
            name = self.fresh(f"constant_{len(self._constant_of)}")
            self._constants[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
            self._constant_of[key] = name
        return self._constant_of[key]

    def integers(self, values: Iterable[int]) -> Value:
        """Return a 1-D int64 constant."""
        return self.constant(np.array(list(values), np.int64))

    def filled(self, shape: Value, value: float, dtype: np.dtype, name: str) -> Value:
        """Append a tensor of equal elements; `shape` is a 1-D int64 value."""
        if dtype == ml_dtypes.bfloat16:  # ConstantOfShape makes bfloat16 from opset 20 on
            wide = self.filled(shape, value, np.dtype(np.float32), f"{name}.wide")
            return self.add("Cast", [wide], name, to=TensorProto.BFLOAT16)
        element = numpy_helper.from_array(np.array([value], dtype))
        return self.add("ConstantOfShape", [shape], name, value=element)

    def literal(self, array: np.ndarray, name: str) -> Value:
        """Return `array` as a constant, or make it at run time if it is large and uniform."""
        if array.size > _UNIFORM_ABOVE and (array == array.flat[0]).all():
            return self.filled(self.integers(array.shape), array.flat[0], array.dtype, name)
        return self.constant(array)

    # -- operators that look through their operand ---------------------------------------------

    def reshape(self, value: Value, shape: Value, name: str) -> Value:
        """Reshape `value` to the 1-D int64 `shape`, which holds no zeros."""
        return self.add("Reshape", [self.reshape_source(value), shape], name)

    def reshape_source(self, value: Value) -> Value:
        """Return the operand of the Reshape that made `value`, or `value` itself if no Reshape did."""
        return self._operand_of(value, "Reshape") or value

    def transpose(self, value: Value, axes: Sequence[int], name: str) -> Value:
        """Permute the axes of `value`; undo or merge an earlier permutation."""
        source = self._operand_of(value, "Transpose")
        if source is not None:
            earlier = self._axes(value)
            value, axes = source, [earlier[axis] for axis in axes]
        if list(axes) == sorted(axes):
            return value
        return self.add("Transpose", [value], name, perm=list(axes))

    def gemm(
        self, left: Value, right: Value, name: str, bias: Value | None = None, **attributes: Any
    ) -> Value:
        """Multiply two matrices; transposed operands are read in place."""
        operands: list[Value] = []
        for side, value in (("transA", left), ("transB", right)):
            source = self._operand_of(value, "Transpose")
            operands.append(source or value)
            if source is not None:
                attributes[side] = 1
        if bias is not None:
            operands.append(bias)
        return self.add("Gemm", operands, name, **attributes)

    def _operand_of(self, value: Value, op_type: str) -> Value | None:
        """Return the first operand of the node that made `value` if it is an `op_type`, else None."""
        node = self._maker.get(value)
        return node.input[0] if node is not None and node.op_type == op_type else None

    def _axes(self, value: Value) -> list[int]:
        return list(self._maker[value].attribute[0].ints)

    # -- the finished model --------------------------------------------------------------------

    def call(self, value: Value, name: str) -> Value:
        """Give `value` this name in the finished graph, or give the name to a copy of it.

        Inputs, constants and values that have been given a name already need the copy.
        """
        if name in self._promised:
            self._promised.remove(name)
            self._uses[name] = 0
        if value not in self._maker or value in self._renamed:
            return self.add("Identity", [self._renamed.get(value, value)], name)
        self._renamed[value] = self.reserve(name)
        return name

    def read_for(self, outputs: Iterable[str]) -> set[str]:
        """Return every value, inputs included, that the nodes leading to these outputs read."""
        self._rename()
        return _live(self.nodes, set(outputs))[1]

    def finish(
        self,
        name: str,
        inputs: Sequence[ValueInfoProto],
        outputs: Sequence[ValueInfoProto],
        initializers: Mapping[str, np.ndarray] | None = None,
        *,
        opset: int = OPSET,
    ) -> ModelProto:
        """Return the model, without the nodes and constants that no output needs."""
        self._rename()
        nodes, read = _live(self.nodes, {output.name for output in outputs})
        stored = [
            numpy_helper.from_array(array, key) for key, array in (initializers or {}).items()
        ]
        graph = helper.make_graph(
            nodes,
            name,
            inputs,
            outputs,
            stored + [tensor for key, tensor in self._constants.items() if key in read],
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=IR_VERSION,
        )

    def _rename(self) -> None:
        for node in self.nodes:
            node.input[:] = [self._renamed.get(operand, operand) for operand in node.input]
            node.output[:] = [self._renamed.get(result, result) for result in node.output]


def value_info(name: str, dtype: np.dtype, shape: Sequence[int | str]) -> ValueInfoProto:
    """Return the description of a graph input or output."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def _live(nodes: Sequence[NodeProto], needed: set[str]) -> tuple[list[NodeProto], set[str]]:
    """Return the nodes that lead to `needed`, and every value read or needed."""
    read = set(needed)
    kept: list[NodeProto] = []
    for node in reversed(nodes):
        if read.isdisjoint(node.output):
            continue
        if node.op_type in _OPTIONAL_RESULTS:
            while node.output[-1] not in read:
                node.output.pop()
        kept.append(node)
        read.update(node.input)
    return kept[::-1], read
