"""The last resort if no plan fits: plans with the least peaks, and the error that names the least."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.errors import InfeasibleBudgetError, TimeLimitError
from planner.formulate import Formulation
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.fitting import with_room
from planner.pipeline.solve.orders import (
    BaseOrder,
    formulate_in,
    least_bound_order,
    least_possible_peak,
    pinned_peak,
)
from planner.pipeline.solve.planned import Planned, lowered_plan
from planner.pipeline.solve.policy import POLICY
from planner.pipeline.solve.serial_first import limit_within, search_for
from planner.plan.candidate import Candidate
from planner.plan.solved import Solved
from planner.portfolio.min_peak import min_peak_of
from planner.units import format_both, format_budget, format_bytes

_ELSEWHERE = " while parameters, state, inputs and outputs stay on the device (--resident)"
"""Hint at residence, for requests that do not allow it on a host with its own memory."""

_IN_CHUNKS = "; --split auto runs operations that are too large in chunks of rows"

_AS_HELD = " with all that a session holds (--budget-of live bounds live bytes alone)"


@dataclass(frozen=True, slots=True)
class LeastPlan:
    """The plan with the least peak so far, with its base order and problem."""

    base: BaseOrder
    form: Formulation
    candidate: Candidate

    def is_same(self, other: LeastPlan) -> bool:
        """Tell whether two plans are the same; actions are indices into operations in base order."""
        return (self.base.order, self.candidate.actions) == (
            other.base.order,
            other.candidate.actions,
        )


class TooShortError(TimeLimitError):
    """A search had too little time to accept a plan; a later one is to make the last resort.

    Its least peak is one of live bytes that was found, not a budget that was tried.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """A search that accepted no plan.

    Attributes:
        held_bytes: an estimate of the least budget that holds a plan which it found; None without one.
        is_late: its time limit had passed.
        is_last: no longer search follows it that may find one.
    """

    held_bytes: int | None = None
    is_late: bool = False
    is_last: bool = True


def least_plan(
    prepared: Prepared,
    settings: Settings,
    found: Iterable[Sequence[LeastPlan]],
    orders: tuple[BaseOrder, ...],
    search: NoPlan,
) -> Planned:
    """Lower the plans with the least peaks until one is within the budget, the quickest first.

    ONNX Runtime does not round buffers up, and anchors take a few bytes: the plan with the least
    rounded peak is not always the one that needs least.

    Args:
        found: the plans; further ones are requested until one is within the budget.
        search: the search before this one.

    Raises:
        InfeasibleBudgetError: none is within the budget.
    """
    tried: list[tuple[int, LeastPlan]] = []
    for some in found:
        for least in sorted(some, key=lambda least: _turn(least.candidate, settings.room_bytes)):
            if any(least.is_same(other) for _, other in tried):
                continue
            planned = _lower_least(prepared, settings, least, orders)
            peak_bytes = planned.timeline.peak_bytes
            if peak_bytes <= settings.room_bytes and least.candidate.time_us <= settings.most_us:
                planned = with_room(planned, settings)[0]
                if planned.holds:
                    return planned
            tried.append((peak_bytes, least))
    peak_bytes, least = min(tried, key=lambda pair: pair[0])
    room = pinned_peak(prepared, peak_bytes, len(least.candidate.actions))
    if not search.is_last:
        least_bytes = room + settings.reserve_bytes
    elif settings.budget_of == "live":
        least_bytes = min(room, prepared.baseline.worst_peak_bytes) + settings.reserve_bytes
    else:
        needed = _held_in(prepared, settings, least, room + settings.reserve_bytes, orders)
        least_bytes = min(needed, search.held_bytes or needed)
    raise _infeasible(prepared, settings, least, least_bytes, search)


def _turn(plan: Candidate, room_bytes: int) -> tuple[bool, float]:
    """Return the sort key: plans that fit by their time, then the others by their peak."""
    is_over = plan.peak_bytes > room_bytes
    return is_over, plan.peak_bytes if is_over else plan.time_us


def _held_in(
    prepared: Prepared,
    settings: Settings,
    least: LeastPlan,
    budget_bytes: int,
    orders: tuple[BaseOrder, ...],
) -> int:
    """Estimate a budget that holds the plan with the least peak.

    Args:
        budget_bytes: a budget that its live bytes meet.
    """
    for _ in range(POLICY.held_tries):
        asked = replace(settings, budget_bytes=budget_bytes)
        planned = _lower_least(prepared, asked, least, orders)
        planned, needed_bytes = with_room(planned, asked)
        if planned.holds:
            break
        budget_bytes = max(needed_bytes, int(POLICY.held_step * budget_bytes))
    return int(POLICY.held_step * budget_bytes)


