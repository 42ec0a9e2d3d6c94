"""Dims of graph inputs: their labels, and the sizes that are given to them.

A dim's label is its name, or its position (`x:0`) where the file gives it neither a name nor a size.
A size may be given by position for any dim.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from planner.errors import ModelError, UsageError
from planner.onnxio.bodies import all_proto_nodes, proto_bodies
from planner.onnxio.positions import Position, position_of, typed
from planner.units import some_of

Shape = tuple[int, ...]

_SHOWN = 4

_LIKELY = (("batch", 1), ("seq", 128), ("length", 128), ("height", 224), ("width", 224))
"""Sizes to suggest, by a word in a dim's name; the first match counts."""

_IMAGE = (1, 3, 224, 224)
_CHANNELS_LAST = (1, 224, 224, 3)
_CHANNELS = (1, 3, 4)


def forget_unknown(proto: onnx.ModelProto) -> None:
    """Remove every dim of -1, which some converters write for an unknown size."""
    graphs = [proto.graph]
    for part in (proto.graph, *proto.functions):
        graphs += (body for node in all_proto_nodes(part) for body in proto_bodies(node))
    values = [v for g in graphs for v in (*g.input, *g.output, *g.value_info)]
    for value in (*values, *(v for f in proto.functions for v in f.value_info)):
        kind = value.type
        if kind.HasField("optional_type"):
            kind = kind.optional_type.elem_type
        if not kind.HasField("tensor_type"):
            continue
        for dim in kind.tensor_type.shape.dim:
            if dim.dim_value == -1:
                dim.ClearField("dim_value")


def dims_of(value: ir.Value) -> tuple[int | str | None, ...]:
    """Return the size of each dim of a value, or else its label; None for a dim without one."""
    found: list[int | str | None] = []
    for axis, dim in enumerate(value.shape or ()):
        if isinstance(dim, int) or dim.value:
            found.append(dim if isinstance(dim, int) else str(dim.value))
        elif not value.is_graph_input():
            found.append(None)
        elif value.const_value is not None:  # an initializer that may be overridden
            found.append(value.const_value.shape.numpy()[axis])
        else:
            found.append(str(Position(input=str(value.name), axis=axis)))
    return tuple(found)


def bound_shape(value: ir.Value, dims: Mapping[str, int]) -> Shape | None:
    """Return the shape of a value with `dims` bound; None where a dim stays open or the rank is
    unknown."""
    if value.shape is None:
        return None
    sizes = [d if isinstance(d, int) else dims.get(d or "") for d in dims_of(value)]
    shape = tuple(size for size in sizes if size is not None)
    return shape if len(shape) == len(sizes) else None


def symbolic_dims(model: ir.Model) -> dict[str, list[str]]:
    """Return the labels of the open dims of the graph inputs, each with the inputs that have it."""
    return {
        called: [str(value.name) for value, _ in places]
        for called, places in _places(model).items()
    }


def _places(model: ir.Model) -> dict[str, list[tuple[ir.Value, int]]]:
    """Return the inputs and axes of each open dim, by its label."""
    found: dict[str, list[tuple[ir.Value, int]]] = {}
    for value in model.graph.inputs:
        for axis, dim in enumerate(dims_of(value)):
            if isinstance(dim, str):
                found.setdefault(dim, []).append((value, axis))
    return found


def dim_called(model: ir.Model, text: str, size: int | None = None, option: str = "") -> str | int:
    """Return the label of the dim of this name or position; its size where the file has one.

    Args:
        size: the size that the user gives it; None for any.
        option: the user's option, for messages.

    Raises:
        UsageError: the model has no such dim, or the file has it in another size.
    """
    symbols = symbolic_dims(model)
    if text in symbols:
        return text
    place = position_of(text)
    if place is None:
        has = ", ".join(sorted(symbols)) or "none"
        raise UsageError(f"--dim {text}: the model has no such dim (its dims: {has})")
    option = option or f"--dim {text}"
    value = next((v for v in model.graph.inputs if v.name == place.input), None)
    if value is None:
        has = some_of([f"{v.name} {_said(v)}" for v in model.graph.inputs], _SHOWN) or "none"
        raise UsageError(f"{option}: the model has no input {place.input!r} (its inputs: {has})")
    dims = dims_of(value)
    found = dims[place.axis] if place.axis < len(dims) else None
    if found is None or place.rank not in (None, len(dims)):
        raise UsageError(
            f"{option}: input {place.input!r} has the shape {_said(value)}, of {len(dims)} "
            f"{'axis' if len(dims) == 1 else 'axes'}"
        )
    if isinstance(found, int) and size not in (None, found):
        raise UsageError(
            f"{option}: input {place.input!r} has the shape {_said(value)}, whose axis {place.axis} is "
            f"{found}"
        )
    return found


