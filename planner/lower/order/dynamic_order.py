"""A topological order to which edges can be added."""

from __future__ import annotations

from collections.abc import Sequence


class DynamicOrder:
    """A topological order to which edges can be added (Pearce and Kelly, "A dynamic topological sort
    algorithm for directed acyclic graphs", JEA 11, 2007). Only the nodes between the two ends move.
    """

    def __init__(self, parents: Sequence[Sequence[int]], order: Sequence[int]) -> None:
        self.nodes = list(order)
        self.place = [len(order)] * len(parents)
        for place, step in enumerate(order):
            self.place[step] = place
        inside = set(order)
        self.before: list[list[int]] = [[] for _ in parents]
        self.after: list[list[int]] = [[] for _ in parents]
        for step in order:
            for p in set(parents[step]) & inside:
                self.before[step].append(p)
                self.after[p].append(step)
        self.changes = 0

    def order(self) -> list[int]:
        """Return the nodes in their present order."""
        return list(self.nodes)

    def add(self, first: int, second: int) -> bool:
        """Require `first` to come before `second`; return False, and change nothing, if that makes a
        cycle."""
        place = self.place
        if place[first] >= place[second]:
            ahead = self._ahead(second, place[first])
            if first in ahead:
                return False
            self._move(first, second, ahead)
            self.changes += 1
        self.after[first].append(second)
        self.before[second].append(first)
        return True

    def _ahead(self, start: int, high: int) -> set[int]:
        """Return `start` and the nodes that must follow it, among the places up to `high`."""
        place, after = self.place, self.after
        seen = {start}
        stack = [start]
        while stack:
            for v in after[stack.pop()]:
                if v not in seen and place[v] <= high:
                    seen.add(v)
                    stack.append(v)
        return seen

    def _move(self, first: int, second: int, ahead: set[int]) -> None:
        """Move `first` and the nodes that it must follow before `ahead`, which is `second` and its
        followers.

        Together they keep their places, and each of the two groups keeps its order. Where there are
        many nodes between, nearly all of them move: a pass from the end is cheaper than a search, and
        needs no sorting.
        """
        place, nodes, before = self.place, self.nodes, self.before
        moved = sorted(ahead, key=place.__getitem__, reverse=True)
        following = iter(moved)  # it reaches the nodes appended below too
        behind = {first}
        for free in range(place[first], place[second] - 1, -1):
            step = nodes[free]
            if step in behind:
                moved.append(step)
                behind.update(before[step])
            elif step not in ahead:
                continue
            step = next(following)
            place[step] = free
            nodes[free] = step
