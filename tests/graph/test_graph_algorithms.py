"""Orders and ancestors are those of the algorithms written out, ties and all: plans depend on them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import onnx
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper as h

from planner.graph.build import _GraphBuilder, build_graph
from planner.graph.model import Category, Operation, OpId, Tensor, TensorId, TrainingGraph
from planner.graph.schedule import (
    default_order,
    parents_of,
    priority_order,
    reverse_dfs_order,
    with_folded,
)
from planner.onnxio.load import value_types
from tests.graphs import graph_of, onnx_graphs


@st.composite
def networks(draw: st.DrawFn, max_nodes: int = 30) -> list[list[int]]:
    """Parents of each node, ascending; numbers say nothing of the order."""
    count = draw(st.integers(1, max_nodes))
    name = draw(st.permutations(range(count)))
    parents: list[list[int]] = [[] for _ in range(count)]
    for v in range(1, count):
        above = draw(st.sets(st.integers(0, v - 1), max_size=3))
        parents[name[v]] = sorted(name[p] for p in above)
    return parents


def reverse_search(parents: Sequence[Sequence[int]], index: Sequence[int]) -> list[int]:
    """As ONNX Runtime does it, with a stack (core/graph/graph.cc, `Graph::ReverseDFSFrom`)."""
    read = {p for ps in parents for p in ps}
    leaves = [v for v in range(len(parents)) if v not in read]
    stack = [(v, False) for v in sorted(leaves, key=index.__getitem__)]
    seen: set[int] = set()
    order: list[int] = []
    while stack:
        node, leaving = stack.pop()
        if leaving:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            unseen = sorted((p for p in parents[node] if p not in seen), key=index.__getitem__)
            stack.extend((p, False) for p in unseen)
    return order


def by_priority(parents: Sequence[Sequence[int]], first: Sequence[bool]) -> list[int]:
    """Kahn's algorithm with a heap: those that come `first`, then the smallest number."""
    missing = [len(ps) for ps in parents]
    ready = [(not first[v], v) for v, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, v = heapq.heappop(ready)
        order.append(v)
        for child, ps in enumerate(parents):
            if v in ps:
                missing[child] -= 1
                if not missing[child]:
                    heapq.heappush(ready, (not first[child], child))
    return order


def graph_with(parents: Sequence[Sequence[int]], hoisted: Sequence[bool]) -> TrainingGraph:
    """A graph with one output to each operation; those that are `hoisted` are Shape nodes."""
    operations = tuple(
        Operation(
            id=OpId(v),
            name=f"n{v}",
            op_type="Shape" if hoisted[v] else "Relu",
            domain="",
            inputs=tuple(TensorId(p) for p in ps),
            outputs=(TensorId(v),),
        )
        for v, ps in enumerate(parents)
    )
    tensors = tuple(
        Tensor(
            id=TensorId(v),
            name=f"t{v}",
            dtype="float",
            shape=(),
            bytes=4,
            category=Category.ACTIVATION,
            buffer=TensorId(v),
            producer=OpId(v),
            consumers=tuple(OpId(c) for c, ps in enumerate(parents) if v in ps),
        )
        for v in range(len(parents))
    )
    return TrainingGraph(name="g", operations=operations, tensors=tensors, inputs=(), outputs=())


@settings(max_examples=100, deadline=None)
@given(parents=networks(), data=st.data())
def test_the_reverse_search_is_that_with_a_stack(parents, data):
    index = data.draw(st.permutations(range(len(parents))))
    assert reverse_dfs_order(parents, index) == reverse_search(parents, index)


@settings(max_examples=100, deadline=None)
@given(parents=networks(), data=st.data())
def test_the_order_by_priority_is_that_with_a_heap(parents, data):
    hoisted = [data.draw(st.booleans()) for _ in parents]
    graph = graph_with(parents, hoisted)
    assert parents_of(graph) == tuple(map(tuple, parents))
    assert list(priority_order(graph)) == by_priority(parents, hoisted)


@settings(max_examples=60, deadline=None)
@given(proto=onnx_graphs(), data=st.data())
def test_what_comes_before_the_loss(proto, data):
    made = [name for node in proto.graph.node for name in node.output]
    summed = data.draw(st.sampled_from(made))
    proto.graph.node.append(h.make_node("ReduceSum", [summed], ["loss"], name="loss", keepdims=0))
    if data.draw(st.booleans()):  # else all outputs count
        loss = h.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])
        proto.graph.output.append(loss)
    model = ir.from_proto(proto)
    types = value_types(model, {})
    graph = build_graph(model, types)
    producer = {t.name: t.producer for t in graph.tensors if t.producer is not None}
    ends = [t for t in graph.outputs if graph.tensors[t].name == "loss"] or [*graph.outputs]
    stack = [op for t in ends if (op := graph.tensors[t].producer) is not None]
    before = set(stack)
    parents = parents_of(graph)
    while stack:
        new = set(parents[stack.pop()]) - before
        before |= new
        stack.extend(new)
    consumers = {t.name: list(t.consumers) for t in graph.tensors}
    assert (
        _GraphBuilder(model, types, frozenset(), None)._forward_ops(consumers, producer) == before
    )


@settings(max_examples=40, deadline=None)
@given(proto=onnx_graphs(), data=st.data())
def test_folded_operations_are_put_where_what_they_read_is(proto, data: st.DataObject) -> None:
    _, graph = graph_of(proto)
    order = default_order(graph)
    folded = data.draw(st.sets(st.sampled_from(order), max_size=len(order)))
    planned = [op for op in order if op not in folded]
    whole = with_folded(graph, planned)
    assert sorted(whole) == sorted(order)
    assert [op for op in whole if op not in folded] == planned
    place = {op: i for i, op in enumerate(whole)}
    parents = parents_of(graph)
    assert all(place[parent] < place[op] for op in whole for parent in parents[op])
