"""A model while its nodes are replaced by chunks: new values, constants and nodes under free names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from planner.graph.model import Role
from planner.lower.chunks.regions import Ground
from planner.lower.chunks.stages import Keys, Place, in_turn
from planner.lower.marks import Marks
from planner.onnxio.load import ValueType
from planner.onnxio.names import FreeNames, initializer


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A clone in which regions run in chunks; `types` covers its values.

    Attributes:
        order: names of all nodes in file order: each region chunk after chunk.
        values: for each new value, the name of the value that it is a part of.
        nodes: for each new node, the name of the node whose work it does a part of.
    """

    model: ir.Model
    types: Mapping[str, ValueType]
    order: tuple[str, ...]
    values: Mapping[str, str]
    nodes: Mapping[str, str]


class ChunkedModel:
    """A clone whose nodes are being replaced by chunks."""

    def __init__(self, ground: Ground, order: Sequence[str]) -> None:
        self.ground = ground
        self.model = ground.model.clone()
        self.types = dict(ground.types)
        self.old = {str(node.name): node for node in self.model.graph}
        self.keys = Keys(ground, order)
        self.places: dict[str, Place] = {name: self.keys.alone(name) for name in self.old}
        self.nodes = dict(self.old)
        self.like: dict[str, str] = {}
        self.parts: dict[str, str] = {}
        self._names = FreeNames(self.model)
        self._marks = Marks(self.model)
        self._integers: dict[tuple[str, tuple[int, ...]], ir.Value] = {}

    def done(self) -> Split:
        """Return the rewritten model, its nodes in order."""
        names = in_turn(self.nodes, self.places)
        graph = self.model.graph
        graph.remove(list(graph))
        graph.extend(self.nodes[name] for name in names)
        return Split(
            model=self.model,
            types=self.types,
            order=tuple(names),
            values=self.like,
            nodes=self.parts,
        )

    def value(self, wish: str, kind: ValueType, like: ir.Value) -> ir.Value:
        """Make a new value; it gets no shape where the value that it is like has none."""
        value = self.named(self._names.fresh(wish), kind, like)
        self.like[str(value.name)] = str(like.name)
        return value

    def named(self, name: str, kind: ValueType, like: ir.Value) -> ir.Value:
        """Make a value with a given name."""
        self.types[name] = kind
        shape = None if like.shape is None else ir.Shape(kind.shape)
        return ir.Value(name=name, shape=shape, type=ir.TensorType(kind.dtype))

    def constant(self, wish: str, array: np.ndarray) -> ir.Value:
        """Add an initializer."""
        name = self._names.fresh(wish)
        dtype = ir.DataType.from_numpy(array.dtype)
        self.types[name] = ValueType(dtype=dtype, shape=array.shape)
        return initializer(self.model.graph, name, array)

    def integers(self, numbers: tuple[int, ...], dtype: str = "int64") -> ir.Value:
        """Return a vector of integers: the same initializer for the same numbers."""
        key = (dtype, numbers)
        if key not in self._integers:
            wish = f"planner__{dtype}_{'_'.join(map(str, numbers)) or 'none'}"
            self._integers[key] = self.constant(wish, np.array(numbers, dtype=dtype))
        return self._integers[key]

    def add(self, node: ir.Node, wish: str, of: str, place: Place) -> None:
        """Add a new node, with a free name and its mark."""
        node.name = self._names.fresh(wish)
        self._marks.put(node, Role.CHUNK, part_of=of)
        self.nodes[node.name] = node
        self.places[node.name] = place
        self.parts[node.name] = of

    def drop(self, name: str) -> None:
        """Remove an old node."""
        node = self.nodes.pop(name)
        del self.places[name]
        for i in range(len(node.inputs)):
            node.replace_input_with(i, None)
