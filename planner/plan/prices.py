"""What memory is worth: the prices of the cut LP (`planner.plan.cuts`).

The LP's value is a bound on what any plan in the base order adds to its time. The dual price of a
cut's row is how fast that bound falls with the capacity at that cut; the sum over all cuts is how fast
it falls with the budget. These are prices of the bound, which may keep a part of a tensor: what one
more byte saves a plan comes in jumps.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from planner.plan.cut_flow import CutFlow
from planner.plan.cuts import CutModel, round_solution
from planner.plan.improve import Improver
from planner.plan.problem import Problem
from planner.plan.search import base_op_at, overflow_cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of one problem.

    Attributes:
        us_per_byte: by cut, which is the base operation that runs then; cuts that are not listed
            are worth 0 to this bound.
        bound_extra_us: the bound: no plan adds less time to the base order.
    """

    us_per_byte: dict[int, float]
    bound_extra_us: float

    def between(self, opens: int, closes: int) -> float:
        """Microseconds for a byte that is held from base operation `opens` to `closes`, both of
        which hold it anyway."""
        return sum(price for p, price in self.us_per_byte.items() if opens < p < closes)

    @property
    def of_budget(self) -> float:
        """Microseconds for a byte more of capacity, at every cut."""
        return sum(self.us_per_byte.values())


def prices(problem: Problem, *, time_limit_s: float, most_cuts: int = 6) -> Prices | None:
    """Prices of the LP over cuts that are added where its plan overflows; None where nothing fits,
    or time ran out before the first answer."""
    deadline = time.monotonic() + time_limit_s
    improver = Improver(problem, deadline=deadline)
    if improver.fits(improver.base):
        return Prices(us_per_byte={}, bound_extra_us=0.0)
    relaxed = CutFlow(problem) if CutFlow.covers(problem) else CutModel(problem)
    cut: int | None = base_op_at(improver.base, improver.base.replay.peak_action)
    cuts: list[int] = []
    best: Prices | None = None
    while cut is not None and len(cuts) < most_cuts:
        cuts.append(cut)
        relaxed.add(cut)
        left_s = deadline - time.monotonic()
        solution = relaxed.solve(time_limit_s=left_s) if left_s > 0 else None
        if solution is None:
            break
        if not solution.feasible:
            return None
        best = Prices(us_per_byte=solution.price_us, bound_extra_us=solution.bound_us)
        trial = improver.evaluate(round_solution(problem, cuts, solution))
        cut = overflow_cut(improver, trial, cuts)
    return best
