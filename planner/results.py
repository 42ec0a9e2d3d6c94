"""What the public functions return: frozen values that the reports and `--json` are made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from planner.graph.liveness import LiveTimeline
from planner.graph.model import TrainingGraph
from planner.plan.planfile import Plan, PredictedCost
from planner.plan.points import Point
from planner.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaForecast:
    """Predicted device-arena bytes of one model under one set of session options.

    Attributes:
        options: "default" or "recommended".
        in_use_bytes, held_bytes: the largest over a first and a second run. On a device with a memory of
            its own inputs and initializers are in them; on the CPU they lie beside the arena, in
            `beside_bytes`.
    """

    options: str
    in_use_bytes: int
    held_bytes: int
    beside_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All that a session holds, what its caller feeds included."""
        return self.held_bytes + self.beside_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLayout:
    """One model's live ranges in one region of ONNX Runtime's arena, as its best fit lays them out.

    Attributes:
        bytes: its size, persistent tensors and workspace included.
        peak_bytes: the largest live bytes; no layout takes less.
        alignment_bytes: every offset is a multiple of it, counted from the end of the persistent
            tensors.
        offsets: of each of the timeline's ranges, in their order; persistent tensors lie below.
        workspace: (step, bytes, offset) of each kernel's own scratch memory.
    """

    bytes: int
    peak_bytes: int
    alignment_bytes: int
    offsets: tuple[int, ...] = ()
    workspace: tuple[tuple[int, int, int], ...] = ()

    @property
    def fragmentation(self) -> float:
        """How far above the peak the region is (0.01 is 1%)."""
        return self.bytes / self.peak_bytes - 1 if self.peak_bytes else 0.0


