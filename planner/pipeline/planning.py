"""Planning a prepared model: base orders, solve, lower, and check against the rewritten graph.

The plan is accepted only when the rewritten model, read back and analysed like any other, stays
within the budget, and so does ONNX Runtime's arena, fragmentation and kernels' workspace included,
as predicted by replaying its allocator. Where it does not, the capacity is lowered and the problem
solved again. Where no plan's arena fits but some plan's live bytes do, that plan is taken, and its
assumptions say so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.formulate import Formulation
from planner.graph.model import TensorId
from planner.graph.reasons import WhyOnce, WhyStay
from planner.pipeline.least_plan import LeastPeak, least_alone, least_of, least_plan
from planner.pipeline.orders import (
    BaseOrder,
    Settings,
    base_orders,
    formulate_in,
    least_bound_order,
)
from planner.pipeline.planned import Planned, lowered_plan
from planner.pipeline.prepare import Prepared, Progress
from planner.pipeline.serial_first import solve
from planner.plan.solved import Solved
from planner.portfolio.race import RACE, race
from planner.runtime.settle import TakenError
from planner.search.fast.warm import warm_up
from planner.search.patience import Patience
from planner.units import format_bytes

_SHRINK = (1.0, 0.98, 0.965, 0.95, 0.935, 0.92, 0.9, 0.87, 0.83, 0.78)
"""Capacities to try, as shares of the budget, until ONNX Runtime's arena fits the budget too."""

_THOROUGH = 2  # orders solved at length

_MIN_SEARCH_S = 2.0

_VARIETY = 4  # base orders to try at each lower capacity
_MAX_SLOWER = 1.25  # how much time a fitting arena may cost
_UNTIL = 0.85  # share of the time after which no lower capacity is tried, if there is a plan
_DEAR = 1.5
_WORTH_PER_S = 1e-4
"""A second of waiting must promise so much of a step's time: after ten seconds, 0.1% is let go."""

_LATE = 0.1  # share of the time that a search gets beyond its end, while nothing is accepted


def make_plan(
    prepared: Prepared,
    settings: Settings,
    progress: Progress,
    *,
    orders: tuple[BaseOrder, ...] = (),
    keep_on_interrupt: bool = False,
) -> Planned:
    """Solve in several base orders, lower, and check; then again at a lower capacity, if the arena
    does not fit. Where ONNX Runtime's optimizers take nodes away whatever is done, all of it again
    without the copies that allow it.

    Args:
        orders: the base orders; none given, they are searched for.
        keep_on_interrupt: Ctrl-C ends the search, and the best plan so far is returned.

    Raises:
        InfeasibleBudgetError: no plan fits, with the least peak found and what binds it.
        KeyboardInterrupt: on Ctrl-C, unless it is kept, or no plan was accepted yet.
    """
    deadline = time.monotonic() + settings.time_limit_s
    kept: list[Planned] = []
    while True:
        try:
            keep = kept if keep_on_interrupt else None
            return _planned(prepared, settings, progress, orders, keep)
        except KeyboardInterrupt:
            if not kept:
                raise
            progress("interrupted: the best plan so far is kept")
            return replace(kept[-1], solved=replace(kept[-1].solved, is_interrupted=True))
        except TakenError as error:
            kept.clear()
            prepared = _barred(prepared, error)
            progress(f"again: {error}")
            least_s = _LATE * settings.time_limit_s
            left_s = deadline - time.monotonic()
            settings = replace(settings, time_limit_s=max(left_s, least_s))


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


