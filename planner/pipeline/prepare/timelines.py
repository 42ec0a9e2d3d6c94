"""The memory timeline of a graph with kernels' workspace, its view for reports, and the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from planner.graph.liveness import LiveTimeline, timeline
from planner.graph.model import OpId, TrainingGraph
from planner.plan.planfile import Arena, PredictedCost
from planner.results import ArenaForecast, ModelView
from planner.runtime.options import Memory
from planner.targets import Target


def full_timeline(graph: TrainingGraph, order: tuple[OpId, ...], target: Target) -> LiveTimeline:
    """Compute the timeline including the kernels' workspace, as far as it is known."""
    extra = {OpId(op): size for op, size in enumerate(workspace_of(graph, target))}
    return timeline(graph, order, workspace_bytes=extra)


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


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The graph that ONNX Runtime runs when it loads the file as it is.

    Figures derived from the graph and its order are computed on first use, and cached.

    Attributes:
        order: the order in which ONNX Runtime runs the graph.
        others: other possible orders, if nodes that the optimizers made have no known place.
        duration_us: microseconds by OpId.
        target: the target that the model runs on.
        fed_us: time of copies of the caller's inputs and results between host and device that a
            session makes in any case; only of those that plans make as nodes.
    """

    graph: TrainingGraph
    order: tuple[OpId, ...]
    others: tuple[tuple[OpId, ...], ...]
    duration_us: tuple[float, ...]
    target: Target
    fed_us: float = 0.0

    @cached_property
    def timeline(self) -> LiveTimeline:
        """Live bytes at each step, kernels' workspace included."""
        return full_timeline(self.graph, self.order, self.target)

    @property
    def peak_bytes(self) -> int:
        """The peak; a budget in percent is a share of it."""
        return self.timeline.peak_bytes

    @cached_property
    def worst_peak_bytes(self) -> int:
        """The highest peak over the orders in which ONNX Runtime may run the model."""
        lines = [full_timeline(self.graph, order, self.target) for order in self.others]
        return max(line.peak_bytes for line in (self.timeline, *lines))

    @property
    def time_us(self) -> float:
        """The time of all operations, each once, and of the copies of `fed_us`, in microseconds."""
        return sum(self.duration_us) + self.fed_us

    @property
    def cost(self) -> PredictedCost:
        """Peak and time, in the form of a plan file."""
        return PredictedCost(peak_bytes=self.peak_bytes, time_us=self.time_us)

    @cached_property
    def view(self) -> ModelView:
        """The model's part in reports."""
        return view_of(self.graph, self.timeline, self.duration_us, self.target)
