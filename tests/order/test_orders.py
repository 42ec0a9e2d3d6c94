"""Base orders: topological permutations, and a search that never raises the peak."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bound.instants import min_peak_bound
from planner.order.lists import late_schedule, list_schedule
from planner.order.moves import (
    _SCALAR_BYTES,
    _UPDATE_OUTPUTS,
    improve_order,
    pull_early,
    push_late,
    updates_last,
)
from planner.order.reorder import Lives, parents_of, peak_of, reorder
from planner.plan.problem import PlanOp, PlanTensor, Problem
from planner.simulate.simulate import simulate
from tests.graphs import base_actions, problems


def never() -> bool:
    return False


def is_topological(problem: Problem, order: tuple[int, ...]) -> bool:
    place = {op: i for i, op in enumerate(order)}
    return sorted(order) == list(range(len(problem.ops))) and all(
        place[p] < place[v] for v, ps in enumerate(parents_of(problem)) for p in ps
    )


@st.composite
def orders(draw: st.DrawFn, problem: Problem) -> tuple[int, ...]:
    """Any topological order."""
    missing = {v: set(ps) for v, ps in enumerate(parents_of(problem))}
    order: list[int] = []
    while missing:
        ready = sorted(v for v, ps in missing.items() if not ps - set(order))
        order.append(draw(st.sampled_from(ready)))
        del missing[order[-1]]
    return tuple(order)


@st.composite
def branching(draw: st.DrawFn) -> Problem:
    """A problem in which each operation makes one tensor, small or not, of up to two earlier ones."""
    reads = [
        draw(st.sets(st.integers(0, v - 1), max_size=2)) if v else set()
        for v in range(draw(st.integers(1, 20)))
    ]
    uses = [tuple(v for v, ts in enumerate(reads) if t in ts) for t in range(len(reads))]
    tensors = tuple(
        PlanTensor(
            name=f"t{t}",
            bytes=_SCALAR_BYTES + draw(st.integers(0, 1)),
            producer=t,
            uses=readers,
            to_end=not readers or draw(st.booleans()),
        )
        for t, readers in enumerate(uses)
    )
    ops = tuple(
        PlanOp(name=f"op{v}", duration_us=1.0, inputs=tuple(sorted(ts)), outputs=(v,))
        for v, ts in enumerate(reads)
    )
    return Problem(name="tree", ops=ops, tensors=tensors, fixed_bytes=0, capacity_bytes=1)


ANY = problems() | branching()
"""The former leave one topological order: each operation reads what the one before it made."""


@settings(max_examples=100, deadline=None)
@given(data=st.data(), problem=ANY)
def test_list_schedules_are_topological_permutations(data, problem):
    count = len(problem.ops)
    priority = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    for eager in (True, False):
        assert is_topological(problem, list_schedule(problem, priority, eager=eager))


@settings(max_examples=50, deadline=None)
@given(problem=ANY)
def test_list_scheduling_by_place_is_the_base_order(problem):
    plain = range(len(problem.ops))
    assert list_schedule(problem, plain, eager=False) == tuple(plain)


def network(problem: Problem) -> nx.DiGraph:
    """An edge from each operation to what must follow it."""
    net = nx.DiGraph()
    net.add_nodes_from(range(len(problem.ops)))
    net.add_edges_from((p, v) for v, ps in enumerate(parents_of(problem)) for p in ps)
    return net


@settings(max_examples=100, deadline=None)
@given(data=st.data(), problem=branching())
def test_list_scheduling_is_the_least_topological_order_by_priority(data, problem):
    count = len(problem.ops)
    priority = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    least = nx.lexicographical_topological_sort(network(problem), key=lambda v: (priority[v], v))
    assert list_schedule(problem, priority, eager=False) == tuple(least)


@settings(max_examples=150, deadline=None)
@given(problem=branching())
def test_updates_are_what_leads_to_few_outputs_alone(problem):
    net, tensors = network(problem), problem.tensors
    private = {
        op
        for op in net
        if sum(tensors[v].to_end for v in (op, *nx.descendants(net, op))) <= _UPDATE_OUTPUTS
    }
    late: set[int] = set()
    for op in reversed(sorted(net)):
        makers = {t for t in problem.ops[op].inputs if tensors[t].bytes > _SCALAR_BYTES}
        if op in private and makers <= private and late.issuperset(net[op]):
            late.add(op)
    early = [op for op in sorted(net) if op not in late]
    assert updates_last(problem, sorted(net)) == (*early, *sorted(late))


@settings(max_examples=80, deadline=None)
@given(data=st.data(), problem=ANY)
def test_the_search_never_raises_the_peak(data, problem):
    start = data.draw(orders(problem))
    found = improve_order(problem, start, out_of_time=never)
    assert is_topological(problem, found)
    assert peak_of(problem, found) <= peak_of(problem, start)


@settings(max_examples=20, deadline=None)
@given(data=st.data(), problem=ANY)
def test_out_of_time_the_search_returns_what_it_was_given(data, problem):
    start = data.draw(orders(problem))
    assert improve_order(problem, start, out_of_time=lambda: True) == start


@settings(max_examples=100, deadline=None)
@given(data=st.data(), problem=ANY)
def test_a_reordered_problem_is_the_same_problem(data, problem):
    order = data.draw(orders(problem))
    moved = reorder(problem, order)
    assert [op.name for op in moved.ops] == [problem.ops[v].name for v in order]
    assert [t.name for t in moved.tensors] == [t.name for t in problem.tensors]
    for t, tensor in enumerate(moved.tensors):
        assert t in moved.ops[tensor.producer].outputs
        assert list(tensor.uses) == [i for i, op in enumerate(moved.ops) if t in op.inputs]
        assert all(use > tensor.producer for use in tensor.uses)
    found = simulate(moved, base_actions(moved))
    assert peak_of(problem, order) == found.peak_bytes
    assert Lives(problem).live_bytes(order).tolist() == found.live_bytes.tolist()
    least, where = min_peak_bound(moved)
    if least > problem.fixed_bytes:
        assert min_peak_bound(problem, order) == (least, order[where])
    assert moved.base_duration_us == pytest.approx(problem.base_duration_us)


def test_weight_gradients_run_as_soon_as_they_can():
    """Each step of a backward pass makes a small gradient, which is an output, and a large one that
    the next step reads: the small ones first, and no large one has to wait."""
    ops, tensors = [], []
    steps = 6
    for i in range(steps):  # the chain of large gradients
        inputs = (i - 1,) if i else ()
        ops.append(PlanOp(name=f"chain{i}", duration_us=1.0, inputs=inputs, outputs=(i,)))
    for i in range(steps):  # in file order, the small ones come last
        ops.append(PlanOp(name=f"weight{i}", duration_us=1.0, inputs=(i,), outputs=(steps + i,)))
    for i in range(steps):
        uses = (*((i + 1,) if i + 1 < steps else ()), steps + i)
        tensors.append(PlanTensor(name=f"g{i}", bytes=100, producer=i, uses=uses))
    for i in range(steps):
        tensors.append(PlanTensor(name=f"w{i}", bytes=1, producer=steps + i, uses=(), to_end=True))
    problem = Problem(
        name="backward", ops=tuple(ops), tensors=tuple(tensors), fixed_bytes=0, capacity_bytes=1
    )
    plain = tuple(range(len(ops)))
    assert peak_of(problem, plain) >= 600
    assert peak_of(problem, list_schedule(problem, plain)) <= 210
    assert peak_of(problem, improve_order(problem, plain, out_of_time=never)) <= 310


@settings(max_examples=100, deadline=None)
@given(problem=ANY, data=st.data())
@pytest.mark.parametrize("move", [pull_early, push_late])
def test_moving_operations_keeps_an_order_topological(problem, data, move):
    order = data.draw(orders(problem))
    chosen = data.draw(st.sets(st.sampled_from(order)))
    assert is_topological(problem, move(problem, order, chosen))


@settings(max_examples=100, deadline=None)
@given(problem=branching(), data=st.data())
def test_what_is_pulled_runs_right_behind_what_it_reads_last(problem, data):
    order = data.draw(orders(problem))
    chosen = data.draw(st.sets(st.sampled_from(order)))
    made = pull_early(problem, order, chosen)
    place = {op: i for i, op in enumerate(made)}
    parents = parents_of(problem)
    for op in chosen:
        between = made[max((place[p] for p in parents[op]), default=-1) + 1 : place[op]]
        assert chosen.issuperset(between)
    assert [op for op in made if op not in chosen] == [op for op in order if op not in chosen]


@given(problem=ANY)
def test_orders_made_from_the_end_and_with_updates_last_are_topological(problem):
    order = list(range(len(problem.ops)))
    for made in (late_schedule(problem, order), updates_last(problem, order)):
        assert sorted(made) == order
        place = {op: i for i, op in enumerate(made)}
        assert all(place[p] < place[v] for v, ps in enumerate(parents_of(problem)) for p in ps)


def test_what_two_readers_could_write_over_is_written_over_once():
    """The one that the problem has later is moved ahead of the other, so that it is not the last."""
    ops = (
        PlanOp(name="makes", duration_us=1.0, inputs=(), outputs=(0,)),
        PlanOp(name="one", duration_us=1.0, inputs=(0,), outputs=(1,), inplace=((0, 1),)),
        PlanOp(name="other", duration_us=1.0, inputs=(0,), outputs=(2,), inplace=((0, 2),)),
    )
    tensors = (
        PlanTensor(name="read", bytes=10, producer=0, uses=(1, 2)),
        PlanTensor(name="a", bytes=10, producer=1, uses=(), to_end=True),
        PlanTensor(name="b", bytes=10, producer=2, uses=(), to_end=True),
    )
    problem = Problem(name="two", ops=ops, tensors=tensors, fixed_bytes=0, capacity_bytes=100)
    assert Lives(problem).live_bytes((0, 2, 1)).tolist() == [10, 20, 20]
    assert Lives(problem).live_bytes((0, 1, 2)).tolist() == [10, 20, 20]


def test_of_several_pairs_each_tensor_counts_once():
    pairs = ((0, 2), (1, 2), (1, 3))
    ops = (
        PlanOp(name="makes", duration_us=1.0, inputs=(), outputs=(0, 1)),
        PlanOp(name="both", duration_us=1.0, inputs=(0, 1), outputs=(2, 3), inplace=pairs),
    )
    tensors = tuple(
        PlanTensor(name=str(t), bytes=10, producer=t // 2, uses=(1,) if t < 2 else (), to_end=t > 1)
        for t in range(4)
    )
    problem = Problem(name="pairs", ops=ops, tensors=tensors, fixed_bytes=0, capacity_bytes=100)
    found = simulate(problem, base_actions(problem))
    assert Lives(problem).live_bytes((0, 1)).tolist() == found.live_bytes.tolist() == [20, 20]
