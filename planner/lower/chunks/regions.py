"""Regions of a graph that can run in chunks of rows.

A region grows from one axis of one tensor: to its producer and its readers, and on to theirs, as long
as the operators let rows pass (`planner.lower.chunks.rows`) and the values between them are large. A
small value ends it: the value is cut where rows of it are read (a Slice for each chunk) and joined
where it is read from outside (a Concat). Each large value inside then exists one chunk at a time:

    h ──→ Gemm → LogSoftmax → … → Gemm → dh        h, dh: small;  values between: rows × vocabulary
          rows of h         make    rows of dh     dW: each chunk adds its part
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from planner import clock
from planner.graph.effects import Effect
from planner.graph.model import TrainingGraph
from planner.graph.reasons import WhyOnce
from planner.lower.chunks.row_rules import ways_of
from planner.lower.chunks.rows import Subject, Way
from planner.onnxio.load import ValueType
from planner.plan.planfile import RegionSeed

MAX_CONSTANT_BYTES = 1 << 18
"""The largest constant that is cut when the model is written; larger ones are read whole."""

_MAX_READ_BYTES = 1 << 16
"""The largest constant whose elements are read, as parameters of an operator: shapes, axes, pads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Nodes that run in chunks.

    Attributes:
        ways: how each node is split, by its name, in file order.
        cuts: the axis of each tensor that these nodes make in chunks.
        units: the rows of every cut axis are a multiple of this; chunks end at such multiples.
    """

    seed: RegionSeed
    ways: Mapping[str, Way]
    cuts: Mapping[str, int]
    units: int

    @property
    def is_exact(self) -> bool:
        """Whether the chunks change no bit of the results."""
        return all(way.exact and not way.is_partial for way in self.ways.values())

    def stretch(self, chunk: int, rows: int) -> tuple[int, int]:
        """Return the half-open range of rows of one chunk, for an axis with `rows` rows."""
        each = rows // self.units
        first, behind = (self.units * c // self.seed.chunks * each for c in (chunk, chunk + 1))
        return first, behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A way of a node, with its inputs and outputs.

    Attributes:
        read, made: the tensors that are present, each with the axis along which it is cut, or None.
        bytes: bytes of the cut tensors.
        units: the greatest common divisor of the cut axes' sizes.
    """

    way: Way
    read: tuple[tuple[str, int | None], ...]
    made: tuple[tuple[str, int | None], ...]
    bytes: int
    units: int


class Ground:
    """A model in which regions are searched."""

    def __init__(
        self, model: ir.Model, types: Mapping[str, ValueType], graph: TrainingGraph
    ) -> None:
        self.model = model
        self.types = types
        self.opset = model.graph.opset_imports.get("", 1)
        self.nodes = {str(node.name): node for node in model.graph}
        self.place = {name: i for i, name in enumerate(self.nodes)}
        self.producer = {
            str(v.name): name for name, node in self.nodes.items() for v in node.outputs if v.name
        }
        self.consumers: dict[str, list[str]] = {}
        for name, node in self.nodes.items():
            for value in node.inputs:
                if value is not None and name not in self.consumers.get(str(value.name), ())[-1:]:
                    self.consumers.setdefault(str(value.name), []).append(name)
        self.constants = {
            str(v.name)
            for v in model.graph.initializers.values()
            if v.const_value is not None and not v.is_graph_input()
        }
        unsized = {t.name for t in graph.tensors if t.unsized}
        self.splittable = {
            op.name
            for op in graph.operations
            if op.effect is Effect.PURE
            and op.barred is not WhyOnce.EXCLUDED
            and not op.on_cpu
            and not op.per_reader
            and not unsized & {graph.tensors[t].name for t in (*op.inputs, *op.outputs)}
        }
        self.bytes = {name: found.bytes for name, found in types.items()}
        self._cuts: dict[str, tuple[Cut, ...]] = {}

    def cuts(self, name: str) -> tuple[Cut, ...]:
        """Return the ways of a node whose cut tensors can all be cut."""
        if name not in self._cuts:
            found: tuple[Way, ...] = ()
            if name in self.splittable:
                subject = self._subject(self.nodes[name])
                found = tuple(way for way in ways_of(subject) if self._can_cut(name, way))
            self._cuts[name] = tuple(self._cut(name, way) for way in found)
        return self._cuts[name]

    def _cut(self, name: str, way: Way) -> Cut:
        read = tuple((t, axis) for t, axis in zip(self.read(name), way.inputs, strict=True) if t)
        made = tuple((t, axis) for t, axis in zip(self.made(name), way.outputs, strict=True) if t)
        cut = [(t, axis) for t, axis in (*read, *made) if axis is not None]
        return Cut(
            way=way,
            read=read,
            made=made,
            bytes=sum(self.bytes[t] for t, _ in cut),
            units=math.gcd(*(self.types[t].shape[axis] for t, axis in cut)),
        )

    def read(self, name: str) -> list[str]:
        """Return the names of a node's inputs by position; "" for an absent one."""
        return ["" if v is None else str(v.name or "") for v in self.nodes[name].inputs]

    def made(self, name: str) -> list[str]:
        """Return the names of a node's outputs by position; "" for an unused one."""
        return [str(v.name or "") for v in self.nodes[name].outputs]

    def is_small_constant(self, tensor: str) -> bool:
        """Tell whether a tensor is a constant that is small enough to be cut when the model is
        written."""
        if tensor not in self.constants or self.types[tensor].bytes > MAX_CONSTANT_BYTES:
            return False
        constant = self.model.graph.initializers[tensor].const_value
        return constant is not None and not isinstance(constant, ir.ExternalTensor)

    def _can_cut(self, name: str, way: Way) -> bool:
        cut = (t for t, axis in zip(self.read(name), way.inputs, strict=True) if axis is not None)
        return all(t not in self.constants or self.is_small_constant(t) for t in cut)

    def _subject(self, node: ir.Node) -> Subject:
        def shape(value: ir.Value | None) -> tuple[int, ...] | None:
            return None if value is None or not value.name else self.types[value.name].shape

        return Subject(
            node=node,
            inputs=tuple(shape(v) for v in node.inputs),
            outputs=tuple(shape(v) for v in node.outputs),
            constants=dict(self._known(node)),
            opset=self.opset,
        )

    def _known(self, node: ir.Node) -> Iterable[tuple[int, np.ndarray]]:
        for place, value in enumerate(node.inputs):
            name = "" if value is None else str(value.name)
            if name in self.constants and self.types[name].bytes <= _MAX_READ_BYTES:
                constant = self.model.graph.initializers[name].const_value
                assert constant is not None
                if self.types[name].dtype.is_integer():
                    yield place, constant.numpy()


