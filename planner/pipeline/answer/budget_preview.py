"""What other budgets would cost, and what binds at this one: short searches, in a process beside what is
done with a plan meanwhile.

`planner sweep` looks at the same longer, on all cores and in the best of all base orders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from planner import clock
from planner.pipeline.answer.policy import ANSWERING
from planner.pipeline.levers.residence import most_bound_us
from planner.pipeline.prepare.prepared import Prepared, Progress, silent
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.orders import BaseOrder, formulate_in
from planner.pipeline.solve.planned import Planned
from planner.plan.points import Point, PointPlan, Written, monotone, with_views
from planner.plan.problem import Problem
from planner.portfolio.frontier import point_of, point_plan
from planner.portfolio.race import race
from planner.portfolio.solve import solve
from planner.processes.workers import Beside
from planner.results import BindingStep, BudgetPreview, Frontier
from planner.search.patience import begin
from planner.search.shadow_prices import shadow_prices
from planner.search.state import SearchSettings
from planner.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be looked at: plain values, which another process can be given.

    Attributes:
        problem: in the base order that is searched in; its capacity is that of no point.
        frontier: the frontier without its points.
        as_it_is: the point of the model unchanged.
        budgets: those looked at, ascending, in bytes, the reserve not counted.
        planned: the problem that was solved; None where there is no plan.
        time_limit_s: for everything.
        views_us: that a step takes beside its schedule.
        most_bound_us: no bound on a time is taken for higher (`planner.pipeline.levers.residence`).
    """

    problem: Problem
    frontier: Frontier
    as_it_is: Point
    budgets: tuple[int, ...]
    planned: Problem | None = None
    seed: int
    workers: int | None
    time_limit_s: float
    views_us: float
    most_bound_us: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found.

    Attributes:
        points: of the question's budgets.
        prices: (node, microseconds for a byte more while it runs) of what binds the plan, in no order;
            None where there is no plan, or where the time did not suffice.
        seconds: that it took.
    """

    points: tuple[Point, ...]
    prices: tuple[tuple[str, float], ...] | None
    seconds: float

    def preview(
        self,
        question: Question,
        planned: Point | None = None,
        step: Mapping[str, int] | None = None,
        step_us: float | None = None,
    ) -> BudgetPreview:
        """The frontier, and what binds the plan, the dearest first.

        Args:
            planned: the point of the plan.
            step: place of each node in the rewritten model.
            step_us: of the plan, as its file is written.
        """
        points = [*self.points, *([planned] if planned is not None else [])]
        points = [question.as_it_is, *(with_views(p, question.views_us) for p in points)]
        if planned is not None and planned.plan is not None and step_us is not None:
            written = Written(
                base_us=question.frontier.base_us,
                schedule_us=planned.plan.time_us + question.views_us,
                step_us=step_us,
            )
            points = [written.of(point) for point in points]
        most_us, at = question.most_bound_us, step or {}
        binds = None
        if self.prices is not None:
            rows = [
                BindingStep(node=node, step=at.get(node, 0), us_per_mib=us_per_byte * (1 << 20))
                for node, us_per_byte in self.prices
            ]
            binds = tuple(sorted(rows, key=lambda row: -row.us_per_mib))
        return BudgetPreview(
            frontier=replace(
                question.frontier,
                points=monotone([replace(p, bound_us=min(p.bound_us, most_us)) for p in points]),
            ),
            binds=binds,
            seconds=self.seconds,
        )


def before_a_plan(prepared: Prepared, settings: Settings, orders: Sequence[BaseOrder]) -> Question:
    """What budgets would cost in the order that does best at the middle of the range.

    Args:
        orders: all base orders, the one with the least peak first.
    """
    start = clock.now()
    limit_s = _limit_s(prepared)
    base = _best_order(prepared, settings, orders, time_limit_s=ANSWERING.racing * limit_s)
    left_s = limit_s - (clock.now() - start)
    return _question(prepared, settings, orders, base, time_limit_s=left_s)


def beside_a_plan(settings: Settings, planned: Planned) -> Question:
    """What other budgets would cost in the base order of a plan, and what binds at its own; what was
    barred as it was made stays so."""
    prepared, base, orders = planned.prepared, planned.base, planned.orders
    found = _question(prepared, settings, orders, base, time_limit_s=_limit_s(prepared))
    return replace(
        found,
        budgets=tuple(b for b in found.budgets if b != settings.budget_bytes),
        planned=planned.formulation.problem,
    )


def _question(
    prepared: Prepared,
    settings: Settings,
    orders: Sequence[BaseOrder],
    base: BaseOrder,
    *,
    time_limit_s: float,
) -> Question:
    own = prepared.baseline.peak_bytes
    problem = formulate_in(prepared, base.order, settings, own).problem
    budgets = sorted({int(share * own) for share in ANSWERING.preview_shares})
    return Question(
        problem=problem,
        frontier=Frontier(
            dims=dict(prepared.loaded.dims),
            baseline_bytes=own,
            base_us=prepared.baseline.time_us,
            order_alone_bytes=orders[0].peak_bytes,
            least_bound_bytes=base.least_bound_bytes,
            orders=(base.name, "as it is"),
            points=(),
        ),
        as_it_is=_as_it_is(own + settings.reserve_bytes, prepared.baseline.time_us),
        budgets=tuple(b for b in budgets if b - settings.reserve_bytes >= base.least_bound_bytes),
        seed=settings.seed,
        workers=settings.workers,
        time_limit_s=time_limit_s,
        views_us=prepared.views_us,
        most_bound_us=most_bound_us(prepared, overlap=problem.overlap),
    )


def preview_budgets(question: Question, progress: Progress = silent) -> BudgetPreview:
    """The best plan and a bound at each budget, where there is no plan yet.

    Peaks have the reserve in them, as the budgets do.
    """
    return _looked_at(question, progress).preview(question)


def _looked_at(question: Question, progress: Progress = silent) -> Found:
    """A short search at each budget, and what binds the plan."""
    start = clock.now()
    prices = None
    if question.planned is not None:
        progress("finding what binds the budget")
        prices = _prices(question.planned, time_limit_s=ANSWERING.pricing * question.time_limit_s)
    points: list[Point] = []
    count = len(question.budgets)
    for done, budget in enumerate(question.budgets):
        left_s = question.time_limit_s - (clock.now() - start)
        progress(f"what {format_bytes(budget)} would cost ({done + 1} of {count})")
        share_s = max(ANSWERING.point_s, left_s / (count - done))
        points.append(_point(question, budget, time_limit_s=share_s))
    return Found(points=tuple(points), prices=prices, seconds=clock.now() - start)


class PreviewBeside:
    """What other budgets would cost, looked at in a process beside this one."""

    def __init__(self, process: Beside) -> None:
        self._process = process
        self._asked: tuple[Question, Settings, Planned] | None = None
        self._answer: Future[Found] | None = None

    def begin(self, settings: Settings, planned: Planned) -> None:
        """Have it looked at for a plan, once what it takes is loaded there."""
        question = beside_a_plan(settings, planned)
        self._asked = question, settings, planned
        self._answer = self._process.begin(_look_there, (clock.is_counted(), question))

    def settle(self, planned: Planned) -> None:
        """The plan came out so: the same actions, in another order."""
        assert self._asked is not None
        self._asked = *self._asked[:2], planned

    def result(self, step_us: float) -> BudgetPreview | None:
        """Wait for the answer; None where nothing was asked.

        Args:
            step_us: of the plan, as its file is written.
        """
        if self._answer is None or self._asked is None:
            return None
        question, settings, planned = self._asked
        step = {name: i for i, name in enumerate(planned.rewritten.planned_order)}
        found = self._answer.result()
        return found.preview(question, _as_planned(planned, settings), step, step_us)


def _look_there(_: None, task: tuple[bool, Question]) -> Found:
    """`_looked_at`, as a call to another process, which counts work where this one does."""
    is_counted, question = task
    with clock.counting(is_asked=is_counted):
        return _looked_at(question)


def _best_order(
    prepared: Prepared, settings: Settings, orders: Sequence[BaseOrder], *, time_limit_s: float
) -> BaseOrder:
    """The order that a race finds best half way down to what may be possible."""
    middle = (prepared.baseline.peak_bytes + min(base.least_bound_bytes for base in orders)) // 2
    problems = [formulate_in(prepared, base.order, settings, middle).problem for base in orders]
    raced = race(problems, time_limit_s=time_limit_s, patience=begin(ANSWERING.preview_worth_per_s))
    return orders[raced[0].index]


def _limit_s(prepared: Prepared) -> float:
    """How long to look at other budgets, beside all that the request's time limit is for."""
    points_s = (
        ANSWERING.point_s_per_op * len(prepared.graph.operations) * len(ANSWERING.preview_shares)
    )
    return min(
        ANSWERING.preview_most * prepared.request.limits.time_limit_s,
        max(ANSWERING.preview_s, points_s),
    )


