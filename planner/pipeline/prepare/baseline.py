"""The baseline of a plan: the model as it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from planner.graph.liveness import LiveTimeline
from planner.graph.model import OpId, TrainingGraph
from planner.pipeline.prepare.timelines import full_timeline, view_of
from planner.plan.planfile import PredictedCost
from planner.results import ModelView
from planner.targets import Target


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
