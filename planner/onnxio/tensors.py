"""Checks of the tensors in a model's file: element types, dims, sizes, and their data.

Sizes are Python integers throughout, and none is above `planner.files.reading.MAX_BYTES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from planner.errors import ModelError
from planner.files.reading import MAX_BYTES, shown
from planner.onnxio.bodies import all_proto_nodes, proto_bodies

_MAX_DIGITS = 19
_MAX_LOCATION = 1024
_PER_FIELD = {
    "FLOAT": ("float_data", 1),
    "COMPLEX64": ("float_data", 2),
    "DOUBLE": ("double_data", 1),
    "COMPLEX128": ("double_data", 2),
    "INT64": ("int64_data", 1),
    "UINT32": ("uint64_data", 1),
    "UINT64": ("uint64_data", 1),
    "STRING": ("string_data", 1),
}
"""The field of onnx.proto for elements that are not raw, by type, and the entries that each element
takes."""


def check_tensors(graph: onnx.GraphProto, functions: Iterable[onnx.FunctionProto]) -> None:
    """Raise ModelError, naming the value or node, where planner cannot size a type, a dim or a
    tensor's data."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        _check_value(value)
    declared = {v.name: v for v in graph.input}
    for tensor in graph.initializer:
        what = f"initializer {tensor.name!r}"
        check_data(tensor, what)
        if tensor.name in declared:
            _check_same(tensor, declared[tensor.name])
    _check_attributes(all_proto_nodes(graph))
    for node in all_proto_nodes(graph):
        for body in proto_bodies(node):
            for tensor in body.initializer:
                check_data(tensor, f"initializer {tensor.name!r} in a body of node {node.name!r}")
    for function in functions:
        for value in function.value_info:
            _check_value(value)
        _check_attributes(function.node)


def _check_value(value: onnx.ValueInfoProto) -> None:
    if not value.type.HasField("tensor_type"):
        return
    tensor = value.type.tensor_type
    what = f"tensor {value.name!r}"
    if tensor.elem_type == onnx.TensorProto.UNDEFINED and not tensor.HasField("shape"):
        return  # the file declares nothing
    kind = _type_of(tensor.elem_type, what)
    dims = [d.dim_value for d in tensor.shape.dim if d.HasField("dim_value")]
    _check_size(kind, dims, what)


def _check_same(tensor: onnx.TensorProto, value: onnx.ValueInfoProto) -> None:
    """Check that an initializer fits the graph input of its name."""
    said = value.type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") else None for d in said.shape.dim]
    fits = not said.HasField("shape") or (
        len(dims) == len(tensor.dims)
        and all(d is None or d == has for d, has in zip(dims, tensor.dims, strict=True))
    )
    if said.elem_type != tensor.data_type or not fits:
        raise ModelError(
            f"initializer {tensor.name!r} is of another type or shape than the graph input of its "
            "name"
        )


def _check_attributes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            for tensor in _tensors_of(attribute):
                what = f"attribute {attribute.name!r} of node {node.name!r} ({node.op_type})"
                if tensor.data_location == onnx.TensorProto.EXTERNAL:
                    raise ModelError(
                        f"{what} keeps its data in another file, which is read for initializers "
                        "only; make it an initializer, or store it in the model"
                    )
                check_data(tensor, what)


def _tensors_of(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors


def check_data(tensor: onnx.TensorProto, what: str) -> None:
    """Raise ModelError unless the tensor's type is known and its data has the length of type and
    dims."""
    kind = _type_of(tensor.data_type, what)
    size = _check_size(kind, tensor.dims, what)
    if tensor.HasField("segment"):
        raise ModelError(f"{what} is stored in segments, which ONNX Runtime does not read")
    is_external = tensor.data_location == onnx.TensorProto.EXTERNAL
    if kind == ir.DataType.STRING and (is_external or tensor.HasField("raw_data")):
        raise ModelError(f"{what} has strings outside of string_data, where ONNX has them")
    if is_external:
        return
    if tensor.HasField("raw_data"):
        has = len(tensor.raw_data)
        if has != size:
            raise ModelError(f"{what} has {has} bytes of data; its type and shape need {size}")
        return
    field, needs = _entries(kind, math.prod(tensor.dims))
    has = len(getattr(tensor, field))
    if has != needs:
        raise ModelError(f"{what} has {has} values in {field}; its type and shape need {needs}")


def _entries(kind: ir.DataType, count: int) -> tuple[str, int]:
    """Return the field for `count` elements of a type, and the number of entries that they take."""
    if kind.name in _PER_FIELD:
        field, each = _PER_FIELD[kind.name]
        return field, count * each
    per_entry = 1 if kind.bitwidth >= 8 else 8 // kind.bitwidth
    return "int32_data", -(-count // per_entry)


def _type_of(code: int, what: str) -> ir.DataType:
    try:
        kind = ir.DataType(code)
    except ValueError:
        raise ModelError(
            f"{what} has the element type {code}, which ONNX does not define"
        ) from None
    if kind == ir.DataType.UNDEFINED:
        raise ModelError(f"{what} has no element type")
    return kind


def _check_size(kind: ir.DataType, dims: Iterable[int], what: str) -> int:
    """Return the bytes of the known dims; 0 for strings."""
    count = 1
    for dim in dims:
        if dim < 0:
            raise ModelError(f"{what} has the dim {dim}; a dim is 0 or more")
        count *= dim
    if kind == ir.DataType.STRING:
        return 0
    size = -(-count * kind.bitwidth // 8)
    if size > MAX_BYTES:
        raise ModelError(f"{what} takes {shown(size)} bytes; planner counts up to {MAX_BYTES}")
    return size


# -- data in other files -------------------------------------------------------------------------


def check_external_data(proto: onnx.ModelProto, model: Path) -> None:
    """Raise ModelError where an external data file is missing, too short, or outside the model's
    folder.

    Links are followed; no data is read.
    """
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_external(tensor, model)


def _check_external(tensor: onnx.TensorProto, model: Path) -> None:
    what = f"external data of initializer {tensor.name!r}"
    fields = {entry.key: entry.value for entry in tensor.external_data}
    location = fields.get("location", "")
    if Path(location).is_absolute() or ".." in Path(location).parts:
        raise ModelError(
            f"{what} is {shown(location)}, which does not lie below the model's folder"
        )
    folder = model.parent
    file = folder / location
    if not location or len(location) > _MAX_LOCATION or not file.is_file():
        raise ModelError(
            f"{what} is missing: {shown(location) if location else '?'} should stand beside the "
            f"model, in {folder}"
        )
    folders = (folder.resolve(), model.resolve().parent)  # a link to a model stands for it
    if not any(file.resolve().is_relative_to(f) for f in folders):
        raise ModelError(
            f"{what}, {location}, is a link to {file.resolve()}, which does not lie below the "
            "model's folder; put the file itself there"
        )
    size = _check_size(ir.DataType(tensor.data_type), tensor.dims, what)
    length = _field(what, fields, "length", size)
    if length != size:
        raise ModelError(f"{what} is {length} bytes long; its type and shape need {size}")
    end = _field(what, fields, "offset", 0) + length
    if file.stat().st_size < end:
        raise ModelError(
            f"external data file {location} is truncated: initializer {tensor.name!r} ends at "
            f"byte {end}, the file at {file.stat().st_size}"
        )


def _field(what: str, fields: Mapping[str, str], key: str, default: int) -> int:
    text = fields.get(key, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS:
        raise ModelError(f"{what}: {key} {shown(text)} is not a number of bytes")
    return int(text)
