"""The least peak found and its bound, against the least of all schedules of tiny problems."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import clock
from planner.bound.instants import min_peak_bound
from planner.order.lists import min_peak_order
from planner.order.reorder import peak_of, reorder
from planner.plan.candidate import Candidate
from planner.plan.problem import PlanOp, PlanTensor, Problem
from planner.portfolio.min_peak import (
    LeastPeakPolicy,
    everything_swapped,
    min_peak,
    min_peak_of,
)
from planner.search.evaluate import Evaluator
from planner.search.eviction import EVICTION_POLICIES, Eviction
from planner.simulate.simulate import simulate
from tests.graphs import at_capacity, between, problems

_MAX_TENSORS = 7


@st.composite
def wide_problems(draw: st.DrawFn, max_ops: int = 6) -> Problem:
    """A random planning problem with many orders: operations read any earlier tensors, or none."""
    count = draw(st.integers(2, max_ops))
    reads = [
        sorted(draw(st.sets(st.integers(0, i - 1), max_size=2))) if i else [] for i in range(count)
    ]
    sizes = [draw(st.integers(0, 12)) for _ in range(count)]
    uses = [tuple(i for i in range(count) if t in reads[i]) for t in range(count)]
    ends = [draw(st.integers(0, 2)) == 0 for _ in range(count)]
    ops = []
    for i in range(count):
        source = draw(st.sampled_from([None, *reads[i]]))
        inplace = ((source, i),) if source is not None and not ends[source] else ()
        if inplace:
            sizes[i] = sizes[source]
        ops.append(
            PlanOp(
                name=f"op{i}",
                duration_us=1.0,
                inputs=tuple(reads[i]),
                outputs=(i,),
                workspace_bytes=draw(st.sampled_from([0, 0, 4])),
                recomputable=draw(st.integers(0, 4)) > 0,
                inplace=inplace,
            )
        )
    tensors = tuple(
        PlanTensor(
            name=f"t{t}",
            bytes=sizes[t],
            producer=t,
            uses=uses[t],
            to_end=ends[t],
            swappable=draw(st.integers(0, 4)) > 0,
        )
        for t in range(count)
    )
    return Problem(
        name="wide", ops=tuple(ops), tensors=tensors, fixed_bytes=3, capacity_bytes=1 << 40
    )


def with_swaps(problem: Problem) -> Problem:
    return replace(problem, swap_out_bytes_per_s=1e6, swap_in_bytes_per_s=1e6)


def small(problem: Problem) -> bool:
    return len(problem.tensors) <= _MAX_TENSORS


State = tuple[frozenset[int], frozenset[int], frozenset[int], frozenset[int]]


def least_of_all(problem: Problem, *, any_order: bool = False) -> int:
    """The least peak of all schedules: a search over what has run, what is on the device, on the
    host, and which graph outputs' first copy is no longer the newest; what is on the device may be
    let go at any time."""
    tensors = problem.tensors
    start: State = (frozenset(),) * 4
    best = {start: problem.fixed_bytes}
    heap = [(problem.fixed_bytes, 0, start)]
    ticket = itertools.count(1)

    def size(which) -> int:
        return sum(tensors[t].bytes for t in which)

    while heap:
        peak, _, state = heapq.heappop(heap)
        if peak > best[state]:
            continue
        ran, device, host, stale = state
        if len(ran) == len(problem.ops):
            return peak
        stays = {t for t, x in enumerate(tensors) if x.to_end and x.producer in ran}
        readable = device | (stays - stale)
        floor = problem.fixed_bytes + size(stays)
        after: list[tuple[int, State]] = []
        for t in device:
            after.append((0, (ran, device - {t}, host, stale)))
        for t in (t for t in readable if problem.allow_swap and tensors[t].swappable):
            after.append((floor + size(device), (ran, device, host | {t}, stale)))
        for t in host:
            live = floor + size(device - {t}) + tensors[t].bytes
            now_stale = stale | {t} if t in stays else stale
            after.append((live, (ran, device | {t}, host, now_stale)))
        for m, op in enumerate(problem.ops):
            again = m in ran
            if not readable.issuperset(op.inputs):
                continue
            if again and not (op.recomputable and problem.allow_recompute):
                continue
            first_here = any_order or m == len(ran)
            if not again and not first_here:
                continue
            kept = {t for t in op.outputs if tensors[t].to_end and not again}
            made = set(op.outputs) - kept
            for dies in {None, *(s for s, _ in op.inplace if s in device)}:
                # the source of an output written in place goes as the operation starts
                left = device - {dies} - set(op.outputs)
                live = floor + size(left) + size(op.outputs) + op.workspace_bytes
                now_stale = stale | {t for t in made if tensors[t].to_end}
                after.append((live, (ran | {m}, left | made, host, now_stale)))
        for live, state in after:
            highest = max(peak, live)
            if highest < best.get(state, 1 << 60):
                best[state] = highest
                heapq.heappush(heap, (highest, next(ticket), state))
    raise AssertionError("every problem has a schedule")


def any_order_bound(problem: Problem) -> int:
    """Bytes: no schedule in any order has a peak below this.

    While an operation runs for the first time, the device holds the fixed bytes, its inputs, outputs
    and workspace, and every graph output that one of its ancestors makes; at the end, all outputs.
    """
    made_before: list[int] = []  # bit sets of graph outputs
    outputs = [t for t, tensor in enumerate(problem.tensors) if tensor.to_end]
    bit = {t: 1 << i for i, t in enumerate(outputs)}
    best = problem.fixed_bytes + sum(problem.tensors[t].bytes for t in outputs)
    for op in problem.ops:
        before = 0
        for t in op.inputs:
            producer = problem.tensors[t].producer
            before |= made_before[producer]
            for sibling in problem.ops[producer].outputs:
                before |= bit.get(sibling, 0)
        mine = {*op.inputs, *op.outputs}
        held = problem.fixed_bytes + op.workspace_bytes
        held += sum(problem.tensors[t].bytes for t in mine)
        held += sum(problem.tensors[t].bytes for t in outputs if before & bit[t] and t not in mine)
        held -= sum(problem.tensors[t].bytes for t in {b for _, b in op.inplace})
        best = max(best, held)
        made_before.append(before)
    return best


@settings(max_examples=60, deadline=None)
@given(problem=st.one_of(problems(max_ops=5, swaps=False), wide_problems()).filter(small))
def test_the_least_of_all_schedules_lies_between_without_swaps(problem):
    found, bound = min_peak(problem, time_limit_s=3.0)
    assert bound <= least_of_all(problem) <= found.peak_bytes
    assert simulate(problem, found.actions).peak_bytes == found.peak_bytes


@settings(max_examples=30, deadline=None)
@given(problem=st.one_of(problems(max_ops=4), wide_problems(max_ops=4)).filter(small))
def test_the_least_of_all_schedules_lies_between_with_swaps(problem):
    problem = with_swaps(problem)
    found, bound = min_peak(problem, time_limit_s=3.0)
    assert bound <= least_of_all(problem) <= found.peak_bytes
    assert simulate(problem, found.actions).peak_bytes == found.peak_bytes


@settings(max_examples=100, deadline=None)
@given(problem=st.one_of(problems(), wide_problems()), overlap=st.booleans())
def test_where_everything_may_be_swapped_the_bound_is_met(problem, overlap):
    tensors = tuple(replace(t, swappable=True) for t in problem.tensors)
    problem = replace(with_swaps(problem), tensors=tensors, overlap=overlap)
    found, bound = min_peak(problem, time_limit_s=5.0)
    assert found.peak_bytes == bound == min_peak_bound(problem)[0]
    swapped = simulate(problem, Evaluator(problem).schedule(everything_swapped(problem)))
    assert swapped.peak_bytes == bound


@settings(max_examples=100, deadline=None)
@given(problem=wide_problems(), data=st.data())
def test_the_least_order_is_the_best_of_all_orders(problem, data):
    prefer = data.draw(st.permutations(range(len(problem.ops))))
    order, bound = min_peak_order(problem, prefer)
    everywhere = [
        min_peak_bound(reorder(problem, other))[0] for other in topological_orders(problem)
    ]
    assert bound == min(everywhere)
    assert min_peak_bound(reorder(problem, order))[0] == bound
    assert any_order_bound(problem) <= bound


@settings(max_examples=30, deadline=None)
@given(problem=wide_problems(max_ops=4), swaps=st.booleans())
def test_no_schedule_in_any_order_has_a_lower_peak(problem, swaps):
    problem = with_swaps(problem) if swaps else problem
    _, bound = min_peak_order(problem, range(len(problem.ops)))
    assert bound <= least_of_all(problem, any_order=True)


def topological_orders(problem: Problem) -> list[tuple[int, ...]]:
    makers = [{problem.tensors[t].producer for t in op.inputs} for op in problem.ops]
    return [
        order
        for order in itertools.permutations(range(len(problem.ops)))
        if all(order.index(m) < order.index(op) for op in order for m in makers[op])
    ]


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_where_any_order_will_do_it_is_the_preferred_one(problem):
    # each operation reads what the one before makes, so there is no other order
    order, bound = min_peak_order(problem, range(len(problem.ops)))
    assert order == list(range(len(problem.ops)))
    assert bound == min_peak_bound(problem)[0]


def test_of_orders_with_the_same_bound_the_preferred_one_is_kept():
    # three operations that nothing connects, nothing of which stays
    ops = tuple(PlanOp(name=str(i), duration_us=1.0, inputs=(), outputs=(i,)) for i in range(3))
    tensors = tuple(PlanTensor(name=str(i), bytes=9 - i, producer=i, uses=()) for i in range(3))
    problem = Problem(name="free", ops=ops, tensors=tensors, fixed_bytes=0, capacity_bytes=100)
    for prefer in itertools.permutations(range(3)):
        assert min_peak_order(problem, prefer) == (list(prefer), 9)


def test_graph_outputs_are_made_late():
    # big needs ten bytes beside two; each output made before it adds five
    ops = (
        PlanOp(name="out", duration_us=1.0, inputs=(), outputs=(0,)),
        PlanOp(name="make", duration_us=1.0, inputs=(), outputs=(1,)),
        PlanOp(name="big", duration_us=1.0, inputs=(1,), outputs=(2,), workspace_bytes=10),
    )
    tensors = (
        PlanTensor(name="output", bytes=5, producer=0, uses=(), to_end=True),
        PlanTensor(name="made", bytes=1, producer=1, uses=(2,)),
        PlanTensor(name="result", bytes=1, producer=2, uses=(), to_end=True),
    )
    problem = Problem(name="late", ops=ops, tensors=tensors, fixed_bytes=0, capacity_bytes=100)
    assert min_peak_bound(problem)[0] == 17
    assert any_order_bound(problem) == 12
    assert min_peak_order(problem, range(3)) == ([1, 2, 0], 12)


def test_a_plan_that_is_known_is_the_least_to_start_with():
    problem = chain(6)
    best, bound = min_peak(problem, time_limit_s=5.0)
    again, same = min_peak(problem, time_limit_s=0.0, start=best)
    assert again.actions == best.actions
    assert bound == same
    assert isinstance(again, Candidate)


def chain(layers: int) -> Problem:
    """`layers` forward operations of ten bytes each, and their gradients, which read them last to
    first: all are kept in base order."""
    ops, uses = [], [[] for _ in range(2 * layers)]
    for i in range(2 * layers):
        reads = [i - 1] if i else []
        if i > layers:
            reads.append(2 * layers - 1 - i)
        for t in reads:
            uses[t].append(i)
        ops.append(PlanOp(name=str(i), duration_us=1.0, inputs=tuple(sorted(reads)), outputs=(i,)))
    tensors = tuple(
        PlanTensor(name=str(i), bytes=10, producer=i, uses=tuple(uses[i]))
        for i in range(2 * layers)
    )
    return Problem(
        name="chain", ops=tuple(ops), tensors=tensors, fixed_bytes=0, capacity_bytes=1 << 40
    )


@pytest.mark.parametrize("layers", [4, 12, 40])
def test_a_chain_is_recomputed_in_little_memory(layers):
    # the gradient so far, two tensors of the chain that is run again: 40 bytes with what is made
    found, bound = min_peak(chain(layers), time_limit_s=20.0)
    assert bound == 30
    assert found.peak_bytes <= 40


def test_nothing_is_tried_within_the_precision_of_the_policy(monkeypatch: pytest.MonkeyPatch):
    problem = chain(12)
    coarse = LeastPeakPolicy(bound_share=0.0, precision=1e3)
    monkeypatch.setattr("planner.portfolio.min_peak.LEAST_PEAK", coarse)
    found, _ = min_peak(problem, time_limit_s=20.0)
    index, again = min_peak_of([problem], time_limit_s=1.0)
    assert index == 0
    assert found.peak_bytes == again.peak_bytes == peak_of(problem, range(len(problem.ops)))


@settings(max_examples=100, deadline=None)
@given(problem=problems(), share=st.floats(0, 1), policy=st.sampled_from(EVICTION_POLICIES))
def test_a_plan_by_eviction_fits(problem, share, policy):
    capacity = between(problem, share).capacity_bytes
    evicting = Eviction(problem)
    for draw in (None, np.random.default_rng(0)):
        actions = evicting.actions(capacity, policy, deadline=math.inf, draw=draw)
        if actions is not None:
            assert simulate(at_capacity(problem, capacity), actions).peak_bytes <= capacity


def test_an_eviction_ends_after_as_much_work_as_there_is_time_for():
    problem = chain(400)
    capacity = min_peak_bound(problem)[0] + 10 * 40
    for policy in EVICTION_POLICIES:
        with clock.counting():
            began = clock.now()
            assert Eviction(problem).actions(capacity, policy, deadline=began + 1e-5) is None
            assert Eviction(problem).actions(capacity, policy, deadline=began) is None
            assert clock.now() - began < 2e-3
            found = Eviction(problem).actions(capacity, policy, deadline=math.inf)
            assert found is not None
            assert clock.now() - began > len(found) * clock.EVICTED_S


@settings(max_examples=25, deadline=None)
@given(problem=wide_problems(), data=st.data())
def test_the_least_over_several_orders_is_no_more_than_that_of_any(problem, data):
    orders = [tuple(range(len(problem.ops)))]
    for _ in range(2):
        first = data.draw(st.permutations(range(len(problem.ops))))
        orders.append(_in_order(problem, first))
    variants = [reorder(problem, order) for order in orders]
    index, found = min_peak_of(variants, time_limit_s=1.0)
    assert simulate(variants[index], found.actions).peak_bytes == found.peak_bytes
    assert found.peak_bytes >= min(min_peak_bound(v)[0] for v in variants)
    assert found.peak_bytes <= min(min_peak(v, time_limit_s=0.2)[0].peak_bytes for v in variants)


def _in_order(problem: Problem, wish: list[int]) -> tuple[int, ...]:
    """The topological order in which, of what may run, the operation that is wished first runs."""
    rank = {op: i for i, op in enumerate(wish)}
    waits = {op: {problem.tensors[t].producer for t in problem.ops[op].inputs} for op in rank}
    order: list[int] = []
    while waits:
        ready = [op for op, needs in waits.items() if needs <= set(order)]
        order.append(min(ready, key=rank.__getitem__))
        del waits[order[-1]]
    return tuple(order)
