"""Convolutions for which `planner.fused` has an operator.

ONNX Runtime's Conv lays out what each result reads, one copy for each, and multiplies matrices: with
few filters a group, the copying takes most of the time (reports/fusion.md). `DirectConv` runs depthwise
convolutions, those of few channels over wide images, and those whose kernel is nearly as large as the
image, as the exporter writes gradients of grouped kernels. `KernelGradient` is the gradient of a kernel
without groups, which the exporter writes as a product of matrices for each place in the kernel, or as a
convolution whose kernel is the small image. `TurnedKernel` makes the kernel of the image's gradient: with
filters and channels exchanged and its places in reverse, for which ONNX has two slow operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import onnx_ir as ir

from planner.graph.effects import Effect
from planner.graph.model import Operation, OpId, Role, Tensor, TensorId, TrainingGraph
from planner.graph.rules import DIRECT_CONV, KERNEL_GRADIENT, TURNED_KERNEL

_MOST_FILTERS = 32
"""The most filters of a group where the kernel is the larger image: with more, products are faster."""

_LEAST_LARGER = 2
"""How many times as many elements as the result's image such a kernel has at least."""

_LEAST_COLUMNS = 24
"""The shortest rows of a result that fill the operators' vectors."""

_MOST_CHANNELS, _LEAST_WIDE = 64, 192
"""The most channels of a group, and the shortest rows, of a convolution that is faster in place than as
a product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolved:
    """Operations that one node of `planner.fused` replaces.

    Attributes:
        operations: in the order of the graph; nothing else reads their results, but the last one's,
            which stays.
        prepares: operations whose results they read, which go where nothing else reads them.
        op_type: DirectConv, KernelGradient or TurnedKernel.
        inputs: of the new node.
        window: its attribute, in the form that `planner/native/fused/convolution/convolution.h` reads; ""
            where it has none.
    """

    operations: tuple[OpId, ...]
    op_type: str
    inputs: tuple[TensorId, ...]
    window: str
    prepares: tuple[OpId, ...] = ()


def convolutions_of(
    model: ir.Model, graph: TrainingGraph, *, only_exact: bool = False
) -> list[Convolved]:
    """Return what nodes of `planner.fused` may replace.

    Args:
        graph: the graph of `model`, its operations in the order of the nodes.
        only_exact: only nodes that keep ONNX Runtime's own bits.
    """
    reader = _Reader(graph, list(model.graph))
    found: list[Convolved] = []
    for op in graph.operations:
        if op.op_type == "Transpose" and len(reader.shape(op.outputs[0])) == 4:
            for match in (_turned_kernel,) if only_exact else (_turned_kernel, _gradient):
                with suppress(_OtherFormError):
                    found.append(match(reader, op.outputs[0]))
    read = {tensor for one in found for tensor in one.inputs}
    found = [one for one in found if not read & _inner(graph, one)]
    if only_exact:
        return found
    taken = {op for one in found for op in one.operations}
    for op in graph.operations:
        if op.op_type == "Conv" and op.domain == "" and reader.is_plain(op) and op.id not in taken:
            node = reader.nodes[op.id]
            if _is_for(graph, op, node):
                found.append(_direct(op, node))
    return found


def _inner(graph: TrainingGraph, one: Convolved) -> set[TensorId]:
    """Return the tensors that the operations make only for one another; they go with the operations."""
    return {t for op in one.operations[:-1] for t in graph.operations[op].outputs}


def with_prepared(graph: TrainingGraph, found: Sequence[Convolved]) -> list[Convolved]:
    """Return these with only what else goes in `prepares`, each operation with the first that has it."""
    gone = {op for one in found for op in (*one.operations, *one.prepares)}
    last = {one.operations[-1] for one in found}

    while left := {op for op in gone - last if _is_read(graph, op, gone)}:
        gone -= left
    gone -= {op for one in found for op in one.operations}
    made: list[Convolved] = []
    for one in found:
        mine = tuple(op for op in one.prepares if op in gone)
        gone -= set(mine)
        made.append(replace(one, prepares=mine))
    return made


def _is_read(graph: TrainingGraph, op: OpId, gone: set[OpId]) -> bool:
    """Tell whether a caller, or an operation that stays, reads what an operation makes."""
    made = [graph.tensors[t] for t in graph.operations[op].outputs]
    return any(t.is_output or not gone >= set(t.consumers) for t in made)


def _is_for(graph: TrainingGraph, op: Operation, node: ir.Node) -> bool:
    image, kernel, result = (graph.tensors[t] for t in (*op.inputs[:2], *op.outputs))
    if not all(map(_is_sized, (image, kernel, result))):
        return False
    if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return False
    if min(node.attributes.get_ints("pads", (0,))) < 0:
        return False
    filters = kernel.shape[0] // node.attributes.get_int("group", 1)
    results, taps = math.prod(result.shape[2:]), math.prod(kernel.shape[2:])
    if filters == kernel.shape[1] == 1 or not results:
        return results > 0
    if filters <= _MOST_FILTERS and _LEAST_LARGER * results <= taps:
        return True
    is_wide = result.shape[3] >= _LEAST_WIDE and kernel.shape[1] <= _MOST_CHANNELS
    return is_wide and filters > 1 and 1 < taps <= results


def _is_sized(tensor: Tensor) -> bool:
    return tensor.dtype == "float" and not tensor.unsized and len(tensor.shape) == 4


def _direct(op: Operation, node: ir.Node) -> Convolved:
    attributes = node.attributes
    window = {
        "strides": attributes.get_ints("strides", (1, 1)),
        "dilations": attributes.get_ints("dilations", (1, 1)),
        "pads": attributes.get_ints("pads", (0, 0, 0, 0)),
        "group": (attributes.get_int("group", 1),),
    }
    return Convolved(
        operations=(op.id,), op_type=DIRECT_CONV, inputs=op.inputs, window=_text(window)
    )


def _text(window: dict[str, Sequence[int]]) -> str:
    return " ".join(f"{name} {' '.join(map(str, values))}" for name, values in window.items())


# -- the gradient of a kernel ----------------------------------------------------------------------


_SWAPPED, _LAST_FIRST = (1, 0, 2, 3), (2, 3, 0, 1)
"""Orders of axes: samples and channels swapped, and the last two axes first."""


class _OtherFormError(Exception):
    """The operations are not in the form that is looked for."""


def _need(holds: object) -> None:
    if not holds:
        raise _OtherFormError


class _Reader:
    """A graph read from its results to what they are made of."""

    def __init__(self, graph: TrainingGraph, nodes: Sequence[ir.Node]) -> None:
        self.graph, self.nodes = graph, nodes

    def shape(self, tensor: TensorId) -> tuple[int, ...]:
        return self.graph.tensors[tensor].shape

    def is_plain(self, op: Operation) -> bool:
        """Tell whether an operation may be replaced."""
        return op.effect is Effect.PURE and op.role is Role.ORIGINAL and not op.on_cpu

    def maker(self, tensor: TensorId, op_type: str) -> Operation:
        """Return the operation that made a tensor, which must be of this type and replaceable."""
        producer = self.graph.tensors[tensor].producer
        _need(producer is not None)
        op = self.graph.operations[producer or 0]
        _need(op.op_type == op_type and op.domain == "" and self.is_plain(op))
        _need(not self.graph.tensors[tensor].unsized)
        return op

    def reshape(self, tensor: TensorId) -> Operation:
        """Return the Reshape, to a shape that no run may feed, that made a tensor."""
        op = self.maker(tensor, "Reshape")
        self.constant(op, 1)
        return op

    def axes(self, op: Operation) -> tuple[int, ...]:
        """Return the order of axes that a Transpose makes."""
        return tuple(self.nodes[op.id].attributes.get_ints("perm", ()))

    def turned(self, tensor: TensorId, axes: Sequence[int]) -> Operation:
        """Return the Transpose to this order of axes that made a tensor."""
        op = self.maker(tensor, "Transpose")
        _need(self.axes(op) == tuple(axes))
        return op

    def as_rows(self, tensor: TensorId) -> Operation:
        """Return the Reshape of [channels, ...] to [channels, all the rest] that made a tensor."""
        op = self.reshape(tensor)
        _need(
            len(self.shape(tensor)) == 2 and self.shape(op.inputs[0])[:1] == self.shape(tensor)[:1]
        )
        return op

    def constant(self, op: Operation, place: int, default: Sequence[float] = ()) -> list[float]:
        """Return the elements of an input, which no run may feed; the default where it is absent."""
        inputs = self.nodes[op.id].inputs
        value = inputs[place] if place < len(inputs) else None
        if value is None:
            return list(default)
        _need(not value.is_graph_input() and value.const_value is not None)
        return value.const_value.numpy().reshape(-1).tolist()  # type: ignore[union-attr]


class _Form(NamedTuple):
    """A kernel's gradient in some operations, the last of which comes first in `replaced`.

    Attributes:
        others: operations that prepare the images.
        pads: rows before, columns before, rows after, columns after.
    """

    image: TensorId
    small: TensorId
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int]
    replaced: Sequence[Operation]
    others: Sequence[Operation]


def _gradient(reader: _Reader, result: TensorId) -> Convolved:
    """Match the forms of `planner.export.aten.spatial.conv_gradients`, from their result.

    Raises:
        _OtherFormError: it is in another one.
    """
    last = reader.maker(result, "Transpose")
    axes = reader.axes(last)
    _need(axes in (_LAST_FIRST, _SWAPPED))
    form = (_by_places if axes == _LAST_FIRST else _as_convolution)(reader, last)
    kernel, met = reader.shape(result)[2:], reader.shape(form.small)
    images = (form.image, form.small)
    _need(all(_is_sized(reader.graph.tensors[t]) for t in (*images, result)))
    _need(met[3] >= _LEAST_COLUMNS)
    for axis, size in enumerate(reader.shape(form.image)[2:]):
        left = size + form.pads[axis] + form.pads[axis + 2]
        left -= form.dilations[axis] * (kernel[axis] - 1) + 1
        _need(left >= 0 and left // form.strides[axis] + 1 == met[axis + 2])
    window = {"strides": form.strides, "dilations": form.dilations, "pads": form.pads}
    return Convolved(
        operations=_alone(reader.graph, form.replaced),
        prepares=tuple(sorted({op.id for op in form.others})),
        op_type=KERNEL_GRADIENT,
        inputs=images,
        window=_text({**window, "kernel": kernel}),
    )


def _turned_kernel(reader: _Reader, result: TensorId) -> Convolved:
    """Match a kernel in reverse, with filters and channels exchanged.

    Raises:
        _OtherFormError: it is another tensor.
    """
    last = reader.turned(result, _SWAPPED)
    reverse = reader.maker(last.inputs[0], "Slice")
    starts, ends, axes, steps = (reader.constant(reverse, i, (1, 1)) for i in range(1, 5))
    kernel = reader.graph.tensors[reverse.inputs[0]]
    _need(_is_sized(kernel) and axes == [2, 3] and steps == starts == [-1, -1])
    _need(all(end < -size for end, size in zip(ends, kernel.shape[2:], strict=True)))
    return Convolved(
        operations=_alone(reader.graph, [last, reverse]),
        op_type=TURNED_KERNEL,
        inputs=(kernel.id,),
        window="",
    )


def _as_convolution(reader: _Reader, last: Operation) -> _Form:
    """Match a convolution of the image by the small one, samples and channels swapped."""
    replaced, product = [last], last.inputs[0]
    kernel = list(reader.shape(last.outputs[0])[2:])
    with suppress(_OtherFormError):
        cropped = reader.maker(product, "Slice")
        starts, ends, axes, steps = (reader.constant(cropped, i, (1, 1)) for i in range(1, 5))
        _need(starts == [0, 0] and ends == kernel and axes == [2, 3] and steps == [1, 1])
        replaced, product = [last, cropped], cropped.inputs[0]
    conv = reader.maker(product, "Conv")
    given = reader.nodes[conv.id].attributes
    _need(len(conv.inputs) == 2 and given.get_int("group", 1) == 1)
    pads = given.get_ints("pads", (0, 0, 0, 0))
    _need(given.get_string("auto_pad", "NOTSET") == "NOTSET" and min(pads) >= 0)
    image, small = (reader.turned(t, _SWAPPED) for t in conv.inputs)
    return _Form(
        image=image.inputs[0],
        small=small.inputs[0],
        strides=given.get_ints("dilations", (1, 1)),
        dilations=given.get_ints("strides", (1, 1)),
        pads=pads,
        replaced=[*replaced, conv],
        others=[image, small],
    )


def _by_places(reader: _Reader, last: Operation) -> _Form:
    """Match a product of matrices for each place in the kernel."""
    shape = reader.shape(last.outputs[0])
    by_place = reader.reshape(last.inputs[0])
    stacked = reader.maker(by_place.inputs[0], "Concat")
    _need(len(stacked.inputs) == shape[2] * shape[3])
    _need(reader.nodes[stacked.id].attributes.get_int("axis", 0) == 0)
    places = [_place(reader, product, shape[:2]) for product in stacked.inputs]
    (left, right) = places[0].reads
    _need(all(place.reads == (left, right) for place in places))
    rows = reader.as_rows(left)
    small, image = reader.turned(rows.inputs[0], _SWAPPED), reader.turned(right, _SWAPPED)
    met = reader.shape(small.inputs[0])[2:]
    _need(all(place.size == met for place in places))
    pad, pads = _padding(reader, image.inputs[0])
    strides, dilations = _steps(places, shape[3])
    return _Form(
        image=image.inputs[0] if pad is None else pad.inputs[0],
        small=small.inputs[0],
        strides=strides,
        dilations=dilations,
        pads=pads,
        replaced=[last, by_place, stacked, *(op for place in places for op in place.operations)],
        others=[rows, small, image, *([pad] if pad is not None else [])],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The product for one place in the kernel: the small image by a part of the large one.

    Attributes:
        reads: the small image and the large one.
        starts, steps, size: the part, by rows and columns.
    """

    operations: tuple[Operation, ...]
    reads: tuple[TensorId, TensorId]
    starts: tuple[int, ...]
    steps: tuple[int, ...]
    size: tuple[int, ...]


