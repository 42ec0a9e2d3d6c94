"""Lower operators without a rule of ours by PyTorch's own translation.

`torch.onnx.export` translates forward operators with onnxscript's torchlib: a table of functions, one per
ATen operator, that append ONNX nodes when they run. Its owners keep it up to date. It lacks nearly all
operators of a backward pass; PyTorch decomposes those (`planner.export.apart.decompose`), or a rule in
`planner.export.aten` lowers them.

The functions called here are not public (torch.onnx._internal.exporter, as of PyTorch 2.13 to 2.15);
the extra `torch` bounds the version of PyTorch, and tests run every part of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes import common
from onnxscript import evaluator, optimizer, values
from torch import fx
from torch.onnx._internal.exporter import _building, _dispatching, _registration
from torch.onnx._internal.exporter._tensors import SymbolicTensor

from planner.export.aten.registry import Lowering, Result
from planner.export.errors import UnsupportedType
from planner.export.write.emit import ABSENT, IR_VERSION, OPSET, Value

_TYPES = {
    torch.float32: ir.DataType.FLOAT,
    torch.float64: ir.DataType.DOUBLE,
    torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
    torch.int64: ir.DataType.INT64,
    torch.int32: ir.DataType.INT32,
    torch.int16: ir.DataType.INT16,
    torch.int8: ir.DataType.INT8,
    torch.uint8: ir.DataType.UINT8,
    torch.bool: ir.DataType.BOOL,
}
_UNSET = -1
"""Torchlib's value of an omitted type argument."""


@cache
def knows(target: torch._ops.OpOverload) -> bool:
    """Tell whether torchlib translates an operator."""
    return any(not found.is_complex for found in _registry().get_decomps(target))


def translate(node: fx.Node, lowering: Lowering) -> Result | None:
    """Append torchlib's translation of an operator; return None if it has none.

    Raises:
        TypeError: torchlib does not support this form of the operator.
        UnsupportedType: an argument has an element type that is not exported.
    """
    if not isinstance(node.target, torch._ops.OpOverload) or not knows(node.target):
        return None
    function, _ = _dispatching.dispatch(node, _registry())
    assert function is not None
    given = _Arguments(lowering)
    args = [given.of(argument) for argument in node.args]
    kwargs = {name: given.of(argument) for name, argument in node.kwargs.items()}
    if "dtype" in kwargs and kwargs["dtype"] is None:
        kwargs["dtype"] = _UNSET
    recorder = _building.OpRecorder(given.opset, {})
    try:
        with evaluator.default_as(recorder):
            results = function(*args, **kwargs)
        outputs = [results] if isinstance(results, ir.Value) else list(results)
        if len(outputs) < len(node.target._schema.returns):
            raise TypeError("it gives only some of the results")
        part = _simplified(recorder, list(given.names), outputs)
    except Exception as error:  # third-party code may raise anything
        said = str(error.__cause__ or error).strip() or type(error).__name__
        raise TypeError(f"torchlib: {said.splitlines()[0]}") from error
    known = dict(zip(part.graph.inputs, given.names.values(), strict=True))
    single = part.graph.outputs[0] if isinstance(results, ir.Value) else None
    for made in part.graph:
        _append(made, known, lowering, single)
    found = [_name(value, known, lowering) for value in part.graph.outputs]
    return found[0] if isinstance(results, ir.Value) else found


def _simplified(
    recorder: _building.OpRecorder, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
) -> ir.Model:
    """Return the recorded graph with functions inlined and expressions of shapes and constants folded."""
    graph = ir.Graph(
        inputs,
        [v for v in outputs if v is not None],
        nodes=recorder.nodes,
        initializers=[],
        opset_imports={"": OPSET},
        name="part",
    )
    for value in recorder.constant_farm.values():
        if value.producer() is None:
            graph.register_initializer(value)
    model = ir.Model(graph, ir_version=IR_VERSION)
    for identifier, function in recorder.functions.items():
        if not isinstance(function, ir.Function):
            function = ir.serde.deserialize_function(function.to_function_proto())
        model.functions[identifier] = function
    common.InlinePass()(model)
    optimizer.fold_constants(model, onnx_shape_inference=True)
    common.RemoveUnusedNodesPass()(model)
    return model


