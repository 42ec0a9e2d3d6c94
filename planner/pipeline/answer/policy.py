"""The numeric parameters of the answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPolicy:
    """Limits, shares and thresholds.

    Attributes:
        lead_s: seconds before the search that a time limit does not count.
        least_search: share of a time limit that the search has in any case.
        least_search_s: seconds that it has in any case; a shorter limit is the search's alone.
        better_order_s: seconds at most for a better order.
        least_budget_s: seconds at most for the least feasible budget.
        looking: largest share of the time limit for each of these two.
        bisections: number of budgets to try for the least whose plan is fast enough.
        bisecting: share of the time for them.
        more_memory: factor on the memory of a plan that comes out too slow.
        more_tries: number of increases at most.
        largest_size: size at which doubling ends.
        size_steps: resolution: steps between the last size of a doubling that fits and the next.
        least_peak_s: seconds at most for the least peak on a device.
        runs_of_sizes: expected searches for each device and lever if the dim has several sizes.
        device_s: seconds at least for each search on a device, however many searches there are.
        last_share: share of the time for a longer search at the largest size that fits; the rest
            finds that size.
        kept_ways: number of prepared models to cache; others are prepared again on demand.
        same: relative difference up to which times count as equal.
        runs_share: share of the time limit for all searches for the number of micro-batches.
        runs_s: seconds at most for these.
        lost: factor on the missing bytes for the next reserve: another plan fragments the arena
            differently.
        least_lost: the least reserve, as a share of the budget.
        again: repetitions of a job at most; each doubles the least reserve.
        run_orders_s: seconds for the base orders of one number of runs.
        run_search_s: seconds for a plan of one number of runs.
        profiled_us: the most time that the profiler adds to a kernel, in microseconds. In graphs of
            tiny operations it dominates the measured times.
        too_long: measured operation times are dropped if their sum exceeds a step by this factor.
        preview_shares: budgets of the preview, as shares of the model's own peak.
        pricing: share of the preview's time for the bound's shadow prices.
        racing: share of the preview's time for choosing a base order.
        point_s: seconds at least for each budget of the preview.
        preview_worth_per_s: share of a step's time that a further second must promise to save.
        preview_s: seconds for the preview, unless `point_s_per_op` asks for more.
        point_s_per_op: seconds for each operation at each budget.
        preview_most: largest share of the time limit for the preview.
    """

    lead_s: float = 10.0
    least_search: float = 0.4
    least_search_s: float = 5.0
    better_order_s: float = 5.0
    least_budget_s: float = 2.0
    looking: float = 0.1
    bisections: int = 8
    bisecting: float = 0.6
    more_memory: float = 1.015
    more_tries: int = 6
    largest_size: int = 1 << 20
    size_steps: int = 4
    least_peak_s: float = 2.0
    runs_of_sizes: int = 5
    device_s: float = 0.3
    last_share: float = 0.6
    kept_ways: int = 4
    same: float = 1e-9
    runs_share: float = 0.3
    runs_s: float = 20.0
    lost: float = 1.1
    least_lost: float = 0.03
    again: int = 3
    run_orders_s: float = 1.0
    run_search_s: float = 2.0
    profiled_us: float = 3.0
    too_long: float = 1.25
    preview_shares: tuple[float, ...] = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
    pricing: float = 0.2
    racing: float = 0.3
    point_s: float = 0.2
    preview_worth_per_s: float = 1e-2
    preview_s: float = 8.0
    point_s_per_op: float = 3e-4
    preview_most: float = 0.25

    def search_s(self, limit_s: float, spent_s: float) -> float:
        """Return the seconds of a time limit that a search has.

        Args:
            spent_s: seconds since the request.
        """
        least_s = max(self.least_search * limit_s, min(limit_s, self.least_search_s))
        return max(least_s, limit_s - max(0.0, spent_s - self.lead_s))


ANSWERING = AnswerPolicy()