@dataclass(frozen=True, kw_only=True)
class ModelView:
    """One model (original or rewritten) as analysed: its graph, order, timeline and forecasts.

    Attributes:
        duration_us: by OpId.
        start_us: by OpId, where copies run beside the operations; empty where every step begins as
            the one before it ends.
    """

    graph: TrainingGraph
    timeline: LiveTimeline
    time_us: float
    duration_us: tuple[float, ...]
    start_us: tuple[float, ...] = ()
    arena: tuple[ArenaForecast, ...] = ()

    def held_bytes(self, options: str) -> int | None:
        """What a session with such options is predicted to hold; None where nothing is."""
        return next((a.total_bytes for a in self.arena if a.options == options), None)

    @cached_property
    def region(self) -> RegionLayout:
        """The whole timeline in one region of the arena."""
        from planner.runtime.memory.one_region import one_region

        return one_region(self.timeline)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Budget against time at one size of the model.

    Attributes:
        baseline_bytes: peak of the model as it is; `base_us`: time of its operations, each once.
        order_alone_bytes: peak of the best order, nothing recomputed or copied.
        least_bound_bytes: no plan in any of `orders` has a peak below this.
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
        """Added time as a ratio, 0.05 for 5%; None where there is no plan."""
        return None if point.plan is None else max(0.0, point.plan.time_us / self.base_us - 1)

    def least_slowdown(self, point: Point) -> float | None:
        """No plan adds less; None where none fits."""
        return None if point.is_impossible else max(0.0, point.bound_us / self.base_us - 1)

    def least_slowdown_in_order(self, point: Point) -> float | None:
        """No plan in the base order of the point's plan adds less; None where none fits."""
        if point.is_impossible:
            return None
        return max(0.0, max(point.bound_us, point.order_bound_us) / self.base_us - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingStep:
    """A step that binds the budget: while `node` runs (at `step` of the rewritten model), a MiB more
    of it takes so much off the bound on the plan's time."""

    node: str
    step: int
    us_per_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPreview:
    """What other budgets would cost, found in `seconds` of short searches.

    Attributes:
        binds: what binds the plan, the dearest first; None where there is no plan, or where the time
            did not suffice.
    """

    frontier: Frontier
    binds: tuple[BindingStep, ...] | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastPeak:
    """The least peak of any plan that was found, and what no plan can be below, in bytes."""

    peak_bytes: int
    bound_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """`planner analyze`: the model as it is.

    Attributes:
        default: in the order ONNX Runtime runs by default.
        best_order: predicted figures of the best order found (same operations).
        least_peak_bound_bytes: no plan of planner's class has a peak below this.
        least_peak_bytes: the least peak of any plan found; None where none was searched for.
        levers: what it may do besides another order: "recompute", "swaps".
        on_host: the same two with all inputs, initializers and outputs that may be there on the host;
            None where that is not allowed, or nothing may.
        budget_preview: what a budget would cost with these levers; None where it was not asked for.
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
    least_peak_bytes: int | None
    levers: tuple[str, ...] = ("recompute", "swaps")
    on_host: LeastPeak | None = None
    assumptions: tuple[str, ...]
    budget_preview: BudgetPreview | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputComparison:
    """One graph output of both models.

    Attributes:
        identical: bit for bit, NaN payloads included.
        is_near: within the tolerance of its type (`planner.exactness.RELATIVE`).
        max_abs_diff, max_rel_diff: of single elements; infinite where types or shapes differ, or where a
            NaN or an infinity is on one side only.
        rms_rel_diff: root mean square of the difference, by that of the original's elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    identical: bool
    is_near: bool
    max_abs_diff: float
    max_rel_diff: float
    rms_rel_diff: float
    has_nan: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCheck:
    """Executed order (from ONNX Runtime's profile) against the planned one, at one level.

    Attributes:
        level: the graph optimization level: "disabled", "extended" or "all".
        queue: on a device with a memory of its own, the provider whose nodes are compared: the device
            and the CPU each run theirs in the planned order, beside each other.
    """

    level: str
    equal: bool
    executed: int
    planned: int
    first_difference: str = ""
    queue: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraCopy:
    """A copy between host and device that nobody planned."""

    node: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCheck:
    """Copies between host and device that ran, against those that were planned.

    Attributes:
        planned, planned_bytes: nodes of the rewritten model that copy, and their bytes.
        ran: of those, how many ran with the planned direction and bytes.
        missing: names of the others.
        extra: copies that nobody planned.
    """

    planned: int
    planned_bytes: int
    ran: int
    missing: tuple[str, ...] = ()
    extra: tuple[ExtraCopy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCheck:
    """Bytes of one model under one set of options: measured, or replayed from executed order.

    Attributes:
        model: "original" or "rewritten"; options: "default" or "recommended".
        how: "measured" (ONNX Runtime's per-node memory events) or "replayed" (live ranges over
            the executed order, where host copies share the CPU's arena).
        predicted_live_bytes / live_bytes: peak of requested bytes, inputs included.
        in_use_bytes, held_bytes: allocator figures; None where not measured. On a device with a
            memory of its own, `held_bytes` is what its driver or arena counted.
        beside_bytes: of inputs and initializers outside the arena.
        per_node: (node, predicted live bytes, measured live bytes) at each executed node.
        worst: the nodes with the largest difference, largest first.
    """

    model: str
    options: str
    how: str
    predicted_live_bytes: int
    live_bytes: int
    predicted_in_use_bytes: int | None = None
    in_use_bytes: int | None = None
    predicted_held_bytes: int | None = None
    held_bytes: int | None = None
    beside_bytes: int = 0
    per_node: tuple[tuple[str, int, int], ...] = ()
    worst: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CapCheck:
    """One model run in a process whose arena or pool may not exceed `cap_bytes`.

    On the CPU it is planner's pool, and graph inputs and initializers above 127 bytes are outside of it:
    the cap is the budget less those, plus `over_budget_bytes`: what pages and workspace are predicted to
    take beyond the budget. `first_region_bytes` is that of a device's arena, from which regions double
    (`initial_chunk_size_bytes`).
    """

    model: str
    cap_bytes: int
    passed: bool
    expected: bool | None
    message: str = ""
    over_budget_bytes: int = 0
    first_region_bytes: int = 0

    @property
    def failure(self) -> str:
        """What should not be of it; "" where nothing else was expected."""
        if self.expected in (None, self.passed):
            return ""
        did = "runs" if self.passed else "fails"
        return (
            f"under a cap of {format_bytes(self.cap_bytes)} the {self.model} model {did}, which it "
            f"should not: {self.message or 'no message'}"
        )


OPENED = {
    "default": "onnxruntime.InferenceSession(path)",
    "recommended": "planner.open_session(path)",
}
"""The line that opens a model, by the name of the session options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCheck:
    """One model in a process of its own, opened by one line and run (`planner.runtime.judge.alone`).

    Attributes:
        model: "original" or "rewritten".
        options: "default", `onnxruntime.InferenceSession(path)`; "recommended",
            `planner.open_session(path)`.
        grown_bytes: by which the process had grown at most, run by run: its resident set's high-water
            mark, less what it had before the first run, session and inputs included.
        results_bytes: of the arrays that a run returns, which the process holds beside the arena.
        held_bytes: of the pages of its pool that were in use at the most; None where it has no pool.
        failure: why it did not run; "" where it did.
        has_room: whether its pool had room for it.
    """

    model: str
    options: str
    grown_bytes: tuple[int, ...]
    results_bytes: int = 0
    held_bytes: int | None = None
    failure: str = ""
    has_room: bool = True

    @property
    def opened(self) -> str:
        """The line that opened the model."""
        return OPENED[self.options]


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultBits:
    """Results of both files, each in a session of default options.

    Attributes:
        compared: how many.
        differ: names of those that are other bits.
        unstable: names of those that are other bits in another run of the original, too.
        recommended_differ: names of those that are other bits where `planner.open_session(path)` opens
            the rewritten file; None where it does not run so.
    """

    compared: int
    differ: tuple[str, ...] = ()
    unstable: tuple[str, ...] = ()
    recommended_differ: tuple[str, ...] | None = None

    @property
    def same(self) -> int:
        """How many are the same bits."""
        return self.compared - len(self.differ) - len(self.unstable)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCheck:
    """Step times from alternating runs in one process, once both models are warm.

    The least of each counts: whatever else runs on a machine makes some runs longer and none shorter.
    """

    original_us: tuple[float, ...]
    rewritten_us: tuple[float, ...]

    @property
    def original_least_us(self) -> float:
        """Least time of the original."""
        return min(self.original_us)

    @property
    def rewritten_least_us(self) -> float:
        """Least time of the rewritten model."""
        return min(self.rewritten_us)

    @property
    def ratio(self) -> float:
        """Least time of the rewritten model over that of the original."""
        return self.rewritten_least_us / self.original_least_us


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroCheck:
    """One run of the original on the whole batch against several on its parts.

    Attributes:
        outputs: of the original, each against the last run's, or against all runs' joined.
        far: names of those that differ by more than rounding.
        worst: name of the output with the largest difference, which is `worst_share` of its largest
            element; None where all are identical.
        by_rounding: outputs that are rounding alone: they change by as much in the original where the
            samples are in another order.
        note: how it was done; why not, where `outputs` is empty; None where there is nothing to say.
    """

    runs: int
    outputs: tuple[OutputComparison, ...] = ()
    far: tuple[str, ...] = ()
    worst: str | None = None
    worst_share: float = 0.0
    by_rounding: int = 0
    note: str | None = None

    @property
    def near(self) -> int:
        """How many outputs differ by rounding at most."""
        return len(self.outputs) - len(self.far)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Everything ONNX Runtime said. `passed` is the verdict; `failures` say what did not hold.

    Attributes:
        lacks_room: nothing failed but that the rewritten model has no room within the budget.
    """

    ort_version: str
    provider: str
    device: str
    seed: int
    inputs_source: str
    passed: bool
    failures: tuple[str, ...]
    notes: tuple[str, ...]
    outputs: tuple[OutputComparison, ...]
    orders: tuple[OrderCheck, ...]
    memory: tuple[MemoryCheck, ...]
    caps: tuple[CapCheck, ...]
    time: TimeCheck | None
    copies: CopyCheck | None = None
    micro: MicroCheck | None = None
    sessions: tuple[SessionCheck, ...] = ()
    default_bits: DefaultBits | None = None
    lacks_room: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeResult:
    """`planner optimize`: the plan, both models as analysed, and the verification; `budget_preview`
    where a report was asked for; `kept` is the document that was made of it, which no replacement takes
    over (`planner.report.document.outcome`)."""

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
    """The largest size of a dim that fits a budget, of those swept; None where none does.

    `next_size` is the next one swept, and whether it is proved not to fit.
    """

    budget_bytes: int
    size: int | None
    slowdown: float | None
    time_us: float | None
    next_size: int | None
    next_is_impossible: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """`planner sweep`: frontiers by size, and for each budget the largest size that fits."""

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