def _planned(
    prepared: Prepared,
    settings: Settings,
    progress: Progress,
    orders: tuple[BaseOrder, ...],
    kept: list[Planned] | None,
) -> Planned:
    """`make_plan` without what starts it again; each better plan is added to `kept`, if there is such."""
    progress("compiling the search (the first time only)")
    for overlap in {False, settings.overlap}:
        warm_up(overlap=overlap)
    start = time.monotonic()
    deadline = start + settings.time_limit_s
    search_until = start + _UNTIL * settings.time_limit_s
    if not orders:
        progress("searching for base orders")
        orders = base_orders(prepared, time_limit_s=settings.time_limit_s * 0.1)
    room = settings.budget_bytes
    accepted: Planned | None = None
    least: LeastPeak | None = None
    longest_s = float("inf")  # no search takes longer
    extra_us: dict[str, float] = {}  # what each order's last plan added
    first_us, left = (
        float("inf"),
        1.0,
    )  # what the first plan adds, and its share of what the race's did
    has_plan = False  # at the last capacity, accepted or not
    forms = {base: formulate_in(prepared, base.order, settings, room) for base in orders}
    patience = Patience(since=start, per_s=_WORTH_PER_S)
    raced = _race(forms, deadline, progress, patience)
    for base, solved in raced.items():
        if solved is not None and solved.candidate is not None:
            extra_us[base.name] = solved.candidate.time_us - forms[base].problem.base_duration_us
    for attempt, shrink in enumerate(_SHRINK):
        capacity = int(room * shrink)
        chosen = _cheap(orders, capacity, extra_us) if attempt else list(raced)[:_THOROUGH]
        if accepted is not None and (time.monotonic() > search_until or not chosen):
            break
        is_late = time.monotonic() > deadline
        if is_late and attempt > 1:
            if not has_plan:
                break
            if attempt % 2:
                continue  # the few bytes of the anchors are all that is missing: larger steps
        for number, base in enumerate(chosen or [least_bound_order(orders)]):
            if number and time.monotonic() > deadline:
                break
            if number and not _promises(accepted, first_us, left, extra_us, base, patience):
                continue
            has_plan = has_plan and bool(number)
            left_s = deadline - time.monotonic()
            share = max(1.0, left_s * (0.5 if attempt == 0 else 0.3) / max(1, len(chosen) - number))
            share = min(share, longest_s)
            if is_late and accepted is None:
                share = max(share, _LATE * settings.time_limit_s)
            form = (
                formulate_in(prepared, base.order, settings, capacity) if attempt else forms[base]
            )
            progress(f"solving for {format_bytes(capacity)}, order: {base.name}")
            begun = time.monotonic()
            solved = solve(
                form.problem,
                settings.search(share, patience=patience, keep_on_interrupt=kept == []),
                start=None if attempt else raced.get(base),
                progress=lambda text: progress(f"solving: {text}"),
            )
            if not attempt and not number:  # what ended early is good: no other gets much longer
                longest_s = 2 * max(_MIN_SEARCH_S, time.monotonic() - begun)
            if least is None or solved.least.peak_bytes < least.candidate.peak_bytes:
                least = LeastPeak(base, form, solved.least)
            if solved.candidate is None:
                continue
            has_plan = True
            before_us = extra_us.get(base.name, 0.0)
            extra_us[base.name] = solved.candidate.time_us - form.problem.base_duration_us
            if not attempt and not number:
                first_us = extra_us[base.name]
                left = min(1.0, first_us / before_us) if before_us > 0 else 1.0
            is_interrupted = solved.is_interrupted
            try:
                accepted = _accept(accepted, prepared, settings, base, form, solved, orders)
            except KeyboardInterrupt:
                if kept != []:
                    raise
                is_interrupted = True  # the first plan is lowered all the same
                accepted = _accept(accepted, prepared, settings, base, form, solved, orders)
            if kept is not None and accepted is not None:
                kept[:] = [accepted]
            if is_interrupted:
                raise KeyboardInterrupt
        if accepted is not None and accepted.fits_arena and not _is_dear(accepted, extra_us):
            break
        if not raced:
            break  # nothing fits the whole budget, in any order
    if accepted is not None and accepted.fits_arena:
        return _refined(accepted, prepared, settings, deadline, patience, progress)
    if accepted is None:
        assert least is not None
        is_late = time.monotonic() > deadline
        found = [least, least_alone(prepared, settings, orders), *least_of(settings, forms)]
        return least_plan(prepared, settings, found, orders, is_late=is_late)
    return accepted


def _accept(
    accepted: Planned | None,
    prepared: Prepared,
    settings: Settings,
    base: BaseOrder,
    form: Formulation,
    solved: Solved,
    orders: tuple[BaseOrder, ...],
) -> Planned | None:
    """The better one of what is accepted so far and what was solved, lowered."""
    assert solved.candidate is not None
    if solved.candidate.time_us > settings.most_us:
        return accepted
    if accepted is not None and not _could_beat(accepted, solved):
        return accepted
    planned = lowered_plan(prepared, settings, base, form, solved, orders)
    if planned.timeline.peak_bytes > settings.budget_bytes - settings.reserve_bytes:
        return accepted  # the anchors' few bytes: the next capacity leaves room for them
    return planned if accepted is None or _better(planned, accepted) else accepted


