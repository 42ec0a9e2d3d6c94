"""The numbers by which questions are answered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPolicy:
    """The table.

    Attributes:
        better_order_s: seconds at most for a better order,
        least_budget_s: and for the least feasible budget.
        looking: share of the time limit that each of them takes at most.
        bisections: budgets that are tried for the least whose plan is fast enough.
        bisecting: share of the time for them.
        more_memory: a plan that comes out too slow is given so much more memory,
        more_tries: so many times.
        largest_size: doubling ends here.
        size_steps: between the last size of a doubling that fits and the next, so many steps are told
            apart.
        least_peak_s: for the least peak on a device, at most.
        runs_of_sizes: searches that are expected for each device and lever where there are several
            sizes.
        device_s: no search for a device gets less, however many there are.
        last_share: of the time, for a longer search at the largest size that fits; the rest is for
            finding that size.
        kept_ways: each is a whole model; more than these are made again when they are asked for.
        same: times as near as this are the same.
        runs_share: of the time limit, for all searches for the number of micro-batches,
        runs_s: and their most seconds.
        lost: another plan breaks the arena up otherwise: a little more is set aside than was missing,
        least_lost: and no less than a share of the budget.
        again: so often at most a job is done again; each time sets twice as much aside as the one
            before.
        run_orders_s: for the base orders of one number of runs,
        run_search_s: and for a plan of it.
        profiled_us: what the profiler adds to a kernel's own time at most: next to all of it in graphs
            of tiny operations, which take as long whenever they are measured.
        too_long: operation times that add up to so many times a step are dropped.
        preview_shares: budgets looked at beside a plan, as shares of the model's own peak.
        pricing: share of the preview's time for the prices of the bound,
        racing: and for finding a base order.
        point_s: for a budget of the preview, at least.
        preview_worth_per_s: a second of waiting for it must promise so much of a step's time.
        preview_s: for the preview, or where that is more
        point_s_per_op: for each operation at each budget;
        preview_most: never more than this share of the time limit.
    """

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
    preview_most: float = 0.4


ANSWERING = AnswerPolicy()
