"""One tensor of a plan: where it is, what was weighed, what its bytes are worth."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from planner import __version__
from planner.pipeline.record.explanation import Absence, Explanation, Interval, Span, Way
from planner.report.document import Document, told
from planner.units import format_duration

T = TypeVar("T")
_WHAT_PRICES_ARE = (
    "Prices are of the bound: the dual prices of the linear program over these instants, which "
    "says that no plan in this base order takes less time. That program may keep a part of a "
    "tensor; what another MiB saves the plan itself comes in jumps, and may be nothing."
)


class Presence(Document, Generic[T], frozen=True):
    """When the tensor is on the device, of so many steps, and whether at the peak."""

    steps: int
    live: T
    at_peak: bool


class IntervalRow(Document, frozen=True):
    """From one node that makes or reads the tensor to the next that reads it; `rent_us` is what its bytes
    are worth to the bound there."""

    opens: str
    closes: str
    start: int
    end: int
    chosen: str
    absences: tuple[Absence, ...]
    ways: tuple[Way, ...]
    rent_us: float | None
    why: str


class CutRow(Document, frozen=True):
    """What another MiB takes off the bound while a node runs, and whether the tensor waits there."""

    node: str
    us_per_mib: float
    waits: bool


class Prices(Document, frozen=True):
    """What the budget is worth; `what` says of what these are prices."""

    what: str
    bound_us: float | None
    us_per_mib: float
    us_per_mib_where_it_waits: float
    cuts: tuple[CutRow, ...]


class ExplainDocument(Document, kw_only=True, frozen=True):
    """The document of `planner explain`; its times are `times_from`, the plan's `plan_times_from`."""

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
    intervals: tuple[IntervalRow, ...]
    returns: tuple[Absence, ...]
    prices: Prices | None
    plan_times_from: str


def explain_document(e: Explanation) -> ExplainDocument:
    """The document of `planner explain`."""
    return told(
        ExplainDocument,
        e,
        model_sha256=e.plan.model_sha256,
        budget_bytes=e.plan.budget_bytes,
        unchanged=e.plan.unchanged,
        persistent=e.is_persistent,
        program=e.program or None,
        before=Presence(e.steps_before, e.before, e.at_peak_before),
        after=Presence(e.steps_after, e.after, e.at_peak_after),
        intervals=[told(IntervalRow, i, why=why(i)) for i in e.intervals],
        prices=_prices(e),
        plan_times_from=e.plan.cost_source,
    )


def _prices(e: Explanation) -> Prices | None:
    if e.instants is None:
        return None
    return told(
        Prices,
        e,
        what=_WHAT_PRICES_ARE,
        us_per_mib=sum(m.us_per_mib for m in e.instants),
        us_per_mib_where_it_waits=sum(m.us_per_mib for m in e.instants if m.waits),
        cuts=e.instants,
    )


def why(interval: Interval) -> str:
    """Why a tensor is kept, or brought back, over one interval."""
    if interval.absences:
        return "; ".join(dict.fromkeys(a.why for a in interval.absences if a.why))
    costs = [w.cost_us for w in interval.ways if w.action != "keep" and w.cost_us is not None]
    if not costs:
        return "it may be neither recomputed nor swapped"
    rent = interval.rent_us
    back = f"bringing it back costs {format_duration(min(costs))}"
    if rent is None:
        return back
    if rent < 1e-3:
        return "memory has no price here: no instant that binds lies within the interval"
    worth = f"its bytes are worth {format_duration(rent)} to the bound here"
    if rent <= min(costs) * (1 + 1e-6):
        return f"{worth}, {back}"
    return f"{worth}, although {back}: the plan is not the bound"
