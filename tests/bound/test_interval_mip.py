"""The program by stretches: a bound for every schedule, no weaker than that of the instants."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.bound.instants import min_peak_bound
from planner.bound.interval_mip import IntervalMip, IntervalPlan
from planner.bound.lp import InstantLp
from planner.plan.problem import Action, ActionKind, PlanOp, PlanTensor, Problem
from planner.plan.stages import actions_of
from planner.portfolio.frontier import solve_orders
from planner.portfolio.solve import solve
from planner.search.engine import run_engine
from planner.search.engines.programs import IntervalPrograms
from planner.search.evaluate import Evaluator
from planner.search.eviction import EVICTION_POLICIES, Eviction
from planner.search.program.cutting_loop import round_solution
from planner.search.program.interval_search import IntervalSearch
from planner.search.state import SearchSettings, new_state
from planner.search.stop import NEVER, after
from planner.simulate.simulate import simulate
from reports.solver.synthetic import irregular
from tests.graphs import at_capacity, base_actions, between, decisions_for, problems

TOLERANCE = 1e-6


def solved(problem: Problem, instants: set[int] | None = None) -> IntervalPlan:
    every = set(range(len(problem.ops)))
    return IntervalMip(problem, every if instants is None else instants).solve(time_limit_s=30)


def instants_of(problem: Problem) -> st.SearchStrategy[set[int]]:
    return st.sets(st.integers(0, len(problem.ops) - 1), min_size=1)


def with_second_runs(data: st.DataObject, problem: Problem) -> list[Action]:
    """The base order, and at each place in it any operations of before, in any order."""
    actions: list[Action] = []
    may_run = [m for m, op in enumerate(problem.ops) if op.recomputable]
    for q in range(len(problem.ops)):
        before = [m for m in may_run if m < q]
        again = data.draw(st.lists(st.sampled_from(before), max_size=4)) if before else []
        actions += [Action(kind=ActionKind.RUN, target=m) for m in (*again, q)]
    return actions


def assert_bounds(problem: Problem, actions: list[Action], instants: set[int]) -> None:
    """The schedule, at its own peak, takes no less than the bound."""
    replay = simulate(problem, actions)
    found = solved(at_capacity(problem, replay.peak_bytes), instants)
    assert found.feasible
    extra = replay.time_us - problem.base_duration_us
    assert found.bound_us <= extra + TOLERANCE * problem.base_duration_us


@settings(max_examples=75, deadline=None)
@given(data=st.data(), problem=problems(swaps=False))
def test_no_plan_within_the_capacity_is_faster_than_the_bound(data, problem):
    actions = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    assert_bounds(problem, actions, data.draw(instants_of(problem)))


@settings(max_examples=120, deadline=None)
@given(data=st.data(), problem=problems(swaps=False))
def test_the_bound_holds_whatever_runs_again_and_in_whatever_order(data, problem):
    assert_bounds(problem, with_second_runs(data, problem), data.draw(instants_of(problem)))


@settings(max_examples=75, deadline=None)
@given(
    data=st.data(),
    problem=problems(swaps=False),
    share=st.floats(0, 1),
    policy=st.sampled_from(EVICTION_POLICIES),
)
def test_the_bound_holds_for_plans_by_eviction(data, problem, share, policy):
    tight = between(problem, share)
    actions = Eviction(tight).actions(tight.capacity_bytes, policy, deadline=float("inf"))
    assume(actions is not None)
    assert actions is not None
    assert_bounds(problem, actions, data.draw(instants_of(problem)))


@settings(max_examples=40, deadline=None)
@given(data=st.data(), problem=problems(swaps=False), share=st.floats(0, 1))
def test_no_weaker_than_the_lp(data, problem, share):
    tight = between(problem, share)
    instants = data.draw(instants_of(problem))
    model = InstantLp(tight)
    for p in instants:
        model.add(p)
    weaker = model.solve(time_limit_s=30, whole=True)
    assert weaker is not None
    found = solved(tight, instants)
    if not weaker.feasible:
        assert not found.feasible
    elif found.feasible:
        near = 2e-4 * weaker.extra_us + TOLERANCE * problem.base_duration_us
        assert found.bound_us >= weaker.bound_us - near


@settings(max_examples=40, deadline=None)
@given(data=st.data(), problem=problems(swaps=False), share=st.floats(0, 1))
def test_its_plans_are_valid_and_take_no_less_than_their_value(data, problem, share):
    tight = between(problem, share)
    instants = data.draw(instants_of(problem))
    found = solved(tight, instants)
    assume(found.feasible)
    assert found.plan is not None
    assert found.solution is not None
    replay = simulate(tight, actions_of(tight, found.plan))
    extra = replay.time_us - tight.base_duration_us
    assert extra <= found.solution.extra_us + TOLERANCE * tight.base_duration_us
    decisions = round_solution(tight, sorted(instants), found.solution)
    simulate(tight, Evaluator(tight).schedule(decisions))  # raises where it is not


@settings(max_examples=60, deadline=None)
@given(problem=problems(swaps=False))
def test_below_the_one_operation_bound_nothing_fits(problem):
    bound, where = min_peak_bound(problem)
    assert not solved(at_capacity(problem, bound - 1), {where}).feasible


@settings(max_examples=40, deadline=None)
@given(problem=problems(swaps=False))
def test_nothing_has_to_be_added_at_the_base_peak(problem):
    peak = simulate(problem, base_actions(problem)).peak_bytes
    assert solved(at_capacity(problem, peak)).bound_us <= TOLERANCE * problem.base_duration_us


def large_input(capacity: int) -> Problem:
    """b is read long after it is made, from a, which is large; e, which may not run again, is in the
    way from before then until the end."""
    names = ("a", "b", "c", "e", "d", "f")
    sizes = (8, 4, 1, 8, 1, 1)
    reads = ((), (0,), (1,), (2,), (1,), (3, 4))
    uses = [tuple(m for m, of in enumerate(reads) if t in of) for t in range(len(names))]
    return Problem(
        name="large input",
        ops=tuple(
            PlanOp(
                name=name,
                duration_us=1.0,
                inputs=reads[m],
                outputs=(m,),
                workspace_bytes=2 if name == "e" else 0,
                recomputable=name != "e",
            )
            for m, name in enumerate(names)
        ),
        tensors=tuple(
            PlanTensor(name=n, bytes=sizes[t], producer=t, uses=uses[t], to_end=n == "f")
            for t, n in enumerate(names)
        ),
        fixed_bytes=0,
        capacity_bytes=capacity,
    )


def test_what_a_second_run_holds_counts():
    """While e runs, b has to be gone; to make it again takes a, which doesn't fit beside e."""
    problem = large_input(14)
    instant = InstantLp(problem)
    for p in (3, 4):
        instant.add(p)
    plain = instant.solve(time_limit_s=30)
    assert plain is not None
    assert plain.feasible
    assert not solved(problem, {3, 4}).feasible


