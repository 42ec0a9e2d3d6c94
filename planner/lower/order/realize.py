"""Make ONNX Runtime run a wanted sequence under default session options.

Under default options ONNX Runtime visits the nodes without consumers (roots) from the last in the
file to the first, and runs what each needs in a depth-first search that takes the highest file
position first (`planner.graph.schedule`). A sequence is therefore realized by

- a file order in which, as far as dependencies allow, later steps come earlier: the search then meets the
  producers of a node in the wanted order. Where it does not, the two producers that it meets in the wrong
  order are exchanged, if that makes no cycle;
- the roots at the end of the file, the first to run last;
- where the search would still go wrong, an anchor: a node that reads next to nothing of an output of the
  step that must have run by then (`planner.lower.order.anchors`). ONNX Runtime keeps it though nobody
  reads it, and it costs a few bytes.

Nodes are known by their place in the wanted sequence: 0, 1, 2, ...
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.lower.order.dynamic_order import DynamicOrder

_LOOKAHEAD = 64
_MAX_ADJUSTED = 20_000  # ancestor sets take n²/8 bytes
_MAX_WALKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Realization:
    """The file's node order that realizes a sequence.

    Attributes:
        body: nodes that have a consumer, in file order.
        roots: the nodes after them, in file order: (step, True) for an anchor on that step,
            (step, False) for the node of that step itself.
    """

    body: tuple[int, ...]
    roots: tuple[tuple[int, bool], ...]

    @property
    def anchors(self) -> tuple[int, ...]:
        """Steps that need an anchor, ascending."""
        return tuple(sorted(step for step, is_anchor in self.roots if is_anchor))


class UnanchoredError(Exception):
    """No step can be anchored that would keep the sequence from `step` on."""

    def __init__(self, step: int) -> None:
        super().__init__(f"step {step} would have to be anchored and cannot be")
        self.step = step


def realize(
    parents: Sequence[Sequence[int]],
    can_anchor: Sequence[bool] | None = None,
    rank: Sequence[int] | None = None,
    *,
    quickly: bool = False,
) -> Realization:
    """Return the file order and anchors for the sequence 0..n-1.

    Args:
        parents: for each step, the steps whose outputs it reads; all smaller than the step.
        can_anchor: for each step, whether it can be anchored; None for all.
        rank: another file order to start from, as far as dependencies allow: the original's, say.
        quickly: exchange no producers; that may take a few more anchors.

    Raises:
        UnanchoredError: an anchor is needed on a step that cannot be anchored.
    """
    count = len(parents)
    has_reader = [False] * count
    for step, ps in enumerate(parents):
        for p in ps:
            if p >= step:
                raise ValueError(f"step {step} reads step {p}, which does not run before it")
            has_reader[p] = True
    anchors = can_anchor if can_anchor is not None else [True] * count
    leaves = [step for step in range(count) if not has_reader[step]]
    best: _Found | None = None
    failed: UnanchoredError | None = None
    for key in ([-step for step in range(count)], *([rank] if rank is not None else [])):
        order = DynamicOrder(parents, _first(parents, has_reader, key))
        try:
            found = _best_from(parents, order, leaves, anchors, 0 if quickly else _MAX_WALKS)
        except UnanchoredError as error:
            failed = failed or error
            continue
        if best is None or len(found[0]) < len(best[0]):
            best = found
    if best is None:
        assert failed is not None
        raise failed
    roots, body = best
    return Realization(body=tuple(body), roots=tuple(reversed(roots)))


_Found = tuple[list[tuple[int, bool]], list[int]]
"""Roots in the order of their visits, and the file order of the nodes with readers."""


def _best_from(
    parents: Sequence[Sequence[int]],
    order: DynamicOrder,
    leaves: Sequence[int],
    anchors: Sequence[bool],
    walks: int,
) -> _Found:
    """Return the best result from one file order: as it is, and after up to `walks` rounds of exchanged
    producers."""
    best: _Found | None = None
    failed: UnanchoredError | None = None
    for ps in parents:  # no anchor can help these: they are fixed before producers are exchanged
        alone = sorted({p for p in ps if not anchors[p]})
        for first, second in itertools.pairwise(alone):
            order.add(second, first)
    try:
        best = _walk(parents, order, leaves, anchors, adjust=False), order.order()
    except UnanchoredError as error:
        failed = error
    for _ in range(walks if len(parents) <= _MAX_ADJUSTED else 0):
        changes = order.changes
        try:
            _walk(parents, order, leaves, anchors, adjust=True)
            if order.changes == changes:
                break
            roots = _walk(parents, order, leaves, anchors, adjust=False)
        except UnanchoredError as error:
            if order.changes == changes:
                break
            failed = error
            continue
        if best is None or len(roots) < len(best[0]):
            best = roots, order.order()
    if best is None:
        assert failed is not None
        raise failed
    return best


def _walk(
    parents: Sequence[Sequence[int]],
    order: DynamicOrder,
    leaves: Sequence[int],
    can_anchor: Sequence[bool],
    *,
    adjust: bool,
) -> list[tuple[int, bool]]:
    """Return the roots in the order of their visits: each leaf, and an anchor wherever one is needed."""
    search = _OrderSearch(parents, order)
    roots: list[tuple[int, bool]] = []
    for leaf in leaves:
        way = _RootSearch(leaf)
        while search.position <= leaf:
            reached = search.go_on(way)
            while adjust and reached != leaf and search.put_right():
                way = _RootSearch(leaf)
                reached = search.go_on(way)
            if reached == leaf:
                search.advance(leaf)
                roots.append((leaf, False))
                break
            changes = order.changes
            step = search.farthest_root(reached, leaf, can_anchor, adjust=adjust)
            search.advance(step)
            roots.append((step, True))
            if order.changes != changes:
                way = _RootSearch(leaf)
            elif step < reached:  # some steps that the search ran have not run
                way.back_to(step)
    return roots


def _first(
    parents: Sequence[Sequence[int]], has_reader: Sequence[bool], key: Sequence[int]
) -> list[int]:
    """Return a topological order of the nodes with a reader: of the ready ones, the least key first."""
    children: list[list[int]] = [[] for _ in parents]
    missing = [len(set(ps)) for ps in parents]
    for step, ps in enumerate(parents):
        for p in set(ps):
            children[p].append(step)
    ready = [(key[step], step) for step, count in enumerate(missing) if not count]
    ready = [entry for entry in ready if has_reader[entry[1]]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, step = heapq.heappop(ready)
        order.append(step)
        for child in children[step]:
            missing[child] -= 1
            if not missing[child] and has_reader[child]:
                heapq.heappush(ready, (key[child], child))
    return order


_Stack = tuple[int, bool, "_Stack"] | None
"""A search's stack, top first: (step, whether all its inputs have been visited, the stack below)."""