@cache
def _registry() -> _registration.ONNXRegistry:
    # Without torchvision, the registry warns of each of its functions, which are not needed here.
    logger = logging.getLogger(_registration.__name__)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return _registration.ONNXRegistry.from_torchlib()
    finally:
        logger.setLevel(level)


def _type_of(dtype: torch.dtype) -> ir.DataType:
    if dtype not in _TYPES:
        raise UnsupportedType(dtype)
    return _TYPES[dtype]


class _Arguments:
    """Arguments of an operator in the form that torchlib takes.

    Attributes:
        names: names of the values made so far, by tensor.
    """

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self.opset = values.Opset("", OPSET)
        self.names: dict[ir.Value, Value] = {}

    def of(self, argument: Any) -> Any:
        """Convert tensors and dimensions to symbolic tensors, and types to numbers; keep the rest."""
        if isinstance(argument, fx.Node):
            held = argument.meta.get("val")
            if isinstance(held, torch.SymInt):
                return self.of(held)
            return self._tensor(self.lowering.value(argument), held)
        if isinstance(argument, torch.SymInt):
            name = self.lowering.op("Squeeze", self.lowering.extent(argument), tag="extent")
            return self._tensor(name, torch.empty((), dtype=torch.int64, device="meta"))
        if isinstance(argument, list | tuple):
            return [self.of(item) for item in argument]
        if isinstance(argument, torch.dtype):
            return int(_type_of(argument))
        if isinstance(argument, torch.device | torch.memory_format | torch.layout):
            return str(argument)
        return argument

    def _tensor(self, name: Value, held: torch.Tensor | None) -> SymbolicTensor:
        assert held is not None
        dims = [dim if isinstance(dim, int) else str(dim) for dim in held.shape]
        kind = ir.TensorType(_type_of(held.dtype))
        tensor = SymbolicTensor(self.opset, name=name, shape=ir.Shape(dims), type=kind)
        self.names[tensor] = name
        return tensor


def _append(
    made: ir.Node, known: dict[ir.Value, Value], lowering: Lowering, single: ir.Value | None
) -> None:
    """Append a node; the node that makes the operator's single result is named after the operator."""
    operands = [ABSENT if v is None else _name(v, known, lowering) for v in made.inputs]
    attributes = {name: _plain(attribute) for name, attribute in made.attributes.items()}
    if attributes.get("auto_pad") == "NOTSET":  # the default
        del attributes["auto_pad"]
    tag = "" if made.outputs[0] is single else made.op_type.lower()
    tags = [tag if len(made.outputs) == 1 else f"{tag}.{i}" for i in range(len(made.outputs))]
    if made.op_type == "Constant" and "value" in made.attributes:
        array = made.attributes["value"].as_tensor().numpy()
        known[made.outputs[0]] = lowering.builder.constant(array)
        return
    names = lowering.ops(made.op_type, *operands, tags=tags, **attributes)
    known.update(zip(made.outputs, names, strict=True))


def _plain(attribute: ir.Attr) -> Any:
    if attribute.type is ir.AttributeType.TENSOR:
        return ir.to_proto(attribute.as_tensor())
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        raise TypeError("torchlib makes a subgraph of it")
    return attribute.value


def _name(value: ir.Value, known: Mapping[ir.Value, Value], lowering: Lowering) -> Value:
    if value in known:
        return known[value]
    if value.const_value is None:
        raise TypeError(f"torchlib reads {value.name}, which nothing makes")
    return lowering.builder.constant(value.const_value.numpy())