def least_peaks(
    prepared: Prepared,
    settings: Settings,
    known: LeastPlan,
    forms: Mapping[BaseOrder, Formulation],
    search: NoPlan,
) -> Iterator[Sequence[LeastPlan]]:
    """Yield plans with low peaks, for `least_plan`.

    Beyond the time limit the known plan comes alone first, and each search for others gets a tenth
    of the limit; there is none if a longer search follows.

    Args:
        forms: the problem in each base order.
    """
    if search.is_late:
        yield [known]
    if not search.is_last:
        return
    share = POLICY.late if search.is_late else 0.5
    limit_s = max(POLICY.least_peak_s, share * settings.time_limit_s)
    alone = _least_alone(prepared, settings, tuple(forms), limit_s)
    yield [known, alone, _least_of(forms, min(POLICY.least_of_all_s, 2 * limit_s))]


def _lower_least(
    prepared: Prepared, settings: Settings, least: LeastPlan, orders: tuple[BaseOrder, ...]
) -> Planned:
    solved = Solved(
        candidate=least.candidate,
        least=least.candidate,
        bound_us=least.form.problem.base_duration_us,
        bound_class="any schedule",
        engine="least peak",
        solve_s=0.0,
    )
    return lowered_plan(prepared, settings, least.base, least.form, solved, orders)


def _least_alone(
    prepared: Prepared, settings: Settings, orders: tuple[BaseOrder, ...], limit_s: float
) -> LeastPlan:
    """Search for the least peak as if nothing fitted.

    The search finds the same plan for every budget: the least budget that an error names has a
    plan.
    """
    base = least_bound_order(orders)
    form = formulate_in(prepared, base.order, settings, 1)
    search = settings.search(limit_within(form.problem, limit_s))
    solved = search_for(form.problem)(form.problem, search)
    return LeastPlan(base, form, solved.least)


def _least_of(forms: Mapping[BaseOrder, Formulation], limit_s: float) -> LeastPlan:
    """Search for the least peak over all base orders."""
    index, best = min_peak_of([form.problem for form in forms.values()], time_limit_s=limit_s)
    base = list(forms)[index]
    return LeastPlan(base, forms[base], best)


def _infeasible(
    prepared: Prepared, settings: Settings, least: LeastPlan, found: int, search: NoPlan
) -> InfeasibleBudgetError:
    """Build the error with the least budget found, a bound, and the largest tensors at the peak.

    It is a TimeLimitError if the time limit ended the search and the bound leaves room for a plan. If a
    longer search follows, it is a TooShortError instead.

    Args:
        found: the least budget that holds some plan, in bytes.
    """
    best = least.candidate
    bound = min(found, least_possible_peak(prepared) + settings.reserve_bytes)
    step = best.replay.peak_action
    sizes = least.form.problem.tensors
    resident = [(sizes[t].name, sizes[t].bytes) for t, b, e in best.replay.copies if b <= step < e]
    graph = prepared.graph
    persistent = [(t.name, t.bytes) for t in graph.tensors if t.is_persistent and not t.on_host]
    binding = tuple(sorted([*resident, *persistent], key=lambda item: -item[1])[:10])
    levers = prepared.request.levers
    is_shared = prepared.target.is_host and prepared.hardware.is_host
    is_one_too_large = least.form.problem.fixed_bytes < settings.budget_bytes < bound
    is_open = search.is_late and bound <= settings.budget_bytes
    kind = TimeLimitError if is_open else InfeasibleBudgetError
    if not search.is_last:
        kind = TooShortError
    as_held = _AS_HELD if settings.budget_of == "held" else ""
    what = "within the time limit no plan was found that fits" if is_open else "no plan fits"
    return kind(
        f"{what} {format_both(settings.budget_bytes)}: the least peak found is "
        f"{format_budget(found)}{as_held}, and no plan in any order can be below {format_bytes(bound)}"
        + (" with the same operations in chunks" if prepared.split else "")
        + (_ELSEWHERE if levers.residence == "device" and not is_shared else "")
        + (_IN_CHUNKS if is_one_too_large and levers.split == "none" else "")
        + ("; give it more --time-limit, or a larger budget" if is_open else ""),
        least_peak_bytes=found,
        bound_bytes=bound,
        binding=binding,
    )
