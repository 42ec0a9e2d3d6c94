"""Results of running both models: outputs, order, copies, memory, sessions, time."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from planner.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputComparison:
    """One graph output of both models.

    Attributes:
        identical: bit for bit, NaN payloads included.
        is_near: within the tolerance of its type (`planner.choices.RELATIVE`), or of rounding alone
            (`planner.runtime.judge.noise`).
        max_abs_diff, max_rel_diff: of single elements; infinite if types or shapes differ, or if a
            NaN or an infinity is on one side only.
        rms_rel_diff: root mean square of the difference, divided by that of the original's
            elements.
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
    """Executed order (from ONNX Runtime's profile) against the planned one, at one optimization level.

    Attributes:
        level: the graph optimization level: "disabled", "extended" or "all".
        queue: the provider whose nodes are compared, on a device with its own memory: device and
            CPU each run their nodes in the planned order, beside each other.
    """

    level: str
    equal: bool
    executed: int
    planned: int
    first_difference: str = ""
    queue: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraCopy:
    """A copy between host and device that the plan does not have."""

    node: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCheck:
    """Executed copies between host and device, against the planned ones.

    Attributes:
        planned, planned_bytes: nodes of the rewritten model that copy, and their bytes.
        ran: how many of them ran with the planned direction and bytes.
        missing: names of the nodes that did not.
        extra: executed copies that the plan does not have.
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
        how: "measured" (ONNX Runtime's per-node memory events) or "replayed" (live ranges over the
            executed order, with host copies in the CPU's arena).
        predicted_live_bytes / live_bytes: peak of requested bytes, inputs included.
        in_use_bytes, held_bytes: allocator figures; None if not measured. On a device with its own
            memory, `held_bytes` comes from its driver or arena.
        beside_bytes: bytes of inputs and initializers outside the arena.
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
    """A run of one model in a process whose arena or pool may not exceed `cap_bytes`.

    On the CPU it is planner's pool, which excludes graph inputs and initializers above 127 bytes.
    The cap is the budget less those, plus `over_budget_bytes`: the predicted excess of pages and
    workspace over the budget. `first_region_bytes` is the first region of a device's arena, in which
    the steps ran.
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
        """A message if the outcome is not the expected one; "" otherwise."""
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
        grown_bytes: the largest growth of the process, run by run: the resident set's high-water
            mark, less the resident set before the first run, session and inputs included.
        results_bytes: bytes of the arrays that a run returns, which the process holds beside the
            arena.
        held_bytes: the most bytes of its pool's pages in use at once; None without a pool.
        failure: why it did not run; "" if it did.
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
    """Results of both files, each in a session with default options.

    Attributes:
        compared: number of results.
        differ: names of the results whose bits differ.
        unstable: names of the results whose bits also differ in another run of the original.
        recommended_differ: names of the results whose bits differ if `planner.open_session(path)`
            opens the rewritten file; None if it does not run there.
    """

    compared: int
    differ: tuple[str, ...] = ()
    unstable: tuple[str, ...] = ()
    recommended_differ: tuple[str, ...] | None = None

    @property
    def same(self) -> int:
        """Number of results with the same bits."""
        return self.compared - len(self.differ) - len(self.unstable)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCheck:
    """Step times from alternating runs in one process, after warming both models up.

    The least time of each counts: other load on the machine makes some runs longer and none
    shorter.
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

    @property
    def median_ratio(self) -> float:
        """Median, over the turns, of the rewritten model's time over the original's."""
        pairs = zip(self.original_us, self.rewritten_us, strict=False)
        return statistics.median(after / before for before, after in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroCheck:
    """One run of the original on the whole batch against several on its parts.

    Attributes:
        outputs: of the original, each against the last run's, or against all runs' joined.
        far: names of those that differ by more than rounding.
        worst: name of the output with the largest difference, which is `worst_share` of its largest
            element; None if all are identical.
        by_rounding: number of outputs that are rounding alone: they change as much if the original
            gets the samples in another order.
        note: how the comparison was made, or why not if `outputs` is empty; None without a remark.
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
        """Number of outputs that differ by rounding at most."""
        return len(self.outputs) - len(self.far)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Everything observed in ONNX Runtime. `passed` is the verdict; `failures` lists the failed checks.

    Attributes:
        lacks_room: the only failure is that the rewritten model does not fit the budget.
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
