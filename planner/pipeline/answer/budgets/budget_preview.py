"""Budget preview: costs of other budgets, and the steps that bind the plan.

Short searches find both, in a second process that runs while the plan is processed further.
`planner sweep` searches longer, on all cores and in the best of all base orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from planner import clock
from planner.pipeline.answer.budgets.frontier import FrontierWay, way_of
from planner.pipeline.answer.policy import ANSWERING
from planner.pipeline.prepare.prepared import Prepared, Progress, silent
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.orders import BaseOrder, pinned_peak
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.quick import quickest
from planner.plan.candidate import Candidate
from planner.plan.points import Point, PointPlan, Written, monotone, with_views
from planner.plan.problem import Problem
from planner.portfolio.frontier import FrontierSearch, Raced, point_plan
from planner.processes.workers import Beside
from planner.results import BindingStep, BudgetPreview, Frontier
from planner.search.program.shadow_prices import shadow_prices
from planner.search.stop import Patience
from planner.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looking:
    """A preview task, in plain values that can be sent to another process.

    Attributes:
        search: the search, in one base order.
        budgets: to search at, in bytes, largest first.
        planned: the problem that was solved; None without a plan.
        time_limit_s: for the whole task.
    """

    search: FrontierSearch
    budgets: tuple[int, ...]
    planned: Problem | None
    time_limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """The result of a preview task.

    Attributes:
        found: the best plan found, by budget.
        prices: (node, microseconds per additional byte while it runs) of the steps that bind the
            plan, unordered; None without a plan, or if the time did not suffice.
        seconds: duration of the task.
    """

    found: dict[int, Raced | None]
    prices: tuple[tuple[str, float], ...] | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """A model in the base order of the search, and the task."""

    way: FrontierWay
    settings: Settings
    looking: _Looking

    def frontier(self, looked: _Looked, *whole: Point) -> Frontier:
        """Build the frontier from the results, and from the model as it is, free at its own peak.

        Args:
            whole: further points; their peaks include the reserve, as the budgets do.
        """
        self.way.search.found.update(looked.found)
        needed, base_us = self.way.baseline_bytes, self.way.prepared.baseline.time_us
        needed += self.settings.reserve_bytes
        plan = PointPlan(peak_bytes=needed, time_us=base_us, engine="none", order=1)
        as_it_is = Point(capacity_bytes=needed, plan=plan, bound_us=base_us)
        found = self.way.frontier(as_it_is, *whole)
        return replace(found, orders=(*found.orders, "as it is"))


def preview_budgets(
    prepared: Prepared,
    settings: Settings,
    orders: Sequence[BaseOrder],
    least: tuple[BaseOrder, Candidate],
    progress: Progress = silent,
) -> BudgetPreview:
    """Search for the costs of budgets before any plan is made.

    Args:
        orders: all base orders.
        least: the plan of the least peak so far, with its base order. Its budget gets a point if no
            plan of the preview needs less.
    """
    start = clock.now()
    limit_s = _limit_s(prepared)
    base = _best_order(prepared, settings, orders, time_limit_s=ANSWERING.racing * limit_s)
    left_s = limit_s - (clock.now() - start)
    question = _question(prepared, settings, orders, base, time_limit_s=left_s)
    looked = _look(question.looking, progress)
    found = question.frontier(looked)
    there, candidate = least
    if all(p.plan is None or candidate.peak_bytes < p.plan.peak_bytes for p in found.points):
        plan = point_plan(candidate, engine="least peak", order=len(found.orders))
        needed = pinned_peak(prepared, plan.peak_bytes, plan.actions)
        point = Point(capacity_bytes=needed, plan=plan, bound_us=0.0)
        found = question.frontier(looked, with_views(point, prepared.views_us))
        found = replace(found, orders=(*found.orders, there.name))
    return BudgetPreview(frontier=found, binds=None, seconds=looked.seconds)


def _question(
    prepared: Prepared,
    settings: Settings,
    orders: Sequence[BaseOrder],
    base: BaseOrder,
    *,
    time_limit_s: float,
) -> _Question:
    way = way_of(prepared, settings, orders=(base,))
    least, own = base.least_bound_bytes + settings.reserve_bytes, way.baseline_bytes
    budgets = {
        budget for share in ANSWERING.preview_shares if (budget := int(share * own)) >= least
    }
    search = replace(
        way.search,
        settings=replace(way.search.settings, thorough=False),
        worth_per_s=ANSWERING.preview_worth_per_s,
    )
    return _Question(
        way=replace(way, order_alone_bytes=min(base.peak_bytes for base in orders), search=search),
        settings=settings,
        looking=_Looking(
            search=search,
            budgets=tuple(sorted(budgets, reverse=True)),
            planned=None,
            time_limit_s=time_limit_s,
        ),
    )


def _look(looking: _Looking, progress: Progress = silent) -> _Looked:
    """Search briefly at each budget, and price the steps that bind the plan."""
    start, search = clock.now(), looking.search
    prices = None
    if looking.planned is not None:
        progress("finding what binds the budget")
        prices = _prices(looking.planned, time_limit_s=ANSWERING.pricing * looking.time_limit_s)
    count = len(looking.budgets)
    for done, budget in enumerate(looking.budgets):
        left_s = looking.time_limit_s - (clock.now() - start)
        progress(f"pricing a budget of {format_bytes(budget)} ({done + 1} of {count})")
        search.at(budget, time_limit_s=max(ANSWERING.point_s, left_s / (count - done)))
    return _Looked(found=search.found, prices=prices, seconds=clock.now() - start)


class PreviewBeside:
    """A budget preview computed in a second process."""

    def __init__(self, process: Beside) -> None:
        self._process = process
        self._asked: tuple[_Question, Planned] | None = None
        self._answer: Future[_Looked] | None = None

    def begin(self, settings: Settings, planned: Planned) -> None:
        """Start the preview in the base order of a plan, in a process that has its modules loaded.

        Levers that were barred while the plan was made stay barred.
        """
        prepared = planned.prepared
        found = _question(
            prepared, settings, planned.orders, planned.base, time_limit_s=_limit_s(prepared)
        )
        others = tuple(b for b in found.looking.budgets if b != settings.budget_bytes)
        looking = replace(found.looking, budgets=others, planned=planned.formulation.problem)
        self._asked = replace(found, looking=looking), planned
        self._answer = self._process.begin(_look_there, (clock.is_capped(), looking))

    def settle(self, planned: Planned) -> None:
        """Take over the final plan: the same actions, pinned by another order."""
        assert self._asked is not None
        self._asked = self._asked[0], planned

    def result(self, step_us: float) -> BudgetPreview | None:
        """Wait for the preview; return None if none was started.

        Args:
            step_us: of the plan, as its file is written.
        """
        if self._answer is None or self._asked is None:
            return None
        question, planned = self._asked
        looked, views_us = self._answer.result(), question.way.prepared.views_us
        point = _as_planned(planned, question.settings)
        frontier = question.frontier(looked, with_views(point, views_us))
        assert point.plan is not None
        written = Written(
            base_us=frontier.base_us, schedule_us=point.plan.time_us + views_us, step_us=step_us
        )
        # a plan may exist wherever more tensors may live on the host
        most_us = question.way.most_bound_us
        points = [written.of(p) for p in frontier.points]
        points = [replace(p, bound_us=min(p.bound_us, most_us)) for p in points]
        return BudgetPreview(
            frontier=replace(frontier, points=monotone(points)),
            binds=_binding(looked, planned),
            seconds=looked.seconds,
        )


def _look_there(_: None, task: tuple[bool, _Looking]) -> _Looked:
    """Run `_look` in another process, with or without a cap on the machine's seconds."""
    is_capped, looking = task
    with clock.counting(is_capped=is_capped):
        clock.cap(looking.time_limit_s)
        return _look(looking)


