"""Make a plan fit, then make it cheap.

    repair  while some action exceeds the capacity, drop or swap the tensor that is cheapest per byte
            among those that wait there
    prune   take decisions back, dearest first, while the plan still fits
    polish  change single decisions (keep, drop, swap) while that saves time and still fits
    anneal  random changes, mostly exchanges among neighbours, by the rule of Metropolis

Every candidate plan is executed and replayed, without estimates. The compiled replay chooses, and
the simulator confirms the choice.
"""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
import numpy.typing as npt
from numpy.random import default_rng  # NumPy loads it late: an interrupt meanwhile is lost

from planner import clock
from planner.plan.candidate import Candidate
from planner.plan.problem import Problem
from planner.search.evaluate import Evaluator
from planner.search.fast.arrays import DROP, KEEP, SWAP, GapChoices, decisions_of, plan_of
from planner.search.fast.core import Heat
from planner.search.repair import GreedyRepair
from planner.search.stop import NEVER, Stop

_SLICE_S = 0.1
_HOT, _COLD = 1e-3, 1e-6
"""First and last temperature of annealing, as shares of the time that the plan adds."""
_PRICE = 4.0
"""Price of a byte over the capacity, as a multiple of the plan's cost per byte saved."""


class Improver:
    """Repair, pruning, polishing and annealing of plans of one problem, until `stop` ends it.

    Attributes:
        evaluator: of the problem. stop: when to end.
    """

    def __init__(self, evaluator: Evaluator, stop: Stop = NEVER) -> None:
        self.evaluator = evaluator
        self.stop = stop

    @property
    def problem(self) -> Problem:
        """The problem to solve."""
        return self.evaluator.problem

    def out_of_time(self) -> bool:
        """Tell whether to end now."""
        return self.stop.left_s <= 0

    # -- repair ------------------------------------------------------------------------------

    def repair(self, candidate: Candidate, *, most_us: float = float("inf")) -> Candidate:
        """Add decisions until the plan fits.

        If nothing more helps, return the plan with the least peak.

        Args:
            most_us: give up if the plan takes longer.
        """
        best = candidate
        stalled = 0
        while not self.evaluator.fits(candidate) and not self.out_of_time():
            decisions = GreedyRepair(self.problem, candidate).decisions()
            if decisions is None:
                break
            candidate = self.evaluator.evaluate(decisions)
            if candidate.time_us > most_us:
                break
            if candidate.peak_bytes < best.peak_bytes:
                best, stalled = candidate, 0
            else:
                stalled += 1
                if stalled > 60:
                    break
        return candidate if self.evaluator.fits(candidate) else best

    # -- prune, polish -----------------------------------------------------------------------

    def prune(self, candidate: Candidate) -> Candidate:
        """Take decisions back while the plan still fits and gets no slower."""
        if not self.evaluator.fits(candidate) or candidate.decisions is None:
            return candidate
        search = _Improvement(self, candidate)
        order = search.decided()
        batch = max(1, len(order) // 8)
        while order.size and not self.out_of_time():
            before = len(order)
            search.change(order, KEEP, batch)
            order = order[search.plan.choice[order] != KEEP]
            if batch == 1 and len(order) == before:
                break
            batch = max(1, batch // 3)
        return search.better(candidate)

    def polish(self, candidate: Candidate) -> Candidate:
        """Make single changes that save time, until none helps."""
        if not self.evaluator.fits(candidate) or candidate.decisions is None:
            return candidate
        search = _Improvement(self, candidate)
        improved = True
        while improved and not self.out_of_time():
            before = search.time_us
            for choice in (KEEP, DROP, SWAP):
                search.change(search.decided(), choice, 1)
            improved = search.time_us < before
        return search.better(candidate)

    # -- anneal ------------------------------------------------------------------------------

    def anneal(self, candidate: Candidate, *, iterations: int, seed: int = 0) -> Candidate:
        """Change `candidate`, which fits, at random; return the best plan found, perhaps the same."""
        if not self.evaluator.fits(candidate) or candidate.decisions is None:
            return candidate
        search = _Improvement(self, candidate)
        gaps = self._changeable()
        saved = self.evaluator.base.peak_bytes - self.problem.capacity_bytes
        extra = search.time_us - self.problem.base_duration_us
        if gaps.size < 2 or saved <= 0 or extra <= 0:
            return candidate
        heat = Heat(cost_us=search.time_us, best_us=search.time_us)
        heat.price_us_per_byte = _PRICE * extra / saved
        best, done = search.plan.copy(), 0
        rng = default_rng(seed)
        while done < iterations and not self.out_of_time():
            share = done / iterations
            chunk = min(iterations - done, search.per_slice)
            heat.temperature_us = extra * _HOT ** (1 - share) * _COLD**share
            search.core.anneal(search.plan, best, gaps, heat, chunk, rng)
            done += chunk
        return search.better(candidate, best)

    def _changeable(self) -> npt.NDArray[np.int64]:
        """Return the gaps worth deciding, by the operation that opens them.

        They are gaps over an operation that exceeds the capacity, and gaps after last uses, in
        which recomputes may read.
        """
        problem, a = self.problem, self.evaluator.core.arrays
        over = np.flatnonzero(
            self.evaluator.base.replay.live_bytes > problem.capacity_bytes
        ).tolist()
        found: list[tuple[int, int]] = []
        for t, tensor in enumerate(problem.tensors):
            droppable = a.recomputable[tensor.producer]
            if tensor.to_end or not tensor.bytes or not (droppable or a.swappable[t]):
                continue
            events = (tensor.producer, *tensor.uses)
            for g, opened in enumerate(events):
                if g + 1 == len(events):
                    if problem.allow_recompute:
                        found.append((opened, int(a.gap_at[t]) + g))
                    continue
                first = bisect_left(over, opened + 1)
                if first < len(over) and over[first] < events[g + 1]:
                    found.append((opened, int(a.gap_at[t]) + g))
        return np.array([gap for _, gap in sorted(found)], dtype=np.int64)


class _Improvement:
    """A plan under change."""

    def __init__(self, improver: Improver, candidate: Candidate) -> None:
        assert candidate.decisions is not None
        self.improver = improver
        self.core = improver.evaluator.core
        self.a = self.core.arrays
        self.plan = plan_of(self.a, candidate.decisions)
        start = clock.now()
        self.core.schedule(self.plan)  # settles which dropped tensors must be kept
        self.time_us = self.core.change(self.plan, np.empty(0, dtype=np.int64), KEEP, 1, math.nan)
        took_s = max(1e-5, (clock.now() - start) / 2)
        self.per_slice = max(1, int(_SLICE_S / took_s))

    def decided(self) -> npt.NDArray[np.int64]:
        """Return the gaps that are not kept, and tensors kept after their last use; dearest first."""
        gaps = np.flatnonzero(self.plan.choice)
        cost = self.a.duration[self.a.producer[self.a.gap_tensor[gaps]]]
        return gaps[np.argsort(-cost, kind="stable")]

    def change(self, gaps: npt.NDArray[np.int64], choice: int, batch: int) -> None:
        """Set `choice` at `gaps` where the plan then fits and gets faster; stop if time runs out.

        Each call of the compiled core tries a slice of the gaps, `batch` of them at a time.
        """
        step = self.per_slice * batch
        for start in range(0, len(gaps), step):
            if self.improver.out_of_time():
                return
            some = gaps[start : start + step]
            self.time_us = self.core.change(self.plan, some, choice, batch, self.time_us)

    def better(self, candidate: Candidate, plan: GapChoices | None = None) -> Candidate:
        """Return the plan, or `plan`, as a candidate; `candidate` if the simulator finds it faster."""
        found = self.improver.evaluator.evaluate(decisions_of(self.a, plan or self.plan))
        if self.improver.evaluator.fits(found) and found.time_us <= candidate.time_us:
            return found
        return candidate
