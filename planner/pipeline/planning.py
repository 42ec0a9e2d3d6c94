"""Planning a prepared model: base orders, solve, lower, and check against the rewritten graph.

The plan is accepted only when the rewritten model, read back and analysed like any other, stays
within the budget, and so does ONNX Runtime's arena, fragmentation and kernels' workspace included,
as predicted by replaying its allocator. Where it does not, the capacity is lowered and the problem
solved again. Where no plan's arena fits but some plan's live bytes do, that plan is taken, and
`arena_excess_bytes` says what the arena needs on top.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.errors import InfeasibleBudgetError
from planner.formulate import Formulation, formulate
from planner.graph.liveness import Timeline
from planner.graph.model import OpId, TrainingGraph
from planner.graph.schedule import default_order, file_order, priority_order
from planner.lower.rewrite import Rewritten, rewrite
from planner.plan.cuts import least_peak_bound
from planner.plan.order import improve_order, list_schedule, peak_of, reorder
from planner.plan.problem import Problem
from planner.plan.solve import Solved, least_peak, solve
from planner.pipeline.prepare import Prepared, Progress, analysed_graph, full_timeline
from planner.units import format_both, format_bytes

GRANULARITY_BYTES = 256
"""ONNX Runtime's arena rounds every buffer up to this (bfc_arena.h, `kMinAllocationSize`)."""

_MAX_ATTEMPTS = 8
_SHARE = 0.5  # of the time that is left, for each attempt
_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseOrder:
    """A base order by name, its peak, and no plan's peak in it can be below `least_bound_bytes`."""

    name: str
    order: tuple[OpId, ...]
    peak_bytes: int
    least_bound_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user asked for, parsed. Bandwidths of 0 forbid swapping."""

    budget_bytes: int
    reserve_bytes: int = 0
    allow_recompute: bool = True
    swap_out_bytes_per_s: float = 0.0
    swap_in_bytes_per_s: float = 0.0
    order_target: str = "default"
    time_limit_s: float = 60.0
    seed: int = 0
    workers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An accepted plan: the solution, and the rewritten model as read back."""

    formulation: Formulation
    solved: Solved
    base: BaseOrder
    rewritten: Rewritten
    graph: TrainingGraph
    order: tuple[OpId, ...]
    timeline: Timeline
    orders: tuple[BaseOrder, ...]
    arena_excess_bytes: int


def base_orders(prepared: Prepared, *, time_limit_s: float) -> tuple[BaseOrder, ...]:
    """Candidate base orders, least peak first; ONNX Runtime's own is always among them."""
    deadline = time.monotonic() + time_limit_s
    whole = formulate(
        prepared.graph,
        prepared.order,
        prepared.duration_us,
        capacity_bytes=_NO_LIMIT,
        workspace_bytes=prepared.workspace_bytes,
    )
    problem = whole.problem
    place = {op: i for i, op in enumerate(whole.ops)}
    in_file = tuple(place[op] for op in file_order(prepared.graph) if op in place)
    rank = [0] * len(in_file)
    for i, op in enumerate(in_file):
        rank[op] = i
    plain = tuple(range(len(in_file)))
    starts = {
        "default": plain,
        "file": in_file,
        "eager": list_schedule(problem, rank),
        "eager default": list_schedule(problem, plain),
    }

    def late() -> bool:
        return time.monotonic() > deadline

    found: dict[tuple[int, ...], str] = {}
    for name, start in starts.items():
        found.setdefault(start, name)
    for name, start in starts.items():
        if not late():
            found.setdefault(improve_order(problem, start, out_of_time=late), f"{name}, moved")
    orders = [
        BaseOrder(
            name=name,
            order=tuple(whole.ops[i] for i in order),
            peak_bytes=peak_of(problem, order),
            least_bound_bytes=least_peak_bound(reorder(problem, order))[0],
        )
        for order, name in found.items()
    ]
    return tuple(sorted(orders, key=lambda o: (o.peak_bytes, o.least_bound_bytes)))


