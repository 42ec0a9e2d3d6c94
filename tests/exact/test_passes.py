"""Several passes in one stage: parted, a plan holds what it held, and parts of it are improved."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.exact.engine import solve_exact
from planner.exact.local_search import Watch
from planner.exact.passes import parted
from planner.plan.problem import Action, ActionKind, PlanOp, PlanTensor, Problem
from planner.plan.stages import actions_of, stage_schedule
from planner.search.evaluate import Evaluator
from planner.search.state import SearchSettings
from planner.simulate.simulate import candidate_of, simulate
from tests.graphs import at_capacity, decisions_for, problems


def _runs(*ops: int) -> list[Action]:
    return [Action(kind=ActionKind.RUN, target=m) for m in ops]


def two_large() -> Problem:
    """Two large tensors, each read by an operation with a small result, and that again at the end."""
    sizes = (8, 8, 1, 1, 10, 1)
    inputs = ((), (), (0,), (1,), (), (2, 3))
    uses = ((2,), (3,), (5,), (5,), (), ())
    return Problem(
        name="two large",
        ops=tuple(
            PlanOp(name=f"op{m}", duration_us=1.0 + m, inputs=inputs[m], outputs=(m,))
            for m in range(6)
        ),
        tensors=tuple(
            PlanTensor(name=f"t{m}", bytes=sizes[m], producer=m, uses=uses[m]) for m in range(6)
        ),
        fixed_bytes=0,
        capacity_bytes=17,
    )


@settings(max_examples=80, deadline=None)
@given(data=st.data(), problem=problems(max_ops=14))
def test_a_parted_plan_holds_what_it_held(data, problem):
    actions = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    before = simulate(problem, actions)
    found = parted(problem, actions)
    after = simulate(found.problem, found.actions)
    assert (after.peak_bytes, after.time_us) == (before.peak_bytes, before.time_us)
    assert found.as_given(found.actions) == list(actions)


def test_a_second_pass_is_a_stage_of_its_own():
    problem = two_large()
    plan = _runs(0, 1, 2, 3, 4, 0, 2, 1, 3, 5)
    found = parted(problem, plan)
    assert len(found.problem.ops) == len(problem.ops) + 1
    staged = actions_of(found.problem, stage_schedule(found.problem, found.actions))
    assert staged == found.actions
    by_index = actions_of(problem, stage_schedule(problem, plan))
    held = [simulate(problem, p).live_bytes[5:] for p in (plan, by_index)]
    assert max(held[0]) < max(held[1])


def test_one_operation_twice_in_a_stage_is_kept():
    problem = two_large()
    plan = _runs(0, 1, 2, 3, 4, 0, 2, 0, 1, 3, 5)
    found = parted(problem, plan)
    assert len(found.problem.ops) == len(problem.ops) + 1
    assert found.as_given(found.actions) == plan


def test_first_runs_out_of_order_are_left_as_they_are():
    problem = two_large()
    plan = _runs(1, 0, 2, 3, 4, 5)
    found = parted(problem, plan)
    assert (found.problem, found.actions) == (problem, plan)


def test_parts_of_a_plan_of_two_passes_are_improved():
    problem = two_large()
    wasteful = _runs(0, 1, 2, 3, 4, 0, 2, 1, 3, 5)  # none of these need run again
    tight = at_capacity(problem, simulate(problem, wasteful).peak_bytes)
    given_plan = candidate_of(tight, wasteful)
    told: list[float] = []
    found = solve_exact(
        tight,
        given_plan,
        SearchSettings(limit_s=10.0, seed=1),
        watch=Watch(on_plan=lambda actions: told.append(simulate(tight, actions).time_us)),
    )
    assert found.candidate.peak_bytes <= tight.capacity_bytes
    assert found.candidate.time_us == tight.base_duration_us
    assert told == sorted(told, reverse=True)
