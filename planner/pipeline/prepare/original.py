"""The order in which ONNX Runtime runs the original file, with its optimizers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import networkx as nx
import onnx_ir as ir

from planner.graph.effects import SHARED_GENERATOR
from planner.graph.model import Operation, OpId, TrainingGraph
from planner.graph.schedule import parents_of, reverse_dfs_order, with_shapes_behind
from planner.onnxio.load import LoadedModel

_CAST = "InsertedPrecisionFreeCast_"
"""Prefix of ONNX Runtime's names for casts of half types (core/optimizer/insert_cast_transformer.cc)."""


_OTHERS = 8
"""Number of orders to consider besides the likely one, if the order is uncertain."""


def original_orders(graph: TrainingGraph, original: LoadedModel) -> tuple[tuple[OpId, ...], ...]:
    """Return the likely order in which a default session runs the original file, and other possible ones.

    Nodes that the optimizers left alone keep their place in the original file as their index. Nodes
    that they made follow all of those, in order of creation. So do the nodes of inlined functions,
    last call first (tests/pipeline/test_inlined_order.py), and then casts of half types. The order
    among created nodes is uncertain: one of the other orders reverses it, some shuffle it.
    """
    place: dict[tuple[str, ...], int] = {}
    nodes = [n for n in original.model.graph if original.own & {str(v.name) for v in n.outputs}]
    shares = Counter(node.name for node in nodes)
    for index, node in enumerate(nodes):
        for key in _keys_of(node, is_named=bool(node.name) and shares[node.name] == 1):
            place[key] = -1 if key in place else index  # keys of two nodes identify neither
    names = {t.id: t.name for t in graph.tensors}
    count = len(graph.operations)  # casts are inserted last
    index = [
        len(nodes) + op.id + (count if op.name.startswith(_CAST) else 0) for op in graph.operations
    ]
    left = set(range(len(nodes)))
    unknown = graph.operations
    for kind in ("name", "makes", "reads"):
        missed: list[Operation] = []
        for op in unknown:
            # a node between casts has tensors named after its original ones
            outputs, inputs = (
                [names[t].removeprefix(_CAST) for t in side] for side in (op.outputs, op.inputs)
            )
            parts = {"name": [op.name], "makes": outputs[:1], "reads": inputs}[kind]
            at = place.get((kind, op.op_type, *parts), -1)
            if at in left:
                index[op.id] = at
                left.discard(at)
            else:
                missed.append(op)
        unknown = tuple(missed)
    places = sorted(index[op.id] for op in unknown)
    by_place = sorted((op.id for op in unknown), key=lambda op: index[op])
    ways = [by_place]
    if len(unknown) > 1:
        shuffles = random.Random(0)
        casts = [op for op in by_place if graph.operations[op].name.startswith(_CAST)]
        inlined_back = [op for op in by_place[::-1] if op not in casts] + casts
        has_inlined = len(nodes) < sum(1 for _ in original.model.graph)
        ways = [inlined_back, by_place] if has_inlined else [by_place, inlined_back]
        ways += [by_place[::-1]]
        ways += [shuffles.sample(by_place, len(by_place)) for _ in range(_OTHERS - 2)]
    parents = parents_of(graph)
    orders: list[tuple[OpId, ...]] = []
    for way in ways:
        for op, at in zip(way, places, strict=True):
            index[op] = at
        found = with_shapes_behind(graph, reverse_dfs_order(parents, index), index)
        if found not in orders:
            orders.append(found)
    return tuple(orders)


def as_written(graph: TrainingGraph, executed: Sequence[str]) -> tuple[OpId, ...]:
    """Return the operations in the order in which a session runs them, from the file that it writes.

    Args:
        executed: the first output of each node, in that order, of the same graph.
    """
    by_output = {graph.tensors[op.outputs[0]].name: op.id for op in graph.operations}
    return tuple(by_output[name] for name in executed)


def with_draws_in_order(
    graph: TrainingGraph, order: Sequence[OpId], original: TrainingGraph, default: Sequence[OpId]
) -> tuple[OpId, ...]:
    """Return `order`, or a nearby order that draws random numbers in the original's order.

    Without a seed, training-mode Dropout takes the next numbers of a generator that all such nodes
    share (core/providers/cpu/nn/dropout_op.h, `RandomGenerator::Default`): another order changes
    them.

    Args:
        graph: the optimizers' graph; `order` is the order in which its operations run.
        original: the graph that ONNX Runtime runs when it loads the file; `default` is its order.
    """
    drawing = (op for op in graph.operations if op.effect in SHARED_GENERATOR)
    by_name = {graph.tensors[op.outputs[0]].name: op.id for op in drawing}
    made = (original.tensors[t].name for op in default for t in original.operations[op].outputs)
    wanted = [by_name[name] for name in made if name in by_name]
    place = {op: i for i, op in enumerate(order)}
    if wanted == sorted(wanted, key=place.__getitem__):
        return tuple(order)
    net: nx.DiGraph[OpId] = nx.DiGraph()
    net.add_nodes_from(order)
    net.add_edges_from((p, OpId(op)) for op, ps in enumerate(parents_of(graph)) for p in ps)
    nx.add_path(net, wanted)
    if not nx.is_directed_acyclic_graph(net):
        return tuple(order)
    return tuple(nx.lexicographical_topological_sort(net, key=place.__getitem__))


def _keys_of(node: ir.Node, *, is_named: bool) -> tuple[tuple[str, ...], ...]:
    """Return the keys that identify a node after optimization.

    A node with a unique name is identified by it, others by their output (the output of an Identity
    behind the node may replace it) or their inputs. A node with another name that makes the output
    of a named node replaced that node.
    """
    if is_named:
        return (("name", node.op_type, str(node.name)),)
    outputs, inputs = ([str(v.name) for v in side if v is not None and v.name]
                       for side in (node.outputs, node.inputs))  # fmt: skip
    return (
        ("makes", node.op_type, *outputs[:1]),
        ("reads", node.op_type, *inputs),
    )
