"""The compiled replay against the arena model that ONNX Runtime's own events confirm."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.fit.demands import Demands, demands_of, demands_of_plan
from planner.fit.search import ReplayLimits, fit, least_arena, most_in_use, need_of, room
from planner.graph.model import OpId, TrainingGraph
from planner.graph.schedule import default_order
from planner.runtime.memory.arena import RECOMMENDED, simulate
from planner.search.evaluate import Evaluator
from tests.graphs import decisions_for, graph_of, onnx_graphs, problems
from tests.runtime.support import fits, random_model, save

_QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def random_graph(seed: int, nodes: int) -> TrainingGraph:
    """Of a random model."""
    with tempfile.TemporaryDirectory() as folder:
        return save(random_model(seed, nodes), Path(folder) / "m.onnx")[1]


def demands(graph: TrainingGraph, order: Sequence[OpId], per_unit: int = 1) -> Demands:
    """With so many nodes to a unit."""
    return demands_of(graph, order, {op: i // per_unit for i, op in enumerate(order)}, {})


def most_of(wanted: Demands) -> int:
    """The most bytes in use in an arena without limits."""
    return most_in_use(wanted, np.arange(wanted.units))


def in_use(graph: TrainingGraph, order: Sequence[OpId]) -> int:
    """The most bytes in use under a cap, which splits every chunk."""
    return most_of(demands(graph, order))


@_QUICK
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 60), data=st.data())
def test_there_is_room_for_all_units_where_the_arena_model_fits(
    seed: int, nodes: int, data: st.DataObject
) -> None:
    graph = random_graph(seed, nodes)
    order = default_order(graph)
    peak = in_use(graph, order)
    cap = data.draw(st.integers(peak // 2, 2 * peak)) // 256 * 256
    wanted = demands(graph, order, per_unit=data.draw(st.integers(1, 3)))
    ran = room(wanted, np.arange(wanted.units), ReplayLimits(cap))
    least = least_arena(wanted, cap)
    assert (ran == wanted.units) == (least <= cap) == fits(graph, order, cap)
    assert peak <= least and fits(graph, order, least)


@_QUICK
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 60))
def test_bytes_in_use_are_those_of_the_arena_model(seed: int, nodes: int) -> None:
    graph = random_graph(seed, nodes)
    order = default_order(graph)
    split = replace(RECOMMENDED, max_dead_bytes=1)
    (trace,) = simulate(graph, order, split, runs=1, threads=1)
    assert in_use(graph, order) - sum(map(int, demands(graph, order).reserved)) == trace.peak


@_QUICK
@given(proto=onnx_graphs(), seed=st.integers(0, 99))
def test_an_order_that_is_found_is_legal_and_fits(proto, seed: int) -> None:
    _, graph = graph_of(proto)
    order = default_order(graph)
    cap = in_use(graph, order)
    found = fit(demands(graph, order), cap, time_limit_s=0.2, seed=seed)
    if found is None:
        return
    assert sorted(found) == list(range(len(order)))
    moved = tuple(order[unit] for unit in found)
    place = {op: i for i, op in enumerate(moved)}
    for op in graph.operations:
        for tensor in op.inputs:
            producer = graph.tensors[tensor].producer
            assert producer is None or place[producer] < place[op.id]
    assert fits(graph, moved, cap)


@_QUICK
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 60))
def test_an_arena_as_large_as_is_said_to_be_needed_has_room(seed: int, nodes: int) -> None:
    graph = random_graph(seed, nodes)
    order = default_order(graph)
    wanted = demands(graph, order)
    need = need_of(wanted)
    assert need >= 1.0
    assert fits(graph, order, round(need * in_use(graph, order)))


@_QUICK
@given(problem=problems(), data=st.data())
def test_a_plan_that_is_not_lowered_asks_for_its_live_bytes(problem, data) -> None:
    rounded = replace(
        problem,
        ops=tuple(replace(op, workspace_bytes=256 * op.workspace_bytes) for op in problem.ops),
        tensors=tuple(replace(tensor, bytes=256 * tensor.bytes) for tensor in problem.tensors),
    )
    plan = Evaluator(rounded).evaluate(data.draw(decisions_for(rounded)))
    asked = demands_of_plan(rounded, plan)
    assert asked.units == len(plan.actions)
    assert most_of(asked) == plan.peak_bytes - rounded.fixed_bytes


def broken_arenas() -> Iterator[tuple[TrainingGraph, tuple[OpId, ...], int]]:
    """Random graphs, their plain orders, and arenas that have no room for them: of the bytes in use."""
    for seed in range(60):
        graph = random_graph(seed, 50)
        order = default_order(graph)
        cap = in_use(graph, order)
        if not fits(graph, order, cap):
            yield graph, order, cap


def test_orders_are_found_where_the_plain_one_does_not_fit() -> None:
    """Of random graphs whose arena breaks up in the plain order, most fit in another one."""
    broken = found = 0
    for graph, order, cap in itertools.islice(broken_arenas(), 8):
        broken += 1
        other = fit(demands(graph, order), cap, time_limit_s=60)
        found += other is not None
    assert broken >= 5
    assert found >= broken / 3, f"{found} of {broken}"


@_QUICK
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 40), data=st.data())
def test_each_event_is_in_one_unit_however_the_nodes_are_shared_out(
    seed: int, nodes: int, data: st.DataObject
) -> None:
    """Units without nodes, or whose nodes are apart: some events were in two, and written past the end
    of the arena's arrays."""
    graph = random_graph(seed, nodes)
    order = default_order(graph)
    plain = demands(graph, order)
    units = st.integers(0, 2 * nodes)
    shared = demands_of(graph, order, {op: data.draw(units) for op in order}, {})
    assert np.all(np.diff(shared.event_at) >= 0)
    assert shared.event_at[-1] == len(shared.event) == len(plain.event)
    assert sorted(zip(shared.event, shared.subject, strict=True)) == sorted(
        zip(plain.event, plain.subject, strict=True)
    )
    found = fit(shared, in_use(graph, order), time_limit_s=0.05)
    assert found is None or shared.are_in_order
