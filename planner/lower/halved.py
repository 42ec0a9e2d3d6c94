"""Store values that are saved from forward to backward in a half type.

    x ──┬── forward readers                  x ──┬── forward readers
        │                                        └── Cast ── x__half ── Cast ── x__whole
        └── backward readers                                                        └── backward readers

Between the two parts only x__half is kept: x is dead once the forward pass has read it, and x__whole
can be recomputed from x__half at any time, at the price of a cast. Where the backward pass reads views
of x, they are made again from x__whole.

ONNX Runtime merges a cast with the next one only where that loses nothing
(core/optimizer/insert_cast_transformer.cc, `RemoveDuplicateCastTransformer`). These casts lose
precision: both stay, at every level (tests/lower/test_halved.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from planner.graph.model import Role, TrainingGraph
from planner.graph.saved import Saved
from planner.lower.marks import Marks
from planner.onnxio.load import ValueType
from planner.onnxio.names import FreeNames


@dataclass(frozen=True, slots=True, kw_only=True)
class Halved:
    """A clone in which some tensors are stored in half; `types` covers its values.

    Attributes:
        made: names of the added values: halves, wholes and their views.
    """

    model: ir.Model
    types: Mapping[str, ValueType]
    made: frozenset[str]


def with_halves(
    model: ir.Model,
    types: Mapping[str, ValueType],
    graph: TrainingGraph,
    saved: Sequence[Saved],
    dtype: ir.DataType,
) -> Halved:
    """Store saved values in a half type.

    Args:
        model: the model that `graph` was built from; not changed.
        types: types of its values.
        saved: the values to store (`planner.graph.saved.may_be_halved`).
        dtype: BFLOAT16 or FLOAT16.
    """
    clone = model.clone()
    build = _CastWriter(clone, types, graph, dtype)
    for one in saved:
        build.halve(one)
    return Halved(model=clone, types=build.types, made=frozenset(build.made))


class _CastWriter:
    """Adds casts to one model, under names that nothing in it has."""

    def __init__(
        self,
        model: ir.Model,
        types: Mapping[str, ValueType],
        graph: TrainingGraph,
        dtype: ir.DataType,
    ) -> None:
        self.model, self.graph, self.dtype = model, graph, dtype
        self.types = dict(types)
        self.made: list[str] = []
        self._names = FreeNames(model)
        self._nodes = list(model.graph)
        self._marks = Marks(model)
        self._values = {str(v.name): v for node in self._nodes for v in node.outputs if v.name}

    def halve(self, saved: Saved) -> None:
        """Cast one buffer to half after its forward readers, and back before its backward readers."""
        source = self._values[self.graph.tensors[saved.buffer].name]
        producer = source.producer()
        assert producer is not None
        half = self._cast(source, source, self.dtype, Role.HALF)
        whole = self._cast(half.outputs[0], source, self.types[str(source.name)].dtype, Role.WHOLE)
        added = [whole]
        back = {source: whole.outputs[0]}
        late = {self._nodes[op] for op in saved.late}
        for tensor in saved.read:
            value = self._values[self.graph.tensors[tensor].name]
            uses = [use for use in value.uses() if use.node in late]
            made = self._view_of_whole(value, back, added)
            for use in uses:
                use.node.replace_input_with(use.idx, made)
        first = min(saved.late)
        last = max((op for op in saved.early if op < first), default=None)
        self.model.graph.insert_after(producer if last is None else self._nodes[last], half)
        self.model.graph.insert_before(self._nodes[first], added)

    def _view_of_whole(
        self, value: ir.Value, back: dict[ir.Value, ir.Value], added: list[ir.Node]
    ) -> ir.Value:
        """Return a copy of a view that reads the value cast back; views between the two are copied too.

        Args:
            back: the copy of each value so far, the buffer's own first; gets the new ones.
            added: gets the new nodes, in order.
        """
        if value in back:
            return back[value]
        view = value.producer()
        assert view is not None and view.inputs[0] is not None
        source = self._view_of_whole(view.inputs[0], back, added)
        node = ir.Node(
            view.domain,
            view.op_type,
            [source, *view.inputs[1:]],
            attributes=list(view.attributes.values()),
            outputs=[self._of(value, self.types[str(value.name)].dtype, Role.WHOLE)],
            version=view.version,
            name=self._names.fresh(f"{view.name}__{Role.WHOLE.value}"),
        )
        self._mark(node, Role.WHOLE, str(value.name))
        added.append(node)
        back[value] = node.outputs[0]
        return back[value]

    def _cast(self, source: ir.Value, of: ir.Value, dtype: ir.DataType, role: Role) -> ir.Node:
        node = ir.Node(
            "",
            "Cast",
            [source],
            attributes=[ir.AttrInt64("to", int(dtype))],
            outputs=[self._of(of, dtype, role)],
            name=self._names.fresh(f"{of.name}__to_{role.value}"),
        )
        self._mark(node, role, str(of.name))
        return node

    def _of(self, value: ir.Value, dtype: ir.DataType, role: Role) -> ir.Value:
        """Make a value named after another; it gets a shape only where the file states the other's."""
        name = self._names.fresh(f"{value.name}__{role.value}")
        self.types[name] = ValueType(dtype=dtype, shape=self.types[str(value.name)].shape)
        self.made.append(name)
        return ir.Value(name=name, shape=value.shape, type=ir.TensorType(dtype))

    def _mark(self, node: ir.Node, role: Role, tensor: str) -> None:
        size = self.types[str(node.outputs[0].name)].bytes
        self._marks.put(node, role, tensor=tensor, bytes=str(size))
