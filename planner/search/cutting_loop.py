"""The cutting loop: solve the LP, round it, run the plan, add an instant where it overflows, repeat."""

from __future__ import annotations

import time
from bisect import bisect_left

from planner.bound.column_generation import ColumnGeneration
from planner.bound.instants import articulation_tensors
from planner.bound.lp import InstantLp, LpSolution
from planner.plan.candidate import Candidate
from planner.plan.decisions import Decisions
from planner.plan.problem import ActionKind, Problem
from planner.search.improve import Improver
from planner.search.incumbent import Incumbent
from planner.search.rounding import round_solution

_THRESHOLDS = (0.5, 0.9, 0.1)
_PRUNED_OPS = 1_500
"""On larger problems only the best plan is pruned, at the end."""

_STRIDES = (1, 2, 4, 8, 16, 32)
_BANDWIDTHS = (0.95, 0.85, 0.7, 0.55, 0.4, 0.25)


def cutting_loop(
    incumbent: Incumbent,
    *,
    max_instants: int = 12,
    whole_s: float = 0.0,
    guards: frozenset[int] = frozenset(),
    bandwidth_scale: float = 1.0,
    give_up_gap: float = float("inf"),
    corner: bool = False,
) -> list[int]:
    """Search until the deadline, the instants or the ideas run out; returns the instants, in turn.

    Args:
        corner: solve the LP by simplex even where minimum cuts would do: slower, and few tensors of
            its solution are partly resident.
        give_up_gap: stop after the first instant if the best plan is farther than that from its bound.
        whole_s: seconds for the integer program over the same instants, each time; 0 for the LP only.
            Once one takes longer there are no more: further instants only make it harder.
        guards: tensors to keep resident. With any, or with less than the full bandwidth, nothing is
            proved.
    """
    improver = incumbent.improver
    proves = not guards and bandwidth_scale == 1.0
    problem = improver.problem
    model = InstantLp(problem, guards, bandwidth_scale=bandwidth_scale)
    relaxed = model
    if not corner and ColumnGeneration.covers(problem):
        relaxed = ColumnGeneration(problem, guards, bandwidth_scale=bandwidth_scale)
    instant: int | None = base_op_at(improver.base, improver.base.replay.peak_action)
    instants: list[int] = []
    for _ in range(max_instants):
        if instant is None:
            return instants
        instants.append(instant)
        relaxed.add(instant)
        if incumbent.is_done:
            return instants
        rounded = None
        for whole in (False, True) if whole_s > 0 else (False,):
            left = improver.deadline - time.monotonic()
            start = time.monotonic()
            if whole:
                for p in instants:
                    model.add(p)
                solution = model.solve(time_limit_s=min(left, whole_s), whole=True)
            else:
                solution = relaxed.solve(time_limit_s=left)
            if solution is None:
                whole_s = 0.0
                break
            if not solution.feasible:
                incumbent.is_impossible |= proves
                return instants
            if proves:
                incumbent.prove(solution.bound_us)
            trials = rounded_candidates(improver, instants, solution, whole=whole)
            rounded = trials[0]
            for trial in trials:
                incumbent.offer(trial, "cut-mip" if whole else "cut-lp")
                repaired = improver.repair(trial)
                if len(problem.ops) <= _PRUNED_OPS:
                    repaired = improver.prune(repaired)
                incumbent.offer(repaired, "cut-mip" if whole else "cut-lp")
            if incumbent.is_done:
                return instants
            if whole and time.monotonic() - start > 0.9 * whole_s:
                whole_s = 0.0
        if rounded is None or not incumbent.is_within(give_up_gap):
            return instants
        instant = overflow_instant(improver, rounded, instants)
    return instants


def bound_at_peak(problem: Problem, *, time_limit_s: float) -> float:
    """Microseconds that every plan adds to the base order: the LP with one instant, where the base order
    needs most. Infinite where nothing fits; 0 where time ran out."""
    base = Improver(problem, deadline=float("inf")).base
    relaxed = ColumnGeneration(problem) if ColumnGeneration.covers(problem) else InstantLp(problem)
    relaxed.add(base_op_at(base, base.replay.peak_action))
    solution = relaxed.solve(time_limit_s=time_limit_s)
    if solution is None:
        return 0.0
    return solution.bound_us if solution.feasible else float("inf")


def guarded_loops(incumbent: Incumbent, *, whole_s: float = 0.0) -> None:
    """Search again with every k-th articulation tensor kept resident, for several k.

    At low budgets chains of cheap operations otherwise cascade back to the start of the graph.
    """
    improver = incumbent.improver
    end = base_op_at(improver.base, improver.base.replay.peak_action)
    points = articulation_tensors(improver.problem, end)
    tried: set[frozenset[int]] = set()
    for stride in _STRIDES:
        guards = frozenset(points[stride - 1 :: stride])
        if not guards or guards in tried or incumbent.is_done:
            continue
        tried.add(guards)
        cutting_loop(incumbent, guards=guards, max_instants=8, whole_s=whole_s)


def scaled_loops(incumbent: Incumbent) -> None:
    """Search again as if the copies were slower: what is planned so has slack for queueing."""
    for scale in _BANDWIDTHS:
        if not incumbent.is_done:
            cutting_loop(incumbent, bandwidth_scale=scale, max_instants=3)


def rounded_candidates(
    improver: Improver, instants: list[int], solution: LpSolution, *, whole: bool
) -> list[Candidate]:
    """The fastest plan that fits and the one that exceeds the least: one of them, or both."""
    rounded: list[Decisions] = []
    for threshold in _THRESHOLDS[:1] if whole else _THRESHOLDS:
        decisions = round_solution(improver.problem, instants, solution, threshold=threshold)
        if decisions not in rounded:
            rounded.append(decisions)
    if solution.swapped and not whole:
        rounded.append(round_solution(improver.problem, instants, solution, spread=True))
    trials = [improver.evaluate(decisions) for decisions in rounded]
    fitting = [t for t in trials if improver.fits(t)]
    over = [t for t in trials if not improver.fits(t)]
    best = [min(fitting, key=lambda t: t.time_us)] if fitting else []
    return best + ([min(over, key=lambda t: t.peak_bytes)] if over else [])


def base_op_at(candidate: Candidate, action: int) -> int:
    """The base operation in whose stage `action` lies: the next first execution, or itself."""
    seen: set[int] = set()
    firsts: list[int] = []
    for step, a in enumerate(candidate.actions):
        if a.kind is ActionKind.RUN and a.target not in seen:
            seen.add(a.target)
            firsts.append(step)
    return min(bisect_left(firsts, action), len(firsts) - 1)


def overflow_instant(improver: Improver, candidate: Candidate, instants: list[int]) -> int | None:
    """The base operation with the largest overflow that is no instant yet."""
    capacity = improver.problem.capacity_bytes
    worst = stage_peaks(candidate)
    for op in sorted(worst, key=lambda op: -worst[op]):
        if worst[op] > capacity and op not in instants:
            return op
    # nothing overflows: tighten where the plan is fullest
    for op in sorted(worst, key=lambda op: -worst[op])[:50]:
        if all(abs(op - instant) > 3 for instant in instants):
            return op
    return None


def stage_peaks(candidate: Candidate) -> dict[int, int]:
    """By base operation, the most live bytes from behind the one before up to and with it."""
    live = candidate.replay.live_bytes
    worst: dict[int, int] = {}
    stage: list[int] = []
    for step, a in enumerate(candidate.actions):
        stage.append(step)
        if a.kind is ActionKind.RUN and a.target not in worst:
            worst[a.target] = max(int(live[s]) for s in stage)
            stage = []
    return worst
