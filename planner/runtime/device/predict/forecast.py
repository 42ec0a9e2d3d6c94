"""What a device will hold for a model: its allocator, replayed by the target's own rules."""

from __future__ import annotations

from collections.abc import Sequence

from planner.graph.model import OpId, TrainingGraph
from planner.plan.planfile import Arena
from planner.results import ArenaForecast
from planner.runtime.device.predict.bfc_device import device_demand
from planner.runtime.memory.arena import Demand, arena_cap, demand_under_cap
from planner.runtime.options import Memory, most_threads
from planner.targets import Target
from planner.targets.backend import backend_of


def capped_demand(graph: TrainingGraph, order: Sequence[OpId], target: Target) -> Demand:
    """What a run asks of a capped arena of a target: the CPU's, where inputs and initializers lie outside
    it and kernels take temporary bytes that are known, or the device's."""
    if target.is_arena:
        return device_demand(graph, order)
    return demand_under_cap(graph, order, threads=most_threads())


def arena_room(graph: TrainingGraph, budget_bytes: int, target: Target) -> int:
    """The bytes of a budget that a target's arena may take: all of it, or what lies outside apart."""
    return budget_bytes if target.is_arena else arena_cap(graph, budget_bytes)


def device_forecast(
    graph: TrainingGraph,
    order: Sequence[OpId],
    target: Target,
    memory: Memory = "default",
    arena: Arena | None = None,
) -> ArenaForecast:
    """Bytes of the device over two runs: feeds, initializers and outputs included.

    What kernels take for themselves while they run is not in it.

    Args:
        memory: the session options, on a target whose memory is an arena.
        arena: that recommended sessions have; None for one that grows by what is asked for.
    """
    found = backend_of(target).forecast(graph, order, memory, arena)
    return ArenaForecast(
        options=memory, in_use_bytes=found.in_use_bytes, held_bytes=found.peak_bytes
    )
