"""Load and check a model, bind its dims, infer its shapes. External data is never read."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.passes.common import InlinePass

from planner.errors import ModelError, UsageError
from planner.files.reading import MAX_BYTES, read_bytes, shown
from planner.onnxio.bodies import bodies, nodes_within
from planner.onnxio.check import check_structure
from planner.onnxio.dims import bound_dims, bound_shape, dims_of, forget_unknown
from planner.onnxio.kinds import Shape, ValueType, is_sequence, items_of
from planner.onnxio.tensors import check_external_data

SHAPED_BY_TYPE = frozenset({"MaxPoolGrad", "AveragePoolGrad"})
"""Operators whose kernels take the result's shape from its declared type, not from inputs
(orttraining/training_ops/cpu/nn/pool_gradient_op.h)."""

_AT_MOST = frozenset({"SequenceAt", "ConcatFromSequence", "StringNormalizer"})
"""Operators whose inferred shape may be an upper bound (`shape_rules.sequences`): the declared shape
may be that of one run."""

_MAY_OVERRIDE = 4
"""The first IR version in which an initializer is an input only where the file lists it as one."""

_MAX_FILE_BYTES = (1 << 31) - 1
"""The limit of protocol buffers: larger models keep their weights in files beside them."""


class OpenShapeError(ModelError):
    """Shapes stay unknown; `names` has the names of these values."""

    def __init__(self, message: str, names: frozenset[str]) -> None:
        super().__init__(message)
        self.names = names


InferredTypes = dict[str, tuple[ir.DataType | None, Shape | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A checked model. `model` keeps the open dims of the file; functions are inlined.

    Attributes:
        sha256: digest of the model file itself, without external data.
        dims: size of each open dim, by its name, or by its position where it has none (`x:0`).
        has_external_data: whether an initializer lies in another file.
        own: outputs of the file's own nodes; ONNX Runtime places the nodes of inlined functions after all
            of these.
    """

    path: Path
    model: ir.Model
    sha256: str
    dims: Mapping[str, int]
    has_external_data: bool
    own: frozenset[str]


def load_model(path: Path, *, dims: Mapping[str, int] | None = None) -> LoadedModel:
    """Load and check a model.

    Args:
        path: an .onnx file.
        dims: sizes of dims, by name or by position (`x:0`).

    Raises:
        UsageError: the file does not exist, or a size is for no dim of the model (see `bound_dims`).
        ModelError: the file is no model or truncated, a dim has no size, or planner does not support it.
    """
    path = Path(path)
    data = _read(path)
    digest = hashlib.sha256(data).hexdigest()
    try:
        proto = onnx.load_model_from_string(data, format="protobuf")
    except (DecodeError, ValueError) as error:
        what = "is not an ONNX model, or is truncated"
        if data.lstrip()[:1] == b"{":
            what = "is JSON, not an ONNX model: a plan goes to planner apply, with its model"
        raise ModelError(f"{path} {what} ({error})") from None
    del data
    _modernize(proto)
    check_structure(proto, path)
    check_external_data(proto, path)
    own = frozenset(_outputs_made(proto))
    _declare_once(proto.graph)
    model = ir.from_proto(proto)
    ir.external_data.set_base_dir(model.graph, path.parent)
    if model.functions:
        model = InlinePass()(model).model
    bound = bound_dims(model, path, dims or {})
    initializers = model.graph.initializers.values()
    external = any(isinstance(v.const_value, ir.ExternalTensor) for v in initializers)
    return LoadedModel(
        path=path, model=model, sha256=digest, dims=bound, has_external_data=external, own=own
    )


def read_model(path: Path) -> ir.Model:
    """Read a model file as it is, external data by reference, without checks."""
    proto = onnx.load(path, format="protobuf", load_external_data=False)
    _modernize(proto)
    _declare_once(proto.graph)
    model = ir.from_proto(proto)
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model


def _modernize(proto: onnx.ModelProto) -> None:
    """Normalize old files and the output of unusual converters.

    Before IR version 4 each initializer had to be listed among the inputs. ONNX Runtime treats it as
    a constant nevertheless (`Graph::CanOverrideInitializer`, include/onnxruntime/core/graph/graph.h).
    """
    forget_unknown(proto)
    if 0 < proto.ir_version < _MAY_OVERRIDE:
        constants = {tensor.name for tensor in proto.graph.initializer}
        inputs = [value for value in proto.graph.input if value.name not in constants]
        del proto.graph.input[:]
        proto.graph.input.extend(inputs)
        proto.ir_version = _MAY_OVERRIDE


def _outputs_made(proto: onnx.ModelProto) -> Iterator[str]:
    """Yield the outputs of the graph's own nodes, without function calls."""
    functions = {(f.domain, f.name) for f in proto.functions}
    for node in proto.graph.node:
        if (node.domain, node.op_type) not in functions:
            yield from filter(None, node.output)


def _declare_once(graph: onnx.GraphProto) -> None:
    """Give a graph output that is also an input the input's type.

    The two are one value, and the output may leave its shape out.
    """
    types = {value.name: value.type for value in graph.input}
    for value in graph.output:
        if value.name in types:
            value.type.CopyFrom(types[value.name])


