"""Find an order with fewer pins, by letting ONNX Runtime choose its own order where the arena has room.

Nodes that pin an order (`planner.lower.order.anchors`) keep all of it, but most of it does not
matter. The search drops as many of them at once as possible, and checks whether the resulting order
is as good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner import clock
from planner.fit.demands import READ, Demands
from planner.fit.search import UNLIMITED, ReplayLimits, most_in_use, room
from planner.graph.model import Operation, OpId, Role, TrainingGraph
from planner.graph.schedule import parents_of


@dataclass(frozen=True, kw_only=True)
class PinnedFile:
    """The nodes of a file, identified by their place in it.

    Attributes:
        parents: for each node, the nodes whose outputs it reads.
        order: order in which the default session runs all of them.
        pins: nodes without readers that the file can do without; each one's input has other
            readers.
    """

    parents: Sequence[Sequence[int]]
    order: Sequence[int]
    pins: Sequence[int]

    def order_without(self, dropped: frozenset[int]) -> list[int]:
        """Return the order of the file without some of the pins; these follow their inputs' producers.

        The same as `planner.graph.schedule.reverse_dfs_order`, which takes twenty times as long.
        """
        parents, seen = self.parents, [False] * len(self.parents)
        behind: dict[int, list[int]] = {}
        for pin in dropped:
            seen[pin] = True
            behind.setdefault(parents[pin][0], []).append(pin)
        order: list[int] = []
        for leaf in self._leaves:
            stack = [leaf]
            while stack:
                node = stack.pop()
                if node < 0:
                    order.append(~node)
                    if ~node in behind:
                        order += behind[~node]
                elif not seen[node]:
                    seen[node] = True
                    stack.append(~node)
                    stack += [p for p in parents[node] if not seen[p]]
        return order

    @cached_property
    def _leaves(self) -> list[int]:
        read = {p for ps in self.parents for p in ps}
        return [v for v in reversed(range(len(self.parents))) if v not in read]


def pinned_file(graph: TrainingGraph, order: Sequence[OpId]) -> PinnedFile:
    """Describe a rewritten model's file, with its anchors as pins.

    Anchors with an effect are no pins: those with readers, and sole readers of their input.
    """
    tensors, operations = graph.tensors, graph.operations

    def may_go(op: Operation) -> bool:
        if op.role is not Role.ANCHOR or any(tensors[t].consumers for t in op.outputs):
            return False
        readers = (c for t in op.inputs for c in tensors[t].consumers)
        return any(operations[c].role is not Role.ANCHOR for c in readers)

    pins = [op.id for op in operations if may_go(op)]
    return PinnedFile(parents=parents_of(graph), order=order, pins=pins)


def looser_order(
    file: PinnedFile,
    demands: Demands,
    cap_bytes: int | None,
    cost_us: Callable[[Sequence[int], int], float],
    *,
    time_limit_s: float,
) -> tuple[list[int], int]:
    """Find an order that needs fewer pins.

    Returns the order, with the dropped pins behind their inputs' producers, and their number.

    Args:
        demands: with a unit for each node, in `file.order`.
        cap_bytes: of the arena, which has room for the given order; None: the most bytes in use may
            not rise.
        cost_us: returns the cost of an order, given its remaining number of pins; each step has to
            lower it.
    """
    deadline = clock.now() + time_limit_s
    judge = _Judge(demands, file.order, cap_bytes)
    dropped: frozenset[int] = frozenset()
    found, size = list(file.order), len(file.pins)
    least_us = cost_us(found, size)
    while size and clock.now() < deadline:
        left = [pin for pin in file.pins if pin not in dropped]
        for at in range(0, len(left), size):
            tried = dropped | frozenset(left[at : at + size])
            order = file.order_without(tried)
            if judge.is_good(order, tried):
                now_us = cost_us(order, len(file.pins) - len(tried))
                if now_us < least_us:
                    dropped, found, least_us = tried, order, now_us
            if clock.now() > deadline:
                break
        size //= 2
    return found, len(dropped)


class _Judge:
    """The judge of whether an order is as good as the one that the demands describe."""

    def __init__(self, demands: Demands, order: Sequence[int], cap_bytes: int | None) -> None:
        units = demands.units
        as_it_is = np.arange(units, dtype=np.int64)
        self.demands = demands
        self.unit_of = np.empty(units, dtype=np.int64)
        self.unit_of[np.asarray(order)] = as_it_is
        self.reader = np.repeat(as_it_is, np.diff(demands.before_at))
        self.unit = np.repeat(as_it_is, np.diff(demands.event_at))
        if cap_bytes is None:
            self.limits = ReplayLimits(UNLIMITED, most_in_use(demands, as_it_is))
        else:
            self.limits = ReplayLimits(cap_bytes)

    def is_good(self, order: Sequence[int], dropped: frozenset[int]) -> bool:
        """Tell whether an order is valid and has room for two runs, without the dropped nodes.

        It is valid if every node reads the same values.
        """
        demands = self.demands
        units = self.unit_of[np.array([node for node in order if node not in dropped])]
        place = np.full(demands.units, -1, dtype=np.int64)
        place[units] = np.arange(len(units))
        is_left = place >= 0
        both = is_left[demands.before] & is_left[self.reader]
        if np.any(both & (place[demands.before] > place[self.reader])):
            return False
        unread = demands.subject[(demands.event == READ) & ~is_left[self.unit]]
        readers = demands.readers - np.bincount(unread, minlength=len(demands.readers))
        left = demands._replace(readers=readers)
        return room(left, units, self.limits) == len(units)
