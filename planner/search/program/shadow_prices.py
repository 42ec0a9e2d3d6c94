"""The worth of memory: the dual prices of the LP over instants (`planner.bound.lp`).

The LP's value bounds the time that any plan in the base order adds. The dual price of an instant's
row is the rate at which that bound falls with the capacity at that instant; the sum over all
instants is the rate at which it falls with the budget. These are prices of the bound, which may
keep a part of a tensor: a plan's savings come in jumps.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner import clock
from planner.bound.column_generation import ColumnGeneration
from planner.bound.lp import InstantLp
from planner.plan.problem import Problem
from planner.search.evaluate import Evaluator
from planner.search.program.cutting_loop import base_op_at, overflow_instant, round_solution


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowPrices:
    """Prices of one problem.

    Attributes:
        us_per_byte: by instant, which is the base operation that runs then; missing instants have
            the price 0.
        bound_extra_us: the bound: no plan adds less time to the base order.
    """

    us_per_byte: dict[int, float]
    bound_extra_us: float

    def between(self, opens: int, closes: int) -> float:
        """Return the price of a byte held from base operation `opens` to `closes`, in microseconds.

        Both operations hold it anyway.
        """
        return sum(price for p, price in self.us_per_byte.items() if opens < p < closes)


def shadow_prices(
    problem: Problem, *, time_limit_s: float, max_instants: int = 6
) -> ShadowPrices | None:
    """Compute the prices of the LP, adding instants where its plan overflows.

    None if nothing fits, or time ran out before the first answer.
    """
    deadline = clock.now() + time_limit_s
    evaluator = Evaluator(problem)
    if evaluator.fits(evaluator.base):
        return ShadowPrices(us_per_byte={}, bound_extra_us=0.0)
    relaxed = ColumnGeneration(problem) if ColumnGeneration.covers(problem) else InstantLp(problem)
    instant: int | None = base_op_at(evaluator.base, evaluator.base.replay.peak_action)
    instants: list[int] = []
    best: ShadowPrices | None = None
    while instant is not None and len(instants) < max_instants:
        instants.append(instant)
        relaxed.add(instant)
        left_s = deadline - clock.now()
        solution = relaxed.solve(time_limit_s=left_s) if left_s > 0 else None
        if solution is None:
            break
        if not solution.feasible:
            return None
        best = ShadowPrices(us_per_byte=solution.price_us, bound_extra_us=solution.bound_us)
        trial = evaluator.evaluate(round_solution(problem, instants, solution))
        instant = overflow_instant(evaluator, trial, instants)
    return best
