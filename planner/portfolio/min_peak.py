"""The least feasible budget: a plan with a low peak, and a lower bound for every plan.

In one base order, an operation that runs for the first time holds its inputs, outputs and
workspace, and the graph outputs made before (`planner.bound.instants.held_at`). The largest of these
bounds the peak of every plan that first runs the operations in that order, whatever it recomputes
or copies. A plan that copies every tensor out as soon as it is made, and in again for each use,
meets the bound if all tensors may be copied; the least budget is then known. Without copies, the
search first tries programs over instants and evictions at capacities between the bound and the best
plan so far, then evictions with blurred scores.

Over all orders, `planner.order.lists.min_peak_order` finds the order with the lowest bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import default_rng  # NumPy loads it late: an interrupt meanwhile is lost

from planner import clock
from planner.bound.instants import min_peak_bound
from planner.plan.candidate import Candidate
from planner.plan.problem import Problem
from planner.search.engine import run_engine
from planner.search.engines.programs import LpRounding
from planner.search.engines.simple import Greedy, everything_swapped
from planner.search.evaluate import Evaluator
from planner.search.eviction import EVICTION_POLICIES, Eviction, EvictionPolicy
from planner.search.improve import Improver
from planner.search.state import new_state
from planner.search.stop import At
from planner.simulate.simulate import candidate_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastPeakPolicy:
    """All parameters of the search for the least peak.

    Attributes:
        bound_share: share of the time for a plan that meets the bound by eviction.
        lp_share, eviction_share: shares of the time left for capacities tried by the LP, and by
            eviction; the rest is for eviction with blurred scores.
        attempt_share: largest share of that stage's remaining time for one capacity.
        max_instants: instants of the LP at most.
        max_misses: blurred evictions in a row without a result, after which they are given up.
        precision: no capacity is tried within this share of a failed one.
        all_until, few_until: shares of the time at which the rounds over several orders end: of all
            orders, and of a few; the last ends with the time.
        few_orders, last_orders: numbers of orders in the second round, and in the last.
        min_s: seconds at least for a search in one order.
    """

    bound_share: float = 0.1
    lp_share: float = 0.4
    eviction_share: float = 0.3
    attempt_share: float = 0.4
    max_instants: int = 6
    max_misses: int = 200
    precision: float = 0.005
    all_until: float = 0.5
    few_until: float = 0.75
    few_orders: int = 4
    last_orders: int = 1
    min_s: float = 0.1


LEAST_PEAK = LeastPeakPolicy()


def min_peak(
    problem: Problem,
    *,
    time_limit_s: float,
    start: Candidate | None = None,
) -> tuple[Candidate, int]:
    """Find the plan with the least peak, and a lower bound in bytes for the peak of every plan.

    The bound holds for `planner.bound.lp.BOUND_CLASS`. The search ends at the bound, at the time
    limit, or when only capacities within `LEAST_PEAK.precision` of a failed one are left and
    chance finds nothing more.

    Args:
        start: a known plan.
    """
    deadline = clock.now() + time_limit_s
    low, _ = min_peak_bound(problem)
    search = _CapacitySearch(problem, deadline)
    if start is not None:
        search.take(start)
    if search.best.peak_bytes > low and problem.allow_swap:
        tight = replace(
            problem, capacity_bytes=low
        )  # or copies in are listed at places where they hide
        search.take(Evaluator(tight).evaluate(everything_swapped(problem)))
    if search.best.peak_bytes > low:
        search.by_eviction(low, clock.now() + LEAST_PEAK.bound_share * time_limit_s)
    low = max(low, search.bisect(search.by_lp, low, share=LEAST_PEAK.lp_share))
    search.bisect(search.by_eviction, low, share=LEAST_PEAK.eviction_share)
    search.by_chance(low)
    return search.best, low


def min_peak_of(problems: Sequence[Problem], *, time_limit_s: float) -> tuple[int, Candidate]:
    """Find the least peak over several base orders: short searches in all, longer ones in the best.

    The peak that a search reaches in half a second says more about an order than its own peak or
    its bound: between orders with one bound, ResNet-18 has come down to 49% and to 64% of its peak.

    Returns:
        The index of the order's problem, and the plan.
    """
    start = clock.now()
    bounds = [min_peak_bound(problem)[0] for problem in problems]
    found: dict[int, Candidate] = {}
    near = 1 + LEAST_PEAK.precision
    rounds = (
        (LEAST_PEAK.all_until, None),
        (LEAST_PEAK.few_until, LEAST_PEAK.few_orders),
        (1.0, LEAST_PEAK.last_orders),
    )
    for share, most in rounds:
        until = start + share * time_limit_s
        least = _least(found)
        left = [i for i in range(len(problems)) if bounds[i] * near < least]
        turn = sorted(left, key=lambda i: (_peak(found, i), bounds[i]))[:most]
        for number, index in enumerate(turn):
            least = _least(found)
            left_s = until - clock.now()
            if found and (left_s <= 0 or bounds[index] * near >= least):
                continue
            best, proved = min_peak(
                problems[index],
                time_limit_s=max(LEAST_PEAK.min_s, left_s / (len(turn) - number)),
                start=found.get(index),
            )
            bounds[index] = max(bounds[index], proved)
            if best.peak_bytes < _peak(found, index):
                found[index] = best
    index = min(found, key=lambda i: found[i].peak_bytes)
    return index, found[index]


def _peak(found: Mapping[int, Candidate], index: int) -> float:
    return found[index].peak_bytes if index in found else math.inf


def _least(found: Mapping[int, Candidate]) -> float:
    return min((candidate.peak_bytes for candidate in found.values()), default=math.inf)


class _CapacitySearch:
    """A search over capacities, and the plan with the least peak."""

    def __init__(self, problem: Problem, deadline: float) -> None:
        self.problem = problem
        self.deadline = deadline
        self.best = Evaluator(problem).base
        self.evicting = Eviction(problem)
        self.policies = list(EVICTION_POLICIES)

    def take(self, candidate: Candidate) -> None:
        """Keep the candidate if its peak is the least so far."""
        if candidate.peak_bytes < self.best.peak_bytes:
            self.best = candidate

    def bisect(self, attempt: Callable[[int, float], bool], low: int, *, share: float) -> int:
        """Call `attempt` with capacities between `low` and the best peak, for a share of the time left.

        Each call gets a capacity and its deadline. Returns the least capacity not proved
        impossible.
        """
        now = clock.now()
        until = now + share * (self.deadline - now)
        near = 1 + LEAST_PEAK.precision
        failed, capacity = low - 1, low  # the largest capacity without a plan
        while self.best.peak_bytes > (failed + 1) * near and clock.now() < until:
            now = clock.now()
            if attempt(capacity, now + LEAST_PEAK.attempt_share * (until - now)):
                low = max(low, capacity + 1)
            if self.best.peak_bytes > capacity:
                failed = capacity
            capacity = failed + 1 + (self.best.peak_bytes - failed) // 2
        return low

    def by_eviction(self, capacity: int, until: float) -> bool:
        """Try greedy repair, then eviction; return False, because neither proves anything."""
        evaluator = Evaluator(replace(self.problem, capacity_bytes=capacity))
        self.take(Improver(evaluator, At(until)).repair(evaluator.base))
        if not self.problem.allow_recompute:
            return False
        for policy in self.policies:
            if self.best.peak_bytes <= capacity:
                break
            if self._evict(capacity, policy, until, None):
                self.policies.sort(
                    key=lambda other: other != policy
                )  # successful policies come first
                break
        return False

    def by_chance(self, low: int) -> None:
        """Run eviction with blurred scores, always a little below the best plan's peak.

        Ends at the deadline, or after too many misses in a row.
        """
        draw = default_rng(0)
        precision, most = LEAST_PEAK.precision, LEAST_PEAK.max_misses
        misses = 0 if self.problem.allow_recompute else most
        while misses < most and clock.now() < self.deadline:
            if self.best.peak_bytes <= low * (1 + precision):
                return
            capacity = max(low, int(self.best.peak_bytes * (1 - precision)))
            policy = EVICTION_POLICIES[draw.integers(len(EVICTION_POLICIES))]
            found = self._evict(capacity, policy, self.deadline, draw)
            misses = 0 if found else misses + 1

    def _evict(
        self, capacity: int, policy: EvictionPolicy, until: float, draw: np.random.Generator | None
    ) -> bool:
        actions = self.evicting.actions(capacity, policy, deadline=until, draw=draw)
        if actions is not None:
            self.take(candidate_of(self.problem, actions))
        return actions is not None

    def by_lp(self, capacity: int, until: float) -> bool:
        """Run the cutting loop; return whether it proves that nothing fits."""
        state = new_state(replace(self.problem, capacity_bytes=capacity))
        run_engine(Greedy(), state, At(until))
        if state.best is None:
            rounding = LpRounding(max_instants=LEAST_PEAK.max_instants)
            run_engine(rounding, state, At(until))
        self.take(state.least)
        return state.is_impossible
