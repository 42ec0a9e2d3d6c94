"""An accepted plan, in an order of the same actions that fewer nodes have to pin."""

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
    """The same plan, pinned by fewer nodes; as it was where none can go, or where that is not worth the
    wait.

    Args:
        planned: accepted, and the last of all.
    """
    graph = planned.graph
    if settings.order_target != "default" or graph.shapes_follow or planned.is_ordered:
        return planned  # nothing is pinned; or what pins runs elsewhere than it is visited
    nodes = len(graph.operations)
    gain_us = POLICY.pins_can_go * planned.rewritten.anchors * planned.prepared.pin_us
    base_us = planned.formulation.problem.base_duration_us
    wait_s = POLICY.looser_s + POLICY.written_s_per_node * nodes
    if nodes > POLICY.quick_nodes and gain_us <= POLICY.worth_per_s * wait_s * base_us:
        return planned
    return _looser(planned, settings) or planned


def _looser(planned: Planned, settings: Settings) -> Planned | None:
    """The plan in the order in which it runs without some of what pins it; None where that is no
    better."""
    graph, rewritten = planned.graph, planned.rewritten
    file = pinned_file(graph, planned.order)
    if not file.pins:
        return None
    place = {op: i for i, op in enumerate(planned.order)}
    as_it_is_us = _missed_us(planned, planned.order)

    def cost_us(order: Sequence[int], pins: int) -> float:
        # what caches seem to save is no gain: of many orders the one that seems best is overrated
        missed_us = max(as_it_is_us, _missed_us(planned, [OpId(op) for op in order]))
        return missed_us + planned.pins_us * pins / max(1, rewritten.anchors)

    order, fewer = looser_order(
        file,
        demands_of(graph, planned.order, place, rewritten.like, planned.prepared.target),
        planned.room_bytes if planned.first_region_bytes is not None else None,
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
        if found is not None and planned.has_room and not found.has_room:
            found, _ = fitted_plan(found, settings, time_limit_s=POLICY.looser_fit_s)
    except TakenError:
        return None
    if found is None:
        return None
    more_us = max(0.0, _missed_us(found, found.order) - as_it_is_us)
    if found.pins_us + more_us >= planned.pins_us:
        return None
    return found if found.has_room >= planned.has_room and not found.over_bytes else None


def _missed_us(planned: Planned, order: Sequence[OpId]) -> float:
    """What an order takes for what the processor's cache does not hold, copies apart, as
    `planner.pipeline.record.rewritten_times` has it; 0 where that was not measured."""
    cache, graph = planned.prepared.cache, planned.graph
    if cache is None:
        return 0.0
    missed = missed_bytes(graph, order, cache_bytes=cache.bytes)
    return cache.added_us(sum(missed[op.id] for op in graph.operations if op.role not in _COPIES))