def _is_dear(accepted: Planned, extra_us: Mapping[str, float]) -> bool:
    """Whether another order adds so much less that it may be cheaper even at a lower capacity."""
    assert accepted.solved.candidate is not None
    base_us = accepted.formulation.problem.base_duration_us
    added_us = accepted.solved.candidate.time_us - base_us
    return added_us > _DEAR * min(extra_us.values()) + 1e-6 * base_us


def _refined(
    accepted: Planned,
    prepared: Prepared,
    settings: Settings,
    deadline: float,
    patience: Patience,
    progress: Progress,
) -> Planned:
    """The plan whose arena fits, searched on from in the time left: it may come of a short search at
    a lower capacity."""
    left_s = deadline - time.monotonic()
    problem = accepted.formulation.problem
    candidate = accepted.solved.candidate
    assert candidate is not None
    gain_us = candidate.time_us - accepted.solved.bound_us
    is_worth = patience.is_worth(gain_us, problem.base_duration_us)
    if left_s < 1 or accepted.solved.is_tight or not is_worth:
        return accepted
    progress(f"improving the plan for {format_bytes(problem.capacity_bytes)}")
    better = solve(
        problem,
        settings.search(left_s, patience=patience),
        start=accepted.solved,
        progress=lambda text: progress(f"improving: {text}"),
    )
    if better.candidate is None:
        return accepted
    base, orders = accepted.base, accepted.orders
    form = accepted.formulation
    found = _accept(accepted, prepared, settings, base, form, better, orders)
    return found or accepted


def _could_beat(accepted: Planned, solved: Solved) -> bool:
    """A plan whose arena fits is only beaten by a faster one, and no plan by a much slower one."""
    assert solved.candidate is not None and accepted.solved.candidate is not None
    ratio = solved.candidate.time_us / accepted.solved.candidate.time_us
    return ratio < (1.0 if accepted.fits_arena else _MAX_SLOWER)


def _better(planned: Planned, accepted: Planned) -> bool:
    """Fitting the arena first, then time."""
    assert planned.solved.candidate is not None and accepted.solved.candidate is not None
    if planned.fits_arena != accepted.fits_arena:
        return planned.fits_arena
    return planned.solved.candidate.time_us < accepted.solved.candidate.time_us


def _promises(
    accepted: Planned | None,
    first_us: float,
    left: float,
    extra_us: Mapping[str, float],
    base: BaseOrder,
    patience: Patience,
) -> bool:
    """Whether a search in another order is worth the wait: what it added before, it may add again.

    Args:
        first_us: added by the plan of the first search of all; `left` is its share of what the plan of
            the race added, and expected of other orders too.
    """
    if accepted is None or base.name not in extra_us:
        return True
    assert accepted.solved.candidate is not None
    base_us = accepted.formulation.problem.base_duration_us
    if accepted.fits_arena:
        added_us = accepted.solved.candidate.time_us - base_us
        return patience.is_worth(added_us - extra_us[base.name], base_us)
    return patience.is_worth(first_us - left * extra_us[base.name], base_us)


def _race(
    forms: Mapping[BaseOrder, Formulation],
    deadline: float,
    progress: Progress,
    patience: Patience,
) -> dict[BaseOrder, Solved | None]:
    """Orders in which something may fit, the most promising first, each with what a short search
    found in it."""
    orders = list(forms)
    done = 0

    def begins(index: int) -> None:
        nonlocal done
        done += 1
        progress(f"comparing base orders ({done}): {orders[index].name}")

    left_s = deadline - time.monotonic()
    problems = [form.problem for form in forms.values()]
    runners = race(problems, time_limit_s=RACE * left_s, progress=begins, patience=patience)
    return {orders[r.index]: r.solved for r in runners if not r.is_impossible}


def _cheap(
    orders: Sequence[BaseOrder], capacity: int, extra_us: Mapping[str, float]
) -> list[BaseOrder]:
    """For variety: orders that can meet the capacity, the cheapest so far first, then those not tried
    yet; the dear are left out."""
    dear = 2 * min(extra_us.values(), default=0.0)
    possible = [
        o for o in orders if o.least_bound_bytes <= capacity and extra_us.get(o.name, 0.0) <= dear
    ]
    return sorted(possible, key=lambda o: extra_us.get(o.name, dear))[:_VARIETY]
