"""The cut loop: solve the LP, round it, run the plan, add a cut where it overflows, repeat."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from planner.plan.cut_flow import CutFlow
from planner.plan.cuts import (
    BOUND_CLASS,
    CutModel,
    CutSolution,
    articulation_tensors,
    round_solution,
)
from planner.plan.decisions import Decisions
from planner.plan.improve import Candidate, Improver
from planner.plan.problem import ActionKind, Problem
from planner.units import format_part

TIGHT = 5e-4
"""A plan within this of its bound is as good as proved, provided that ..."""

_TIGHT_OF_ADDED = 0.01
"""... what it adds to the base order's time is within this of what must be added."""

_NEARLY = 1e-3
"""Gap within which the search ends soon."""

_THRESHOLDS = (0.5, 0.9, 0.1)
_PRUNED_OPS = 1_500
"""On larger problems only the best plan is pruned, at the end."""

_STRIDES = (1, 2, 4, 8, 16, 32)
_BANDWIDTHS = (0.95, 0.85, 0.7, 0.55, 0.4, 0.25)


@dataclass(slots=True)
class Incumbent:
    """The best plan so far, what found it, and the largest bound.

    Attributes:
        least: the plan with the least peak, whether it fits or not.
        bound_extra_us: no plan of `bound_class` adds less time to the base order.
        is_impossible: proved that nothing fits.
        nearly_s: how much longer the search goes on once the plan is near its bound.
        ends: when the search ends at the latest, once the plan is near its bound (time.monotonic).
    """

    improver: Improver
    least: Candidate
    best: Candidate | None = None
    engine: str = ""
    bound_extra_us: float = 0.0
    bound_class: str = BOUND_CLASS
    is_impossible: bool = False
    nearly_s: float = 10.0
    ends: float = float("inf")
    on_progress: Callable[[str], None] | None = None

    def offer(self, candidate: Candidate, engine: str) -> bool:
        """Take `candidate` if it is better."""
        if candidate.peak_bytes < self.least.peak_bytes:
            self.least = candidate
        if not self.improver.fits(candidate):
            return False
        if self.best is not None and (self.best.time_us, self.best.peak_bytes) <= (
            candidate.time_us,
            candidate.peak_bytes,
        ):
            return False
        self.best, self.engine = candidate, engine
        if self.on_progress:
            base_us = self.improver.problem.base_duration_us
            self.on_progress(
                f"+{format_part(candidate.time_us - base_us, base_us)} time ({engine}), "
                f"at least +{format_part(self.bound_extra_us, base_us)}"
            )
        self._end_soon()
        return True

    def prove(self, extra_us: float, bound_class: str = BOUND_CLASS) -> None:
        """Take a bound on the added time."""
        if extra_us > self.bound_extra_us:
            self.bound_extra_us, self.bound_class = extra_us, bound_class
            self._end_soon()

    def until(self, moment: float) -> None:
        """Let the next engine run until `moment`, or the end of the search."""
        self.improver.deadline = min(moment, self.ends)

    def _end_soon(self) -> None:
        if self.is_within(_NEARLY):
            self.ends = min(self.ends, time.monotonic() + self.nearly_s)
            self.until(self.improver.deadline)

    @property
    def bound_us(self) -> float:
        """No plan of the class takes less time."""
        return self.improver.problem.base_duration_us + self.bound_extra_us

    @property
    def is_tight(self) -> bool:
        """Whether nothing is left to gain."""
        if self.best is None:
            return False
        added_us = self.best.time_us - self.improver.problem.base_duration_us
        saving_us = added_us - self.bound_extra_us
        return self.is_within(TIGHT) and saving_us <= _TIGHT_OF_ADDED * added_us + 1e-9

    def is_within(self, gap: float) -> bool:
        """Whether the best plan is that near its bound."""
        if self.best is None:
            return gap == float("inf")
        return self.best.time_us <= self.bound_us * (1 + gap)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to find."""
        return self.is_tight or self.is_impossible

    @property
    def is_done(self) -> bool:
        """Whether to stop searching."""
        return self.is_settled or self.improver.out_of_time()


def cut_loop(
    incumbent: Incumbent,
    *,
    max_cuts: int = 12,
    whole_s: float = 0.0,
    guards: frozenset[int] = frozenset(),
    bandwidth_scale: float = 1.0,
    give_up_gap: float = float("inf"),
    corner: bool = False,
) -> list[int]:
    """Search until the deadline, the cuts or the ideas run out; returns the cuts, in turn.

    Args:
        corner: solve the LP by simplex even where minimum cuts would do: slower, and few tensors of
            its solution are partly resident.
        give_up_gap: stop after the first cut if the best plan is farther than that from its bound.
        whole_s: seconds for the integer program over the same cuts, each time; 0 for the LP only.
            Once one takes longer there are no more: further cuts only make it harder.
        guards: tensors to keep resident. With any, or with less than the full bandwidth, nothing is
            proved.
    """
    improver = incumbent.improver
    proves = not guards and bandwidth_scale == 1.0
    problem = improver.problem
    model = CutModel(problem, guards, bandwidth_scale=bandwidth_scale)
    relaxed = model
    if not corner and CutFlow.covers(problem):
        relaxed = CutFlow(problem, guards, bandwidth_scale=bandwidth_scale)
    cut: int | None = base_op_at(improver.base, improver.base.replay.peak_action)
    cuts: list[int] = []
    for _ in range(max_cuts):
        if cut is None:
            return cuts
        cuts.append(cut)
        relaxed.add(cut)
        if incumbent.is_done:
            return cuts
        rounded = None
        for whole in (False, True) if whole_s > 0 else (False,):
            left = improver.deadline - time.monotonic()
            start = time.monotonic()
            if whole:
                for p in cuts:
                    model.add(p)
                solution = model.solve(time_limit_s=min(left, whole_s), whole=True)
            else:
                solution = relaxed.solve(time_limit_s=left)
            if solution is None:
                whole_s = 0.0
                break
            if not solution.feasible:
                incumbent.is_impossible |= proves
                return cuts
            if proves:
                incumbent.prove(solution.bound_us)
            trials = rounded_candidates(improver, cuts, solution, whole=whole)
            rounded = trials[0]
            for trial in trials:
                incumbent.offer(trial, "cut-mip" if whole else "cut-lp")
                repaired = improver.repair(trial)
                if len(problem.ops) <= _PRUNED_OPS:
                    repaired = improver.prune(repaired)
                incumbent.offer(repaired, "cut-mip" if whole else "cut-lp")
            if incumbent.is_done:
                return cuts
            if whole and time.monotonic() - start > 0.9 * whole_s:
                whole_s = 0.0
        if rounded is None or not incumbent.is_within(give_up_gap):
            return cuts
        cut = overflow_cut(improver, rounded, cuts)
    return cuts


def bound_at_peak(problem: Problem, *, time_limit_s: float) -> float:
    """Microseconds that every plan adds to the base order: the LP with one cut, where the base order
    needs most. Infinite where nothing fits; 0 where time ran out."""
    base = Improver(problem, deadline=float("inf")).base
    relaxed = CutFlow(problem) if CutFlow.covers(problem) else CutModel(problem)
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
        cut_loop(incumbent, guards=guards, max_cuts=8, whole_s=whole_s)


def scaled_loops(incumbent: Incumbent) -> None:
    """Search again as if the copies were slower: what is planned so has slack for queueing."""
    for scale in _BANDWIDTHS:
        if not incumbent.is_done:
            cut_loop(incumbent, bandwidth_scale=scale, max_cuts=3)


def rounded_candidates(
    improver: Improver, cuts: list[int], solution: CutSolution, *, whole: bool
) -> list[Candidate]:
    """The fastest plan that fits and the one that exceeds the least: one of them, or both."""
    rounded: list[Decisions] = []
    for threshold in _THRESHOLDS[:1] if whole else _THRESHOLDS:
        decisions = round_solution(improver.problem, cuts, solution, threshold=threshold)
        if decisions not in rounded:
            rounded.append(decisions)
    if solution.swapped and not whole:
        rounded.append(round_solution(improver.problem, cuts, solution, spread=True))
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


def overflow_cut(improver: Improver, candidate: Candidate, cuts: list[int]) -> int | None:
    """The base operation with the largest overflow that has no cut yet."""
    capacity = improver.problem.capacity_bytes
    worst = stage_peaks(candidate)
    for op in sorted(worst, key=lambda op: -worst[op]):
        if worst[op] > capacity and op not in cuts:
            return op
    # nothing overflows: tighten where the plan is fullest
    for op in sorted(worst, key=lambda op: -worst[op])[:50]:
        if all(abs(op - cut) > 3 for cut in cuts):
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
