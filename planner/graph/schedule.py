"""The order in which ONNX Runtime runs a graph.

`default_order` is the postorder of a reverse depth-first search: nodes without consumers are visited
from the highest index to the lowest, and so are the producers of each node's inputs
(onnxruntime/core/graph/graph_viewer.cc, `GraphViewer::GraphViewer`; graph.cc,
`Graph::ReverseDFSFrom`). A node's index is its place in the file.

A build with training (`TrainingGraph.shapes_follow`) then moves each Shape and Size node that reads
another node's output to just behind that node, in file order (the same constructor, under
`ENABLE_TRAINING`).

`priority_order` (`ExecutionOrder::PRIORITY_BASED`) is Kahn's algorithm with the smallest index first,
`Shape` and `Size` nodes before all others (graph_viewer.cc, `PriorityNodeCompare`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence, Set

from planner.graph.model import OpId, TrainingGraph

_HOISTED = frozenset({"Shape", "Size"})


def parents_of(graph: TrainingGraph) -> tuple[tuple[OpId, ...], ...]:
    """For each operation, the operations that produce its inputs: ascending, without repeats."""
    tensors = graph.tensors
    return tuple(
        tuple(sorted({p for t in op.inputs if (p := tensors[t].producer) is not None}))
        for op in graph.operations
    )


def default_order(graph: TrainingGraph) -> tuple[OpId, ...]:
    """The order of a session with default options. OpIds are file positions."""
    order = reverse_dfs_order(parents_of(graph), range(len(graph.operations)))
    return with_shapes_behind(graph, order, range(len(graph.operations)))


def with_shapes_behind(
    graph: TrainingGraph, order: Sequence[int], index: Sequence[int]
) -> tuple[OpId, ...]:
    """`order` as a build runs it that moves Shape and Size; unchanged where it does not.

    Args:
        index: place in the file, by operation.
    """
    if not graph.shapes_follow:
        return tuple(OpId(v) for v in order)
    moving = {op.id for op in graph.operations if op.op_type in _HOISTED}
    parents = parents_of(graph)
    return tuple(OpId(v) for v in behind_parents(order, parents, moving, index))


def behind_parents(
    order: Sequence[int],
    parents: Sequence[Sequence[int]],
    moving: Set[int],
    index: Sequence[int],
) -> list[int]:
    """`order` with each node of `moving` that has a parent just behind it, by ascending index."""
    followers: dict[int, list[int]] = {}
    for node in sorted(moving, key=index.__getitem__):
        if parents[node]:
            followers.setdefault(parents[node][0], []).append(node)
    moved = {node for nodes in followers.values() for node in nodes}
    result: list[int] = []
    for node in order:
        if node not in moved:
            result.append(node)
            result.extend(followers.get(node, ()))
    return result


def reverse_dfs_order(parents: Sequence[Sequence[int]], index: Sequence[int]) -> list[int]:
    """Postorder of the reverse DFS, for nodes `0..n-1` that stand in the file at `index[node]`."""
    has_consumer = [False] * len(parents)
    for ps in parents:
        for p in ps:
            has_consumer[p] = True
    leaves = [v for v in range(len(parents)) if not has_consumer[v]]
    stack = [(v, False) for v in sorted(leaves, key=index.__getitem__)]
    seen = bytearray(len(parents))
    order: list[int] = []
    while stack:
        node, leaving = stack.pop()
        if leaving:
            order.append(node)
            continue
        if seen[node]:
            continue
        seen[node] = 1
        stack.append((node, True))
        unseen = [p for p in parents[node] if not seen[p]]
        unseen.sort(key=index.__getitem__)
        stack.extend((p, False) for p in unseen)
    return order


def priority_order(graph: TrainingGraph) -> tuple[OpId, ...]:
    """The order of a session with `execution_order = PRIORITY_BASED`."""
    parents = parents_of(graph)
    children: list[list[OpId]] = [[] for _ in parents]
    missing = [len(ps) for ps in parents]
    for v, ps in enumerate(parents):
        for p in ps:
            children[p].append(OpId(v))

    def key(v: OpId) -> tuple[bool, OpId]:
        return (graph.operations[v].op_type not in _HOISTED, v)

    ready = [key(OpId(v)) for v, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order: list[OpId] = []
    while ready:
        _, v = heapq.heappop(ready)
        order.append(v)
        for child in children[v]:
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(ready, key(child))
    return tuple(order)


def file_order(graph: TrainingGraph) -> tuple[OpId, ...]:
    """Operations as they stand in the file: topological, since unsorted files are refused."""
    return tuple(op.id for op in graph.operations)
