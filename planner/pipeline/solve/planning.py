"""Planning a prepared model: base orders, solve, lower, and check against the rewritten graph.

A plan is accepted only if the rewritten model, read back and analysed like any other, stays within
the budget. If the budget bounds the bytes held, a device's arena must too, with fragmentation, as
predicted by replaying its allocator. If the arena does not, `planner.fit` looks for an order of the
same actions that it has room for. If there is none, the problem is solved again with a lower
capacity, in the base order that then promises the least time. If no plan's arena fits, the plan
with the least peak is tried last, and the error names a budget that holds it. If the budget bounds
live bytes, the arena is as large as the plan needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from planner import clock
from planner.errors import InfeasibleBudgetError
from planner.formulate import Formulation
from planner.graph.model import TensorId
from planner.graph.reasons import WhyOnce, WhyStay
from planner.pipeline.prepare.prepared import Prepared, Progress, silent
from planner.pipeline.solve.fitting import with_room
from planner.pipeline.solve.least_plan import NoPlan, least_peaks, least_plan
from planner.pipeline.solve.orders import (
    BaseOrder,
    Settings,
    base_orders,
    formulate_in,
    least_possible_peak,
    one_of_each_first,
    with_pins,
)
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.policy import POLICY
from planner.pipeline.solve.trying import TrialSearch
from planner.plan.problem import Problem
from planner.plan.solved import Solved
from planner.portfolio.race import Entrant, race
from planner.portfolio.table import POLICY as PORTFOLIO
from planner.runtime.optimizers.fusion_pins import TakenError
from planner.search.stop import Patience


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Resources of a search besides its time, and knowledge for later rounds of it.

    Attributes:
        keep_on_interrupt: Ctrl-C ends the search, and the best plan so far is kept.
        measured_us: times of nodes that a lever measured.
        rough, best: rough plans, and the fastest results of longer searches, by problem.
        rooms: the capacities that pins left, by problem.
        unreached: orders, as problems, for which the last races had no time.
        until: the end of the time for further, longer searches; 0 if none follows.
    """

    progress: Progress = silent
    keep_on_interrupt: bool = False
    measured_us: dict[Any, float] = field(default_factory=dict)
    rough: dict[Problem, Solved] = field(default_factory=dict)
    best: dict[Problem, Solved] = field(default_factory=dict)
    rooms: dict[Problem, int] = field(default_factory=dict)
    unreached: set[Problem] = field(default_factory=set)
    until: float = 0.0


def make_plan(
    prepared: Prepared,
    settings: Settings,
    means: Means,
    *,
    orders: tuple[BaseOrder, ...] = (),
) -> Planned:
    """Solve in several base orders, lower, and check.

    If the arena does not fit, solve again at a lower capacity. If ONNX Runtime's optimizers remove
    the plan's nodes however they are pinned, repeat everything without the copies that make this
    possible.

    Args:
        orders: the base orders; if empty, they are searched for.

    Raises:
        InfeasibleBudgetError: no plan fits; it has the least peak found and its largest tensors.
        KeyboardInterrupt: on Ctrl-C, unless it is kept, or no plan was accepted yet.
    """
    deadline = clock.now() + settings.time_limit_s
    kept: list[Planned] = []
    course = _Course(given=orders)
    while True:
        try:
            keep = kept if means.keep_on_interrupt else None
            search = _search(prepared, settings, means, course, keep)
            try:
                search.solve_all()
            except TakenError:
                course.few = search.promising(POLICY.again_orders)
                raise
            return _accepted(search, until=means.until)
        except KeyboardInterrupt:
            if not kept:
                raise
            means.progress("interrupted: the best plan so far is kept")
            return kept[-1].interrupted()
        except InfeasibleBudgetError:
            if not course.few:
                raise
            course.few = ()
            settings = _for_the_rest(settings, deadline)
        except TakenError as error:
            kept.clear()
            prepared = _barred(prepared, error)
            means.progress(f"again: {error}")
            settings = _for_the_rest(settings, deadline)


def refined(planned: Planned, settings: Settings, means: Means) -> Planned:
    """Search on from a plan, in its base order and for its model; return the better plan.

    Raises:
        KeyboardInterrupt: on Ctrl-C.
    """
    base, began = planned.base, clock.now()
    whole = formulate_in(planned.prepared, base.order, settings, settings.budget_bytes)
    search = TrialSearch(
        prepared=planned.prepared,
        settings=settings,
        progress=means.progress,
        forms={base: whole},
        best=means.best,
        rooms=means.rooms,
        raced={base: planned.searched},
        kept=None,
        patience=Patience(since=began, per_s=POLICY.worth_per_s),
        deadline=began + settings.time_limit_s,
        accepted=planned,
    )
    with suppress(TakenError):
        search.refine()
    assert search.accepted is not None
    return replace(search.accepted, orders=planned.orders)


@dataclass(slots=True)
class _Course:
    """State that a repeated search takes over from the one before.

    Attributes:
        given: the base orders; empty if they are to be searched for.
        orders: all of them, with the times of their pins; empty until these are known.
        few: the most promising of them, for the repeated search; empty for all.
    """

    given: tuple[BaseOrder, ...]
    orders: tuple[BaseOrder, ...] = ()
    few: tuple[BaseOrder, ...] = ()


