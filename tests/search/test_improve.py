"""Repair, prune and polish: each keeps what it promises, whatever plan it starts from."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan.decisions import Choice, Decisions
from planner.search.evaluate import Evaluator
from planner.search.improve import Improver
from planner.search.stop import At
from planner.simulate.simulate import simulate
from tests.graphs import at_capacity, between, decisions_for, problems

NEVER = float("inf")
shares = st.floats(0, 1)


@settings(max_examples=80, deadline=None)
@given(problem=problems(), share=shares)
def test_repair_never_ends_above_the_peak_it_starts_from(problem, share):
    improver = Improver(Evaluator(between(problem, share)))
    base = improver.evaluator.evaluate(Decisions())
    repaired = improver.repair(base)
    assert repaired.peak_bytes <= base.peak_bytes
    assert improver.evaluator.fits(base) <= improver.evaluator.fits(repaired)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), problem=problems(), slack=st.integers(0, 20))
def test_prune_and_polish_keep_a_fitting_plan_fitting_and_no_slower(data, problem, slack):
    decisions = data.draw(decisions_for(problem))
    peak = Evaluator(problem).evaluate(decisions).peak_bytes
    improver = Improver(Evaluator(at_capacity(problem, peak + slack)))
    start = improver.evaluator.evaluate(decisions)
    pruned = improver.prune(start)
    polished = improver.polish(pruned)
    for before, after in ((start, pruned), (pruned, polished)):
        assert improver.evaluator.fits(after)
        assert after.time_us <= before.time_us
    for candidate in (pruned, polished):
        replay = simulate(problem, candidate.actions)
        assert replay.live_bytes.tolist() == candidate.replay.live_bytes.tolist()
        assert replay.time_us == candidate.time_us


@settings(max_examples=40, deadline=None)
@given(data=st.data(), problem=problems())
def test_prune_takes_every_decision_back_where_there_is_room(data, problem):
    improver = Improver(Evaluator(problem))  # the capacity has no limit
    pruned = improver.prune(improver.evaluator.evaluate(data.draw(decisions_for(problem))))
    assert pruned.time_us == problem.base_duration_us


@settings(max_examples=40, deadline=None)
@given(problem=problems(swaps=False), share=shares)
def test_without_swaps_nothing_is_swapped(problem, share):
    improver = Improver(Evaluator(between(problem, share)))
    found = improver.polish(
        improver.prune(improver.repair(improver.evaluator.evaluate(Decisions())))
    )
    assert Choice.SWAP not in found.decisions.gaps.values()
    assert found.replay.swap_out_bytes == 0


@settings(max_examples=20, deadline=None)
@given(problem=problems(), share=shares)
def test_a_deadline_in_the_past_changes_nothing(problem, share):
    improver = Improver(Evaluator(between(problem, share)), At(0.0))
    base = improver.evaluator.evaluate(Decisions())
    for step in (improver.repair, improver.prune, improver.polish):
        assert step(base).decisions == base.decisions
