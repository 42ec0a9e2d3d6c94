"""Planning a prepared model: base orders, solve, lower, and check against the rewritten graph.

The plan is accepted only when the rewritten model, read back and analysed like any other, stays
within the budget, and so does ONNX Runtime's arena, fragmentation and kernels' workspace included,
as predicted by replaying its allocator. Where the arena does not, an order of the same actions is
looked for that it has room for (`planner.fit`). Where there is none, the capacity is lowered and the
problem solved again, in the order that then promises the least time. Where no plan's arena fits, the
plan with the least peak is the last to be tried, and the error names a budget that it is held in; where
the budget is one of live bytes, a plan without room in the arena is taken, and its assumptions say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner import clock
from planner.errors import InfeasibleBudgetError
from planner.formulate import Formulation
from planner.graph.model import TensorId
from planner.graph.reasons import WhyOnce, WhyStay
from planner.pipeline.prepare.prepared import Prepared, Progress
from planner.pipeline.solve.fitting import with_room
from planner.pipeline.solve.least_plan import least_peaks, least_plan
from planner.pipeline.solve.orders import (
    OWN,
    BaseOrder,
    Settings,
    base_orders,
    formulate_in,
    with_pins,
)
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.policy import POLICY
from planner.pipeline.solve.trying import TrialSearch
from planner.pipeline.solve.working_ahead import WorkingAhead, may_work_ahead
from planner.plan.solved import Solved
from planner.portfolio.race import RaceMeans, race
from planner.portfolio.table import POLICY as PORTFOLIO
from planner.processes.workers import Beside
from planner.runtime.optimizers.fusion_pins import TakenError
from planner.search.patience import Patience


def make_plan(
    prepared: Prepared,
    settings: Settings,
    progress: Progress,
    *,
    orders: tuple[BaseOrder, ...] = (),
    keep_on_interrupt: bool = False,
    helper: Beside | None = None,
) -> Planned:
    """Solve in several base orders, lower, and check; then again at a lower capacity, if the arena
    does not fit. Where ONNX Runtime's optimizers take nodes away whatever is done, all of it again
    without the copies that allow it.

    Args:
        orders: the base orders; none given, they are searched for.
        keep_on_interrupt: Ctrl-C ends the search, and the best plan so far is returned.
        helper: where trials are worked on ahead; None: nothing is.

    Raises:
        InfeasibleBudgetError: no plan fits, with the least peak found and what binds it.
        KeyboardInterrupt: on Ctrl-C, unless it is kept, or no plan was accepted yet.
    """
    deadline = clock.now() + settings.time_limit_s
    kept: list[Planned] = []
    course = _Course(given=orders)
    ahead = WorkingAhead(helper if may_work_ahead(settings.workers) else None)
    while True:
        try:
            keep = kept if keep_on_interrupt else None
            search = _search(prepared, settings, progress, course, keep, ahead)
            try:
                search.solve_all()
            except TakenError:
                course.few = search.promising(POLICY.again_orders)
                raise
            return _accepted(search)
        except KeyboardInterrupt:
            if not kept:
                raise
            progress("interrupted: the best plan so far is kept")
            return kept[-1].interrupted()
        except InfeasibleBudgetError:
            if not course.few:
                raise
            course.few = ()
            settings = _for_the_rest(settings, deadline)
        except TakenError as error:
            kept.clear()
            prepared = _barred(prepared, error)
            progress(f"again: {error}")
            settings = _for_the_rest(settings, deadline)
        finally:
            ahead.end()


@dataclass(slots=True)
class _Course:
    """What one search leaves to the next, where it has to be made again.

    Attributes:
        given: the base orders; none where they are to be searched for.
        orders: all of them, with what pins them; none as long as that is not known.
        few: the most promising of them, which are searched in again; none for all.
    """

    given: tuple[BaseOrder, ...]
    orders: tuple[BaseOrder, ...] = ()
    few: tuple[BaseOrder, ...] = ()


def _for_the_rest(settings: Settings, deadline: float) -> Settings:
    """Settings of a search that is made again, in the time that is left, or some beyond it."""
    least_s = POLICY.late * settings.time_limit_s
    return replace(settings, time_limit_s=max(deadline - clock.now(), least_s))


def _barred(prepared: Prepared, error: TakenError) -> Prepared:
    """The model, with less to recompute and swap: first, nodes whose copies were taken are never
    recomputed, and where nodes of its own were taken, as parts of what is now fused, nothing around
    them is moved; then, nothing is recomputed that reads what was copied.

    Raises:
        TakenError: all of this is so already.
    """
    graph = prepared.graph
    tensors, operations = list(graph.tensors), list(graph.operations)
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
    for op in once:
        operations[op] = replace(operations[op], barred=WhyOnce.TAKEN)
    for tensor in stay:
        tensors[tensor] = replace(tensors[tensor], barred=WhyStay.TAKEN)
    changed = replace(graph, tensors=tuple(tensors), operations=tuple(operations))
    return replace(prepared, graph=changed)


def _search(
    prepared: Prepared,
    settings: Settings,
    progress: Progress,
    course: _Course,
    kept: list[Planned] | None,
    ahead: WorkingAhead,
) -> TrialSearch:
    """The search, once base orders are found and raced; each better plan is put into `kept`, if there is
    such.

    Args:
        course: what is known of the base orders, which is added to.
    """
    start, orders_s = clock.now(), 0.1 * settings.time_limit_s
    if not course.orders:
        orders = course.given
        if not orders:
            progress("searching for base orders")
            room = settings.room_bytes
            orders = base_orders(prepared, time_limit_s=orders_s, room_bytes=room)
        until = start + orders_s
        course.orders = with_pins(prepared, orders, until=until, helper=ahead.process)
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
        kept=kept,
        ahead=ahead,
        raced=_race(forms, deadline, progress, patience, ahead.process),
        patience=patience,
        deadline=deadline,
    )


def _accepted(search: TrialSearch) -> Planned:
    """The plan that a search came to, or the one with the least peak.

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
    # where live bytes fit, a plan is near: the one that an error would name is searched for as ever
    is_late = clock.now() > search.deadline and planned is None
    found = least_peaks(prepared, settings, search.least, forms, is_late=is_late)
    held_bytes = search.least_held_bytes
    return least_plan(
        prepared, settings, found, tuple(forms), held_bytes=held_bytes, is_late=is_late
    )


def _race(
    forms: Mapping[BaseOrder, Formulation],
    deadline: float,
    progress: Progress,
    patience: Patience,
    helper: Beside | None,
) -> dict[BaseOrder, Solved | None]:
    """Orders in which something may fit, the most promising first, each with what a short search
    found in it."""
    orders = sorted(forms, key=lambda base: base.name != OWN)
    done = 0

    def begins(index: int) -> None:
        nonlocal done
        done += 1
        progress(f"comparing base orders ({done}): {orders[index].name}")

    left_s = deadline - clock.now()
    problems = [forms[base].problem for base in orders]
    share_s = PORTFOLIO.race.share * left_s
    runners = race(
        problems,
        time_limit_s=share_s,
        pins_us=[order.pins_us for order in orders],
        patience=patience,
        means=RaceMeans(progress=begins, helper=helper),
    )
    return {orders[r.index]: r.solved for r in runners if not r.is_impossible}
