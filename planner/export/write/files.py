"""Write an exported model: whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from onnx import ModelProto, TensorProto, helper

from planner.onnxio.save import Together, written_together

_INLINE_LIMIT = 2_000_000_000
"""Bytes of initializers above which they get a file of their own (a protobuf ends at 2 GiB)."""

_EXTERNAL_FROM = 1024
"""Bytes of the smallest tensor that goes to that file: shapes and scalars stay in the model."""

_ALIGNMENT = 4096
"""Tensors start at a multiple of this, so that they can be mapped into memory."""


def data_path(path: Path) -> Path:
    """Where the tensors of the model at `path` go if they have a file of their own."""
    return path.with_name(f"{path.name}.data")


def sidecar_path(path: Path) -> Path:
    """Where the recipe of the inputs of the model at `path` goes."""
    return path.with_suffix(".inputs.json")


def save(model: ModelProto, path: Path, *, external: bool = False) -> Path | None:
    """`stage`, alone."""
    with written_together() as files:
        return stage(model, path, files, external=external)


def stage(model: ModelProto, path: Path, files: Together, *, external: bool = False) -> Path | None:
    """Write the model among `files`; its tensors beside it, in `NAME.data`, where asked or too large.

    Returns that file, or None where all is in one.
    """
    stored = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    if not external and stored <= _INLINE_LIMIT:
        with files.writing(path) as temporary:
            temporary.write_bytes(model.SerializeToString(deterministic=True))
        return None
    beside = data_path(path)
    with files.writing(beside) as data, data.open("wb") as file:
        light = _without_data(model, file, beside.name)
    with files.writing(path) as temporary:
        temporary.write_bytes(light.SerializeToString(deterministic=True))
    return beside


def _without_data(model: ModelProto, file: BinaryIO, location: str) -> ModelProto:
    """The model with references in place of its larger tensors, which go to `file`."""
    graph = model.graph
    tensors = [
        tensor if len(tensor.raw_data) < _EXTERNAL_FROM else _moved(tensor, file, location)
        for tensor in graph.initializer
    ]
    return helper.make_model(
        helper.make_graph(graph.node, graph.name, graph.input, graph.output, tensors),
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
    )


def _moved(tensor: TensorProto, file: BinaryIO, location: str) -> TensorProto:
    file.write(bytes(-file.tell() % _ALIGNMENT))
    moved = TensorProto(
        name=tensor.name,
        data_type=tensor.data_type,
        dims=tensor.dims,
        data_location=TensorProto.EXTERNAL,
    )
    fields = {"location": location, "offset": file.tell(), "length": len(tensor.raw_data)}
    for key, value in fields.items():
        moved.external_data.add(key=key, value=str(value))
    file.write(tensor.raw_data)
    return moved