def _as_it_is(needed: int, base_us: float) -> Point:
    """The model unchanged: within its own peak it costs nothing."""
    plan = PointPlan(peak_bytes=needed, time_us=base_us, engine="none", order=1)
    return Point(capacity_bytes=needed, plan=plan, bound_us=base_us)


def _as_planned(planned: Planned, settings: Settings) -> Point:
    """The plan, at its budget."""
    problem, solved = planned.formulation.problem, planned.solved
    assert solved.candidate is not None
    plan = point_plan(solved.candidate, engine=solved.engine, order=0)
    whole = problem.capacity_bytes >= settings.budget_bytes  # else the bound is of a lower capacity
    return Point(
        capacity_bytes=settings.budget_bytes,
        plan=replace(plan, peak_bytes=planned.timeline.peak_bytes + settings.reserve_bytes),
        bound_us=solved.bound_us if whole else problem.base_duration_us,
    )


def _point(question: Question, budget: int, *, time_limit_s: float) -> Point:
    """A short search at one budget."""
    solved = solve(
        replace(question.problem, capacity_bytes=budget),
        SearchSettings(
            limit_s=time_limit_s,
            seed=question.seed,
            workers=question.workers,
            thorough=False,
            patience=begin(ANSWERING.preview_worth_per_s),
        ),
    )
    return point_of(solved, budget)


def _prices(problem: Problem, *, time_limit_s: float) -> tuple[tuple[str, float], ...] | None:
    """Prices of the bound at the plan's own capacity, by node; None where time ran out."""
    found = shadow_prices(problem, time_limit_s=time_limit_s)
    if found is None:
        return None
    return tuple(
        (problem.ops[op].name, price) for op, price in found.us_per_byte.items() if price > 0
    )
