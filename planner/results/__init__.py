"""Results of the public functions: frozen values behind the reports and `--json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from planner.graph.liveness import LiveTimeline
from planner.graph.model import TrainingGraph
from planner.plan.planfile import Plan, PredictedCost
from planner.plan.points import Point
from planner.results.verification import Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaForecast:
    """Predicted device-arena bytes of one model under one set of session options.

    Attributes:
        options: "default" or "recommended".
        in_use_bytes, held_bytes: the largest over a first and a second run. On a device with its
            own memory they include inputs and initializers; on the CPU these lie beside the arena,
            in `beside_bytes`.
    """

    options: str
    in_use_bytes: int
    held_bytes: int
    beside_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All bytes that a session holds, including the inputs that its caller feeds."""
        return self.held_bytes + self.beside_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLayout:
    """Layout of one model's live ranges in one region of ONNX Runtime's arena, by its best fit.

    Attributes:
        bytes: size of the region, including persistent tensors and workspace.
        peak_bytes: the largest live bytes; no layout takes less.
        alignment_bytes: every offset, counted from the end of the persistent tensors, is a multiple
            of it.
        offsets: of the timeline's ranges, in their order; persistent tensors lie below them.
        workspace: (step, bytes, offset) of each kernel's workspace.
    """

    bytes: int
    peak_bytes: int
    alignment_bytes: int
    offsets: tuple[int, ...] = ()
    workspace: tuple[tuple[int, int, int], ...] = ()

    @property
    def fragmentation(self) -> float:
        """Excess of the region over the peak, as a ratio (0.01 is 1%)."""
        return self.bytes / self.peak_bytes - 1 if self.peak_bytes else 0.0


@dataclass(frozen=True, kw_only=True)
class ModelView:
    """One model (original or rewritten) as analysed: its graph, order, timeline and forecasts.

    Attributes:
        duration_us: by OpId.
        start_us: by OpId, if copies run beside the operations; empty if every step begins when the
            previous one ends.
    """

    graph: TrainingGraph
    timeline: LiveTimeline
    time_us: float
    duration_us: tuple[float, ...]
    start_us: tuple[float, ...] = ()
    arena: tuple[ArenaForecast, ...] = ()

    def held_bytes(self, options: str) -> int | None:
        """Predict the bytes that a session with these options holds; None without a prediction."""
        return next((a.total_bytes for a in self.arena if a.options == options), None)

    @cached_property
    def region(self) -> RegionLayout:
        """The layout of the whole timeline in one region of the arena."""
        from planner.runtime.memory.one_region import one_region

        return one_region(self.timeline)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Budget against time at one size of the model.

    Attributes:
        baseline_bytes: peak of the model as it is; `base_us`: time of its operations, each once.
        order_alone_bytes: peak of the best order, nothing recomputed or copied.
        least_bound_bytes: no plan in any of `orders` has a lower peak.
        points: by budget, ascending; both plans and bounds are monotone.
    """

    dims: dict[str, int]
    baseline_bytes: int
    base_us: float
    order_alone_bytes: int
    least_bound_bytes: int
    orders: tuple[str, ...]
    points: tuple[Point, ...]

    def slowdown(self, point: Point) -> float | None:
        """Return the added time as a ratio, 0.05 for 5%; None without a plan."""
        return None if point.plan is None else max(0.0, point.plan.time_us / self.base_us - 1)

    def least_slowdown(self, point: Point) -> float | None:
        """Return the least time that any plan adds, as a ratio; None if no plan fits."""
        return None if point.is_impossible else max(0.0, point.bound_us / self.base_us - 1)

    def least_slowdown_in_order(self, point: Point) -> float | None:
        """Return the least time that any plan in the base order of the point's plan adds, as a ratio.

        None if no plan fits.
        """
        if point.is_impossible:
            return None
        return max(0.0, max(point.bound_us, point.order_bound_us) / self.base_us - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingStep:
    """A step at which the budget binds.

    One more MiB while `node` runs (at `step` of the rewritten model) takes `us_per_mib`
    microseconds off the bound on the plan's time.
    """

    node: str
    step: int
    us_per_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPreview:
    """Costs of other budgets, found in `seconds` of short searches.

    Attributes:
        binds: the steps that bind the plan, most valuable first; None without a plan, or if the
            time did not suffice.
    """

    frontier: Frontier
    binds: tuple[BindingStep, ...] | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastPeak:
    """The least peak of all plans found, and a lower bound for every plan, in bytes."""

    peak_bytes: int
    bound_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Result of `planner analyze`: the model as it is.

    Attributes:
        default: in the order ONNX Runtime runs by default.
        best_order: predicted figures of the best order found (same operations).
        least_peak_bound_bytes: no plan of planner's class has a peak below this.
        least_peak_bytes: the least peak of all plans found.
        levers: the levers that it may use besides another order: "recompute", "swaps".
        on_host: the same two bytes with all inputs, initializers and outputs on the host that may
            live there; None if that is not allowed, or none may.
        budget_preview: the cost of a budget with these levers; None if it was not asked for.
    """

    model_path: Path
    model_sha256: str
    dims: dict[str, int]
    hardware: str
    cost_source: str
    ort_optimized: bool
    default: ModelView
    best_order: PredictedCost
    best_order_name: str
    least_peak_bound_bytes: int
    least_peak_bytes: int
    levers: tuple[str, ...] = ("recompute", "swaps")
    on_host: LeastPeak | None = None
    assumptions: tuple[str, ...]
    budget_preview: BudgetPreview | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeResult:
    """Result of `planner optimize`: the plan, both models as analysed, and the verification.

    `budget_preview` is there if a report was asked for. `kept` is the document made from the result
    (`planner.report.document.outcome`); `replace` does not copy it.
    """

    plan: Plan
    model_path: Path
    before: ModelView
    after: ModelView
    verification: Verification | None
    budget_preview: BudgetPreview | None = None
    output_path: Path | None = None
    plan_path: Path | None = None
    report_path: Path | None = None
    trace_path: Path | None = None
    kept: Any = field(default=None, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest swept size of a dim that fits a budget; None if none does.

    `next_size` is the next swept size; `next_is_impossible` tells whether it is proved not to fit.
    """

    budget_bytes: int
    size: int | None
    slowdown: float | None
    time_us: float | None
    next_size: int | None
    next_is_impossible: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Result of `planner sweep`: frontiers by size, and the largest size that fits each budget."""

    model_path: Path
    model_sha256: str
    hardware: str
    cost_source: str
    swap_mode: str
    copies: str = "serial"
    resident: str = "device"
    seed: int
    seconds: float
    dim: str
    frontiers: tuple[Frontier, ...]
    largest: tuple[Largest, ...]
    assumptions: tuple[str, ...]
