"""The model as it is: what a plan is compared with."""

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

    What follows from the graph and its order is computed when it is first asked for, and kept.

    Attributes:
        order: the order in which ONNX Runtime runs the graph.
        others: some orders that it may be instead, where nodes that the optimizers made have no
            known place.
        duration_us: microseconds by OpId.
        target: where the model runs.
        fed_us: copies of what the caller feeds from the host and wants there, which a session makes in
            any case; of those alone that plans make as nodes.
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
        """The peak, of which a budget in percent is a share."""
        return self.timeline.peak_bytes

    @cached_property
    def worst_peak_bytes(self) -> int:
        """The peak in the worst one of the orders that the model is known to be able to run in."""
        lines = [full_timeline(self.graph, order, self.target) for order in self.others]
        return max(line.peak_bytes for line in (self.timeline, *lines))

    @property
    def time_us(self) -> float:
        """Of all operations, each once, and of the copies of `fed_us`."""
        return sum(self.duration_us) + self.fed_us

    @property
    def cost(self) -> PredictedCost:
        """Peak and time, as a plan file has them."""
        return PredictedCost(peak_bytes=self.peak_bytes, time_us=self.time_us)

    @cached_property
    def view(self) -> ModelView:
        """What reports show of it."""
        return view_of(self.graph, self.timeline, self.duration_us, self.target)
