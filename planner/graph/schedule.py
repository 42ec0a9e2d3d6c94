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

from collections.abc import Iterable, Sequence, Set

import networkx as nx

from planner.graph.model import OpId, TrainingGraph

_HOISTED = frozenset({"Shape", "Size"})


def parents_of(graph: TrainingGraph) -> tuple[tuple[OpId, ...], ...]:
    """Return the operations that make each operation's inputs, ascending, without repeats."""
    tensors = graph.tensors
    return tuple(
        tuple(sorted({p for t in op.inputs if (p := tensors[t].producer) is not None}))
        for op in graph.operations
    )


def default_order(graph: TrainingGraph) -> tuple[OpId, ...]:
    """Return the order of a session with default options. OpIds are file positions."""
    order = reverse_dfs_order(parents_of(graph), range(len(graph.operations)))
    return with_shapes_behind(graph, order, range(len(graph.operations)))


def with_shapes_behind(
    graph: TrainingGraph, order: Sequence[int], index: Sequence[int]
) -> tuple[OpId, ...]:
    """Move Shape and Size nodes in `order` as a training build does; unchanged for other builds.

    Args:
        index: place of each operation in the file.
    """
    if not graph.shapes_follow:
        return tuple(OpId(v) for v in order)
    moving = {op.id for op in graph.operations if op.op_type in _HOISTED}
    parents = parents_of(graph)
    return tuple(OpId(v) for v in behind_parents(order, parents, moving, index))


def with_folded(graph: TrainingGraph, order: Sequence[OpId]) -> tuple[OpId, ...]:
    """Insert the folded operations into `order`, each behind the producers of its inputs.

    `order` has the planned operations alone.
    """
    place = {op: i for i, op in enumerate(order)}
    planned = frozenset(place)
    parents = parents_of(graph)
    for op in graph.operations:  # in file order: producers come first
        if op.id not in planned:
            place[op.id] = max((place[parent] for parent in parents[op.id]), default=-1)
    return tuple(sorted(place, key=lambda op: (place[op], op not in planned, op)))


def behind_parents(
    order: Sequence[int],
    parents: Sequence[Sequence[int]],
    moving: Set[int],
    index: Sequence[int],
) -> list[int]:
    """Place each node of `moving` that has a parent just behind it, by ascending index."""
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
    """Return the postorder of the reverse DFS of nodes `0..n-1`.

    `index[node]` is the node's place in the file.
    """
    read = {p for ps in parents for p in ps}
    leaves = (v for v in range(len(parents)) if v not in read)

    def last_first(nodes: Iterable[int]) -> list[int]:
        return sorted(nodes, key=index.__getitem__, reverse=True)

    net: nx.DiGraph[int] = nx.DiGraph()
    net.add_nodes_from(last_first(leaves))  # a search starts from each node in turn
    net.add_edges_from((v, p) for v, ps in enumerate(parents) for p in ps)
    return list(nx.dfs_postorder_nodes(net, sort_neighbors=last_first))


def priority_order(graph: TrainingGraph) -> tuple[OpId, ...]:
    """Return the order of a session with `execution_order = PRIORITY_BASED`."""
    parents = parents_of(graph)
    net: nx.DiGraph[OpId] = nx.DiGraph()
    net.add_nodes_from(op.id for op in graph.operations)
    net.add_edges_from((p, OpId(v)) for v, ps in enumerate(parents) for p in ps)

    def key(v: OpId) -> tuple[bool, OpId]:
        return (graph.operations[v].op_type not in _HOISTED, v)

    return tuple(nx.lexicographical_topological_sort(net, key=key))


def file_order(graph: TrainingGraph) -> tuple[OpId, ...]:
    """Return the file's order of operations: topological, because planner refuses unsorted files."""
    return tuple(op.id for op in graph.operations)