def model_digest(path: Path) -> str:
    """Return the SHA-256 of a model file, as in `LoadedModel.sha256`; raise as `load_model` where
    unreadable."""
    return hashlib.sha256(_read(path)).hexdigest()


def _read(path: Path) -> bytes:
    if not os.path.exists(path):  # unlike Path.exists, False for a name that is too long
        raise UsageError(f"no such model file: {path}")
    return read_bytes(path, what="an ONNX model", at_most=_MAX_FILE_BYTES)


def value_types(
    model: ir.Model,
    dims: Mapping[str, int],
    *,
    known: Mapping[str, ValueType] | None = None,
    fallback: Callable[[ir.Model, Mapping[str, int]], InferredTypes] | None = None,
    bounds: Mapping[str, ValueType] | None = None,
) -> dict[str, ValueType]:
    """Return the element type and static shape of every value of the model, with `dims` bound.

    Shapes come from symbolic shape inference on a bound clone. Shapes that it leaves open come from the
    file's declarations, then from `known`, then from `fallback` (called only if needed).

    Args:
        known: types of values by name, from the model that this one was made from.
        bounds: as for `inferred_types`.

    Raises:
        OpenShapeError: the shape or type of a value stays unknown; names the node that produces it.
    """
    found = inferred_types(model, dims, bounds)
    for name, (dtype, shape) in found.items():
        if known is not None and name in known and (dtype is None or shape is None):
            found[name] = (known[name].dtype, known[name].shape)
    if fallback is not None and any(d is None or s is None for d, s in found.values()):
        for name, (dtype, shape) in fallback(model, dims).items():
            if name in found:
                mine = found[name]
                found[name] = (_either(mine[0], dtype), shape if mine[1] is None else mine[1])
    types: dict[str, ValueType] = {}
    for value in _all_values(model):
        name = str(value.name)
        dtype, shape = found[name]
        if shape is None or dtype is None:
            raise OpenShapeError(
                _open_text(value, dtype),
                frozenset(n for n, (d, s) in found.items() if d is None or s is None),
            )
        types[name] = ValueType(dtype=dtype, shape=shape)
        _check_size(value, types[name])
    _check_total(types)
    return types


def _open_text(value: ir.Value, dtype: ir.DataType | None) -> str:
    """Return a message on a value of unknown size, and what to do."""
    name, made = str(value.name), _made_by(value)
    if dtype == ir.DataType.UNDEFINED:
        return (
            f"the bytes of sequence {name!r}{made} are unknown; export the model with static shapes, "
            f"bind its dims with --dim, or say how many its items take, as --bound '{name}=64MB'"
        )
    return (
        f"the shape of tensor {name!r}{made} is unknown; export the model with static shapes, bind its "
        f"dims with --dim, or say how large it may be with --bound '{name}=N'"
    )


def checked_types(model: ir.Model, types: Mapping[str, ValueType]) -> dict[str, ValueType]:
    """Return the entries of `types` for the model's values, all of which it must cover; infer
    nothing.

    Raises:
        ModelError: a tensor, or all of them together, takes more bytes than planner counts.
    """
    found: dict[str, ValueType] = {}
    for value in _all_values(model):
        found[str(value.name)] = types[str(value.name)]
        _check_size(value, found[str(value.name)])
    _check_total(found)
    return found


def _check_total(types: Mapping[str, ValueType]) -> None:
    total = sum(kind.bytes for kind in types.values())
    if total > MAX_BYTES:
        raise ModelError(
            f"the model's tensors take {total} bytes together; planner counts up to {MAX_BYTES}"
        )


def _check_size(value: ir.Value, kind: ValueType) -> None:
    if min(kind.shape, default=0) < 0:
        raise ModelError(f"tensor {value.name!r}{_made_by(value)} has shape {list(kind.shape)}")
    if kind.bytes > MAX_BYTES:
        raise ModelError(
            f"tensor {value.name!r}{_made_by(value)} takes {shown(kind.bytes)} bytes; planner counts "
            f"up to {MAX_BYTES}"
        )


def _made_by(value: ir.Value) -> str:
    node = value.producer()
    return f" (output of node {node.name!r}, {node.op_type})" if node else ""