def test_copies_are_refused():
    problem = large_input(14)
    with pytest.raises(ValueError, match="no instant"):
        IntervalMip(problem, ())
    copies = replace(problem, swap_out_bytes_per_s=1.0, swap_in_bytes_per_s=1.0)
    with pytest.raises(ValueError, match="does not model copies"):
        IntervalMip(copies, (0,))


def test_the_search_proves_that_second_runs_do_not_fit():
    problem = large_input(14)
    assert min_peak_bound(problem)[0] <= problem.capacity_bytes
    assert solve(problem, SearchSettings(limit_s=20.0)).is_impossible
    assert not solve(large_input(15), SearchSettings(limit_s=20.0)).is_impossible


def test_orders_are_impossible_together():
    impossible = large_input(14)
    raced = solve_orders([impossible] * 2, SearchSettings(limit_s=20.0))
    assert raced.solved.is_impossible
    assert raced.bound_us == float("inf")


@settings(max_examples=40, deadline=None)
@given(problem=problems(swaps=False), share=st.floats(0, 1))
def test_what_the_search_finds_fits_and_is_no_faster_than_it_proves(problem, share):
    tight = between(problem, share)
    state, stop = new_state(tight), after(30)
    search = IntervalSearch(tight, range(len(tight.ops)))
    search.run(stop.moment)
    search.give(state, stop)
    assert not (state.is_impossible and state.best is not None)
    if state.best is not None:
        assert simulate(tight, state.best.actions).peak_bytes <= tight.capacity_bytes
        assert state.best.time_us >= state.bound_us * (1 - TOLERANCE)


def test_programs_beside_a_search_give_it_their_bound():
    problem = between(irregular(40), 0.7)
    state = new_state(problem, SearchSettings(limit_s=200.0))
    live = simulate(problem, base_actions(problem)).live_bytes.tolist()
    state.instants = sorted(range(len(live)), key=lambda op: -live[op])
    run_engine(IntervalPrograms(), state, NEVER)
    assert state.intervals is not None
    state.intervals.wait(state, after(20.0))
    state.intervals.join()
    state.intervals.give(state, NEVER)
    assert state.bound_extra_us > 0