class _RootSearch:
    """A search from one root, as far as it has gone.

    Attributes:
        stack: the stack as the search left it. The path from the root to the step that ran too early
            is on it, with True.
        begun, left: for each step that it ran since it last went on, with `begun` the first of them,
            the stack at that time.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self.stack: _Stack = (root, False, None)
        self.begun = 0
        self.left: list[_Stack] = []

    def back_to(self, step: int) -> None:
        """Undo the search after `step`."""
        self.stack = self.left[step - self.begun]

    def down(self) -> Iterator[int]:
        """Yield steps from the one that ran too early up to the root, each read by the next."""
        stack = self.stack
        while stack is not None:
            step, leaving, stack = stack
            if leaving:
                yield step


class _OrderSearch:
    """The runtime's depth-first search, checked against the wanted sequence as it goes.

    `position` is the next step that must run; all steps before it have run.
    """

    def __init__(self, parents: Sequence[Sequence[int]], order: DynamicOrder) -> None:
        self.parents = [sorted(set(ps)) for ps in parents]
        self.order = order
        self.first_reader = [len(parents)] * len(parents)
        for step in reversed(range(len(parents))):
            for p in self.parents[step]:
                self.first_reader[p] = step
        self.position = 0
        self.wrong_way = _RootSearch(0)
        self.wrong_at = 0
        self._ancestors: list[int] | None = None

    def probe(self, root: int) -> int:
        """Search from `root`; return the last step up to which the sequence came out right.

        It equals `root` where the search runs exactly the steps from `position` to `root`.
        """
        return self.go_on(_RootSearch(root))

    def go_on(self, way: _RootSearch) -> int:
        """Go on with `probe` from where an earlier search from the same root went wrong, or was put
        back to.

        The path to the steps that have run since is the same: among a node's inputs the search takes
        the first, and that is still the first of fewer. Therefore no path is walked twice, however
        often it is left for an anchor. All steps that the earlier search ran must have run by now.
        """
        expected = way.begun = self.position
        left: list[_Stack] = []
        way.left = left
        stack = way.stack
        place = self.order.place
        while stack is not None:
            step, leaving, below = stack
            if step < expected:
                stack = below
                continue
            if leaving:
                if step != expected:
                    self.wrong_way = way
                    self.wrong_at = expected
                    break
                stack = below
                left.append(stack)
                expected += 1
                continue
            stack = (step, True, below)
            waiting = [p for p in self.parents[step] if p >= expected]
            if len(waiting) > 1:
                waiting.sort(key=place.__getitem__)
            for p in waiting:
                stack = (p, False, stack)
        way.stack = stack
        return expected - 1

    def put_right(self) -> bool:
        """After a probe that went wrong, exchange the two producers that were met in the wrong order.

        Return False where there are none (the expected step is not needed here) or a cycle forbids it.
        """
        expected = self.wrong_at
        if not self._needs(self.wrong_way.root, expected):
            return False
        for child, node in itertools.pairwise(self.wrong_way.down()):
            for other in self.parents[node]:
                if other != child and other >= expected and self._needs(other, expected):
                    return self.order.add(child, other)
        return False

    def _needs(self, step: int, ancestor: int) -> bool:
        if self._ancestors is None:
            self._ancestors = []
            for v, ps in enumerate(self.parents):
                bits = 1 << v
                for p in ps:
                    bits |= self._ancestors[p]
                self._ancestors.append(bits)
        return bool(self._ancestors[step] >> ancestor & 1)

    def farthest_root(
        self, reached: int, leaf: int, can_anchor: Sequence[bool], *, adjust: bool = False
    ) -> int:
        """Return the latest step that can be anchored from which a search runs exactly the steps from
        `position` on.

        Args:
            adjust: where there is none, exchange producers until there is.
        """
        # a search that runs all steps needs each of them: a later one of them reads it
        candidates: list[int] = []
        needed_by = self.position
        last = min(reached + _LOOKAHEAD, leaf - 1)
        for step in range(self.position, last + 1):
            if needed_by <= step and can_anchor[step]:
                candidates.append(step)
            reader = self.first_reader[step]
            if reader > needed_by:
                needed_by = reader
        for step in reversed(candidates):
            if self.probe(step) == step:
                return step
        for step in candidates if adjust else ():
            while True:
                if self.probe(step) == step:
                    return step
                if not self.put_right():
                    break
        raise UnanchoredError(self.position)

    def advance(self, step: int) -> None:
        """Note that all steps up to `step` have run."""
        self.position = step + 1
