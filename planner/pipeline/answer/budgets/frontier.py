"""What budgets cost: the one search that every question about several budgets asks.

Every point is a plan that the simulator replayed, of live bytes, persistent tensors and kernels'
workspace; no file is written, and ONNX Runtime's fragmentation is not in it. `optimize` chooses tensor by
tensor what outlives a step and lives on the host, for one budget. Here the two ends of that choice
(`planner.pipeline.levers.host.hosting.ways_of`) are searched side by side: what is chosen in between can
only be quicker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.formulate import NO_LIMIT
from planner.pipeline.levers.host.residence import most_bound_us
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.orders import BaseOrder, base_orders, formulate_in
from planner.plan.points import Point, monotone, with_views
from planner.portfolio.frontier import FrontierSearch
from planner.portfolio.table import POLICY, Policy
from planner.results import Frontier
from planner.search.state import SearchSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierWay:
    """One size of a model, with one choice of what lives on the host.

    Attributes:
        orders: base orders that are searched in.
        search: in the problem of each of them.
        order_alone_bytes: the least peak of any base order, as it is.
        least_bound_bytes: no plan in any of the orders has a peak below this.
    """

    prepared: Prepared
    orders: tuple[BaseOrder, ...]
    search: FrontierSearch
    order_alone_bytes: int
    least_bound_bytes: int

    @property
    def baseline_bytes(self) -> int:
        """The peak of the model as it is."""
        return self.prepared.baseline.peak_bytes

    def within(self, orders: Sequence[int]) -> FrontierWay:
        """Search in some of the orders alone, given by their indices."""
        kept = tuple(self.orders[i] for i in orders)
        return replace(self, orders=kept, search=self.search.within(orders))

    def frontier(self, *whole: Point) -> Frontier:
        """All that was found, as whole steps, no bound higher than where more lives on the host.

        Args:
            whole: points besides.
        """
        views_us, most_us = self.prepared.views_us, self.most_bound_us
        points = [with_views(point, views_us) for point in self.search.points]
        points = [
            p if p.is_impossible else replace(p, bound_us=min(p.bound_us, most_us)) for p in points
        ]
        return Frontier(
            dims=dict(self.prepared.loaded.dims),
            baseline_bytes=self.baseline_bytes,
            base_us=self.prepared.baseline.time_us,
            order_alone_bytes=self.order_alone_bytes,
            least_bound_bytes=self.least_bound_bytes,
            orders=tuple(order.name for order in self.orders),
            points=monotone([*points, *whole]),
        )

    @property
    def most_bound_us(self) -> float:
        """No bound on a time is taken for higher."""
        return most_bound_us(self.prepared, overlap=self.search.problems[0].overlap)


def way_of(
    prepared: Prepared,
    settings: Settings,
    policy: Policy = POLICY,
    *,
    orders: tuple[BaseOrder, ...] = (),
) -> FrontierWay:
    """A prepared model in its base orders, which are looked for where none are given."""
    if not orders:
        numbers, limit_s = policy.frontier, settings.time_limit_s
        share_s = min(numbers.max_orders_s, numbers.orders_share * limit_s)
        orders = base_orders(prepared, time_limit_s=share_s)
    problems = (formulate_in(prepared, base.order, settings, NO_LIMIT).problem for base in orders)
    return FrontierWay(
        prepared=prepared,
        orders=orders,
        search=FrontierSearch(
            problems=tuple(problems),
            settings=SearchSettings(seed=settings.seed, workers=1),
            policy=policy,
        ),
        order_alone_bytes=orders[0].peak_bytes,
        least_bound_bytes=min(order.least_bound_bytes for order in orders),
    )


def merged(found: Sequence[Frontier]) -> Frontier:
    """One frontier of several ways: at each budget the quickest plan of any, and the least bound.

    Args:
        found: of one model at one size and at the same budgets, with the least on the host first.
    """
    points: dict[int, Point] = {}
    names: list[str] = []
    for frontier in found:
        for point in frontier.points:
            plan = point.plan
            numbered = None if plan is None else replace(plan, order=plan.order + len(names))
            mine = replace(point, plan=numbered)
            known = points.get(point.capacity_bytes, mine)
            points[point.capacity_bytes] = _quicker(known, mine)
        names += frontier.orders if not names else (f"{n}, on the host" for n in frontier.orders)
    return replace(
        found[0],
        least_bound_bytes=min(f.least_bound_bytes for f in found),
        orders=tuple(names),
        points=monotone(list(points.values())),
    )


def _quicker(one: Point, other: Point) -> Point:
    plans = [p.plan for p in (one, other) if p.plan is not None]
    return replace(
        one,
        plan=min(plans, key=lambda plan: (plan.time_us, plan.peak_bytes), default=None),
        bound_us=min(one.bound_us, other.bound_us),
    )
