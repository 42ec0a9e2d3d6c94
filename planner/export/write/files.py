"""Write exported models: a file is written completely or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from onnx import ModelProto, TensorProto, helper

from planner.onnxio.save import Together, written_together

_INLINE_LIMIT = 2_000_000_000
"""Bytes of initializers above which they get a file of their own (a protobuf is limited to 2 GiB)."""

_EXTERNAL_FROM = 1024
"""Bytes of the smallest tensor stored in that file: shapes and scalars stay in the model."""

_ALIGNMENT = 4096
"""Alignment of tensors in that file in bytes, which allows mapping them into memory."""


def data_path(path: Path) -> Path:
    """Return the path of the tensor file of the model at `path`, if it has one."""
    return path.with_name(f"{path.name}.data")


def sidecar_path(path: Path) -> Path:
    """Return the path of the input recipes of the model at `path`."""
    return path.with_suffix(".inputs.json")


def save(model: ModelProto, path: Path, *, external: bool = False) -> Path | None:
    """Write the model at `path` as `stage` does, in a group of its own."""
    with written_together() as files:
        return stage(model, path, files, external=external)


def stage(model: ModelProto, path: Path, files: Together, *, external: bool = False) -> Path | None:
    """Write the model among `files`, with its tensors in `NAME.data` if asked or if it is too large.

    Returns the path of the tensor file, or None if the model file holds all tensors.
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
    """Return the model with its larger tensors moved to `file` and referenced there."""
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
