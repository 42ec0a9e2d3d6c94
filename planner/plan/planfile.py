"""The plan: decisions and their reasons, as the file `plan.json`.

A plan names tensors and nodes as the model does. `planner apply` can rebuild the rewritten model
from the original and its plan, and a reader can check a plan without planner. `planfile.md`
describes every field to that reader; `plan.schema.json` is the same as a JSON Schema.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBound:
    """An upper bound on a tensor (`shape`), or on the memory that the bodies of a node hold (`bytes`)."""

    name: str
    shape: tuple[Count, ...] | None = None
    bytes: Count | None = None
    shown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAction:
    """One step of the schedule: a run of a node, or a swap-out or swap-in of a tensor."""

    kind: ActionKind
    target: str
    copy: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The choice for one tensor in one retention interval, with its cost and that of the alternative."""

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
    """A recompute or a swap that was ruled out while the plan was made, although the model allows it."""

    action: Literal["recompute", "swap"]
    name: str
    reason_code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSeed:
    """The start of a region of nodes that run in chunks of rows, and its extent."""

    tensor: str
    axis: Axis
    chunks: Chunks
    large_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRegion(RegionSeed):
    """Nodes that run in chunks of rows."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedCost:
    """Predicted figures of one schedule."""

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
    """A buffer on the device at the planned peak."""

    tensor: str
    copy: str
    bytes: Count
    category: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMoment:
    """The contents of the device at the planned peak; the figures add up to `planned.peak_bytes`."""

    step: Count
    node: str
    persistent_bytes: Count
    workspace_bytes: Count
    residents: tuple[Resident, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """The ONNX Runtime arena in which the rewritten model runs: in its first region alone."""

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
    """planner's pool (`planner.native`) in which the rewritten model runs, on a device where asked."""

    bytes: Count
    is_proved: bool = False

    @property
    def spill_bytes(self) -> int:
        """The most bytes that may lie outside the pool."""
        return 0 if self.is_proved else (_UNBOUND - 1) * self.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """A total that the runs of a step add up, fed from each run to the next."""

    input: str
    output: str
    bytes: Count
    scale: Amount | None
    count: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatches:
    """A step as several runs on parts of its batch."""

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
    """The plan file."""

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
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] = 0
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
