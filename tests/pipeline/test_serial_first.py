"""Plans whose copies run beside the operations never take longer than those whose copies do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import clock
from planner.pipeline.answer.problem import problem_of
from planner.pipeline.prepare.prepared import prepare
from planner.pipeline.solve import serial_first
from planner.pipeline.solve.serial_first import search_for
from planner.plan.candidate import Candidate
from planner.plan.problem import ActionKind, Problem
from planner.plan.solved import Solved
from planner.portfolio.min_peak import min_peak_of
from planner.request import Costs, Request
from planner.search.evaluate import Evaluator
from planner.search.state import SearchSettings
from planner.simulate.simulate import candidate_of, simulate
from reports.solver.build import with_budget, with_levers
from reports.solver.synthetic import FAMILIES, synthetic
from tests.graphs import at_capacity, between, decisions_for, problems

ZOO = Path(__file__).parents[2] / "models" / "zoo"


def runs(plan: Candidate) -> list[int]:
    return [action.target for action in plan.actions if action.kind is ActionKind.RUN]


def found_in(problem: Problem, limit_s: float) -> Solved:
    """What a search of so much work comes to."""
    with clock.counting():
        return search_for(problem)(problem, SearchSettings(limit_s=limit_s))


@settings(max_examples=75, deadline=None)
@given(data=st.data(), problem=problems())
def test_a_serial_plan_is_taken_over_and_takes_no_longer(data: st.DataObject, problem: Problem):
    actions = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    peak = simulate(problem, actions).peak_bytes
    problem = at_capacity(problem, peak + data.draw(st.integers(0, 20)))
    serial = candidate_of(problem, actions)
    evaluator = Evaluator(replace(problem, overlap=True))
    again = evaluator.again(serial)
    assert evaluator.fits(again)
    assert again.time_us <= serial.time_us * (1 + 1e-9)
    assert runs(again) == runs(serial)


@settings(max_examples=25, deadline=None)
@given(problem=problems(), share=st.floats(0, 1))
def test_of_random_problems(problem: Problem, share: float):
    problem = between(problem, share)
    serial, beside = (found_in(replace(problem, overlap=o), 1.0) for o in (False, True))
    # at the least capacity the search without overlap may miss a plan that the other finds
    assert beside.candidate is not None or serial.candidate is None
    if beside.candidate is not None and serial.candidate is not None:
        assert beside.candidate.time_us <= serial.candidate.time_us * (1 + 1e-9)
        assert beside.candidate.peak_bytes <= problem.capacity_bytes


def test_the_serial_plan_is_there_without_any_search_with_overlap(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serial_first, "POLICY", replace(serial_first.POLICY, beside=0.0))
    problem = with_budget(synthetic("resnet", 100), 50, "both")
    serial, beside = (found_in(replace(problem, overlap=o), 1.0) for o in (False, True))
    assert beside.candidate is not None and serial.candidate is not None
    assert beside.candidate.time_us <= serial.candidate.time_us * (1 + 1e-9)


def of_sample(name: str) -> Problem:
    """The problem of a sample on a card, in ONNX Runtime's own order; its peak as its capacity."""
    prepared = prepare(Request(model=ZOO / name, costs=Costs(hardware="v100")))
    return problem_of(prepared, name=name, order="default", order_limit_s=1.0)


PROBLEMS: dict[str, Callable[[str], Problem]] = {
    **dict.fromkeys(FAMILIES, lambda family: synthetic(family, 100)),
    "mlp_adamw.onnx": of_sample,
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_at_the_least_budgets(name: str):
    whole = PROBLEMS[name](name)
    with clock.counting():
        _, least = min_peak_of([with_levers(whole, 1, "both")], time_limit_s=1)
    for share in (0.0, 0.2):
        room = int(share * (whole.capacity_bytes - least.peak_bytes))
        problem = with_levers(whole, least.peak_bytes + room, "both")
        serial, beside = (found_in(replace(problem, overlap=o), 1.0) for o in (False, True))
        assert (beside.candidate is None) == (serial.candidate is None)
        if beside.candidate is not None and serial.candidate is not None:
            assert beside.candidate.time_us <= serial.candidate.time_us * (1 + 1e-9)
            assert beside.candidate.peak_bytes <= problem.capacity_bytes
