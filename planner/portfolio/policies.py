"""Parameters of the portfolio's other stages: the race of base orders, the frontier.

They are apart from the code that uses them because `planner.portfolio.table` holds them all, and
that code needs the table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RacePolicy:
    """All parameters of the race of base orders (`planner.portfolio.race`).

    The race has three rounds: a rough plan in each order, a short search in the best of them, a
    longer one in the best of those. A round that would end before the previous one gets no time.

    Attributes:
        share: share of a whole search's time that the race takes.
        bounds_until, rough_until, first_until: shares of the race at which the bounds, the rough
            plans, and the first round of searches end.
        evict_share, greedy_share: shares of a rough plan's time by whose end eviction and greedy
            repair are due; the rest is for the LP.
        rough_instants: instants of that LP.
        first_orders, last_orders: numbers of orders in the first and in the last round of searches.
        exploded_factor: a greedy plan is given up if it takes this multiple of the base order's
            time.
        lever_tries, lever_factor: after this number of orders, a lever is dropped if it alone adds
            this multiple of the other's time.
        rough_s, rough_op_s: seconds at least for a rough plan with one lever, and for each of its
            operations.
        min_s: seconds at least for a search.
        overtime_s, fair_factor, tried_orders: seconds at most that rough plans go on beyond the
            race's end, as long as every plan takes more than this multiple of the base order's
            time, or fewer orders had their turn. An order that cannot win is passed over in it.
        others_factor: once a plan is found in the best order, the searches in the others end after
            this multiple of the time that it took.
    """

    share: float = 0.4
    bounds_until: float = 0.15
    rough_until: float = 0.45
    first_until: float = 0.7
    evict_share: float = 0.4
    greedy_share: float = 0.7
    rough_instants: int = 1
    first_orders: int = 6
    last_orders: int = 3
    exploded_factor: float = 4.0
    lever_tries: int = 3
    lever_factor: float = 1.5
    rough_s: float = 0.05
    rough_op_s: float = 4e-5
    min_s: float = 0.2
    overtime_s: float = 2.0
    fair_factor: float = 1.5
    tried_orders: int = 6
    others_factor: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPolicy:
    """All parameters of a frontier over many budgets (`planner.pipeline.answer.budgets.sweep`).

    Attributes:
        orders_share, max_orders_s: share of the time, and most seconds, for the search for base
            orders.
        comparing_share: share of the time for comparing the orders at a few budgets.
        compared_shares: these budgets, as shares of the way from the least bound to the best
            order's own peak.
        kept_orders: number of best orders at each of them that enter the frontier.
        min_point_s: seconds at least for each point, however many there are.
    """

    orders_share: float = 0.1
    max_orders_s: float = 5.0
    comparing_share: float = 0.2
    compared_shares: tuple[float, ...] = (0.2, 0.45, 0.75)
    kept_orders: int = 2
    min_point_s: float = 1.0
