"""Reorder the actions of an accepted plan to pin them with fewer nodes."""

from __future__ import annotations

from collections.abc import Sequence

from planner.fit.demands import demands_of
from planner.fit.looser import looser_order, pinned_file
from planner.graph.model import OpId, Role
from planner.pipeline.solve.fitting import fitted_plan, in_order
from planner.pipeline.solve.orders import Settings
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.policy import POLICY
from planner.runtime.memory.missed import missed_bytes
from planner.runtime.optimizers.fusion_pins import TakenError

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
    return found if found.holds >= planned.holds and not found.over_bytes else None


def _missed_us(planned: Planned, order: Sequence[OpId]) -> float:
    """Predict the time of an order's cache misses, without copies; 0 if the cache was not measured.

    See `planner.pipeline.record.rewritten_times`.
    """
    cache, graph = planned.prepared.cache, planned.graph
    if cache is None:
        return 0.0
    missed = missed_bytes(graph, order, cache_bytes=cache.bytes)
    return cache.added_us(sum(missed[op.id] for op in graph.operations if op.role not in _COPIES))
