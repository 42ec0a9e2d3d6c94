"""A problem in another order of its operations, and the bytes that the order holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.plan.problem import OpIndex, Problem


def parents_of(problem: Problem) -> list[list[int]]:
    """Return the operations that each operation must follow."""
    return [sorted({problem.tensors[t].producer for t in op.inputs}) for op in problem.ops]


def children_of(problem: Problem) -> list[list[int]]:
    """Return the operations that must follow each operation."""
    tensors = problem.tensors
    return [sorted({u for t in op.outputs for u in tensors[t].uses}) for op in problem.ops]


def reorder(problem: Problem, order: Sequence[int]) -> Problem:
    """Return the same problem in another topological order; tensors keep their index."""
    position = [OpIndex(0)] * len(order)
    for place, op in enumerate(order):
        position[op] = OpIndex(place)
    return replace(
        problem,
        ops=tuple(problem.ops[op] for op in order),
        tensors=tuple(t.moved(position) for t in problem.tensors),
    )


def peak_of(problem: Problem, order: Sequence[int]) -> int:
    """Return the peak of running the operations once, in this order."""
    return int(Lives(problem).live_bytes(order).max())


class Lives:
    """Live bytes of any order of one problem, each operation run once.

    They equal the simulator's for the reordered problem, without building it.

    Attributes:
        bytes, producer, to_end: by tensor, int64, int64 and bool.
        workspace: by operation, int64.
        uses: readers of all tensors, one tensor's after another's; `starts` is where each one's begin.
        inplace: int64 [3, n]: operation, source and target of operations that may write in one place.
        several_inplace: operations that may write in several places, with their pairs.
    """

    def __init__(self, problem: Problem) -> None:
        tensors = problem.tensors
        self.problem = problem
        self.bytes = np.array([t.bytes for t in tensors], dtype=np.int64)
        self.producer = np.array([t.producer for t in tensors], dtype=np.int64)
        self.to_end = np.array([t.to_end for t in tensors], dtype=bool)
        self.workspace = np.array([op.workspace_bytes for op in problem.ops], dtype=np.int64)
        # uses of all tensors in one array; a tensor without any counts its producer as a use
        uses = [t.uses or (t.producer,) for t in tensors]
        self.uses = np.fromiter((u for us in uses for u in us), dtype=np.int64)
        self.starts = np.cumsum([0, *(len(us) for us in uses[:-1])]) if uses else np.zeros(0, int)
        pairs = [(v, *op.inplace[0]) for v, op in enumerate(problem.ops) if len(op.inplace) == 1]
        self.inplace = np.array(pairs, dtype=np.int64).reshape(-1, 3).T
        self.several_inplace = [
            (v, op.inplace) for v, op in enumerate(problem.ops) if op.inplace[1:]
        ]

    def ranges(
        self, order: Sequence[int] | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return places in the order: by operation, and by tensor its producer's and last reader's.

        Without a reader, the last is the producer's.
        """
        place = np.empty(len(order), dtype=np.int64)
        place[np.asarray(order, dtype=np.int64)] = np.arange(len(order))
        birth = place[self.producer]
        return place, birth, np.maximum(np.maximum.reduceat(place[self.uses], self.starts), birth)

    def live_bytes(self, order: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the live bytes by place in the order, int64 [operations]."""
        steps = len(order)
        at = np.asarray(order, dtype=np.int64)
        place, birth, last = self.ranges(order)
        end = last + 1
        end[self.to_end] = steps
        end[self._overwritten(place, birth, last)] -= 1
        delta = np.zeros(steps + 1, dtype=np.int64)
        np.add.at(delta, birth, self.bytes)
        np.add.at(delta, end, -self.bytes)
        return np.cumsum(delta)[:steps] + self.problem.fixed_bytes + self.workspace[at]

    def _overwritten(self, place: np.ndarray, birth: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return the tensors, each once, whose last reader writes over them."""
        ops, sources, _ = self.inplace
        here = place[ops]
        dies = (last[sources] == here) & (birth[sources] < here) & ~self.to_end[sources]
        found = sources[dies]
        more: list[int] = []
        for v, pairs in self.several_inplace:
            taken: dict[int, int] = {}
            for source, target in pairs:
                dies = birth[source] < place[v] == last[source] and not self.to_end[source]
                if dies and target not in taken and source not in taken.values():
                    taken[target] = source
            more += taken.values()
        return np.concatenate([found, np.array(more, dtype=np.int64)])
