"""The portfolio: which engine solves a problem, and for how long.

Every engine's answer is replayed by the simulator; the best that fits wins. The simple heuristic
(repair from "keep all") always runs, so the answer is never worse than it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from planner.bound.instants import min_peak_bound
from planner.exact.engine import BOUND_CLASS as EXACT_CLASS
from planner.exact.engine import MAX_OPS, solve_exact
from planner.plan.problem import Problem
from planner.plan.solved import Solved
from planner.portfolio.min_peak import everything_swapped
from planner.search.cutting_loop import base_op_at, cutting_loop, guarded_loops, scaled_loops
from planner.search.eviction import EVICTION_POLICIES, Eviction
from planner.search.fast.warm import warm_up
from planner.search.improve import Improver
from planner.search.incumbent import Incumbent
from planner.search.interval_search import IntervalSearch
from planner.search.simple import checkpoint_plans, distance_plans
from planner.simulate.simulate import candidate_of

Progress = Callable[[str], None]

_GREEDY = 0.5
"""Share of the time limit that the simple heuristic may take: it takes next to none but on very large
problems, where it may be all that there is time for."""

_WHOLE = 0.15
"""Share of the time limit that each integer program may take."""

_CLOSE = 0.01
"""Gap above which a plan is improved in parts at once: rounding does badly on irregular graphs."""

_FAR = 0.05
"""Gap above which rounding is given up, and the parts start from the base order."""

_PROGRAM_FIRST = 0.3
"""Share of the time limit until which the program by stretches runs alone; then other engines do, too."""

_NEARLY_S, _NEARLY_SHARE = 10.0, 0.1
"""How much longer a search goes on whose plan is near its bound: seconds, and share of the time limit,
whichever is more."""

_CORNER_OPS, _CORNER_INSTANTS = 15_000, 2
"""Where copies overlap, simplex solves so many instants of problems up to that size once more."""

_REPLAYED_OPS_PER_S = 6e6
"""What the compiled replay does on a slow core: sets how long annealing takes."""


def solve(
    problem: Problem,
    *,
    time_limit_s: float,
    thorough: bool = True,
    seed: int = 0,
    workers: int | None = None,
    start: Solved | None = None,
    progress: Progress | None = None,
    keep_on_interrupt: bool = False,
) -> Solved:
    """Solve one problem.

    Args:
        start: what an earlier search of this problem found: the answer is no worse.
        time_limit_s: for all engines together; what the first run spends on compiling the replay is
            not counted.
        thorough: False leaves out the integer programs, the guarded searches, annealing and the
            exact engine.
        seed, workers: of annealing and the exact engine; the others draw nothing.
        keep_on_interrupt: Ctrl-C ends the search and what was found is returned, if it fits.
    """
    if not problem.allow_swap:
        problem = replace(problem, overlap=False)
    warm_up(overlap=problem.overlap)
    began = time.monotonic()
    improver = Improver(problem, deadline=began + time_limit_s)
    base = improver.base
    incumbent = Incumbent(
        improver,
        least=base,
        nearly_s=max(_NEARLY_S, _NEARLY_SHARE * time_limit_s),
        on_progress=progress,
    )
    if improver.fits(base):
        incumbent.offer(base, "order")
        return solved_of(incumbent, began)
    incumbent.is_impossible = min_peak_bound(problem)[0] > problem.capacity_bytes
    if start is not None:
        _resume(incumbent, start)
    try:
        _search(incumbent, began, thorough=thorough, seed=seed, workers=workers)
    except KeyboardInterrupt:
        if not keep_on_interrupt or incumbent.best is None:
            raise
        return replace(solved_of(incumbent, began), is_interrupted=True)
    return solved_of(incumbent, began)


def _search(
    incumbent: Incumbent, began: float, *, thorough: bool, seed: int, workers: int | None
) -> None:
    """Engine after engine, until the plan is tight or time is out."""
    improver, problem = incumbent.improver, incumbent.improver.problem
    limit_s = improver.deadline - began

    def until(share: float) -> None:
        incumbent.until(began + share * limit_s)

    if incumbent.is_done:
        return
    until(_GREEDY)
    incumbent.offer(improver.repair(improver.base), "greedy")
    until(0.1)
    _simple(incumbent)
    if incumbent.is_impossible:
        return
    if problem.allow_recompute and problem.allow_swap:
        until(0.15 if len(problem.ops) <= _CORNER_OPS else 0.4)
        _one_kind(incumbent)
    if not thorough:
        until(0.9)
        cutting_loop(incumbent, max_instants=6)
        _evict(incumbent)
        _refine(incumbent)
        return
    in_parts = not problem.overlap and len(problem.ops) <= MAX_OPS
    until(0.25 if in_parts else 0.5)
    instants = cutting_loop(
        incumbent,
        whole_s=_WHOLE * limit_s,
        give_up_gap=_FAR if in_parts else float("inf"),
    )
    is_open = in_parts and not incumbent.is_settled
    programs = IntervalSearch(problem, instants if is_open else ())
    programs.run_beside(began + limit_s)
    try:
        programs.wait(incumbent, began + _PROGRAM_FIRST * limit_s)
        until(0.45 if in_parts else 0.55)
        _evict(incumbent)
        if not in_parts or incumbent.is_within(_CLOSE):
            until(0.5 if in_parts else 0.65)
            _vary(incumbent, guarded_whole_s=0.3 * _WHOLE * limit_s)
            until(0.55 if in_parts else 0.8)
            _refine(incumbent)
            until(0.6 if in_parts else 0.97)
            _anneal(incumbent, seed)
        until(1.0)
        programs.give(incumbent)
        if in_parts:
            _exact(incumbent, programs, seed, workers)
        programs.wait(incumbent, began + limit_s)
    except BaseException:
        programs.stop()
        raise
    programs.join()
    programs.give(incumbent)


def _vary(incumbent: Incumbent, *, guarded_whole_s: float) -> None:
    """The cutting loop in other ways: corners, slower copies, guards."""
    problem = incumbent.improver.problem
    if problem.overlap:
        if len(problem.ops) <= _CORNER_OPS:
            cutting_loop(incumbent, corner=True, max_instants=_CORNER_INSTANTS)
        scaled_loops(incumbent)
    if problem.allow_recompute:
        guarded_loops(incumbent, whole_s=guarded_whole_s)


def _simple(incumbent: Incumbent) -> None:
    """The rest of the floor, beside greedy by time per byte: checkpoints, swaps by distance."""
    improver, problem = incumbent.improver, incumbent.improver.problem
    at = base_op_at(improver.base, improver.base.replay.peak_action)
    excess = improver.base.peak_bytes - problem.capacity_bytes
    for engine, plans in (
        ("checkpoints", checkpoint_plans(problem, at)),
        ("swap by distance", distance_plans(problem, at, excess)),
    ):
        for decisions in plans:
            if improver.out_of_time():
                return
            incumbent.offer(improver.repair(improver.evaluate(decisions)), engine)


def _evict(incumbent: Incumbent) -> None:
    """Where nothing fits yet: plans for little memory, whatever their time."""
    improver, problem = incumbent.improver, incumbent.improver.problem
    if incumbent.best is not None or incumbent.is_done:
        return
    if problem.allow_swap:
        incumbent.offer(improver.evaluate(everything_swapped(problem)), "everything swapped")
        return
    evicting = Eviction(problem)
    for policy in EVICTION_POLICIES:
        actions = evicting.actions(problem.capacity_bytes, policy, deadline=improver.deadline)
        if actions is not None:
            incumbent.offer(candidate_of(problem, actions), "eviction")


def _refine(incumbent: Incumbent) -> None:
    """Prune and polish the best plan."""
    improver = incumbent.improver
    if incumbent.best is not None and not incumbent.is_done:
        incumbent.offer(improver.polish(improver.prune(incumbent.best)), incumbent.engine)


def _anneal(incumbent: Incumbent, seed: int) -> None:
    improver = incumbent.improver
    ops = len(improver.problem.ops) * (4 if improver.problem.overlap else 1)
    left_s = improver.deadline - time.monotonic()
    iterations = int(left_s * _REPLAYED_OPS_PER_S / ops)
    if incumbent.best is None or incumbent.is_done or iterations < 1000:
        return
    found = improver.anneal(incumbent.best, iterations=iterations, seed=seed)
    if incumbent.offer(found, "anneal"):
        _refine(incumbent)


def _exact(incumbent: Incumbent, programs: IntervalSearch, seed: int, workers: int | None) -> None:
    """Parts, and the whole where it is small. From a poor plan, parts take longer to undo what it
    does than to make one fit that is about as fast as any, or the base order."""
    improver, problem = incumbent.improver, incumbent.improver.problem
    left_s = improver.deadline - time.monotonic()
    if incumbent.is_done or left_s < 1:
        return
    near = incumbent.best is not None and incumbent.is_within(_FAR)
    if incumbent.best is None:
        programs.stop()  # a plan is worth more than its bound
    beside = programs.is_running and incumbent.best is not None
    found = solve_exact(
        problem,
        incumbent.best if near and incumbent.best else programs.nearest or improver.base,
        time_limit_s=left_s,
        lower_bound_us=incumbent.bound_us,
        upper_bound_us=incumbent.best.time_us if incumbent.best else float("inf"),
        seed=seed,
        workers=max(1, (workers or 2) - 1) if beside else workers,
        stop=lambda: programs.settles(incumbent),
    )
    if found is not None:
        incumbent.prove(found.bound_us - problem.base_duration_us, EXACT_CLASS)
        incumbent.offer(found.candidate, "cp-sat")


def _one_kind(incumbent: Incumbent) -> None:
    """Plans that only swap and plans that only recompute are plans too."""
    improver, problem = incumbent.improver, incumbent.improver.problem
    for only in (
        problem.without_swaps(),
        replace(problem, allow_recompute=False),
    ):
        alone = Improver(only, deadline=improver.deadline)
        part = Incumbent(alone, least=alone.base)
        part.offer(alone.repair(alone.base), "greedy")
        cutting_loop(part, max_instants=1)
        for found in (part.best, part.least):
            if found is not None and found.decisions is not None:
                incumbent.offer(improver.evaluate(found.decisions), part.engine or "greedy")


def _resume(incumbent: Incumbent, start: Solved) -> None:
    """Take what an earlier search found and proved; its plan is replayed."""
    improver = incumbent.improver
    problem = improver.problem
    incumbent.prove(start.bound_us - problem.base_duration_us, start.bound_class)
    incumbent.is_impossible |= start.is_impossible
    for found in (start.least, start.candidate):
        if found is None:
            continue
        if found.decisions is not None:
            again = improver.evaluate(found.decisions)
        else:
            again = candidate_of(problem, found.actions)
        incumbent.offer(again, start.engine)


def solved_of(incumbent: Incumbent, began: float) -> Solved:
    """What a search that began at `began` (time.monotonic) has come to."""
    return Solved(
        candidate=incumbent.best,
        least=incumbent.least,
        bound_us=incumbent.bound_us,
        bound_class=incumbent.bound_class,
        engine=incumbent.engine,
        solve_s=time.monotonic() - began,
        is_impossible=incumbent.is_impossible,
    )
