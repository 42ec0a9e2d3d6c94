"""Shapes as ONNX Runtime infers them, for values that symbolic inference leaves open.

With its open dims bound, ONNX Runtime folds whole chains of shape arithmetic (Shape, Concat,
ReduceProd, ...) to constants and writes the shapes of all later values into the model that it saves.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir

from planner.errors import ModelError
from planner.files.temporary import temporary_folder
from planner.graph.model import TrainingGraph
from planner.graph.rules import SWAP_DOMAIN
from planner.onnxio.dims import dims_of
from planner.onnxio.kinds import SEQUENCE, is_sequence
from planner.onnxio.load import InferredTypes, ValueType
from planner.runtime.build import is_training_build
from planner.runtime.options import asking_options
from planner.runtime.profile import create_session
from planner.runtime.swapping import needs_of_graph, register_library

_SMALL_BYTES = 1024


def runtime_types(model: ir.Model, dims: Mapping[str, int]) -> InferredTypes:
    """Return the types and static shapes of the values that survive folding; read no large
    initializer.

    Raises:
        ModelError: ONNX Runtime cannot load the model.
    """
    light = without_large_initializers(model)
    proto = ir.to_proto(light)
    for info, value in zip(proto.graph.input, light.graph.inputs, strict=True):
        for dim, called in zip(info.type.tensor_type.shape.dim, dims_of(value), strict=False):
            if isinstance(called, str):
                dim.dim_param = called
    try:
        return _types_of(_folded(proto, dims))
    except ModelError:
        if not dims:
            raise
        return _types_of(_folded(proto, {}))  # a branch that never runs may contradict a size


def _folded(proto: onnx.ModelProto, dims: Mapping[str, int]) -> onnx.GraphProto:
    """Return the graph that ONNX Runtime makes of a model with `dims` bound."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    for name, size in dims.items():
        options.add_free_dimension_override_by_name(name, size)
    with temporary_folder() as folder:
        path = folder / "folded.onnx"
        options.optimized_model_filepath = str(path)
        create_session(proto.SerializeToString(), options)
        return onnx.load(path).graph


def unsized_values(model: ir.Model, types: Mapping[str, ValueType]) -> set[str]:
    """Return the values whose shape ONNX Runtime learns only at run time.

    A shape stated in the file is known. Where one is missing, a session with named dims reports the
    shape of every value before a run: symbolic dims hide shapes, and so do initializers that may be
    overridden, and shape arithmetic that nothing has folded.

    Args:
        types: element types, by name.

    Raises:
        ModelError: ONNX Runtime cannot load a model with symbolic dims. Where all dims are known, a
            model that it cannot load counts as sized.
    """
    # a session reports no dims for the output of SwapIn, but planner knows them
    nodes = (node for node in model.graph if node.domain != SWAP_DOMAIN)
    made = [v for node in nodes for v in node.outputs if v.name and not is_sequence(v)]
    if all(_is_static(value.shape) for value in made):
        return set()
    is_open = not all(_is_static(value.shape) for value in model.graph.inputs)
    if is_training_build() and not is_open:
        return set()  # onnxruntime-training 1.19.2 crashes on values of gradients
    proto = ir.to_proto(without_large_initializers(model))
    known = {output.name for output in proto.graph.output}
    for name in (str(v.name) for v in made if v.name not in known and v.name in types):
        if types[name].called == SEQUENCE:
            continue  # the file does not declare the type of its items
        kind = onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=int(types[name].dtype)))
        proto.graph.output.append(onnx.ValueInfoProto(name=name, type=kind))
    options = asking_options("disabled")
    if needs_of_graph(model):
        register_library(options)
    try:
        session = create_session(proto.SerializeToString(), options)
    except ModelError:
        if is_open:
            raise
        return set()
    # a value of unknown rank is reported with the shape of a scalar
    return {
        out.name
        for out in session.get_outputs()
        if any(dim is None for dim in out.shape)
        or (not out.shape and out.name in types and types[str(out.name)].shape)
    }


