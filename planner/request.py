"""What is asked of planner, as one frozen value.

The command line and the public functions fill a `Request`, and every stage behind them reads it. Sizes
and shares of the peak stay as they were typed: `planner.pipeline.prepare.settings` turns them into
bytes, once, where the peak of the model as it is is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from planner.bounding import Bound
from planner.chunking import SplitMode
from planner.disk import Disk
from planner.errors import UsageError
from planner.fusing import FuseMode
from planner.halving import CastSaved
from planner.pipeline.prepare.copies import Copies
from planner.plan.planfile import BudgetOf, OrderTarget, Swap
from planner.residing import Feeds, Reside

Calibrate = Literal["auto", "always", "kept", "never"]
"""Whether operation times are measured by a short run. "auto": where the model is planned for the cpu
profile, no profile is given, and a run here takes some seconds and the memory that is free; times of an
earlier run are taken where they were kept. "kept" takes those alone, and runs nothing. "always" measures
anew."""


def settled(
    calibrate: bool | None, workers: int | None, *, elsewhere: str | None = None
) -> tuple[bool, int]:
    """(calibrate, workers) of a plan that is the same on any machine: no times of this one, one thread.

    Args:
        elsewhere: other machines that would work on it.

    Raises:
        UsageError: something else was asked for.
    """
    if calibrate:
        raise UsageError(
            "--reproducible plans with no times of this machine, and --calibrate measures them: give one"
        )
    if workers not in (None, 1) or elsewhere is not None:
        raise UsageError(
            "--reproducible searches on one thread of one process: leave --workers, --jobs and --ray out"
        )
    return False, 1


def calibration(asked: bool | None) -> Calibrate:
    """What `--calibrate` (True), `--no-calibrate` (False) or neither (None) asks for."""
    return "auto" if asked is None else "always" if asked else "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Where the durations of the operations come from.

    Attributes:
        hardware: name of a shipped profile, or a TOML file.
        profile: a profile of this model that ONNX Runtime wrote, to take times from.
        calibrate: whether times are measured on this machine's CPU; see `Calibrate`.
    """

    hardware: str = "cpu"
    profile: Path | None = None
    calibrate: Calibrate = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Levers:
    """What a plan may do besides running the operations in another order.

    Attributes:
        swap: "auto" lets the solver choose, "none" forbids copies, "only" forbids recompute.
            `planner.defaults` decides which is meant where nothing is said.
        copies: "serial" plans copies on the stream of the operations, "overlapped" beside them;
            "auto" is whichever is safe. See `planner.pipeline.prepare.copies`.
        resident: where inputs, initializers and outputs live; see `planner.residing`.
        recompute: operations may run again.
        include, exclude: patterns of what may be recomputed or live on the host (all, where there is
            none), and of what may not: see `planner.pipeline.prepare.limiting`.
        min_tensor: what is smaller is not copied; None for what is too small to be worth it.
        host_budget: the most that planner may have on the host at once: `"32GB"`; None for any. With a
            disk, in its folder.
        disk: what swaps go to in place of the host's memory, in verification, too.
        cast_saved: as what tensors may be stored from forward to backward (`planner.halving`): lossy.
        feeds: where the caller has what the step reads and wants what it leaves.
        micro_batch: in how many runs on parts of the batch a step is made: "4", or "auto" for the number
            that takes least time.
        split: operations that are too large may run in chunks of rows; see `planner.chunking`.
        fuse: which element operations may become one node each (`planner.fusing`).
        pattern: sessions with default options may use ONNX Runtime's memory pattern; False writes the
            file so that they do not, see `planner.lower.optional_input`.
    """

    swap: Swap = "auto"
    copies: Copies = "serial"
    resident: Reside = "device"
    feeds: Feeds = "auto"
    recompute: bool = True
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    min_tensor: str | None = None
    host_budget: str | None = None
    disk: Disk | None = None
    micro_batch: str = "1"
    split: SplitMode = "none"
    cast_saved: CastSaved = "none"
    fuse: FuseMode = "none"
    pattern: bool = True

    @property
    def residence(self) -> Reside:
        """Where what outlives a step lives: where copies are forbidden, "auto" is the device."""
        return "device" if self.resident == "auto" and self.swap == "none" else self.resident


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a search may take.

    Attributes:
        time_limit_s: seconds for finding a plan; reading, writing and verifying come on top.
        workers: threads of the search; None for all cores.
    """

    time_limit_s: float = 60.0
    workers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything that is asked, before anything is read.

    Attributes:
        model: an .onnx file.
        dims: sizes of open dims, by name or by place (`planner.positions`).
        device: what the model is written for; see `planner.targets`.
        ort_optimize: plan on the graph that ONNX Runtime's optimizers make; False takes the graph as
            it is, for sessions of the level ORT_DISABLE_ALL.
        bounds: of sizes that depend on data; see `planner.bounding`.
        inputs: arrays (.npz) to run the model with; None for its sidecar, or seeded ones.
        seed: of the search, and of inputs that are drawn.
        costs: where durations come from.
        budget: `"16GB"`, `"12GiB"`, or `"60%"` of the peak of the model as it is; None for all of it.
        budget_from: a phrase on where a budget is from that nobody typed.
        max_slowdown: the most time that a plan may add: `"5%"`; None for any.
        budget_of: what the budget bounds: "held", all that a session holds that `planner.open_session`
            opens, where that can be told; "live", the bytes of tensors that are alive.
        strict: other last bits in sessions of default options fail the verification.
        reserve: set aside out of the budget.
        levers: what a plan may do.
        order: the session option that the rewritten model is made for.
        limits: what the search may take.
    """

    model: Path
    dims: Mapping[str, int] = field(default_factory=dict)
    device: str = "cpu"
    ort_optimize: bool = True
    bounds: tuple[Bound, ...] = ()
    inputs: Path | None = None
    seed: int = 0
    costs: Costs = Costs()
    budget: str | None = None
    budget_from: str = ""
    max_slowdown: str | None = None
    budget_of: BudgetOf = "held"
    strict: bool = False
    reserve: str = "0B"
    levers: Levers = Levers()
    order: OrderTarget = "default"
    limits: Limits = Limits()

    @property
    def aim(self) -> str:
        """The budget as a plan file has it, or the slowdown where that was asked for instead; of one that
        nobody typed, where it is from."""
        if self.budget is None and self.max_slowdown is not None:
            return f"{self.max_slowdown} slower"
        return self.budget_from or self.budget or "100%"
