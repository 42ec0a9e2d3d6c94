"""Predict the bytes that a device holds for a model, by replaying its allocator with the target's
rules."""

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
    """Return a run's demand on a target's capped arena.

    On the CPU, inputs and initializers lie outside of it, and the known temporary bytes of kernels
    are included.
    """
    if target.is_arena:
        return device_demand(graph, order)
    return demand_under_cap(graph, order, threads=most_threads())


def arena_room(graph: TrainingGraph, budget_bytes: int, target: Target) -> int:
    """Return the bytes of a budget that a target's arena may take: all, or all but the bytes outside
    of it."""
    return budget_bytes if target.is_arena else arena_cap(graph, budget_bytes)


def device_forecast(
    graph: TrainingGraph,
    order: Sequence[OpId],
    target: Target,
    memory: Memory = "default",
    arena: Arena | None = None,
) -> ArenaForecast:
    """Predict the bytes of the device over two runs: feeds, initializers and outputs included.

    Kernels' workspace is not included.

    Args:
        memory: the session options, on a target whose memory is an arena.
        arena: the arena of recommended sessions; None for one that grows by each request.
    """
    found = backend_of(target).forecast(graph, order, memory, arena)
    return ArenaForecast(
        options=memory, in_use_bytes=found.in_use_bytes, held_bytes=found.peak_bytes
    )
