"""Compare two plan files: changed decisions, their cost, and why the peak moved.

All figures come from the two files. Differences are b - a: positive where b has more.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from planner import __version__
from planner.disk import Disk
from planner.plan.planfile import Plan, PredictedCost
from planner.report.document import Document
from planner.units import Number, counted, format_bytes, format_duration, format_percent, signed

T = TypeVar("T")
_SETTINGS = (
    "planner_version",
    "model_name",
    "model_sha256",
    "dims",
    "budget_text",
    "budget_bytes",
    "reserve_bytes",
    "hardware",
    "cost_source",
    "swap_mode",
    "assumed",
    "copies",
    "disk",
    "pattern",
    "order_target",
    "ort_optimized",
    "engine",
    "seed",
)
_FIGURES = (*PredictedCost.__dataclass_fields__, "step_us")
_PERSISTENT = "graph inputs and initializers"
_WORKSPACE = "workspace of the node that runs"
_PAST = {"recompute": "recomputed", "swap": "swapped"}

Amounts = dict[str, int]


class Both(Document, Generic[T], frozen=True):
    """A figure of both plans."""

    a: T
    b: T


class Pair(Both[T], frozen=True):
    """A number of both plans, and b - a."""

    difference: T


class SettingRow(Document, frozen=True):
    """A setting in which the plans differ."""

    setting: str
    a: Any
    b: Any


class FateRow(Document, frozen=True):
    """A tensor that the two plans treat differently."""

    tensor: str
    bytes: int
    category: str
    a: str
    b: str
    cost_us: Pair[float]


class FirstDifference(Document, frozen=True):
    """The place from which two series differ; None for a series that has ended."""

    at: int
    a: str | None
    b: str | None


class OrderChange(Document, frozen=True):
    """Two base orders; `moved` is the least number of nodes to move to get b's from a's."""

    equal: bool
    nodes: Both[int]
    moved: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    first_difference: FirstDifference | None


class ScheduleChange(Document, frozen=True):
    """Two schedules."""

    equal: bool
    actions: Pair[int]
    first_difference: FirstDifference | None


class TermRow(Pair[int], frozen=True):
    """Bytes of one tensor at both peaks."""

    tensor: str


class Moment(Document, frozen=True):
    """The step at which a peak is reached."""

    step: int
    node: str


class PeakChange(Pair[int], frozen=True):
    """Two peaks, and terms that add up to their difference; bytes that the files do not list are one
    term."""

    at: Both[Moment | None]
    terms: tuple[TermRow, ...]
    complete: bool
    not_known_bytes: int


class DiffDocument(Document, kw_only=True, frozen=True):
    """The document of `planner diff`.

    Attributes:
        same_times: the model's own step takes the same predicted time in both plans.
        step_ratio: b's predicted step time by a's. If the times differ, each is divided by the time of
            the model's own step first.
    """

    schema: Literal["planner.diff/1"] = "planner.diff/1"
    planner_version: str = __version__
    a: str
    b: str
    sentence: str
    same_model: bool
    same_schedule: bool
    settings: tuple[SettingRow, ...]
    planned: dict[str, Pair[int | float]]
    same_times: bool
    step_ratio: float | None
    baseline_peak_bytes: Pair[int]
    bound_us: Both[float | None]
    tensors: tuple[FateRow, ...]
    base_order: OrderChange
    schedule: ScheduleChange
    peak: PeakChange


def diff_document(a: Plan, b: Plan, *, paths: tuple[Path, Path]) -> DiffDocument:
    """Make the document of `planner diff`."""
    same_times = _have_same_times(a, b)
    shares = [plan.planned.step_us / (plan.baseline.time_us or math.inf) for plan in (a, b)]
    before, after = (a.planned.step_us, b.planned.step_us) if same_times else shares
    document = DiffDocument(
        same_times=same_times,
        step_ratio=after / before if before else None,
        a=str(paths[0]),
        b=str(paths[1]),
        sentence="",
        same_model=a.model_sha256 == b.model_sha256,
        same_schedule=a.schedule == b.schedule,
        settings=tuple(
            SettingRow(name, of_a, of_b)
            for name in _SETTINGS
            if (of_a := _setting(a, name)) != (of_b := _setting(b, name))
        ),
        planned={
            name: _pair(getattr(a.planned, name), getattr(b.planned, name)) for name in _FIGURES
        },
        baseline_peak_bytes=_pair(a.baseline.peak_bytes, b.baseline.peak_bytes),
        bound_us=Both(a.bound_us, b.bound_us),
        tensors=tuple(_fates(a, b)),
        base_order=_order(_base_order(a), _base_order(b)),
        schedule=_schedule(a, b),
        peak=_peak(a, b),
    )
    return msgspec.structs.replace(document, sentence=_sentence(document, shares))


def _have_same_times(a: Plan, b: Plan) -> bool:
    """Tell whether step times of two plans compare as they are.

    They do if the model's own step takes as long in both plans, and if the models differ.
    """
    is_same = (a.model_sha256, a.dims) == (b.model_sha256, b.dims)
    return not is_same or math.isclose(a.baseline.time_us, b.baseline.time_us, rel_tol=1e-6)


def _setting(plan: Plan, name: str) -> Any:
    """Return a plan's value of a setting."""
    value = getattr(plan, name)
    return value.speeds if isinstance(value, Disk) else value


def _pair(a: Number, b: Number) -> Pair[Number]:
    return Pair(a, b, b - a)


# -- decisions and order -----------------------------------------------------------------------