def unsized_copies(
    graph: TrainingGraph,
    model: ir.Model,
    types: Mapping[str, ValueType],
    like: Mapping[str, str],
) -> set[str]:
    """Return `unsized_values` of a model with copies of nodes, without a session where none is
    needed.

    A copy's shape becomes known when its original's does, unless it depends on elements of a copy.

    Args:
        graph: the graph of the model without the copies.
        types: types of the values of `model`.
        like: the original value of each copy.

    Raises:
        ModelError: see `unsized_values`.
    """
    unsized = {t.name for t in graph.tensors if t.unsized}
    follows = not all(_is_static(value.shape) for value in model.graph.inputs)
    follows = follows or not _sizes(graph).isdisjoint(like.values())
    known = {t.name for t in graph.tensors}
    found: set[str] = set()
    for node in model.graph:
        if node.domain == SWAP_DOMAIN:
            continue  # its attributes state the shape
        for name in (str(v.name) for v in node.outputs if v.name):
            if like.get(name, name) in unsized:
                found.add(name)
            elif name not in known and name not in like and types[name].shape:
                # an anchor whose result is no scalar: its rank may be unknown
                follows = follows or node.inputs[0] is None or node.inputs[0].name in found
    return unsized_values(model, types) if follows else found


def _sizes(graph: TrainingGraph) -> set[str]:
    """Return values whose elements may decide a shape: a few integers, and values made from them."""
    numbers = (t for t in graph.tensors if len(t.shape) <= 1 and not t.is_opaque)
    found = {t.name for t in numbers if _is_whole(t.dtype)}
    tensors = graph.tensors
    for op in graph.operations:
        if any(tensors[t].name in found for t in op.inputs):
            found.update(tensors[t].name for t in op.outputs if len(tensors[t].shape) <= 1)
    return found


def _is_whole(dtype: str) -> bool:
    return not ir.DataType[dtype.upper()].is_floating_point()


def _is_static(shape: ir.Shape | None) -> bool:
    return shape is not None and all(isinstance(dim, int) for dim in shape)


def without_large_initializers(model: ir.Model) -> ir.Model:
    """Return a view for writing in which every initializer above a size is a graph input without
    data.

    It shares nodes and all other values with `model`, which is not changed.
    """
    graph = model.graph
    asked: dict[str, ir.Value] = {}
    kept: list[ir.Value] = []
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes > _SMALL_BYTES:
            asked[name] = _input_like(value, tensor)
        else:
            kept.append(_loaded(value))
    inputs = {str(v.name): v for v in graph.inputs}
    view = ir.GraphView(
        list({**inputs, **asked}.values()),
        [asked.get(str(v.name), v) for v in graph.outputs],
        nodes=graph,
        initializers=kept,
        doc_string=graph.doc_string,
        opset_imports=graph.opset_imports,
        name=graph.name,
        metadata_props=graph.metadata_props,
    )
    return ir.Model(
        view,  # pyright: ignore[reportArgumentType]: models may be made of views
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=list(model.functions.values()),
        metadata_props=model.metadata_props,
    )


def _loaded(initializer: ir.Value) -> ir.Value:
    """Return an initializer with its data in memory, not in a file: the view may be written
    elsewhere."""
    tensor = initializer.const_value
    if not isinstance(tensor, ir.ExternalTensor):
        return initializer
    value = _input_like(initializer, tensor)
    value.const_value = ir.Tensor(tensor.numpy().copy(), name=initializer.name)
    return value


def _input_like(initializer: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
    value = ir.Value(
        name=initializer.name,
        shape=ir.Shape(tensor.shape.numpy()),
        type=ir.TensorType(tensor.dtype),
        doc_string=initializer.doc_string,
        metadata_props=initializer.metadata_props,
    )
    value.meta.update(initializer.meta)
    return value


def _types_of(graph: onnx.GraphProto) -> InferredTypes:
    found: InferredTypes = {
        tensor.name: (ir.DataType(tensor.data_type), tuple(tensor.dims))
        for tensor in graph.initializer
    }
    for info in (*graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            shape = tuple(d.dim_value for d in tensor.shape.dim)
            found[info.name] = (ir.DataType(tensor.elem_type), shape)
    return found
