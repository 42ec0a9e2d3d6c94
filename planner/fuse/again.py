"""Values that the readers of a group recompute, to save storing them.

    forward   v = 1 + erf(x / c);  y = x v        x and v are stored
    backward  g = dy (v + ...)                    reads v

    after     y = x (1 + erf(x / c))              x alone is stored
              g = dy (1 + erf(x / c) + ...)

A value is recomputed where every reader outside of its group is another group that can compute it from
its present inputs, or from values that live for the whole step. That costs arithmetic, and no memory.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np

from planner.fuse.groups import Group, GroupSearch, joined
from planner.fuse.program import outside
from planner.graph.model import OpId, Tensor, TensorId

MOST_AGAIN = 16
"""The most operations that a group recomputes."""


def with_again(ground: GroupSearch, groups: Sequence[Group]) -> list[Group]:
    """Return the groups with the operations that each recomputes, and without operations that nobody
    needs."""
    fixed: set[int] = set()
    while True:
        spreading = _Spreading(ground, groups, fixed)
        for number, group in enumerate(groups):
            for op in reversed(group.operations):
                spreading.spread(number, op)
        found = _live(ground, spreading.groups)
        # what is left of a group may reach its shape by a constant alone, and be no program
        lost = {
            i for i, group in enumerate(found) if group.again and not _broadcasts(ground, group)
        }
        if not lost:
            return found
        fixed |= lost


class _Spreading:
    """Recomputes values in the groups that read them, except for groups that are `fixed`."""

    def __init__(self, ground: GroupSearch, groups: Sequence[Group], fixed: Set[int]) -> None:
        self.ground, self.fixed = ground, fixed
        self.groups = list(groups)
        self.group_of = {op: i for i, group in enumerate(groups) for op in group.operations}
        self.reads = [set(outside(ground, group)) for group in groups]

    def spread(self, number: int, op: OpId) -> None:
        """Make all readers of an operation's result recompute it, where all of them can."""
        made = self.ground.made(op)
        readers = {self.group_of.get(c, -1) for c in made.consumers} - {number}
        readers |= {i for i, read in enumerate(self.reads) if made.id in read}
        if made.is_output or not readers or -1 in readers or readers & self.fixed:
            return
        source = {*self.groups[number].operations, *self.groups[number].again}
        changed = {i: self._with(self.groups[i], made.id, source) for i in readers}
        if any(g is None or not _broadcasts(self.ground, g) for g in changed.values()):
            return
        for reader, group in changed.items():
            assert group is not None
            self.groups[reader] = group
            self.reads[reader] = set(outside(self.ground, group))

    def _with(self, group: Group, wanted: TensorId, source: set[OpId]) -> Group | None:
        """Return the group with a value computed in it, and all that this needs; None where it
        cannot.

        Args:
            source: operations of the group that makes the value: no others are recomputed.
        """
        graph = self.ground.graph
        has = set(outside(self.ground, group)) - {wanted}
        again = dict.fromkeys(group.again)
        space = group.space
        stack = [wanted]
        while stack:
            tensor = stack.pop()
            producer = graph.tensors[tensor].producer
            is_there = graph.tensors[tensor].is_persistent or tensor in self.ground.constants
            if tensor in has or is_there or producer in again or producer in group.operations:
                continue
            if producer is None or producer not in source:
                return None
            row = self.ground.row(graph.operations[producer])
            own = self.ground.space(graph.operations[producer])
            both = None if own is None else joined(space, own)
            if row is None or row.reduces or both is None or len(again) >= MOST_AGAIN:
                return None
            space = both
            again[producer] = None
            stack += self.ground.read(graph.operations[producer])
        return replace(group, space=space, again=tuple(sorted(again)))


def _broadcasts(ground: GroupSearch, group: Group) -> bool:
    """Tell whether the inputs of a group broadcast to its space."""
    read = [ground.graph.tensors[t].shape for t in outside(ground, group)]
    return bool(read) and np.broadcast_shapes(*read) == group.space.shape


def outputs_of(
    ground: GroupSearch, groups: Sequence[Group], fused: Set[OpId]
) -> list[tuple[TensorId, ...]]:
    """Return for each group its results that others read, or the caller.

    Args:
        fused: operations of all groups, including those that nobody needs any more.
    """
    needed = {t for group in groups for t in outside(ground, group)}

    def is_left(tensor: Tensor) -> bool:
        is_needed = tensor.is_output or tensor.id in needed
        return is_needed or any(c not in fused for c in tensor.consumers)

    graph = ground.graph
    made = [
        [t for op in group.operations for t in graph.operations[op].outputs] for group in groups
    ]
    return [tuple(t for t in each if is_left(graph.tensors[t])) for each in made]


def _live(ground: GroupSearch, groups: Sequence[Group]) -> list[Group]:
    """Return the groups without operations that nobody needs."""
    fused = {op for group in groups for op in group.operations}
    now = list(groups)
    while True:
        roots = outputs_of(ground, now, fused)
        after = [_with_live(ground, g, made) for g, made in zip(now, roots, strict=True)]
        if after == now:
            return after
        now = after


def _with_live(ground: GroupSearch, group: Group, outputs: Sequence[TensorId]) -> Group:
    """Return a group with only the operations that its outputs need."""
    members = {*group.operations, *group.again}
    live: set[OpId] = set()
    stack = list(outputs)
    while stack:
        op = ground.graph.tensors[stack.pop()].producer
        if op is not None and op in members and op not in live:
            live.add(op)
            stack += ground.read(ground.graph.operations[op])
    return replace(
        group,
        operations=tuple(op for op in group.operations if op in live),
        again=tuple(op for op in group.again if op in live),
    )