def _place(reader: _Reader, product: TensorId, shape: tuple[int, ...]) -> _Place:
    gemm = reader.maker(product, "Gemm")
    given = reader.nodes[gemm.id].attributes
    _need(len(gemm.inputs) == 2 and reader.shape(product) == shape)
    _need(given.get_int("transB", 0) and not given.get_int("transA", 0))
    _need(given.get_float("alpha", 1.0) == 1.0)
    met = reader.as_rows(gemm.inputs[1])
    part = reader.maker(met.inputs[0], "Slice")
    starts, ends, axes, steps = (reader.constant(part, i, (1, 1)) for i in range(1, 5))
    _need(axes == [2, 3] and len(starts) == len(ends) == len(steps) == 2)
    return _Place(
        operations=(gemm, met, part),
        reads=(gemm.inputs[0], part.inputs[0]),
        starts=_ints(starts),
        steps=_ints(steps),
        size=reader.shape(part.outputs[0])[2:],
    )


def _ints(numbers: Sequence[float]) -> tuple[int, ...]:
    return tuple(int(number) for number in numbers)


def _steps(places: Sequence[_Place], columns: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the strides and dilations with which these are a kernel's places, row by row."""
    down = places[columns].starts[0] if len(places) > columns else 1
    right = places[1].starts[1] if columns > 1 else 1
    strides = places[0].steps
    _need(min(down, right, *strides) > 0)
    for number, place in enumerate(places):
        row, column = divmod(number, columns)
        _need(place.starts == (row * down, column * right) and place.steps == strides)
    return strides, (down, right)


def _padding(reader: _Reader, image: TensorId) -> tuple[Operation | None, Sequence[int]]:
    """Return the Pad with rows and columns of 0 that made an image, if one did, and their numbers."""
    try:
        pad = reader.maker(image, "Pad")
        widths = _ints(reader.constant(pad, 1))
        _need(reader.constant(pad, 2, (0.0,)) == [0.0] and not reader.constant(pad, 3))
    except _OtherFormError:
        return None, (0, 0, 0, 0)
    mode = reader.nodes[pad.id].attributes.get_string("mode", "constant")
    around = (*widths[2:4], *widths[6:8])
    is_around = len(widths) == 8 and not any((*widths[:2], *widths[4:6])) and min(around) >= 0
    return (pad, around) if is_around and mode == "constant" else (None, (0, 0, 0, 0))


def _alone(graph: TrainingGraph, replaced: Sequence[Operation]) -> tuple[OpId, ...]:
    """Return the operations in the graph's order; nothing else reads what any but the first makes."""
    ids = {op.id for op in replaced}
    _need(not any(_is_read(graph, op.id, ids) for op in replaced[1:]))
    return tuple(sorted(ids))
