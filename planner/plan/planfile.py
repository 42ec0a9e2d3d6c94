"""The plan: decisions and their reasons, as the file `plan.json`.

A plan names tensors and nodes as the model does. `planner apply` can rebuild the rewritten model
from the original and its plan, and a reader can check a plan without planner. `planfile.md`
describes the file to that reader; `plan.schema.json` is the same as a JSON Schema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from planner.choices import MAX_CHUNKS, BudgetOf, CastSaved, FuseMode, Numbers, OrderTarget, Swap
from planner.disk import Disk
from planner.errors import ModelError
from planner.files.reading import MAX_BYTES, shown
from planner.plan.problem import ActionKind
from planner.plan.statistics import EngineStatistics
from planner.targets import HOST, Device
from planner.units import MAX_SEED

PLAN_VERSION = 1

_UNBOUND = 4
"""Limit of a session whose arena or pool is not proved, as a multiple of one step's bytes.

The session takes memory only as it needs it.
"""
MAX_RANK = 64

Count = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
"""A number of bytes, operations, tensors or steps."""
Amount = Annotated[float, Meta(ge=0, le=MAX_BYTES)]
Change = Annotated[float, Meta(ge=-MAX_BYTES, le=MAX_BYTES)]
"""A change of a time, or a ratio."""
Dim = Annotated[int, Meta(ge=1, le=MAX_BYTES)]
Axis = Annotated[int, Meta(ge=0, le=MAX_RANK)]
Chunks = Annotated[int, Meta(ge=2, le=MAX_CHUNKS)]
Seed = Annotated[int, Meta(ge=0, le=MAX_SEED)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBound:
    """An upper bound on a tensor (`shape`), or on the memory that the bodies of a node hold (`bytes`).

    Attributes:
        shown: one run of the model showed it; nobody asked for it.
    """

    name: str
    shape: tuple[Count, ...] | None = None
    bytes: Count | None = None
    shown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAction:
    """One step of the schedule: a run of a node, or a swap-out or swap-in of a tensor.

    `kind` is run, swap-out or swap-in. `target` is the name of a node or tensor. `copy` counts the
    earlier runs of the same node, or the earlier swap-ins of the same tensor (0 is the first).
    """

    kind: ActionKind
    target: str
    copy: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The choice for one tensor in one retention interval, with its cost and that of the alternative.

    Attributes:
        action: "recompute", "swap", or "page-in" for a tensor that lives on the host ("keep" is not
            listed).
        start, end: half-open range of steps in the planned schedule in which the tensor is absent.
        cost_us: time of the tensor's recompute, of its two copies, which may run beside the
            operations, or of the one copy of a tensor that lives on the host.
        recompute_us, swap_us: cost of either here; None if it may not be done.
        why: one sentence.
        reason_code: why the other lever was closed (`planner.graph.reasons`); "" if it was open,
            and in older files.
    """

    tensor: str
    bytes: Count
    category: str
    action: Literal["recompute", "swap", "page-in"]
    start: Count
    end: Count
    cost_us: Amount
    recompute_us: Amount | None
    swap_us: Amount | None
    why: str
    reason_code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Barred:
    """A recompute or a swap that was ruled out while the plan was made, although the model allows it.

    Attributes:
        action: "recompute" if `name` is a node's, "swap" if it is a tensor's.
        reason_code: see `planner.graph.reasons`.
    """

    action: Literal["recompute", "swap"]
    name: str
    reason_code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRegion:
    """Nodes that run in chunks of rows.

    Attributes:
        tensor, axis: tensor and axis of the first cut, into `chunks` parts.
        large_bytes: values of at least this size were included, with their producers and readers.
        nodes: all nodes that run in chunks, in file order.
    """

    tensor: str
    axis: Axis
    chunks: Chunks
    large_bytes: Count
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedCost:
    """Predicted figures of one schedule.

    `time_us` is the sum of operations and copies on one stream, unless the plan's `copies` are
    "overlapped". `paged_tensors` live on the host: `page_in_bytes` are copied to the device, some
    tensors more than once, and `page_out_bytes` to the host. The baseline's `time_us` also has the
    copies that a session makes in any case. `halved_tensors` are kept in half precision from
    forward to backward, in `halved_bytes`, and all their casts take `cast_us`. `pins_us`, a part of
    `time_us`, is the time of nodes that pin the order, if times are measured. `cache_us`, not a part
    of `time_us`, is the change of the operations' time as more or less of their data is in the
    processor's cache (negative: less time). `host_bytes` is the most on the host at once, with
    buffers rounded up as the arena rounds them. `file_bytes` of initializers on the host live in
    files and are in no other figure.
    """

    peak_bytes: Count
    time_us: Amount
    recomputed_ops: Count = 0
    recompute_us: Amount = 0.0
    recomputed_bytes: Count = 0
    swapped_tensors: Count = 0
    swap_out_bytes: Count = 0
    swap_in_bytes: Count = 0
    swap_us: Amount = 0.0
    paged_tensors: Count = 0
    page_in_bytes: Count = 0
    page_out_bytes: Count = 0
    page_us: Amount = 0.0
    halved_tensors: Count = 0
    halved_bytes: Count = 0
    cast_us: Amount = 0.0
    pins_us: Amount = 0.0
    cache_us: Change = 0.0
    host_bytes: Count = 0
    file_bytes: Count = 0

    @property
    def step_us(self) -> float:
        """Predicted microseconds of a step, cache effects included."""
        return max(0.0, self.time_us + self.cache_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A buffer on the device at the planned peak.

    Attributes:
        tensor: its name in the original model; `copy` is the name of this copy of it in the
            rewritten model (the same, unless it was recomputed or swapped in). Tensors that only
            planner added (the 8 bytes of an anchor) have one name for both.
    """

    tensor: str
    copy: str
    bytes: Count
    category: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMoment:
    """The contents of the device at the planned peak; the figures add up to `planned.peak_bytes`.

    Attributes:
        step, node: the first step of the rewritten model at which the peak is reached.
        persistent_bytes: graph inputs and initializers; workspace_bytes: of that node's kernel.
        residents: everything else, largest first.
    """

    step: Count
    node: str
    persistent_bytes: Count
    workspace_bytes: Count
    residents: tuple[Resident, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """The ONNX Runtime arena in which the rewritten model runs: in its first region alone.

    Every chunk is split.

    Attributes:
        max_bytes: bytes that the budget leaves for the arena; more if it bounds live bytes alone and a
            step needs more.
        first_region_bytes: bytes that a step needs; 0 for a first region of `max_bytes`.
        is_proved: the plan was verified in it. Otherwise, a session's arena may grow beyond it.
    """

    max_bytes: Count
    first_region_bytes: Count
    is_proved: bool = False

    @property
    def region_bytes(self) -> int:
        """The bytes of the first region."""
        return self.first_region_bytes or self.max_bytes

    @property
    def limit_bytes(self) -> int:
        """The most bytes that a session's arena may hold.

        An untried arena is no hard limit, nor are several regions: results that a script keeps may
        take a second one. Between two free chunks of one size ONNX Runtime takes the lower address,
        and the system decides where regions lie: the same file would run in one process and be
        refused in another.
        """
        is_one = self.first_region_bytes in (0, self.max_bytes)
        return self.max_bytes if self.is_proved and is_one else _UNBOUND * self.max_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """planner's pool on the CPU (`planner.native`) in which the rewritten model runs.

    Attributes:
        is_proved: the plan was verified in it. Otherwise, allocations that do not fit lie outside
            the pool. That is so for a model with control flow, as the requests of its bodies are
            not predicted one by one.
    """

    bytes: Count
    is_proved: bool = False

    @property
    def spill_bytes(self) -> int:
        """The most bytes that may lie outside the pool."""
        return 0 if self.is_proved else (_UNBOUND - 1) * self.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """A total that the runs of a step add up, fed from each run to the next.

    Graph output `output` of one run is fed to the next run as graph input `input`. The first run is
    fed zeros.

    Attributes:
        scale: factor of a run's contribution: 1 for a sum over samples, 1/runs for a mean; None if
            it is weighted with `count`, whose own total is an accumulator too.
        count: name of the count that the value is a mean over ("" if `scale` is given).
    """

    input: str
    output: str
    bytes: Count
    scale: Amount | None
    count: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatches:
    """A step as several runs on parts of its batch.

    Attributes:
        runs: number of runs; each has `batch / runs` samples.
        dim: the open dim of the batch; `batch` is its size in the whole step.
        inputs: by name of each input that is cut into parts, the axis of the cut.
        accumulators: totals fed back from run to run; none if the model's own nodes add up
            (InPlaceAccumulatorV2).
        scaled: means that a run scales by 1/runs and that are not accumulators: totals of the
            model's own nodes, and outputs in `per_run`.
        per_run: by name of each output that a run has for its own samples, the axis along which the
            caller joins the runs' values.
        run_us, baseline_run_us: time of one run as planned, and of the unchanged model with the
            same accumulators.
        baseline_run_bytes: peak of the latter.
    """

    runs: Annotated[int, Meta(ge=1, le=MAX_BYTES)]
    dim: str
    batch: Dim
    inputs: dict[str, Count]
    accumulators: tuple[Accumulator, ...] = ()
    scaled: tuple[str, ...] = ()
    per_run: dict[str, Count] = field(default_factory=dict)
    run_us: Amount = 0.0
    baseline_run_us: Amount = 0.0
    baseline_run_bytes: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan file.

    Attributes:
        model_sha256: digest of the model file (its proto without external data).
        dims: sizes of the open dims, by name, or by place if they have none.
        budget_text, budget_bytes: the budget as typed (or its source), and in bytes.
        reserve_bytes: bytes set aside from the budget.
        budget_of: the quantity that the budget bounds: "held", all bytes of a session opened by
            `planner.open_session`, or "live", the bytes of live tensors.
        pool: planner's pool on the CPU for the rewritten model, as predicted page by page; None if
            it runs in none.
        arena: the arena in which the rewritten model runs within the budget, as predicted by
            replaying ONNX Runtime's allocator, or as it ran; None if it has none, or it is not
            known.
        max_slowdown: the most time that a plan may add, as a ratio (0.05 is 5%); None for no limit.
        binds: the limit that kept the peak from being lower or the plan from being faster:
            "budget", "slowdown", or "" if neither did.
        device: the target that the file is written for: "cpu", "webgpu", "cuda" or "any".
        assumed: made without the device's provider: its optimizers and the placement of nodes are
            assumptions, and `planner apply` plans again on a machine with the provider.
        resident: names of the inputs, initializers and outputs that live on the host; `feeds` is
            the place of the caller's inputs and results ("host", "device").
        split: regions of the model that run in chunks of rows. Each inner list was split together,
            in the model that the lists before it left.
        cast_saved: the type in which tensors may be stored from forward to backward ("none",
            "bf16", "fp16"); `halved`: names of the tensors that are.
        fuse: how element operations of the model were fused ("none", "exact", "auto"), into
            `fused_nodes` nodes; `unfused`: the first operations of groups that stay as they are.
        pattern: sessions with default options may use the memory pattern; False if an input of the
            rewritten model may be left out.
        numbers: how close the rewritten model's outputs are to the original's (`planner.choices`).
        default_differ: results of the rewritten model whose bits differ from the original's if
            sessions with default options run both; None if not compared.
        recompute, include, exclude, min_tensor: the request's limits on the plan.
        host_budget_bytes: the most on the host at once, or in the disk's folder; None for no limit.
        disk: the measured disk that swaps go to; None if they go to the host's memory.
        order_target: "default" or "priority": the session option the file is written for.
        baseline: the original model in the order ONNX Runtime runs it by default.
        best_order: the original operations in the base order that planner chose.
        planned: the rewritten model.
        copies: "serial", or "overlapped" if the planned time has them beside the operations.
        one_stream_us: time of the rewritten model with its copies on the stream of the operations;
            None in older files, which have no other time.
        least_peak_bytes: least peak found by any plan tried; least_peak_bound_bytes: no plan of
            this class can be below it.
        bound_us, gap: bound on the time of any plan within the budget, and planned/bound - 1; None
            if nothing was proved. `bound_class` names the schedules that it holds for.
        binding: (tensor, bytes) resident at the planned peak, largest first (up to 20).
        peak: everything resident at the planned peak; None in older files.
        barred: levers ruled out while the plan was made; empty in older files.
        engines: statistics of each engine in the search that found the plan; empty in older files.
        micro: the step as several runs on parts of the batch; None for one run. `baseline` is one run of
            the original on the whole batch then, `planned` has the peak of a run and the time, copies and
            recomputes of all runs together, and `dims` has the batch of a run.
        unchanged: the budget is at or above the baseline peak: the model is copied as it is.
        ort_optimized: planned on the graph as ONNX Runtime's optimizers leave it.
        bounds: of sizes that depend on data, as the user gave them or one run showed them.
        block_channels: channels in a block of the layout of the rewritten model's weights (NCHWc):
            the file is right only on processors with blocks of that size; 0 if no weight has that
            layout.
    """

    version: Literal[1] = PLAN_VERSION
    planner_version: str = ""
    model_name: str = ""
    model_sha256: str = ""
    dims: dict[str, Dim]
    budget_text: str = ""
    budget_bytes: Count = 0
    reserve_bytes: Count = 0
    budget_of: BudgetOf = "live"
    pool: Pool | None = None
    arena: Arena | None = None
    max_slowdown: Amount | None = None
    binds: str = ""
    hardware: str = ""
    cost_source: str = ""
    swap_mode: Swap = "none"
    device: Device = HOST.name
    assumed: bool = False
    copies: Literal["serial", "overlapped"] = "serial"
    resident: tuple[str, ...] = ()
    split: tuple[tuple[SplitRegion, ...], ...] = ()
    cast_saved: CastSaved = "none"
    halved: tuple[str, ...] = ()
    fuse: FuseMode = "none"
    fused_nodes: Count = 0
    unfused: tuple[str, ...] = ()
    pattern: bool = True
    numbers: Numbers = "exact"
    default_differ: tuple[str, ...] | None = None
    feeds: Literal["host", "device"] = "device"
    recompute: bool = True
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    min_tensor: str | None = None
    host_budget_bytes: Count | None = None
    disk: Disk | None = None
    micro: MicroBatches | None = None
    order_target: OrderTarget = "default"
    ort_optimized: bool = True
    block_channels: Count = 0
    bounds: tuple[SizeBound, ...] = ()
    engine: str = ""
    solve_s: Amount = 0.0
    engines: tuple[EngineStatistics, ...] = ()
    seed: Seed = 0
    baseline: PredictedCost
    best_order: PredictedCost
    planned: PredictedCost
    one_stream_us: Amount | None = None
    least_peak_bytes: Count | None = None
    least_peak_bound_bytes: Count = 0
    bound_us: Amount | None = None
    gap: float | None = None
    bound_class: str = ""
    proved_optimal: bool = False
    unchanged: bool = False
    binding: tuple[tuple[str, Count], ...] = ()
    peak: PeakMoment | None = None
    schedule: tuple[PlannedAction, ...] = ()
    decisions: tuple[Decision, ...] = ()
    barred: tuple[Barred, ...] = ()
    assumptions: tuple[str, ...] = ()


def check_plan(plan: Plan, *, where: str) -> None:
    """Raise ModelError for the first fault in the plan's fields.

    `planner.pipeline.record.rebuild` checks whether the schedule fits a model.
    """
    for fault in _faults(plan):
        raise ModelError(f"{where} is not a valid plan file: {fault}")


def _faults(plan: Plan) -> Iterator[str]:
    seen: Counter[tuple[str, str]] = Counter()
    for i, action in enumerate(plan.schedule):
        before = seen[action.kind, action.target]
        if action.copy != before:
            yield (
                f"action {i} ({action.kind} {shown(action.target)}) says it is copy "
                f"{shown(action.copy)}, and {before} copies come before it"
            )
        seen[action.kind, action.target] += 1
    for i, decision in enumerate(plan.decisions):
        if decision.start > decision.end:
            yield f"decision {i} is for steps {decision.start} to {decision.end}"