def bound_dims(model: ir.Model, path: Path, given: Mapping[str, int]) -> dict[str, int]:
    """Return the size of every open dim, by its label.

    Args:
        path: the model's path, for messages.
        given: sizes by name or by position.

    Raises:
        UsageError: a size is for no dim of the model, contradicts the file or another size, or is not
            positive.
        ModelError: a dim has no size, or an input no shape.
    """
    for value in model.graph.inputs:
        if value.shape is None:
            raise ModelError(f"input {value.name!r} has no shape; set one before planning")
    _check_names(model)
    bound: dict[str, int] = {}
    said: dict[str, str] = {}
    for text, size in given.items():
        option = typed(text, given)
        called = dim_called(model, text, size, option)
        if isinstance(called, int):
            continue
        if size <= 0:
            raise UsageError(f"{option}: a dim must be at least 1")
        if bound.setdefault(called, size) != size:
            raise UsageError(
                f"dim {called!r} is given two sizes: {bound[called]} by {said[called]}, {size} by "
                f"{option}"
            )
        said.setdefault(called, option)
    _check_complete(model, path, bound)
    return bound


def _check_names(model: ir.Model) -> None:
    """Raise ModelError where the name of one dim is the position of another, nameless one."""
    for called, places in _places(model).items():
        nameless = [value for value, axis in places if _is_nameless(value, axis)]
        if nameless and len(nameless) < len(places):
            raise ModelError(
                f"input {nameless[0].name!r} has a dim without a name, whose place {called!r} is the "
                "name of another dim; give it a name"
            )


def _is_nameless(value: ir.Value, axis: int) -> bool:
    dim = (value.shape or ())[axis]
    return isinstance(dim, ir.SymbolicDim) and not dim.value


def _check_complete(model: ir.Model, path: Path, bound: Mapping[str, int]) -> None:
    """Raise ModelError with all dims that have no size, and with options that would give them one."""
    places = _places(model)
    missing = {called: found for called, found in places.items() if called not in bound}
    if not missing:
        return
    names: list[str] = []
    options: list[str] = []
    sizes = {**bound, **{called: _likely(called, *found[0]) for called, found in missing.items()}}
    to_shape: dict[str, ir.Value] = {}
    for called, found in missing.items():
        if _is_nameless(*found[0]):
            names.append(called)
            to_shape[str(found[0][0].name)] = found[0][0]
        else:
            names.append(f"{called} ({some_of([str(value.name) for value, _ in found], _SHOWN)})")
            options.append(f"--dim {shlex.quote(called)}={sizes[called]}")
    for name, value in to_shape.items():
        shape = "x".join(str(sizes.get(str(dim), dim)) for dim in dims_of(value))
        options.append(f"--shape {shlex.quote(name)}={shape}")
    raise ModelError(
        f"{path} has dims without a size: {', '.join(names)}; give them, for example with "
        f"{' '.join(options)}"
    )


def _likely(called: str, value: ir.Value, axis: int) -> int:
    """Return a size to suggest for a dim of an input: by its name, or as in a batch of one image."""
    dims = dims_of(value)
    name = "" if _is_nameless(value, axis) else called.lower()
    likely = [size for word, size in _LIKELY if word in name]
    if len(dims) == len(_IMAGE):
        if dims[-1] in _CHANNELS:
            likely.append(_CHANNELS_LAST[axis])
        elif dims[1] in _CHANNELS or all(
            _is_nameless(value, other) for other in range(1, len(dims))
        ):
            likely.append(_IMAGE[axis])
    return [*likely, 1][0]


def _said(value: ir.Value) -> str:
    """Return the shape of an input for a message, with `?` for a dim without name and size."""
    dims = enumerate(dims_of(value))
    return f"[{', '.join('?' if _is_nameless(value, axis) else str(dim) for axis, dim in dims)}]"
