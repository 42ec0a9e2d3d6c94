"""Switch ONNX Runtime's memory pattern off by a change of the file.

From its second run on, a session with default options takes one block for all outputs of its nodes,
except graph outputs, beside the first run's buffers: it then holds two to four times the live bytes.
It does this only where every graph input is a tensor (core/framework/session_state.cc,
`ResolveMemoryPatternFlag`). Therefore one input becomes an optional tensor:

    x: tensor(float) ── op          x: optional(tensor(float)) ── OptionalGetElement ── op

The node copies nothing: ONNX Runtime passes the buffer on
(core/providers/cpu/optional/optional_ops.cc, `Alias(0, 0)`). The caller feeds the same array under
the same name, and its type and shape are checked as before; `get_inputs()` reports another type for
it. `IOBinding.bind_cpu_input` takes tensors only: for that input, call `bind_ortvalue_input` instead.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from planner.lower.rewrite import METADATA_PREFIX
from planner.onnxio.bodies import captured, has_bodies
from planner.onnxio.load import ValueType
from planner.onnxio.names import FreeNames

OPSET = 15
"""The first operator set with `OptionalGetElement`."""


def why_none_optional(model: ir.Model) -> str | None:
    """Return why no input of a model can become optional; None where one can."""
    opset = model.graph.opset_imports.get("", 1)
    if opset < OPSET:
        return f"it needs operator set {OPSET}, and the model has {opset}"
    return (
        None if _candidates(model) else "the model has no input with dims that its nodes alone read"
    )


def with_optional_input(
    model: ir.Model, types: Mapping[str, ValueType]
) -> tuple[ir.Model, dict[str, ValueType], str]:
    """Return a clone whose smallest input is optional, the types of its values, and the name of that
    input.

    Args:
        model: a model for which `why_none_optional` returns None; not changed.
        types: types of its values.
    """
    clone = model.clone()
    graph = clone.graph
    chosen = min(_candidates(clone), key=lambda value: types[str(value.name)].bytes)
    fresh = FreeNames(clone).fresh
    kind = types[str(chosen.name)]
    made = ir.Value(name=fresh(f"{chosen.name}__given"), shape=chosen.shape, type=chosen.type)
    chosen.replace_all_uses_with(made)
    node = ir.Node(
        "", "OptionalGetElement", [chosen], outputs=[made], name=fresh(f"{made.name}_node")
    )
    node.metadata_props[METADATA_PREFIX + "role"] = "leaves the memory pattern off"
    graph.insert_before(graph[0], node)
    chosen.type = ir.OptionalType(ir.TensorType(kind.dtype))
    return clone, {**types, str(made.name): kind}, str(chosen.name)


def has_optional_input(model: ir.Model) -> bool:
    """Tell whether an input is optional: sessions then leave the memory pattern off."""
    return any(isinstance(value.type, ir.OptionalType) for value in model.graph.inputs)


def _candidates(model: ir.Model) -> list[ir.Value]:
    """Return the inputs that can become optional.

    Nodes read them, but no bodies of nodes do, and they are no initializers, outputs, strings or
    scalars: a session does not check the shape of an optional scalar.
    """
    graph = model.graph
    within = {value for node in graph if has_bodies(node) for value in captured(node)}
    return [
        value
        for value in graph.inputs
        if value.name not in graph.initializers
        and value not in within
        and value not in graph.outputs
        and value.dtype != ir.DataType.STRING
        and value.shape is not None
        and len(value.shape)
        and next(iter(value.uses()), None) is not None
    ]