def _for_the_rest(settings: Settings, deadline: float) -> Settings:
    """Return the settings of a repeated search: the time left, or some beyond the limit."""
    least_s = POLICY.late * settings.time_limit_s
    return replace(settings, time_limit_s=max(deadline - clock.now(), least_s))


def _barred(prepared: Prepared, error: TakenError) -> Prepared:
    """Bar recomputes and swaps after ONNX Runtime's optimizers removed nodes.

    The first time, nodes whose copies were removed are never recomputed, and nothing around removed
    nodes of the model's own, now parts of fused nodes, is moved. The second time, no reader of a
    copied tensor is recomputed.

    Raises:
        TakenError: all of this is so already.
    """
    graph = prepared.graph
    tensors, operations = graph.tensors, graph.operations
    copied = {t.id for t in tensors if t.name in error.copied}
    stay: set[TensorId] = set()
    for op in operations:
        if op.name in error.nodes:
            group = [op, *(operations[c] for t in op.outputs for c in tensors[t].consumers)]
            stay |= {t for member in group for t in (*member.inputs, *member.outputs)}
    made_by = {p for t in copied | stay if (p := tensors[t].producer) is not None}
    once = {op for op in made_by if operations[op].barred is None}
    stay = {t for t in stay if tensors[t].barred is None}
    if not once and not stay:
        stay = {t for t in copied if tensors[t].barred is None}
        once = {c for t in copied for c in tensors[t].consumers if operations[c].barred is None}
    if not once and not stay:
        raise error
    barred = dict.fromkeys(stay, WhyStay.TAKEN), dict.fromkeys(once, WhyOnce.TAKEN)
    return replace(prepared, graph=graph.with_bars(*barred))


def _search(
    prepared: Prepared,
    settings: Settings,
    means: Means,
    course: _Course,
    kept: list[Planned] | None,
) -> TrialSearch:
    """Set a search up, with base orders found and raced; it puts each better plan into `kept`, if given.

    Args:
        course: knowledge of the base orders, which is extended.
    """
    start, orders_s, progress = clock.now(), 0.1 * settings.time_limit_s, means.progress
    if not course.orders:
        orders = course.given
        if not orders:
            progress("searching for base orders")
            room = settings.room_bytes
            orders = base_orders(prepared, time_limit_s=orders_s, room_bytes=room)
        until = start + orders_s
        course.orders = with_pins(prepared, one_of_each_first(orders), until=until)
    orders = course.few or course.orders
    room = settings.budget_bytes
    forms = {base: formulate_in(prepared, base.order, settings, room) for base in orders}
    since = start if settings.since is None else settings.since
    deadline, patience = (
        start + settings.time_limit_s,
        Patience(since=since, per_s=POLICY.worth_per_s),
    )
    return TrialSearch(
        prepared=prepared,
        settings=settings,
        progress=progress,
        forms=forms,
        best=means.best,
        rooms=means.rooms,
        kept=kept,
        raced=_race(forms, deadline, means, patience),
        patience=patience,
        deadline=deadline,
    )


def _accepted(search: TrialSearch, *, until: float) -> Planned:
    """Return the plan that a search accepted, or the one with the least peak.

    Args:
        until: the end of the time for longer searches; 0 if none follows.

    Raises:
        InfeasibleBudgetError: neither is within the budget.
    """
    prepared, settings, forms = search.prepared, search.settings, search.forms
    planned = search.accepted
    if planned is not None:
        planned, _ = with_room(planned, settings)
    if planned is not None and planned.holds:
        return planned
    assert search.least is not None
    # live bytes that fit have a plan nearby: search as for the plan that an error names
    now = clock.now()
    is_late = now > search.deadline and planned is None
    goes_on = is_late and now < until
    if goes_on:  # unless no search can find one
        goes_on = least_possible_peak(prepared) + settings.reserve_bytes <= settings.budget_bytes
    none = NoPlan(held_bytes=search.least_held_bytes, is_late=is_late, is_last=not goes_on)
    found = least_peaks(prepared, settings, search.least, forms, none)
    return least_plan(prepared, settings, found, tuple(forms), none)


def _race(
    forms: Mapping[BaseOrder, Formulation],
    deadline: float,
    means: Means,
    patience: Patience,
) -> dict[BaseOrder, Solved | None]:
    """Return the orders in which a plan may fit, best first, each with a short search's result.

    Orders that were raced before keep their rough plans, and the time goes to the others.
    """
    orders = list(forms)
    done = 0

    def begins(index: int) -> None:
        nonlocal done
        done += 1
        means.progress(f"comparing base orders ({done}): {orders[index].name}")

    left_s = deadline - clock.now()
    problems = [forms[base].problem for base in orders]
    runners = race(
        [
            Entrant(problem=problem, pins_us=base.pins_us, rough=means.rough.get(problem))
            for base, problem in zip(orders, problems, strict=True)
        ],
        time_limit_s=PORTFOLIO.race.share * left_s,
        patience=patience,
        progress=begins,
    )
    for runner in runners:
        rough, problem = runner.rough, problems[runner.index]
        if rough is not None and (rough.candidate is not None or rough.is_impossible):
            means.rough[problem] = rough  # with more time, another one may be found
        if not (runner.is_reached or runner.is_impossible):
            means.unreached.add(problem)
    return {orders[r.index]: r.solved for r in runners if not r.is_impossible}
