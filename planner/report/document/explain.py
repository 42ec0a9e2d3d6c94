"""The document of `planner explain`: one tensor of a plan, its alternatives, and the worth of its
bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

from planner import __version__
from planner.report.document import Document
from planner.units import format_duration

T = TypeVar("T")
_WHAT_PRICES_ARE = (
    "Prices belong to the bound: they are the dual prices of the linear program over these "
    "instants, which proves that no plan in this base order takes less time. That program may "
    "keep a part of a tensor; in the plan itself, another MiB saves time in jumps, and may save "
    "none."
)


class IntervalWay(Document, frozen=True):
    """One way to have a tensor at the end of an interval.

    Attributes:
        action: keep, recompute or swap.
        cost_us: added time; None where it is impossible, with the reason in `why_not`, and in
            `reason_code` as a code of `planner.graph.reasons`.
        runs: the nodes that run again for it, the tensor's producer first.
        copy_out_us, copy_in_us: times of a swap's copies.
    """

    action: str
    cost_us: float | None
    why_not: str = ""
    reason_code: str = ""
    runs: tuple[str, ...] = ()
    copy_out_us: float = 0.0
    copy_in_us: float = 0.0


class Absence(Document, frozen=True):
    """Half-open steps of the rewritten model in which a tensor is off the device, and its return.

    `action` is recompute or swap, `by` the node that brings it back.
    """

    start: int
    end: int
    action: str
    by: str
    why: str


class Interval(Document, frozen=True):
    """A retention interval: from one node that makes or reads the tensor to the next that reads it.

    Attributes:
        opens, closes: the nodes; start, end: their steps in the rewritten model.
        chosen: keep, recompute or swap. absences: empty where it is kept.
        ways: the alternatives that were weighed, at the state of this plan.
        rent_us: worth of the tensor's bytes to the bound here: bytes times the prices of the instants
            within the interval; None without prices.
        why: the reason for the choice, in a sentence.
    """

    opens: str
    closes: str
    start: int
    end: int
    chosen: str
    absences: tuple[Absence, ...]
    ways: tuple[IntervalWay, ...]
    rent_us: float | None
    why: str


class Span(Document, frozen=True):
    """Half-open steps in which one copy of a buffer is on the device."""

    name: str
    start: int
    end: int


class Presence(Document, Generic[T], frozen=True):
    """The steps in which the tensor is on the device, out of `steps`, and whether it is at the peak."""

    steps: int
    live: T
    at_peak: bool


class BudgetCut(Document, frozen=True):
    """A node, and the time that another MiB of budget takes off the bound while it runs.

    `waits` tells whether the tensor is needed later, but not by this node.
    """

    node: str
    us_per_mib: float
    waits: bool


class Prices(Document, frozen=True, kw_only=True):
    """The worth of the budget to `bound_us`, the bound on the time."""

    what: str = _WHAT_PRICES_ARE
    bound_us: float
    us_per_mib: float
    us_per_mib_where_it_waits: float
    cuts: tuple[BudgetCut, ...]


class ExplainDocument(Document, frozen=True, kw_only=True):
    """All facts about one tensor.

    Attributes:
        buffer: the tensor whose storage this one uses: its own name unless it is a view.
        program: program of the fused node that makes it.
        uses: nodes that read the buffer, in the plan's base order.
        persistent: whether it is a graph input or initializer.
        before: its presence in the original, in ONNX Runtime's default order; `live` is None where only
            planner's copy of the model has it.
        after: its copies in the rewritten model.
        returns: its returns after its last use, for recomputes of other tensors that read it.
        prices: None where the time for them ran out.
        times_from: source of the durations now; the plan's own is `plan_times_from`.
    """

    schema: Literal["planner.explain/1"] = "planner.explain/1"
    planner_version: str = __version__
    model_sha256: str
    budget_bytes: int
    unchanged: bool
    tensor: str
    buffer: str
    bytes: int
    category: str
    dtype: str
    shape: tuple[int, ...]
    producer: str | None
    uses: tuple[str, ...]
    times_from: str
    persistent: bool
    program: str | None
    before: Presence[Span | None]
    after: Presence[tuple[Span, ...]]
    intervals: tuple[Interval, ...]
    returns: tuple[Absence, ...]
    prices: Prices | None
    plan_times_from: str


def why(absences: Sequence[Absence], ways: Sequence[IntervalWay], rent_us: float | None) -> str:
    """Say why a tensor is kept, or brought back, over one interval."""
    if absences:
        return "; ".join(dict.fromkeys(a.why for a in absences if a.why))
    costs = [w.cost_us for w in ways if w.action != "keep" and w.cost_us is not None]
    if not costs:
        return "it may be neither recomputed nor swapped"
    back = f"bringing it back costs {format_duration(min(costs))}"
    if rent_us is None:
        return back
    if rent_us < 1e-3:
        return "memory has no price here: no binding instant lies within the interval"
    worth = f"its bytes are worth {format_duration(rent_us)} to the bound here"
    if rent_us <= min(costs) * (1 + 1e-6):
        return f"{worth}, {back}"
    return f"{worth}, although {back}: the plan is not the bound"
