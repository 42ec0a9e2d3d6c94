"""Descents from several plans.

The end of a descent depends on its start more than on its time: each part of a descent changes a plan in
one place, which keeps the result near the start. On a random layered graph of 100 operations, descents of
ten seconds from ten evicted plans with blurred scores ended between 54.9% and 59.0% of the base order's
peak.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from planner import clock
from planner.exact.descent import descend
from planner.exact.passes import parted
from planner.exact.policy import EXACT, ExactPolicy
from planner.plan.candidate import Candidate
from planner.plan.problem import Problem
from planner.search.eviction import EVICTION_POLICIES, Eviction
from planner.search.state import SearchSettings
from planner.simulate.simulate import candidate_of


def descend_from_many(
    problem: Problem,
    start: Candidate,
    settings: SearchSettings,
    *,
    stop: Callable[[], bool] | None = None,
    policy: ExactPolicy = EXACT,
) -> Candidate:
    """Descend from `start` and from evicted plans, and return the plan with the least peak.

    The search ends at the capacity, or after many spells without progress. A plan gets another spell as
    long as each lowers its peak by the policy's `spell_gain`; then an evicted plan has its turn. An
    evicted plan that stays far above the best is dropped after one spell. The more often this happens,
    the more spells the best plan gets before the next evicted plan.

    Args:
        start: a plan on one stream, with first runs in base order.
        settings: as for `descend`.
        stop: called between spells; the search ends when it returns True.
        policy: the length of spells, and when to end them.
    """
    deadline = clock.now() + settings.limit_s
    draw = random.Random(settings.seed)
    spells = 0

    def left_s() -> float:
        return min(policy.spell_s, deadline - clock.now())

    def spell(plan: Candidate) -> Candidate:
        """Descend from `plan` for one spell."""
        nonlocal spells
        spells += 1
        limits = replace(settings, limit_s=left_s(), seed=settings.seed + spells)
        begun = parted(problem, plan.actions)
        found = descend(begun.problem, begun.actions, limits, stop=stop, policy=policy)
        return candidate_of(problem, begun.as_given(found))

    starts = _Evicted(problem, start.peak_bytes - 1, draw)
    best = plan = starts.least(clock.now() + left_s()) or start
    misses, turns = 0, _Turns()  # misses: spells since the best got better
    while best.peak_bytes > problem.capacity_bytes and left_s() > 0 and misses <= policy.max_misses:
        if stop is not None and stop():
            break
        is_new = plan is not best
        before_bytes, plan = plan.peak_bytes, spell(plan)
        has_gained = plan.peak_bytes <= (1 - policy.spell_gain) * before_bytes
        is_far = plan.peak_bytes > (1 + policy.far_start) * best.peak_bytes
        if is_new:
            turns.tried(in_vain=is_far)
        misses = 0 if plan.peak_bytes < best.peak_bytes else misses + 1
        best = plan if plan.peak_bytes <= best.peak_bytes else best
        if has_gained and not is_far:
            continue
        new = starts.draw(clock.now() + left_s()) if (is_due := turns.is_due()) else None
        if is_due and new is None:
            turns.tried(in_vain=True)
        plan = new or best
    return best


class _Turns:
    """Decides when a new plan gets a spell instead of the best: later after each failure."""

    def __init__(self) -> None:
        self._waits = 0  # spells of the best before the next new plan
        self._waited = 0

    def tried(self, *, in_vain: bool) -> None:
        """Record whether a new plan was in vain."""
        self._waits = 2 * self._waits + 1 if in_vain else 0

    def is_due(self) -> bool:
        """Count a spell of the best, and tell whether a new plan comes next."""
        self._waited += 1
        if self._waited <= self._waits:
            return False
        self._waited = 0
        return True


class _Evicted:
    """A source of plans by eviction, at about the least capacities that eviction can meet."""

    _STEP = 0.97
    _TRIES = 3
    """Tries of each policy, before a capacity counts as too small."""

    def __init__(self, problem: Problem, capacity_bytes: int, draw: random.Random) -> None:
        self.problem = problem
        self.eviction = Eviction(problem)
        self.random = draw
        self.capacity_bytes = capacity_bytes

    def least(self, deadline: float) -> Candidate | None:
        """Return the plan with the least peak that eviction reaches without random scores."""
        least = None
        while found := self._plan(deadline, blurred=False):
            least = found
        return least

    def draw(self, deadline: float) -> Candidate | None:
        """Return a plan evicted with blurred scores, or None at the deadline."""
        while clock.now() < deadline:
            for _ in range(self._TRIES):
                if found := self._plan(deadline, blurred=True):
                    return found
            self.capacity_bytes = round(self.capacity_bytes / self._STEP)
        return None

    def _plan(self, deadline: float, *, blurred: bool) -> Candidate | None:
        """Return a plan of the first policy that meets the capacity, and then lower the capacity."""
        draw = self.random if blurred else None
        policies = list(EVICTION_POLICIES)
        self.random.shuffle(policies)
        for policy in policies:
            actions = self.eviction.actions(
                self.capacity_bytes, policy, deadline=deadline, draw=draw
            )
            if actions is not None:
                self.capacity_bytes = round(self.capacity_bytes * self._STEP)
                return candidate_of(self.problem, actions)
        return None
