"""The cost of budgets: the search behind every question about several budgets.

Every point is a plan replayed by the simulator. Its bytes are live bytes, persistent tensors and
kernels' workspace; no file is written, and ONNX Runtime's fragmentation is not included. For one
budget, `optimize` chooses tensor by tensor which inputs, parameters and state live on the host.
Here only the two extremes of that choice (`planner.pipeline.levers.host.hosting.ways_of`) are
searched side by side; a choice in between can only be quicker.
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
    """One size of a model, with one choice of tensors that live on the host.

    Attributes:
        orders: base orders to search in.
        search: the search, with one problem for each of the orders.
        order_alone_bytes: the least peak of any base order, without recomputes or copies.
        least_bound_bytes: no plan in any of the orders has a lower peak.
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
        """Restrict the search to some of the orders, given by their indices."""
        kept = tuple(self.orders[i] for i in orders)
        return replace(self, orders=kept, search=self.search.within(orders))

    def frontier(self, *whole: Point) -> Frontier:
        """Return all points found, as whole steps.

        No bound exceeds `most_bound_us`, since more tensors may live on the host.

        Args:
            whole: further points.
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
        """Cap on every bound on a time."""
        return most_bound_us(self.prepared, overlap=self.search.problems[0].overlap)


def way_of(
    prepared: Prepared,
    settings: Settings,
    policy: Policy = POLICY,
    *,
    orders: tuple[BaseOrder, ...] = (),
) -> FrontierWay:
    """Set the search for a prepared model up; find its base orders if none are given."""
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
            settings=SearchSettings(seed=settings.seed),
            policy=policy,
        ),
        order_alone_bytes=min(base.peak_bytes for base in orders),
        least_bound_bytes=min(order.least_bound_bytes for order in orders),
    )


def merged(found: Sequence[Frontier]) -> Frontier:
    """Merge the frontiers of several ways: the quickest plan at each budget, and the lowest bound.

    Args:
        found: of one model at one size and at the same budgets; first the one with the least on the
            host.
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
