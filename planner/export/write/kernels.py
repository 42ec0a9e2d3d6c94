"""Kernels that ONNX Runtime's CPU provider has for a graph; some operators lack one in some types.

It has hardly any kernels for half types. For float16, ONNX Runtime inserts casts to float32 and back
around an operator when it loads the model (core/optimizer/insert_cast_transformer.cc). For bfloat16 it
rejects the model instead; `with_casts` inserts the same casts in the file. The kernels are those of the
installed onnxruntime; without one, nothing is known about them.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections import defaultdict
from functools import cache
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from planner.export.errors import ExportError
from planner.export.write.emit import OPSET

_BFLOAT16 = "tensor(bfloat16)"
_KEPT_BYTES = 1 << 16
"""Bytes up to which initializers (shapes, scalars) stay in the model loaded for a test."""


def missing_bfloat16(model: ModelProto) -> tuple[str, ...]:
    """Return the operators with bfloat16 values but no such kernel on the CPU, sorted by name."""
    if not _is_known() or not _has_bfloat16(model):
        return ()
    kinds = _element_types(model)
    return tuple(sorted({n.op_type for n in model.graph.node if _lacks(n, kinds)}))


def with_casts(model: ModelProto, *, for_cpu: bool) -> ModelProto:
    """Return the model with casts around each node (OneHot, say) that ONNX lacks in bfloat16.

    Such a node computes in float32, and its results are rounded to bfloat16.

    Args:
        for_cpu: also cast around nodes for which the CPU has no bfloat16 kernel.

    Raises:
        ExportError: `for_cpu` is set, and onnxruntime is not installed to tell which kernels exist.
    """
    if for_cpu and not _is_known():
        raise ExportError(
            "which operators need casts on the CPU is read from onnxruntime, which is not installed; "
            'install it with pip install "onnx-planner[cpu]"'
        )
    if not _has_bfloat16(model):
        return model
    kinds = _element_types(model)
    result = ModelProto()
    result.CopyFrom(model)
    nodes: list[NodeProto] = []
    as_float: dict[str, str] = {}
    made = {name for node in result.graph.node for name in node.output}
    for node in result.graph.node:
        if _is_defined(node, kinds) and not (for_cpu and _lacks(node, kinds)):
            nodes.append(node)
            continue
        for at, name in enumerate(node.input):
            if kinds.get(name) != TensorProto.BFLOAT16:
                continue
            if name not in as_float:
                as_float[name] = f"{name}.cpu_float"
                while as_float[name] in made:  # may be taken by an earlier call
                    as_float[name] += "_2"
                nodes.append(_cast(name, as_float[name], TensorProto.FLOAT))
            node.input[at] = as_float[name]
        after: list[NodeProto] = []
        for at, name in enumerate(node.output):
            if kinds.get(name) == TensorProto.BFLOAT16:
                node.output[at] = f"{name}.cpu_wide"
                after.append(_cast(node.output[at], name, TensorProto.BFLOAT16))
        for attribute in node.attribute:
            if attribute.name == "dtype" and attribute.i == TensorProto.BFLOAT16:
                attribute.i = TensorProto.FLOAT
        nodes += [node, *after]
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    return result


def refusal(model: ModelProto) -> tuple[str, str] | None:
    """Return (name of the first node without a kernel on the CPU, ONNX Runtime's message), else None.

    None means that the model loads, or that onnxruntime is not installed.

    Raises:
        ExportError: ONNX Runtime rejects the model for another reason.
    """
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    light = _without_weights(model).SerializeToString()
    try:
        onnxruntime.InferenceSession(light, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no base class
        said = str(error).splitlines()[0]
        found = re.search(
            r"Could not find an implementation for (\S+) node with name '([^']*)'", said
        )
        if found is None:
            raise ExportError(
                f"ONNX Runtime refuses the exported graph: {said}; please report this, with the module"
            ) from error
        return found[2], said
    return None


@cache
def _is_known() -> bool:
    return importlib.util.find_spec("onnxruntime") is not None


@cache
def _kernels() -> dict[str, list[tuple[int, int, dict[str, list[str]]]]]:
    """Return (first version, last version, types by type parameter) of each CPU kernel, by operator."""
    state: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    found = defaultdict(list)
    for kernel in state.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider" and kernel.domain in ("", "ai.onnx"):
            found[kernel.op_name].append((*kernel.version_range, kernel.type_constraints))
    return found


def _lacks(node: NodeProto, kinds: dict[str, int]) -> bool:
    """Tell whether a node reads or makes bfloat16, and the CPU has no kernel for that."""
    used = _bfloat16_parameters(node, kinds)
    version = onnx.defs.get_schema(node.op_type, OPSET, node.domain).since_version
    return bool(used) and not any(
        first <= version <= last and all(_BFLOAT16 in types.get(u, [_BFLOAT16]) for u in used)
        for first, last, types in _kernels()[node.op_type]
    )


def _has_bfloat16(model: ModelProto) -> bool:
    """Tell whether a bfloat16 value is fed, stored, or made by a cast or a draw."""
    graph = model.graph
    return (
        any(i.type.tensor_type.elem_type == TensorProto.BFLOAT16 for i in graph.input)
        or any(tensor.data_type == TensorProto.BFLOAT16 for tensor in graph.initializer)
        or any(
            attribute.name in ("to", "dtype") and attribute.i == TensorProto.BFLOAT16
            for node in graph.node
            for attribute in node.attribute
        )
    )


def _is_defined(node: NodeProto, kinds: dict[str, int]) -> bool:
    """Tell whether ONNX defines the operator in bfloat16 for the operands and results that have it."""
    schema = onnx.defs.get_schema(node.op_type, OPSET, node.domain)
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    used = _bfloat16_parameters(node, kinds)
    return all(_BFLOAT16 in allowed.get(u, [_BFLOAT16]) for u in used)


def _bfloat16_parameters(node: NodeProto, kinds: dict[str, int]) -> set[str]:
    """Return the operator's type parameters that are bfloat16 in a node."""
    schema = onnx.defs.get_schema(node.op_type, OPSET, node.domain)
    used: set[str] = set()
    for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for at, name in enumerate(names):
            if kinds.get(name) == TensorProto.BFLOAT16:
                used.add(formals[min(at, len(formals) - 1)].type_str)
    return used


def _element_types(model: ModelProto) -> dict[str, int]:
    """Return the element type of every value for which it is known."""
    graph = onnx.shape_inference.infer_shapes(_without_weights(model)).graph
    infos = (*graph.input, *graph.value_info, *graph.output)
    kinds = {info.name: info.type.tensor_type.elem_type for info in infos}
    return kinds | {tensor.name: tensor.data_type for tensor in graph.initializer}


def _without_weights(model: ModelProto) -> ModelProto:
    """Return the model with its larger initializers as inputs."""
    graph = model.graph
    light = helper.make_graph(graph.node, graph.name, graph.input, graph.output)
    for tensor in graph.initializer:
        if len(tensor.raw_data) <= _KEPT_BYTES:
            light.initializer.append(tensor)
        else:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            light.input.append(info)
    return helper.make_model(light, opset_imports=model.opset_import, ir_version=model.ir_version)


def _cast(source: str, result: str, to: int) -> NodeProto:
    return helper.make_node("Cast", [source], [result], name=f"{result}.cpu_cast", to=to)
