"""An order that fewer nodes pin: ONNX Runtime's own for what is left of the file, and as good."""

from __future__ import annotations

import onnx_ir as ir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.fit.demands import demands_of
from planner.fit.looser import looser_order, pinned_file
from planner.graph.liveness import timeline
from planner.graph.model import OpId, TrainingGraph
from planner.graph.schedule import default_order
from planner.lower.rewrite import Rewritten, rewrite
from planner.pipeline.prepare.graphs import analysed_graph
from planner.search.evaluate import Evaluator
from tests.fit.test_replay import in_use
from tests.graphs import decisions_for, formulation_of, graph_of, onnx_graphs
from tests.runtime.support import fits

_PLANS = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def lowered(proto, data: st.DataObject) -> tuple[Rewritten, TrainingGraph]:
    """Any plan of a model, and the graph of what comes of it."""
    model, graph = graph_of(proto)
    form = formulation_of(graph)
    actions = Evaluator(form.problem).schedule(data.draw(decisions_for(form.problem)))
    rewritten = rewrite(model, graph, form, actions)
    return rewritten, analysed_graph(rewritten.model, {})


@_PLANS
@given(proto=onnx_graphs(), data=st.data())
def test_an_order_without_pins_is_that_of_a_file_without_them(proto, data):
    rewritten, graph = lowered(proto, data)
    file = pinned_file(graph, default_order(graph))
    dropped = (
        frozenset(data.draw(st.sets(st.sampled_from(file.pins)))) if file.pins else frozenset()
    )
    names = {graph.operations[pin].name for pin in dropped}
    left = ir.from_proto(ir.to_proto(rewritten.model))
    gone = [node for node in left.graph if node.name in names]
    left.graph.remove(gone, safe=True)
    fewer = analysed_graph(left, {})
    expected = [fewer.operations[op].name for op in default_order(fewer)]
    order = file.order_without(dropped)
    assert sorted(order) == list(range(len(graph.operations)))
    assert [name for op in order if (name := graph.operations[op].name) not in names] == expected


@_PLANS
@given(proto=onnx_graphs(), data=st.data(), has_cap=st.booleans())
def test_a_looser_order_is_legal_and_has_room(proto, data, has_cap):
    rewritten, graph = lowered(proto, data)
    file = pinned_file(graph, default_order(graph))
    order = [OpId(op) for op in file.order]
    wanted = demands_of(graph, order, {op: i for i, op in enumerate(order)}, rewritten.like)
    peak = in_use(graph, order)
    cap = None
    if has_cap:
        sizes = (int(share * peak) // 256 * 256 for share in (1.0, 1.1, 1.3, 2.0))
        cap = next(size for size in sizes if fits(graph, order, size))
    found, fewer = looser_order(file, wanted, cap, lambda _, pins: pins, time_limit_s=60)
    moved = tuple(OpId(op) for op in found)
    place = {op: i for i, op in enumerate(moved)}
    assert all(place[OpId(p)] < place[OpId(v)] for v, ps in enumerate(file.parents) for p in ps)
    assert 0 <= fewer <= len(file.pins)
    if not fewer:
        assert moved == tuple(order)
    # what is dropped still stands in this graph, and takes a buffer each
    most = (peak if cap is None else cap) + 256 * fewer
    assert in_use(graph, moved) <= most
    assert timeline(graph, moved).order == moved


@_PLANS
@given(proto=onnx_graphs(), data=st.data())
def test_nothing_is_dropped_that_costs_more(proto, data):
    rewritten, graph = lowered(proto, data)
    file = pinned_file(graph, default_order(graph))
    order = [OpId(op) for op in file.order]
    wanted = demands_of(graph, order, {op: i for i, op in enumerate(order)}, rewritten.like)
    found, fewer = looser_order(file, wanted, None, lambda _, pins: -pins, time_limit_s=60)
    assert (list(found), fewer) == (list(file.order), 0)
