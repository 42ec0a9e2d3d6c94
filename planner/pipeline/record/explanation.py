"""What `planner explain` says of one tensor of a plan, as values."""

from __future__ import annotations

from dataclasses import dataclass

from planner.plan.planfile import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to have a tensor at the end of an interval: `action` is keep, recompute or swap.

    Attributes:
        cost_us: time that it adds; None where it may not be done, and `why_not` says why,
            `reason_code` as a code of `planner.graph.reasons`.
        runs: the nodes that run again for it, the tensor's producer first.
        copy_out_us, copy_in_us: of a swap.
    """

    action: str
    cost_us: float | None
    why_not: str = ""
    reason_code: str = ""
    runs: tuple[str, ...] = ()
    copy_out_us: float = 0.0
    copy_in_us: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """Half-open steps of the rewritten model in which a tensor is off the device, and how it comes
    back: `action` is recompute or swap, `by` the node."""

    start: int
    end: int
    action: str
    by: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A retention interval: from one node that makes or reads the tensor to the next that reads it.

    Attributes:
        opens, closes: the nodes; start, end: their steps in the rewritten model.
        chosen: keep, recompute or swap. absences: none where it is kept.
        ways: what was weighed, at the state of this plan.
        rent_us: what the bound says that the tensor's bytes are worth here: bytes times the prices
            of the instants within the interval; None where there are no prices.
    """

    opens: str
    closes: str
    start: int
    end: int
    chosen: str
    absences: tuple[Absence, ...]
    ways: tuple[Way, ...]
    rent_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Half-open steps in which one copy of a buffer is on the device."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """An instant: a node, what a byte of budget there is worth to the bound, and whether the
    tensor waits there (is needed later, and not by this node)."""

    node: str
    us_per_byte: float
    waits: bool

    @property
    def us_per_mib(self) -> float:
        """The same of a MiB."""
        return self.us_per_byte * (1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything about one tensor.

    Attributes:
        buffer: the tensor whose storage this one uses: its own name unless it is a view.
        program: of the fused node that makes it; "" where none does.
        uses: nodes that read the buffer, in the plan's base order.
        before: where it is on the device in the original, in ONNX Runtime's default order of
            `steps_before` steps; None where only planner's copy of the model has it.
        after: its copies in the rewritten model, of `steps_after` steps.
        at_peak_before, at_peak_after: whether it is on the device at the peak.
        returns: how it comes back behind its last use, for recomputes of others that read it.
        instants: instants of the bound, None where the time for it ran out.
        bound_us: of the instants here; the plan file has the search's own.
        times_from: where the durations come from now; the plan's own are `plan.cost_source`.
    """

    plan: Plan
    tensor: str
    buffer: str
    bytes: int
    category: str
    dtype: str
    shape: tuple[int, ...]
    is_persistent: bool
    producer: str | None
    program: str
    uses: tuple[str, ...]
    steps_before: int
    steps_after: int
    before: Span | None
    after: tuple[Span, ...]
    at_peak_before: bool
    at_peak_after: bool
    intervals: tuple[Interval, ...]
    returns: tuple[Absence, ...]
    instants: tuple[Instant, ...] | None
    bound_us: float | None
    times_from: str
