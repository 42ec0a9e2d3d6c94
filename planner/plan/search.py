"""The cut loop: solve the LP, round it, run the plan, add a cut where it overflows, repeat."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.plan.cuts import CutModel, CutSolution, articulation_tensors, round_solution
from planner.plan.execute import Decisions
from planner.plan.improve import Candidate, Improver
from planner.plan.problem import ActionKind

_THRESHOLDS = (0.5, 0.9, 0.1)
PRUNED_OPS = 600
"""On larger problems only the best plan is pruned, at the end: pruning replays it many times."""

_STRIDES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Best plan found (it may not fit), and the largest LP value: a bound on the added time."""

    best: Candidate
    bound_extra_us: float
    proved_infeasible: bool


def better(improver: Improver, a: Candidate, b: Candidate | None) -> bool:
    """Whether `a` beats `b`: fitting first, then time, then peak; not fitting, then peak."""
    if b is None:
        return True
    if improver.fits(a) != improver.fits(b):
        return improver.fits(a)
    if improver.fits(a):
        return (a.time_us, a.peak_bytes) < (b.time_us, b.peak_bytes)
    return (a.peak_bytes, a.time_us) < (b.peak_bytes, b.time_us)


def cut_loop(
    improver: Improver,
    *,
    max_cuts: int = 12,
    guards: frozenset[int] = frozenset(),
    on_progress: Callable[[str], None] | None = None,
) -> SearchResult:
    """Search one problem until the deadline, the cuts or the ideas run out.

    Args:
        guards: tensors to keep resident; with any, `bound_extra_us` is 0 and infeasibility proves
            nothing.
    """
    problem = improver.problem
    base = improver.evaluate(Decisions())
    best = base
    if improver.fits(base):
        return SearchResult(best=base, bound_extra_us=0.0, proved_infeasible=False)
    model = CutModel(problem, guards)
    model.add(base_op_at(base, base.replay.peak_action))
    bound = 0.0
    for _ in range(max_cuts):
        left = improver.deadline - time.monotonic()
        if left <= 0 or improver.out_of_time():
            break
        solution = model.solve(time_limit_s=left)
        if solution is None:
            break
        if not solution.feasible:
            return SearchResult(best=best, bound_extra_us=bound, proved_infeasible=not guards)
        bound = 0.0 if guards else max(bound, solution.extra_us)
        rounded = _round_best(improver, model, solution)
        repaired = improver.repair(rounded)
        if len(problem.ops) <= PRUNED_OPS:
            repaired = improver.prune(repaired)
        if better(improver, repaired, best):
            best = repaired
            if on_progress and improver.fits(best):
                extra = best.time_us - problem.base_duration_us
                on_progress(f"+{100 * extra / problem.base_duration_us:.2f}% time")
        if improver.fits(best) and best.time_us - problem.base_duration_us <= bound * 1.001:
            break
        cut = _overflow_cut(improver, rounded, model.cuts)
        if cut is None:
            break
        model.add(cut)
    return SearchResult(best=best, bound_extra_us=bound, proved_infeasible=False)


def guarded_loops(
    improver: Improver, start: SearchResult, *, on_progress: Callable[[str], None] | None = None
) -> SearchResult:
    """Search again with every k-th articulation tensor kept resident, for several k.

    At low budgets chains of cheap operations otherwise cascade back to the start of the graph. The
    bound of `start` stays; only the plan can get better.
    """
    problem = improver.problem
    base = improver.evaluate(Decisions())
    points = articulation_tensors(problem, base_op_at(base, base.replay.peak_action))
    best = start.best
    tried: set[frozenset[int]] = set()
    for stride in _STRIDES:
        guards = frozenset(points[stride - 1 :: stride])
        if not guards or guards in tried or improver.out_of_time():
            continue
        tried.add(guards)
        result = cut_loop(improver, guards=guards, max_cuts=8, on_progress=on_progress)
        if better(improver, result.best, best):
            best = result.best
    return replace(start, best=best)


def _round_best(improver: Improver, model: CutModel, solution: CutSolution) -> Candidate:
    trials = [
        improver.evaluate(
            round_solution(improver.problem, model.cuts, solution, threshold=threshold)
        )
        for threshold in _THRESHOLDS
    ]
    fitting = [t for t in trials if improver.fits(t)]
    if fitting:
        return min(fitting, key=lambda t: t.time_us)
    return min(trials, key=lambda t: t.peak_bytes)


def base_op_at(candidate: Candidate, action: int) -> int:
    """The base operation in whose stage `action` lies: the next first execution, or itself."""
    seen: set[int] = set()
    firsts: list[int] = []
    for step, a in enumerate(candidate.actions):
        if a.kind is ActionKind.RUN and a.target not in seen:
            seen.add(a.target)
            firsts.append(step)
    return min(bisect_left(firsts, action), len(firsts) - 1)


def _overflow_cut(improver: Improver, candidate: Candidate, cuts: list[int]) -> int | None:
    """The base operation with the largest overflow that has no cut yet."""
    live = candidate.replay.live_bytes
    capacity = improver.problem.capacity_bytes
    worst: dict[int, int] = {}
    seen: set[int] = set()
    stage: list[int] = []
    for step, a in enumerate(candidate.actions):
        stage.append(step)
        if a.kind is ActionKind.RUN and a.target not in seen:
            seen.add(a.target)
            worst[a.target] = max(int(live[s]) for s in stage)
            stage = []
    for op in sorted(worst, key=lambda op: -worst[op]):
        if worst[op] > capacity and op not in cuts:
            return op
    # nothing overflows: tighten where the plan is fullest
    for op in sorted(worst, key=lambda op: -worst[op])[:50]:
        if all(abs(op - cut) > 3 for cut in cuts):
            return op
    return None