def _fates(a: Plan, b: Plan) -> list[FateRow]:
    """List tensors with different fates, or the same fate a different number of times; largest first."""
    facts = {d.tensor: d for plan in (a, b) for d in plan.decisions}
    counts = [Counter((d.tensor, d.action) for d in plan.decisions) for plan in (a, b)]
    cost_us: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for plan, sums in zip((a, b), cost_us, strict=True):
        for d in plan.decisions:
            sums[d.tensor] = sums.get(d.tensor, 0.0) + d.cost_us
    rows = []
    for tensor, decision in facts.items():
        fates = [{x: c[tensor, x] for x in _PAST if c[tensor, x]} for c in counts]
        if fates[0] == fates[1]:
            continue
        rows.append(
            FateRow(
                tensor=tensor,
                bytes=decision.bytes,
                category=decision.category,
                a=_fate(fates[0]),
                b=_fate(fates[1]),
                cost_us=_pair(*(sums.get(tensor, 0.0) for sums in cost_us)),
            )
        )
    return sorted(rows, key=lambda row: (-row.bytes, row.tensor))


def _fate(times: dict[str, int]) -> str:
    if not times:
        return "kept"
    return " and ".join(
        _PAST[action] if n == 1 else f"{_PAST[action]} {n} times" for action, n in times.items()
    )


def _base_order(plan: Plan) -> tuple[str, ...]:
    """List nodes in the order of their first run; empty for a model that is left as it is."""
    return tuple(s.target for s in plan.schedule if s.kind == "run" and s.copy == 0)


def _order(a: Sequence[str], b: Sequence[str]) -> OrderChange:
    place = {node: i for i, node in enumerate(a)}
    both = [place[node] for node in b if node in place]
    ends: list[int] = []  # nodes of the longest ascending subsequence can stay
    for at in both:
        spot = bisect_left(ends, at)
        ends[spot : spot + 1] = [at]
    there = set(b)
    return OrderChange(
        equal=tuple(a) == tuple(b),
        nodes=Both(len(a), len(b)),
        moved=len(both) - len(ends),
        only_a=tuple(node for node in a if node not in there),
        only_b=tuple(node for node in b if node not in place),
        first_difference=_first_difference(a, b),
    )


def _first_difference(a: Sequence[str], b: Sequence[str]) -> FirstDifference | None:
    for i, (here, there) in enumerate(itertools.zip_longest(a, b)):
        if here != there:
            return FirstDifference(i, here, there)
    return None


def _schedule(a: Plan, b: Plan) -> ScheduleChange:
    texts = [[f"{s.kind} {s.target}" for s in plan.schedule] for plan in (a, b)]
    return ScheduleChange(
        equal=a.schedule == b.schedule,
        actions=_pair(len(a.schedule), len(b.schedule)),
        first_difference=_first_difference(*texts),
    )


# -- the peak ----------------------------------------------------------------------------------


def _peak(a: Plan, b: Plan) -> PeakChange:
    difference = b.planned.peak_bytes - a.planned.peak_bytes
    complete = a.peak is not None and b.peak is not None
    if complete:
        here, there = _residents(a), _residents(b)
        names = {*here, *there}
    else:
        here, there = dict(a.binding), dict(b.binding)
        names = {name for name in {*here, *there} if _is_known(name, a, b)}
    pairs = ((name, _pair(here.get(name, 0), there.get(name, 0))) for name in names)
    terms = [TermRow(p.a, p.b, p.difference, name) for name, p in pairs if p.difference]
    terms.sort(key=lambda term: (-abs(term.difference), term.tensor))
    return PeakChange(
        a=a.planned.peak_bytes,
        b=b.planned.peak_bytes,
        difference=difference,
        at=Both(_moment(a), _moment(b)),
        terms=tuple(terms),
        complete=complete,
        not_known_bytes=difference - sum(term.difference for term in terms),
    )


def _moment(plan: Plan) -> Moment | None:
    return None if plan.peak is None else Moment(plan.peak.step, plan.peak.node)


def _residents(plan: Plan) -> Amounts:
    """Add up bytes by tensor at the planned peak, copies of one tensor together."""
    assert plan.peak is not None
    found: Counter[str] = Counter()
    for resident in plan.peak.residents:
        found[resident.tensor] += resident.bytes
    found[f"({_PERSISTENT})"] += plan.peak.persistent_bytes
    found[f"({_WORKSPACE})"] += plan.peak.workspace_bytes
    return dict(found)


def _is_known(name: str, a: Plan, b: Plan) -> bool:
    """Tell whether older files, which list only the largest residents, tell where a tensor is
    resident.

    They do where both list it, or where a file would list it if it were resident.
    """
    for plan, other in ((a, b), (b, a)):
        listed = dict(plan.binding)
        if name in listed:
            continue
        least = min(listed.values(), default=0)
        if sum(listed.values()) < plan.planned.peak_bytes and dict(other.binding)[name] <= least:
            return False
    return True


def _sentence(document: DiffDocument, shares: Sequence[float]) -> str:
    """Return the sentence that sums a comparison up.

    Args:
        shares: each plan's step time by the time of its model's own step.
    """
    peak, time, changed = document.peak, document.planned["step_us"], len(document.tensors)
    if document.same_schedule and not changed and not peak.difference:
        return "Both plans do the same."
    ratio = document.step_ratio
    percent = "" if ratio is None else f" ({signed(format_percent, ratio - 1)})"
    step = f"step time from {format_duration(time.a)} to {format_duration(time.b)}{percent}"
    if not document.same_times:
        step = (
            f"step from x{shares[0]:.3f} to x{shares[1]:.3f} of the model's own{percent}: operation "
            "times of the plans differ (hardware or calibration), and step times do not compare"
        )
    text = (
        f"The planned peak goes from {format_bytes(peak.a)} to {format_bytes(peak.b)} "
        f"({signed(format_bytes, peak.difference)}), the predicted {step}"
    )
    return f"{text}; {counted(changed, 'tensor', 'are')} treated differently."
