"""Groups of operations to fuse: convex groups of element operations over one space.

A space is a shape. In a group with reductions, the last axes make a row, and values of one element
per row belong to the space too. Two groups are merged where one reads the other, and no path leads
out of the first and back into the second. The graph of groups then has no cycle, and each group can
be one node. First merged are groups that then keep a full value to themselves, and behind these, groups
that save each other a read; from the last reader on, so that what gradients alone need is computed there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from planner.fuse.operators import FLOATS, POWERS, Row, is_scalar, row_of, types_of
from planner.graph.effects import Effect
from planner.graph.model import Operation, OpId, Role, Tensor, TensorId, TrainingGraph
from planner.targets.target import FusedKernels

Shape = tuple[int, ...]

MOST_OPERATIONS = 48
"""The most operations of a group: the values of more would leave the L1 cache."""

MOST_COLUMNS = 1 << 14
"""The longest row in elements: a block is whole rows, and each of its values takes that many
elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The index space that a program runs over.

    Attributes:
        shape: shape of its full values.
        axes: number of last axes that make a row; 0 where there are no rows.
    """

    shape: Shape
    axes: int = 0

    @property
    def row_shape(self) -> Shape | None:
        """The shape of a value with one element per row; None where there are no rows."""
        if not self.axes:
            return None
        return (*self.shape[: -self.axes], *(1,) * self.axes)

    def with_rows(self, axes: int) -> Space | None:
        """Return the space with rows of `axes` axes; None where its rows differ or would be too long."""
        if self.axes == axes:
            return self
        columns = math.prod(self.shape[-axes:])
        if self.axes or not 1 < columns <= MOST_COLUMNS:
            return None
        return replace(self, axes=axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Operations that become one node, in the order of the file.

    Attributes:
        again: operations of other groups that this group recomputes for itself.
    """

    space: Space
    operations: tuple[OpId, ...]
    again: tuple[OpId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSearch:
    """The graph in which groups are searched.

    Attributes:
        constants: initializers of one element that a program may have as constants, in its notation.
        axes: number of last axes over which each fusible reduction or normalization goes; those of a
            reduction stay with size 1.
        only_exact: whether operators whose bits may differ are left alone.
        kernels: fused kernels of the target where the model runs.
    """

    graph: TrainingGraph
    constants: Mapping[TensorId, str]
    axes: Mapping[OpId, int]
    only_exact: bool
    kernels: FusedKernels

    @property
    def types(self) -> frozenset[str]:
        """The element types that values may have."""
        return types_of(self.kernels, only_exact=self.only_exact)

    def row(self, op: Operation) -> Row | None:
        """Return the row of an operation that may be fused; None for any other."""
        row = row_of(op.op_type, op.domain)
        if row is None:
            return None
        if self.only_exact and not (row.exact and op.op_type not in self.kernels.inexact):
            return None
        if (row.reduces and op.id not in self.axes) or not self._takes(op):
            return None
        if op.effect is not Effect.PURE or op.role is not Role.ORIGINAL or op.on_cpu:
            return None
        tensors = [self.graph.tensors[t] for t in (*self.read(op), *op.outputs)]
        if any(t.dtype not in self.types or t.unsized or not math.prod(t.shape) for t in tensors):
            return None
        if all(t in self.constants for t in self.read(op)):
            return None
        first = self.graph.tensors[op.inputs[1 if op.op_type == "Where" else 0]]
        return row if row.takes(first.dtype) else None

    def read(self, op: Operation) -> tuple[TensorId, ...]:
        """Return the inputs whose elements an operation's steps read: no axes of a reduction, and no
        exponent."""
        row = row_of(op.op_type, op.domain)
        return op.inputs[:1] if row is not None and row.reads_one else op.inputs

    def _takes(self, op: Operation) -> bool:
        """Tell whether an operator's steps are for inputs such as its own."""
        texts = [self.constants.get(t) for t in op.inputs[:2]]
        if op.op_type == "Sum":  # a program adds no constants alone, and outputs no input
            return len(texts) > 1 and None in texts
        if op.op_type in ("Max", "Min"):
            # 0 and -0 never meet among whole numbers, and where one of both is another constant
            meets = self.graph.tensors[op.outputs[0]].dtype in FLOATS
            meets &= not any(float(text) for text in texts if text is not None)
            return len(op.inputs) == 2 and not (
                meets and self.only_exact and self.kernels.either_zero
            )
        if op.op_type == "LayerNormalization":
            return len({self.graph.tensors[t].dtype for t in op.inputs}) == 1
        if op.op_type == "Pow":
            shapes = (self.graph.tensors[t].shape for t in op.inputs)
            is_product = not (self.only_exact and is_scalar(*shapes))
            return is_product and self.exponent(op) in POWERS
        return True

    def exponent(self, op: Operation) -> float | None:
        """Return the constant exponent of a Pow; None where it is not constant, or broadcasts the
        result."""
        x, y = (self.graph.tensors[t] for t in op.inputs)
        text = self.constants.get(y.id)
        return float(text) if text is not None and len(y.shape) <= len(x.shape) else None

    def made(self, op: OpId) -> Tensor:
        """Return the first result of an operation."""
        return self.graph.tensors[self.graph.operations[op].outputs[0]]

    def space(self, op: Operation) -> Space | None:
        """Return the space of a single operation; None where it cannot be fused."""
        row = self.row(op)
        if row is None:
            return None
        if not row.reduces:
            return Space(shape=self.made(op.id).shape)
        return Space(shape=self.graph.tensors[op.inputs[0]].shape).with_rows(self.axes[op.id])


def joined(one: Space, other: Space) -> Space | None:
    """Return the space in which both can run; None where there is none."""
    if one.shape == other.shape:
        if one.axes and other.axes and one.axes != other.axes:
            return None
        return one if one.axes else other
    for space, rows in ((one, other), (other, one)):
        if space.axes and not rows.axes and space.row_shape == rows.shape:
            return space
    return None


def groups_of(ground: GroupSearch) -> list[Group]:
    """Return all groups, single operations included, in the order of their first operations."""
    merging = _Merging(ground)
    graph = ground.graph
    order = reversed(graph.operations)  # what a gradient alone reads joins it, not the forward pass
    pairs = [(producer, op.id) for op in order for producer in _producers(graph, op)]
    for stores in (False, True):
        # a merge may allow another one, of values that were read elsewhere until then
        while any([merging.try_merge(*pair, stores=stores) for pair in pairs]):
            pass
    return merging.groups()


def held_bytes(graph: TrainingGraph, ops: Collection[OpId]) -> int:
    """Return the bytes that operations hold together while they run as one.

    These are their inputs that others make, and their results that others read.
    """
    members = set(ops)
    read = {t for op in members for t in graph.operations[op].inputs}
    made = {t for op in members for t in graph.operations[op].outputs}
    left = {
        t
        for t in made
        if graph.tensors[t].is_output or not members.issuperset(graph.tensors[t].consumers)
    }
    fed = {t for t in read - made if not graph.tensors[t].is_persistent}
    return sum(graph.tensors[t].bytes for t in fed | left)


def most_held_bytes(graph: TrainingGraph) -> int:
    """Return the bytes that the largest operation holds.

    No group holds more: every budget that could be met before fusion can be met after it.
    """
    return max(
        (held_bytes(graph, (op.id,)) for op in graph.operations if not op.is_view), default=0
    )


def _producers(graph: TrainingGraph, op: Operation) -> Iterator[OpId]:
    for tensor in op.inputs:
        producer = graph.tensors[tensor].producer
        if producer is not None:
            yield producer


class _Merging:
    """Merges groups, at first one for each operation. Integers are bit sets of operations."""

    def __init__(self, ground: GroupSearch) -> None:
        graph = ground.graph
        count = len(graph.operations)
        self.ground = ground
        self.unit = list(range(count))  # by operation: the first one of its group
        self.members: dict[int, tuple[OpId, ...]] = {op: (OpId(op),) for op in range(count)}
        self.bits = [1 << op for op in range(count)]
        self.before, self.behind = [0] * count, [0] * count
        self.space = [ground.space(op) for op in graph.operations]
        self.most_bytes = most_held_bytes(graph)
        for op in graph.operations:
            for producer in _producers(graph, op):
                self.before[op.id] |= self.before[producer] | 1 << producer
        for op in reversed(graph.operations):
            for producer in _producers(graph, op):
                self.behind[producer] |= self.behind[op.id] | 1 << op.id

    def try_merge(self, producer: OpId, reader: OpId, *, stores: bool) -> bool:
        """Merge the groups of two operations, where that is allowed; tell whether they were.

        Args:
            stores: merge them where what the one makes for the other is stored all the same, too.
        """
        one, other = self.unit[producer], self.unit[reader]
        mine, theirs = self.space[one], self.space[other]
        if one == other or mine is None or theirs is None:
            return False
        space = joined(mine, theirs)
        both = (*self.members[one], *self.members[other])
        if space is None or len(both) > MOST_OPERATIONS:
            return False
        if not stores and not self._spares(producer, reader, both, space):
            return False
        if held_bytes(self.ground.graph, both) > self.most_bytes:
            return False
        if self.behind[one] & self.before[other] & ~self.bits[one] & ~self.bits[other]:
            return False  # a path leads out of the group and back in
        self._merge(one, other, space)
        return True

    def _spares(
        self, producer: OpId, reader: OpId, members: Collection[OpId], space: Space
    ) -> bool:
        """Tell whether a full value that one operation makes for another is read in a group alone."""
        graph = self.ground.graph
        passed = {*graph.operations[producer].outputs} & {*graph.operations[reader].inputs}
        full = [graph.tensors[t] for t in passed if graph.tensors[t].shape == space.shape]
        mine = set(members)
        return any(not t.is_output and mine.issuperset(t.consumers) for t in full)

    def _merge(self, one: int, other: int, space: Space) -> None:
        first, gone = min(one, other), max(one, other)
        for op in self.members[gone]:
            self.unit[op] = first
        self.members[first] = tuple(sorted((*self.members[first], *self.members.pop(gone))))
        self.space[first] = space
        bits = self.bits[first] | self.bits[gone]
        before = (self.before[first] | self.before[gone]) & ~bits
        behind = (self.behind[first] | self.behind[gone]) & ~bits
        self.bits[first], self.before[first], self.behind[first] = bits, before, behind
        for unit in self._units(before):
            self.behind[unit] |= behind | bits
        for unit in self._units(behind):
            self.before[unit] |= before | bits

    def _units(self, bits: int) -> set[int]:
        found: set[int] = set()
        while bits:
            low = bits & -bits
            unit = self.unit[low.bit_length() - 1]
            found.add(unit)
            bits &= ~(self.bits[unit] | low)
        return found

    def groups(self) -> list[Group]:
        """Return the groups of operations that may be fused."""
        return [
            Group(space=space, operations=members)
            for first, members in sorted(self.members.items())
            if (space := self.space[first]) is not None
        ]