def _binding(looked: _Looked, planned: Planned) -> tuple[BindingStep, ...] | None:
    """Return the steps that bind the plan, most valuable first."""
    if looked.prices is None:
        return None
    at = {name: i for i, name in enumerate(planned.rewritten.planned_order)}
    rows = [
        BindingStep(node=node, step=at.get(node, 0), us_per_mib=us_per_byte * (1 << 20))
        for node, us_per_byte in looked.prices
    ]
    return tuple(sorted(rows, key=lambda row: -row.us_per_mib))


def _best_order(
    prepared: Prepared, settings: Settings, orders: Sequence[BaseOrder], *, time_limit_s: float
) -> BaseOrder:
    """Return the base order that wins a race at a budget half way down to the least bound."""
    middle = (prepared.baseline.peak_bytes + min(base.least_bound_bytes for base in orders)) // 2
    patience = Patience(since=clock.now(), per_s=ANSWERING.preview_worth_per_s)
    at_middle = replace(settings, budget_bytes=middle)
    most = len(orders)
    return quickest(prepared, orders, at_middle, time_limit_s, most=most, patience=patience)[0]


def _limit_s(prepared: Prepared) -> float:
    """Return the time limit of the preview, which adds to the request's time limit."""
    points_s = (
        ANSWERING.point_s_per_op * len(prepared.graph.operations) * len(ANSWERING.preview_shares)
    )
    return min(
        ANSWERING.preview_most * prepared.request.limits.time_limit_s,
        max(ANSWERING.preview_s, points_s),
    )


def _as_planned(planned: Planned, settings: Settings) -> Point:
    """Return the plan as a point at its budget."""
    problem, solved = planned.formulation.problem, planned.solved
    plan = point_plan(solved.found, engine=solved.engine, order=0)
    whole = problem.capacity_bytes >= settings.budget_bytes  # else the bound is of a lower capacity
    return Point(
        capacity_bytes=settings.budget_bytes,
        plan=replace(plan, peak_bytes=planned.timeline.peak_bytes + settings.reserve_bytes),
        bound_us=solved.bound_us if whole else problem.base_duration_us,
    )


def _prices(problem: Problem, *, time_limit_s: float) -> tuple[tuple[str, float], ...] | None:
    """Return the bound's shadow prices at the plan's own capacity, by node; None if time ran out."""
    found = shadow_prices(problem, time_limit_s=time_limit_s)
    if found is None:
        return None
    return tuple(
        (problem.ops[op].name, price) for op, price in found.us_per_byte.items() if price > 0
    )