def inferred_types(
    model: ir.Model, dims: Mapping[str, int], bounds: Mapping[str, ValueType] | None = None
) -> InferredTypes:
    """Return each value's type from inference and the file's declarations; None for unknown parts.

    Args:
        bounds: upper bounds on the types of values with open shapes, from which inference goes on.

    Raises:
        ModelError: inference fails, or contradicts what the file declares.
    """
    declared = {str(v.name): _kind(v, dims) for v in _all_values(model)}
    bound = model.clone()
    for value in _all_values(bound):
        shape = bound_shape(value, dims)
        producer = value.producer()
        is_fixed = producer is None or producer.op_type in SHAPED_BY_TYPE
        value.shape = ir.Shape(shape) if shape is not None and is_fixed else None
    _bound_values(bound, bounds or {})
    found = _infer_symbolic(bound)
    for name, kind in (bounds or {}).items():
        if name in found:
            found[name] = (kind.dtype, kind.shape)
    for value in _all_values(bound):
        if value.name not in declared:
            continue
        name = str(value.name)
        (dtype, shape), (said_dtype, said) = found[name], declared[name]
        differs = None not in (shape, said) and shape != said and value.producer() is not None
        if differs and not _is_within(value, said, shape):
            raise ModelError(
                f"tensor {name!r}{_made_by(value)} is declared as {list(said or ())} but inferred "
                f"as {list(shape or ())}; the model's value_info is wrong"
            )
        found[name] = (_either(dtype, said_dtype), shape if shape is not None else said)
    return found


def _either(first: ir.DataType | None, other: ir.DataType | None) -> ir.DataType | None:
    """Return the first type that is known. UNDEFINED, which is 0, is the type of sequences."""
    return other if first is None else first


def _is_within(value: ir.Value, said: Shape | None, most: Shape | None) -> bool:
    """Tell whether a declared shape is within an upper bound of a value's shape."""
    producer = value.producer()
    if producer is None or said is None or most is None or len(said) != len(most):
        return False
    return producer.op_type in _AT_MOST and all(a <= b for a, b in zip(said, most, strict=True))


def _kind(value: ir.Value, dims: Mapping[str, int]) -> tuple[ir.DataType | None, Shape | None]:
    """Return a value's declared element type and shape; of a sequence, its bytes."""
    if is_sequence(value):
        items = items_of(value)
        return ir.DataType.UNDEFINED, None if items is None else (items.bytes,)
    return value.dtype, bound_shape(value, dims)


def _bound_values(model: ir.Model, bounds: Mapping[str, ValueType]) -> None:
    """Make all readers of a bounded value read a graph input of the bound's shape instead."""
    made = (v for node in model.graph for v in node.outputs)
    wanted = [v for v in made if v.name in bounds and not is_sequence(v)]
    taken = {str(v.name) for node in model.graph.all_nodes() for v in node.outputs}
    for value in wanted:
        name = f"{value.name}__bound"
        while name in taken:
            name += "_"
        kind = bounds[str(value.name)]
        most = ir.Value(name=name, shape=ir.Shape(kind.shape), type=ir.TensorType(kind.dtype))
        for use in list(value.uses()):
            use.node.replace_input_with(use.idx, most)
        model.graph.inputs.append(most)


def open_dims(
    model: ir.Model, dims: Mapping[str, int]
) -> dict[str, tuple[ir.DataType | None, tuple[int | None, ...] | None]]:
    """Infer the element type and the dims of each value.

    An open dim is None, and so is a shape of unknown rank.

    Raises:
        ModelError: inference fails.
    """
    bound = model.clone()
    for value in _all_values(bound):
        if value.producer() is None:
            shape = bound_shape(value, dims)
            value.shape = ir.Shape(shape) if shape is not None else None
    _infer_symbolic(bound)
    found: dict[str, tuple[ir.DataType | None, tuple[int | None, ...] | None]] = {}
    for value in _all_values(bound):
        dtype, known = _kind(value, {})
        if dtype == ir.DataType.UNDEFINED:
            known = known or (None,)
        elif value.shape is not None:
            known = tuple(d if isinstance(d, int) else dims.get(d or "") for d in dims_of(value))
        found[str(value.name)] = (dtype, known)
    return found


def _infer_symbolic(model: ir.Model) -> InferredTypes:
    """Infer shapes on `model` in place."""
    from onnx_shape_inference import OpUsageError, ShapeInferenceError, infer_symbolic_shapes

    from planner.onnxio import shape_rules

    shape_rules.register()
    logger = logging.getLogger("onnx_shape_inference")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        while True:
            try:
                infer_symbolic_shapes(model, warn_on_missing=False)
                break
            except ShapeInferenceError as error:
                if not _without_branches(model, error.node_name):
                    raise
    except (OpUsageError, ShapeInferenceError) as error:
        raise ModelError(
            f"shape inference failed: {error}; check the sizes given with --dim"
        ) from error
    finally:
        logger.setLevel(level)
    return {str(v.name): _kind(v, {}) for v in _all_values(model)}


def _without_branches(model: ir.Model, name: str | None) -> bool:
    """Remove the branches from the If that contains a node of this name: its branch may never run.

    The If's outputs are open then. Return False where there is no such If.
    """
    for node in model.graph:
        if node.op_type == "If" and any(inner.name == name for inner in nodes_within(node)):
            for branch in bodies(node):
                for target, value in zip(node.outputs, branch.outputs, strict=False):
                    target.type = target.type or value.type
            node.attributes.clear()
            return True
    return False


def _all_values(model: ir.Model) -> list[ir.Value]:
    graph = model.graph
    values = {id(v): v for v in (*graph.inputs, *graph.initializers.values())}
    for node in graph:
        values.update((id(v), v) for v in node.outputs if v.name)
    return list(values.values())