def make_plan(prepared: Prepared, settings: Settings, progress: Progress) -> Planned:
    """Solve, lower and check.

    Raises:
        InfeasibleBudgetError: no plan fits, with the least peak found and what binds it.
    """
    start = time.monotonic()
    progress("searching for base orders")
    orders = base_orders(prepared, time_limit_s=settings.time_limit_s * 0.1)
    capacity = settings.budget_bytes
    accepted: Planned | None = None
    for attempt in range(_MAX_ATTEMPTS):
        left = settings.time_limit_s - (time.monotonic() - start)
        if accepted is not None and left < settings.time_limit_s * 0.05:
            break
        chosen = _promising(orders, capacity)
        forms = [_formulate(prepared, base, settings, capacity) for base in chosen]
        progress("solving" if not attempt else f"solving again at {format_bytes(capacity)}")
        solved = solve(
            [f.problem for f in forms],
            time_limit_s=max(1.0, left * _SHARE),
            seed=settings.seed,
            workers=settings.workers,
            progress=lambda text: progress(f"solving: {text}"),
        )
        if solved.candidate is None:
            if accepted is None:
                raise _infeasible(prepared, settings, orders, forms, solved)
            break
        planned = _lower(prepared, settings, chosen, forms, solved, orders)
        over = planned.timeline.peak_bytes - (settings.budget_bytes - settings.reserve_bytes)
        if over <= 0:
            if planned.arena_excess_bytes == 0:
                return planned
            if accepted is None or planned.arena_excess_bytes < accepted.arena_excess_bytes:
                accepted = planned
        capacity -= max(over, planned.arena_excess_bytes * 2 // 3, GRANULARITY_BYTES)
    if accepted is None:
        raise _infeasible(prepared, settings, orders, forms, solved)
    return accepted


def _promising(orders: Sequence[BaseOrder], capacity: int) -> list[BaseOrder]:
    """Up to three orders worth solving: the least peak, the least bound, ONNX Runtime's own."""
    by_bound = min(orders, key=lambda o: (o.least_bound_bytes, o.peak_bytes))
    default = next(o for o in orders if o.name == "default")
    unique = {o.order: o for o in (orders[0], by_bound, default)}
    possible = [o for o in unique.values() if o.least_bound_bytes <= capacity]
    return possible or [by_bound]


def _formulate(
    prepared: Prepared, base: BaseOrder, settings: Settings, capacity: int
) -> Formulation:
    return formulate(
        prepared.graph,
        base.order,
        prepared.duration_us,
        capacity_bytes=capacity,
        reserve_bytes=settings.reserve_bytes,
        swap_out_bytes_per_s=settings.swap_out_bytes_per_s,
        swap_in_bytes_per_s=settings.swap_in_bytes_per_s,
        allow_recompute=settings.allow_recompute,
        workspace_bytes=prepared.workspace_bytes,
        granularity=GRANULARITY_BYTES,
    )


def _lower(
    prepared: Prepared,
    settings: Settings,
    chosen: Sequence[BaseOrder],
    forms: Sequence[Formulation],
    solved: Solved,
    orders: tuple[BaseOrder, ...],
) -> Planned:
    from planner.runtime.arena import least_cap
    from planner.runtime.cap import arena_cap
    from planner.runtime.settle import settle

    assert solved.candidate is not None
    form = forms[solved.order]
    actions = solved.candidate.actions

    def lower(pinned: frozenset[str]) -> Rewritten:
        return rewrite(
            prepared.model,
            prepared.graph,
            form,
            actions,
            order=settings.order_target,
            pinned=pinned,
        )

    rewritten = settle(lower, prepared.loaded, enabled=prepared.ort_optimized)
    known = {new: prepared.types[old] for new, old in rewritten.like.items()}
    graph = analysed_graph(
        rewritten.model, prepared.loaded.dims, known={**prepared.types, **known}
    )
    order = default_order(graph)
    if settings.order_target == "priority":
        order = priority_order(graph)
    names = tuple(graph.operations[op].name for op in order)
    if settings.order_target == "default" and names != rewritten.planned_order:
        raise AssertionError("the rewritten file's default order is not the planned one")
    rewritten = replace(rewritten, planned_order=names)
    budget = settings.budget_bytes - settings.reserve_bytes
    return Planned(
        formulation=form,
        solved=solved,
        base=chosen[solved.order],
        rewritten=rewritten,
        graph=graph,
        order=order,
        timeline=full_timeline(graph, order, prepared.device),
        orders=orders,
        arena_excess_bytes=max(0, least_cap(graph, order) - arena_cap(graph, budget)),
    )


def _infeasible(
    prepared: Prepared,
    settings: Settings,
    orders: Sequence[BaseOrder],
    forms: Sequence[Formulation],
    solved: Solved,
) -> InfeasibleBudgetError:
    """The error with the least peak found, a bound, and the tensors that bind."""
    bound = min(o.least_bound_bytes for o in orders) + settings.reserve_bytes
    form = forms[solved.least_order]
    best, _ = least_peak(
        form.problem, time_limit_s=min(20.0, settings.time_limit_s), start=solved.least
    )
    step = best.replay.peak_action
    sizes = form.problem.tensors
    resident = [
        (sizes[t].name, sizes[t].bytes) for t, b, e in best.replay.copies if b <= step < e
    ]
    persistent = [(t.name, t.bytes) for t in prepared.graph.tensors if t.is_persistent]
    binding = tuple(sorted([*resident, *persistent], key=lambda item: -item[1])[:10])
    return InfeasibleBudgetError(
        f"no plan fits {format_both(settings.budget_bytes)}: the least peak found is "
        f"{format_both(best.peak_bytes)} (no plan in any order tried can be below "
        f"{format_bytes(bound)})",
        least_peak_bytes=best.peak_bytes,
        bound_bytes=bound,
        binding=binding,
    )


def problem_of(prepared: Prepared, base: BaseOrder, settings: Settings) -> Problem:
    """The problem in one base order, at the budget."""
    return _formulate(prepared, base, settings, settings.budget_bytes).problem
