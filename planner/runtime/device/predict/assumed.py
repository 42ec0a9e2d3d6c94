"""The assumed placement of nodes on a device whose provider is not installed on this machine.

Where the provider is installed, ONNX Runtime reports the placement. Elsewhere this module applies its
two rules to the kernels that its `kernels.toml` lists:

    kernel   a node goes to the device if the provider has a kernel for it, and does not decline it
             (`GetCapability` of the provider: `planner.targets.backend.Backend.declines`)
    shapes   small computations on values that are already in host memory go back to the CPU
             (`GetCpuPreferredNodes` in onnxruntime/core/framework/fallback_cpu_capability.cc)

The second rule starts at the readers of values that device kernels leave in host memory (Shape, Size,
MemcpyToHost), and goes on to the readers of the CPU's results. A node of these goes to the CPU if no
input is of a type of 16 bits or less that CPUs are slow at, and every input is a graph input, an
initializer of at most 100 elements, or in host memory where the device kernel wants it on the device.

Both rules follow the source at 1.25.0 (commit 735e69a396af). On the samples of `models/zoo` they give
the placement that onnxruntime 1.31.1 reports for the WebGPU plugin 0.4.0, node by node; on CUDA they
have not been compared. The model must have passed ONNX Runtime's optimizers: they inline functions
that have no kernel, and their fusions change which kernels are needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

from planner.errors import ModelError
from planner.onnxio.load import ValueType
from planner.runtime.device.predict.table import Constraint, KernelTable, kernel_table
from planner.targets import Target
from planner.targets.backend import backend_of

SMALL_INITIALIZER_ELEMENTS = 100


def assumed_placement(
    model: ir.Model, types: Mapping[str, ValueType], target: Target
) -> dict[str, bool]:
    """Return for each node, by name, whether it is assumed to run on the device.

    Args:
        model: the model as ONNX Runtime's optimizers left it; without subgraphs.
        types: types of its values, by name.
        target: a target with a memory of its own.

    Raises:
        ModelError: a value's type is unknown.
    """
    table, declines = kernel_table(target), backend_of(target).declines
    has_kernel = {
        node: _has_kernel(node, model.opset_imports.get(node.domain, 1), types, table)
        and not declines(node)
        for node in model.graph
    }
    on_cpu = _cpu_preferred(model, types, has_kernel, table)
    return {str(node.name): has_kernel[node] and node not in on_cpu for node in model.graph}


def host_inputs(op_type: str, domain: str, opset: int, target: Target) -> tuple[int, ...]:
    """Return the inputs that the device's kernel reads in host memory; () where it has no kernel."""
    table = kernel_table(target)
    return _of_kernel(table, table.host_inputs, op_type, domain, opset)


def host_outputs(op_type: str, domain: str, opset: int, target: Target) -> tuple[int, ...]:
    """Return the outputs that the device's kernel leaves in host memory; () where it has no kernel."""
    table = kernel_table(target)
    return _of_kernel(table, table.host_outputs, op_type, domain, opset)


def _of_kernel(
    table: KernelTable,
    indices: Mapping[tuple[str, str], tuple[int, ...]],
    op_type: str,
    domain: str,
    opset: int,
) -> tuple[int, ...]:
    if not table.serving(op_type, domain, opset):
        return ()
    return indices.get(("" if domain == "ai.onnx" else domain, op_type), ())


def _dtype(value: ir.Value, types: Mapping[str, ValueType]) -> ir.DataType:
    known = types.get(str(value.name))
    dtype = known.dtype if known is not None else value.dtype
    if dtype is None:
        raise ModelError(f"the type of tensor {value.name!r} is unknown")
    return dtype


def _has_kernel(
    node: ir.Node, opset: int, types: Mapping[str, ValueType], table: KernelTable
) -> bool:
    return any(
        all(_allows(constraint, node, types) for constraint in kernel.constraints)
        for kernel in table.serving(node.op_type, node.domain, opset)
    )


def _allows(constraint: Constraint, node: ir.Node, types: Mapping[str, ValueType]) -> bool:
    for is_output, index in constraint.at:
        values = node.outputs if is_output else node.inputs
        value = values[index] if index < len(values) else None
        if value is not None and value.name:
            return _dtype(value, types) in constraint.types
    return True


def _cpu_preferred(
    model: ir.Model,
    types: Mapping[str, ValueType],
    has_kernel: Mapping[ir.Node, bool],
    table: KernelTable,
) -> set[ir.Node]:
    """Return the nodes that go to the CPU despite a device kernel.

    Nodes are decided in topological order, each after the producers of its inputs.
    """
    on_host: set[ir.Value] = set()
    candidates: set[ir.Node] = set()
    for node in model.graph:
        indices = (
            table.host_outputs.get((node.domain, node.op_type), ()) if has_kernel[node] else ()
        )
        for index in indices:
            if index < len(node.outputs):
                on_host.add(node.outputs[index])
                candidates.update(node.outputs[index].consumers())
    on_cpu: set[ir.Node] = set()
    for node in model.graph:
        if node not in candidates:
            continue
        if has_kernel[node]:
            wants = table.host_inputs.get((node.domain, node.op_type), ())
            if not all(
                _lets_go(value, index in wants, types, on_host, model.graph)
                for index, value in enumerate(node.inputs)
            ):
                continue
            on_cpu.add(node)
        on_host.update(node.outputs)
        for value in node.outputs:
            candidates.update(value.consumers())
    return on_cpu


def _lets_go(
    value: ir.Value | None,
    wanted_on_host: bool,
    types: Mapping[str, ValueType],
    on_host: set[ir.Value],
    graph: ir.Graph,
) -> bool:
    """Tell whether this input would allow its node to run on the CPU."""
    if value is None:
        return False
    dtype = _dtype(value, types)
    if dtype.is_floating_point() and dtype.bitwidth <= 16:
        return False
    if is_constant(value):
        known = value.const_value
        size = math.prod(types[str(value.name)].shape) if known is None else known.size
        return size <= SMALL_INITIALIZER_ELEMENTS
    if value.is_graph_input():
        return True
    return value in on_host and not wanted_on_host


def is_constant(value: ir.Value) -> bool:
    """Tell whether ONNX Runtime holds a value as an initializer, as it does outputs of Constant
    nodes."""
    producer = value.producer()
    return value.is_initializer() or (producer is not None and producer.op_type == "Constant")
