"""Reorder a plan's actions: until a device's arena has room for it, or fewer nodes pin them.

The pool on the CPU has room in any order or in none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner import clock
from planner.fit.demands import demands_of, demands_of_plan, units_of
from planner.fit.looser import looser_order, pinned_file
from planner.fit.search import fit, need_of
from planner.graph.model import OpId, Role
from planner.graph.schedule import with_folded
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.solve.orders import BaseOrder, Settings
from planner.pipeline.solve.planned import Planned, lowered_plan
from planner.pipeline.solve.policy import POLICY
from planner.plan.candidate import Candidate
from planner.plan.problem import Problem
from planner.runtime.memory.missed import missed_bytes
from planner.runtime.optimizers.fusion_pins import TakenError
from planner.simulate.simulate import candidate_of


def fitted_plan(
    planned: Planned, settings: Settings, *, time_limit_s: float
) -> tuple[Planned | None, float]:
    """Find an order of a plan's actions that the arena has room for.

    Returns the lowered plan (None without such an order), and the arena that the plan needs as it
    is, as a multiple of the one at hand.

    Args:
        planned: lowered, without room in the budget's arena.

    Raises:
        TakenError: as for `lowered_plan`.
    """
    deadline = clock.now() + time_limit_s
    need = (planned.needed_bytes or 0) / max(1, planned.room_bytes)
    if planned.is_ordered or not planned.prepared.target.is_arena:
        return None, need
    for turn in range(POLICY.fit_rounds):
        order = _fitting_order(planned, settings, deadline - clock.now(), turn)
        if order is None:
            break
        capacity = planned.formulation.problem.capacity_bytes
        moved = in_order(planned, settings, order, most_bytes=capacity)
        if moved is None:
            break
        planned = moved
        if planned.holds:
            return planned, need
    return None, need


def with_room(planned: Planned, settings: Settings) -> tuple[Planned, int]:
    """Find an order of a plan's actions that the arena has room for, unless the plan already holds.

    Returns the plan, as it is if there is no order, and an estimate of the least budget that would
    hold it.

    Raises:
        TakenError: as for `lowered_plan`.
    """
    if planned.holds:
        return planned, settings.budget_bytes
    fitted, need = fitted_plan(planned, settings, time_limit_s=POLICY.fit_s)
    return fitted or planned, held_in(planned, settings, need)


def held_in(planned: Planned, settings: Settings, need: float) -> int:
    """Estimate the least budget that holds a plan whose need is `need` times the arena."""
    return settings.budget_bytes + max(0, int((need - 1) * planned.room_bytes))


def in_order(
    planned: Planned, settings: Settings, units: Sequence[int], *, most_bytes: int
) -> Planned | None:
    """Lower the same actions in another order; None if they take more time in it.

    Args:
        units: the actions in the other order, by their place in the plan.
        most_bytes: limit of the bytes in use.

    Raises:
        TakenError: as for `lowered_plan`.
    """
    solved, form = planned.solved, planned.formulation
    candidate = candidate_of(form.problem, [solved.found.actions[unit] for unit in units])
    if candidate.time_us > POLICY.fit_slower * solved.found.time_us:
        return None
    if candidate.peak_bytes > most_bytes:
        return None
    moved = replace(solved, candidate=candidate)
    return lowered_plan(planned.prepared, settings, planned.base, form, moved, planned.orders)


def need_of_plan(problem: Problem, plan: Candidate, *, underrated: float = 1.0) -> float:
    """Estimate a plan's need before it is lowered, as a multiple of the arena of the problem's capacity.

    The estimate is usually within 3% of the lowered plan's need, and at least 1.

    Args:
        plan: any plan in the problem's base order.
        underrated: factor by which earlier estimates were too low once those plans were lowered.
    """
    room = (problem.capacity_bytes - problem.fixed_bytes) / underrated
    return need_of(demands_of_plan(problem, plan), int(room))


def need_before_planning(prepared: Prepared, base: BaseOrder) -> float:
    """Estimate the need of a base order without any recompute or swap, as a multiple of its bytes in use.

    A plan in that order fragments the arena at least about as much.
    """
    graph = prepared.graph
    order = with_folded(graph, base.order)
    units = {op: i for i, op in enumerate(order)}
    return need_of(demands_of(graph, order, units, {}, prepared.target))


def _fitting_order(
    planned: Planned, settings: Settings, time_limit_s: float, seed: int
) -> tuple[int, ...] | None:
    graph, rewritten = planned.graph, planned.rewritten
    units = units_of(graph, planned.order, rewritten.action_nodes)
    target = planned.prepared.target
    return fit(
        demands_of(graph, planned.order, units, rewritten.like, target),
        settings.room_bytes,
        time_limit_s=time_limit_s,
        more_in_use_bytes=(
            planned.formulation.problem.capacity_bytes - planned.solved.found.peak_bytes
        ),
        seed=settings.seed + seed,
    )


_COPIES = frozenset({Role.SWAP_OUT, Role.SWAP_IN, Role.PAGE_IN, Role.PAGE_OUT, Role.STORE_TO})


def loosened(planned: Planned, settings: Settings) -> Planned:
    """Drop nodes that pin a plan's order; return it as it is if none can go, or the wait is not worth it.

    Args:
        planned: accepted, and the final plan.
    """
    graph = planned.graph
    if settings.order_target != "default" or graph.shapes_follow or planned.is_ordered:
        return planned  # nothing is pinned, or anchors run elsewhere than they are visited
    nodes = len(graph.operations)
    gain_us = POLICY.pins_can_go * planned.rewritten.anchors * planned.prepared.pin_us
    base_us = planned.formulation.problem.base_duration_us
    wait_s = POLICY.looser_s + POLICY.written_s_per_node * nodes
    if nodes > POLICY.quick_nodes and gain_us <= POLICY.worth_per_s * wait_s * base_us:
        return planned
    return _looser(planned, settings) or planned


def _looser(planned: Planned, settings: Settings) -> Planned | None:
    """Reorder the plan to its file's order without some of the pins; None if that is no better."""
    graph, rewritten, target = planned.graph, planned.rewritten, planned.prepared.target
    file = pinned_file(graph, planned.order)
    if not file.pins:
        return None
    place = {op: i for i, op in enumerate(planned.order)}
    as_it_is_us = _missed_us(planned, planned.order)

    def cost_us(order: Sequence[int], pins: int) -> float:
        # predicted cache savings do not count: of many orders, the seemingly best is overrated
        missed_us = max(as_it_is_us, _missed_us(planned, [OpId(op) for op in order]))
        return missed_us + planned.pins_us * pins / max(1, rewritten.anchors)

    order, fewer = looser_order(
        file,
        demands_of(graph, planned.order, place, rewritten.like, target),
        max(planned.room_bytes, planned.needed_bytes or 0) if target.is_arena else None,
        cost_us,
        time_limit_s=POLICY.looser_s,
    )
    if not fewer:
        return None
    step = {graph.operations[op].name: i for i, op in enumerate(order)}
    nodes = rewritten.action_nodes
    units = sorted(range(len(nodes)), key=lambda unit: step[nodes[unit]])
    try:
        found = in_order(planned, settings, units, most_bytes=settings.budget_bytes)
        if found is not None and planned.holds and not found.holds:
            found, _ = fitted_plan(found, settings, time_limit_s=POLICY.looser_fit_s)
    except TakenError:
        return None
    if found is None:
        return None
    more_us = max(0.0, _missed_us(found, found.order) - as_it_is_us)
    if found.pins_us + more_us >= planned.pins_us:
        return None
    return found if found.holds >= planned.holds and found.spare_bytes >= 0 else None


def _missed_us(planned: Planned, order: Sequence[OpId]) -> float:
    """Predict the time of an order's cache misses, without copies; 0 if the cache was not measured.

    See `planner.pipeline.record.modelviews`.
    """
    cache, graph = planned.prepared.cache, planned.graph
    if cache is None:
        return 0.0
    missed = missed_bytes(graph, order, cache_bytes=cache.bytes)
    return cache.added_us(sum(missed[op.id] for op in graph.operations if op.role not in _COPIES))
