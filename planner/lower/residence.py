"""Let graph inputs, initializers and outputs live on the host.

A node copies an input to the device when it is needed; a node copies an output to the host when it is
made:

    x ─────────────→ op → y            x → MemcpyFromHost → op → MemcpyToHost → y
    x, y on the device throughout      on the device while they are needed

A page-in is an operation that may run again, at the price of a copy. A page-out is an operation that
reads the output and leaves it on the host. Planning needs no more than that (`planner.formulate`). An
input whose readers on the device are all page-ins stays on the host, and so does an initializer.

Constant folding would run the page-in of an initializer when a session is created, and keep its
result on the device. It leaves an initializer alone that is also a graph input; `get_inputs()` of a
session does not list it (core/graph/graph.cc: `GetInputs` leaves out inputs with an initializer).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass

import onnx_ir as ir

from planner.graph.effects import Effect
from planner.graph.model import Role, Tensor, TrainingGraph
from planner.graph.rules import FROM_HOST, TO_HOST
from planner.lower.marks import Marks
from planner.onnxio.bodies import nodes_within
from planner.onnxio.load import ValueType
from planner.onnxio.names import FreeNames

_READS_ALONE = frozenset(
    {
        Effect.PURE,
        Effect.RANDOM_SEEDED,
        Effect.RANDOM_UNSEEDED,
        Effect.RANDOM_IN_TRAINING,
        Effect.ANY_ORDER,
        Effect.LEFT_ON_HOST,
    }
)
"""Effects of operations that leave their inputs unchanged."""


_MIN_ELEMENTS = 64
"""The least elements of an initializer that may move; smaller ones are shapes, axes and scalars,
which operators need as constants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resided:
    """A clone in which some tensors live on the host; `types` covers its values.

    Attributes:
        page_ins, page_outs: the tensor on the host, by the name of the node.
    """

    model: ir.Model
    types: Mapping[str, ValueType]
    page_ins: Mapping[str, str]
    page_outs: Mapping[str, str]


def may_live_on_host(graph: TrainingGraph) -> tuple[Tensor, ...]:
    """Return inputs, initializers and outputs that the device holds and that can move to the host.

    A tensor stays if a node that reads it may write over it, and so does an output that is a view.
    """
    written = {t for op in graph.operations if op.effect not in _READS_ALONE for t in op.inputs}
    return tuple(t for t in graph.tensors if _may_move(graph, t) and t.id not in written)


def _may_move(graph: TrainingGraph, tensor: Tensor) -> bool:
    if tensor.on_host or tensor.is_opaque or not tensor.bytes or tensor.barred is not None:
        return False
    if tensor.is_initializer and math.prod(tensor.shape) < _MIN_ELEMENTS:
        return False
    if tensor.is_persistent:
        return not tensor.is_output and bool(tensor.consumers)
    if not tensor.is_output or tensor.buffer != tensor.id:
        return False
    assert tensor.producer is not None
    producer = graph.operations[tensor.producer]
    # an output has a buffer of its own; another result may overwrite the node's input
    is_own = producer.effect in _READS_ALONE
    return is_own and not producer.on_cpu and producer.op_type != TO_HOST


def with_residence(
    model: ir.Model,
    types: Mapping[str, ValueType],
    names: Set[str],
    *,
    on_cpu: Set[str] = frozenset(),
) -> Resided:
    """Let the named tensors live on the host.

    Args:
        model: the model, which is not changed.
        types: types of its values.
        names: names of graph inputs, initializers and outputs (`may_live_on_host`).
        on_cpu: names of nodes that run on the CPU, beside a device with a memory of its own: they read
            tensors on the host directly.
    """
    clone = model.clone()
    build = _PagingWriter(clone, types)
    inputs: dict[str, ir.Value] = {str(v.name): v for v in clone.graph.inputs}
    sources = {**clone.graph.initializers, **inputs}
    for name, value in sources.items():
        if name in names:
            build.page_in(value, on_cpu)
            if name not in inputs:
                clone.graph.inputs.append(value)
    for place, value in enumerate(clone.graph.outputs):
        if value.name in names and value.producer() is not None:
            build.page_out(place, value)
    return Resided(
        model=clone, types=build.types, page_ins=build.page_ins, page_outs=build.page_outs
    )


class _PagingWriter:
    """Adds copies to one model, under names that nothing in it has."""

    def __init__(self, model: ir.Model, types: Mapping[str, ValueType]) -> None:
        self.model = model
        self.types = dict(types)
        self.page_ins: dict[str, str] = {}
        self.page_outs: dict[str, str] = {}
        self._names = FreeNames(model)
        self._place = {node: i for i, node in enumerate(model.graph)}
        self._around = {n: node for node in model.graph for n in (node, *nodes_within(node))}
        self._marks = Marks(model)

    def page_in(self, value: ir.Value, on_cpu: Set[str]) -> None:
        """Copy an input to the device, and make its readers there read the copy."""
        readers = [use for use in value.uses() if use.node.name not in on_cpu]
        around = self._around
        name = str(value.name)
        here = self._like(value, self._names.fresh(f"{name}__here"))
        node = self._copy(FROM_HOST, Role.PAGE_IN, value, here, f"{name}__page_in")
        self.page_ins[str(node.name)] = name
        for use in readers:
            use.node.replace_input_with(use.idx, here)
        if readers:
            first = min((around[use.node] for use in readers), key=self._place.__getitem__)
            self.model.graph.insert_before(first, node)
        else:
            self.model.graph.append(node)

    def page_out(self, place: int, value: ir.Value) -> None:
        """Copy an output to the host; its other readers read it where it was made."""
        name, producer = str(value.name), value.producer()
        assert producer is not None
        value.name = self._names.fresh(f"{name}__here")
        self.types[value.name] = self.types[name]
        out = self._like(value, name)
        node = self._copy(TO_HOST, Role.PAGE_OUT, value, out, f"{name}__page_out")
        self.page_outs[str(node.name)] = name
        self.model.graph.outputs[place] = out
        self.model.graph.insert_after(producer, node)

    def _like(self, value: ir.Value, name: str) -> ir.Value:
        """Make a value of another's type; it gets a shape only where the file states the other's."""
        kind = self.types[str(value.name)]
        self.types[name] = kind
        return ir.Value(name=name, shape=value.shape, type=value.type or ir.TensorType(kind.dtype))

    def _copy(
        self, op_type: str, role: Role, source: ir.Value, made: ir.Value, wish: str
    ) -> ir.Node:
        name, kind = self._names.fresh(wish), self.types[str(made.name)]
        node = ir.Node("", op_type, [source], outputs=[made], name=name)
        host = source if role is Role.PAGE_IN else made
        self._marks.put(node, role, tensor=str(host.name), bytes=str(kind.bytes))
        return node
