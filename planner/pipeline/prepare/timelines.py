"""The memory timeline of a graph with kernels' workspace, and the graph's view for reports."""

from __future__ import annotations

from planner.graph.liveness import LiveTimeline, timeline
from planner.graph.model import OpId, TrainingGraph
from planner.plan.planfile import Arena
from planner.results import ArenaForecast, ModelView
from planner.runtime.options import Memory
from planner.targets import Target


def full_timeline(graph: TrainingGraph, order: tuple[OpId, ...], target: Target) -> LiveTimeline:
    """Compute the timeline including the kernels' workspace, as far as it is known."""
    extra = dict(enumerate(workspace_of(graph, target)))
    return timeline(graph, order, workspace_bytes={OpId(op): size for op, size in extra.items()})


def workspace_of(graph: TrainingGraph, target: Target) -> tuple[int, ...]:
    """Return the workspace bytes of each kernel by OpId: its memory beside its outputs.

    They are known for the CPU's kernels, for one thread (convolutions take 64 KiB more for each
    further one).
    """
    if target.own_memory:
        return (0,) * len(graph.operations)
    from planner.runtime.memory.workspace import workspace

    found = workspace(graph, threads=1)
    return tuple(found[op.id].bytes if op.id in found else 0 for op in graph.operations)


def view_of(
    graph: TrainingGraph,
    line: LiveTimeline,
    duration_us: tuple[float, ...],
    target: Target,
    arena: Arena | None = None,
    *,
    in_pool: bool = False,
) -> ModelView:
    """Build a graph's view: timeline, time, and forecasts of the bytes held.

    Args:
        line: of the graph, in its execution order.
        duration_us: by OpId.
        arena: arena that the graph's file requests.
        in_pool: the graph's file requests a pool.
    """
    from planner.runtime.memory.arena import forecast
    from planner.runtime.memory.paged import forecast_pool
    from planner.runtime.options import most_threads
    from planner.targets.backend import backend_of

    ways: tuple[Memory, ...] = ("default", "recommended")
    threads = most_threads()

    def held(options: Memory) -> ArenaForecast:
        if target.own_memory:
            return backend_of(target).forecast(graph, line.order, options, arena)
        if in_pool and options == "recommended":
            return forecast_pool(graph, line.order, threads=threads)
        return forecast(graph, line.order, options, threads=threads)

    return ModelView(
        graph=graph,
        timeline=line,
        time_us=sum(duration_us),
        duration_us=duration_us,
        arena=tuple(map(held, ways if target.is_arena or not target.own_memory else ways[:1])),
    )
