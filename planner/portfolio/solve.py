"""Run the portfolio: engine after engine, until the plan is tight or time is out.

The simulator replays every engine's plan; the best that fits wins. If nothing fits, quick plans are
tried even when time is out: a stall of the machine must not be the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from planner import clock
from planner.bound.instants import min_peak_bound
from planner.plan.problem import Problem
from planner.plan.solved import Solved
from planner.portfolio.table import POLICY, Policy
from planner.search.engine import Engine, run_engine
from planner.search.state import NearBound, SearchSettings, SearchState, WhenSettled, new_state
from planner.search.stop import At, First, NotWorthTheWait, Stop, after

Progress = Callable[[str], None]


def solve(
    problem: Problem,
    settings: SearchSettings,
    *,
    start: Solved | None = None,
    larger: Solved | None = None,
    progress: Progress | None = None,
    policy: Policy = POLICY,
) -> Solved:
    """Solve one problem.

    Args:
        problem: operations in base order, with the capacity to plan for.
        settings: of the whole search.
        start: the result of an earlier search of this problem, or of the same one with more capacity:
            its proofs hold. The answer is no worse than a plan of it that fits; another one is a
            starting point.
        larger: a second such result: at more capacity, or with serial copies where copies overlap.
        progress: told of each better plan.
        policy: the turns of the engines.

    Raises:
        KeyboardInterrupt: on Ctrl-C, unless it is kept, or nothing fits yet.
    """
    if not problem.allow_swap:
        problem = replace(problem, overlap=False)
    state = new_state(problem, settings, progress)
    base = state.evaluator.base
    if state.evaluator.fits(base):
        state.offer(base, "order")
        return solved_of(state)
    state.is_impossible = min_peak_bound(problem)[0] > problem.capacity_bytes
    for known in (start, larger):
        if known is not None:
            _resume(state, known)
    limit_s = settings.limit_s
    near = NearBound(state, max(policy.near_s, policy.near_share * limit_s))
    whole = First((At(state.began + limit_s), WhenSettled(state), near))
    try:
        for engine, stop in _turns(state, policy, whole):
            run_engine(engine, state, stop)
    except KeyboardInterrupt:
        if not settings.keep_on_interrupt or state.best is None:
            raise
        return replace(solved_of(state), is_interrupted=True)
    return solved_of(state)


def _turns(state: SearchState, policy: Policy, whole: Stop) -> Iterator[tuple[Engine, Stop]]:
    """Yield the engines whose turn is due, each with the end of its turn."""
    for turn in policy.turns(state.problem, thorough=state.settings.thorough):
        if state.is_settled or not policy.is_due(turn, state):
            continue
        stop = _while_worth(state, whole)
        until = At(state.began + policy.until(turn, state.problem) * state.settings.limit_s)
        if turn.even_late and state.best is None and until.left_s < policy.late_s:
            yield turn.engine, after(policy.late_s)
        elif stop.left_s > 0:
            yield turn.engine, First((until, stop))


def _while_worth(state: SearchState, whole: Stop) -> Stop:
    """Return the end of the search: when it is over, or no longer worth the wait."""
    patience = state.settings.patience
    if patience is None:
        return whole
    return First((whole, NotWorthTheWait(state, patience, clock.now())))


def _resume(state: SearchState, start: Solved) -> None:
    """Take over the plans and proofs of an earlier search; the plans are replayed."""
    state.prove(start.bound_us - state.problem.base_duration_us, start.bound_class)
    state.is_impossible |= start.is_impossible
    for found in (start.least, start.candidate):
        if found is None:
            continue
        again = state.evaluator.again(found)
        state.offer(again, start.engine)
        if found is start.candidate and not state.evaluator.fits(again):
            state.near = again


def solved_of(state: SearchState) -> Solved:
    """Return the result of a search."""
    return Solved(
        candidate=state.best,
        least=state.least,
        bound_us=state.bound_us,
        bound_class=state.bound_class,
        engine=state.engine,
        solve_s=clock.now() - state.began,
        engines=state.ledger.statistics(),
        is_impossible=state.is_impossible,
    )