def grow(ground: Ground, seed: RegionSeed, *, without: Set[str] = frozenset()) -> Region | None:
    """Return the region around a seed; None where nothing can be split there.

    Args:
        without: names of nodes that may not be in it.
    """
    if seed.tensor not in ground.types:
        return None
    shape = ground.types[seed.tensor].shape
    if not 0 <= seed.axis < len(shape) or shape[seed.axis] < max(2, seed.chunks):
        return None
    growing = _Growing(ground, seed, units=shape[seed.axis])
    growing.run(without)
    if not growing.ways:
        return None
    in_file = sorted(growing.ways, key=ground.place.__getitem__)
    return Region(
        seed=seed,
        ways={name: growing.ways[name] for name in in_file},
        cuts=growing.cuts,
        units=growing.units,
    )


@dataclass(slots=True)
class _Growing:
    """A region while it grows.

    Attributes:
        cuts: the axes of tensors made in it; reads: the axes along which each tensor is read in it.
    """

    ground: Ground
    seed: RegionSeed
    units: int
    ways: dict[str, Way] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    reads: dict[str, set[int]] = field(default_factory=dict)

    def run(self, without: Set[str]) -> None:
        ground = self.ground
        self.reads[self.seed.tensor] = {self.seed.axis}
        queue, seen = deque([self.seed.tensor]), {self.seed.tensor}
        while queue:
            tensor = queue.popleft()
            beside = [ground.producer.get(tensor), *ground.consumers.get(tensor, ())]
            for name in beside:
                if name is None or name in self.ways or name in without:
                    continue
                clock.spend(clock.GROWN_S)
                cut = self._cut(name, tensor)
                if cut is None:
                    continue
                for other in self._add(name, cut):
                    # inputs and initializers are whole in memory in any case
                    is_large = (
                        other in ground.producer and ground.bytes[other] >= self.seed.large_bytes
                    )
                    if is_large and other not in seen:
                        seen.add(other)
                        queue.append(other)

    def _cut(self, name: str, tensor: str) -> Cut | None:
        """Return the way of a node that fits the axes chosen before and cuts the most bytes."""
        fitting = [cut for cut in self.ground.cuts(name) if self._fits(cut, tensor)]
        return max(fitting, key=lambda cut: cut.bytes, default=None)

    def _fits(self, cut: Cut, tensor: str) -> bool:
        if math.gcd(self.units, cut.units) < self.seed.chunks:
            return False
        is_touched = False
        for t, axis in cut.read:
            known = self.cuts.get(t)
            if axis is None:
                # a value that is read whole is joined, and must be small
                if known is not None and self.ground.bytes[t] >= self.seed.large_bytes:
                    return False
                continue
            if known is not None and known != axis:
                return False
            if t == tensor:
                is_touched = is_touched or axis in self.reads.get(t, ()) or known == axis
        for t, axis in cut.made:
            if axis is None:
                if t == tensor:
                    return False
                continue
            if self.reads.get(t, set()) - {axis}:
                return False
            is_touched = is_touched or t == tensor
        return is_touched

    def _add(self, name: str, cut: Cut) -> list[str]:
        """Add a node to the region; return the tensors that it cuts."""
        self.ways[name] = cut.way
        self.units = math.gcd(self.units, cut.units)
        read = [(t, axis) for t, axis in cut.read if axis is not None]
        made = [(t, axis) for t, axis in cut.made if axis is not None]
        for t, axis in read:
            self.reads.setdefault(t, set()).add(axis)
        self.cuts.update(made)
        return [t for t, _ in (*read, *made)]
