"""Which saved tensors are stored in half: chosen with the plan that they allow, and only where it pays.

The exact plan comes first. Where there is none, or where it takes more time than the model as it is,
saved tensors are ranked by the bytes that half of them frees times the steps over the budget that it
frees them for; the first so many of the ranking are stored in half: how many, quick searches tell, in
the order with the least peak. As many as it takes, and no more: each of them changes numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner import clock
from planner.errors import InfeasibleBudgetError
from planner.graph.liveness import timeline
from planner.graph.model import OpId
from planner.graph.saved import Saved, may_be_halved
from planner.graph.schedule import with_folded
from planner.pipeline.levers.halving import halved, in_order, name_of
from planner.pipeline.prepare.prepared import Prepared, Progress
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.orders import base_orders
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.quick import (
    WORTH,
    is_slow,
    least_bytes,
    next_between,
    quick_us,
)

_SHARE, _MOST_S = 0.15, 10.0
"""Of the time limit, for all quick searches, and their most seconds."""

_SEARCHES = 8

_SLOWER = 0.002
"""Of two numbers of tensors the smaller is taken, where its plan takes no more of the step's time."""

Made = tuple[Prepared, Planned]
Plan = Callable[[Prepared, float], Made]
"""Plans a model: (the model, share of the time limit)."""

_EXACT = 0.5
"""Share of the time limit for the exact plan, where another may follow."""


def plan_with_halves(
    prepared: Prepared, settings: Settings, progress: Progress, plan: Plan
) -> Made:
    """The exact plan, or a quicker one with saved tensors in half, where the request allows that.

    Args:
        plan: makes the best plan for one model.

    Raises:
        InfeasibleBudgetError: no plan fits, exact or not.
    """
    if prepared.request.levers.cast_saved == "none":
        return plan(prepared, 1.0)
    exact: Made | None = None
    try:
        exact = plan(prepared, _EXACT)
        if not is_slow(prepared, exact[1]):
            return exact
    except InfeasibleBudgetError as error:
        progress("no exact plan fits the budget")
        names = choose_halves(prepared, settings, progress)
        if not names:
            raise
        return _with_all(prepared, names, progress, plan, error)
    try:
        names = choose_halves(prepared, settings, progress, exact[1])
        if not names:
            return exact
        made = plan(_in_half(prepared, names), 1 - _EXACT)
    except InfeasibleBudgetError:
        return exact
    except KeyboardInterrupt:
        return exact[0], exact[1].interrupted()
    quicker = made[1].time_us < exact[1].time_us - WORTH * prepared.baseline.time_us
    return made if quicker and made[1].has_room >= exact[1].has_room else exact


def _with_all(
    prepared: Prepared,
    names: Sequence[str],
    progress: Progress,
    plan: Plan,
    exact: InfeasibleBudgetError,
) -> Made:
    """The plan with the tensors chosen in half; with all that may be, where that does not fit."""
    every = [name for name, _ in ranked(prepared, None)]
    try:
        return plan(_in_half(prepared, names), 1 - _EXACT)
    except InfeasibleBudgetError as error:
        if len(names) == len(every):
            raise InfeasibleBudgetError(
                f"{error}; so it is with {len(every):,} saved tensors in half "
                f"(--cast-saved {prepared.request.levers.cast_saved})",
                least_peak_bytes=min(
                    (n for n in (error.least_peak_bytes, exact.least_peak_bytes) if n), default=0
                ),
                bound_bytes=error.bound_bytes,
                binding=error.binding,
            ) from None
        progress("again, with all that may be in half")
        return _with_all(prepared, every, progress, plan, exact)


def _in_half(prepared: Prepared, names: Sequence[str]) -> Prepared:
    return halved(prepared, frozenset(names), prepared.request.levers.cast_saved)


def ranked(prepared: Prepared, settings: Settings | None) -> list[tuple[str, float]]:
    """Names of what may be stored in half, with bytes times steps over the budget that this frees, the
    most first.

    Args:
        settings: with the budget; None counts every step.
    """
    least = least_bytes(prepared)
    live = np.asarray(timeline(prepared.graph, prepared.order).live_bytes)
    high = np.ones(len(live), dtype=bool)
    if settings is not None:
        high = live > min(settings.budget_bytes - settings.reserve_bytes, int(live.max()) - 1)
    before = np.concatenate([[0], np.cumsum(high)])
    step = {op: i for i, op in enumerate(prepared.order)}
    found = [
        (name_of(prepared, saved), prepared.graph.tensors[saved.buffer].bytes / 2 * away)
        for saved in may_be_halved(prepared.graph)
        if prepared.graph.tensors[saved.buffer].bytes >= least
        and (away := _away(prepared, saved, step, before)) > 0
    ]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))


def _away(prepared: Prepared, saved: Saved, step: dict[OpId, int], before: np.ndarray) -> int:
    """Steps over the budget between the last operation of the forward pass that needs a buffer and the
    first of the backward pass."""
    producer = prepared.graph.tensors[saved.buffer].producer
    assert producer is not None
    first = min(step[op] for op in saved.late)
    last = max([step[producer], *(step[op] for op in saved.early if step[op] < first)])
    return int(before[first] - before[last + 1])


def choose_halves(
    prepared: Prepared, settings: Settings, progress: Progress, exact: Planned | None = None
) -> tuple[str, ...]:
    """Names of the saved tensors to store in half; none, where nothing quicker was found.

    Args:
        exact: the plan without any; None where there is none.
    """
    candidates = tuple(name for name, _ in ranked(prepared, settings))
    if not candidates:
        return ()
    progress(f"planning with saved tensors in {prepared.request.levers.cast_saved}")
    search = _Search(prepared=prepared, settings=settings, candidates=candidates)
    return search.choose(exact)


@dataclass(slots=True, kw_only=True)
class _Search:
    """Quick searches with more or fewer tensors in half.

    Attributes:
        candidates: ranked.
        times: predicted microseconds by how many of the ranking are in half; infinite where nothing
            fits.
        until: when the searches end.
    """

    prepared: Prepared
    settings: Settings
    candidates: tuple[str, ...]
    times: dict[int, float] = field(default_factory=dict)
    until: float = 0.0

    def choose(self, exact: Planned | None) -> tuple[str, ...]:
        """The fewest whose plan is about as quick as any."""
        share_s = min(_MOST_S, _SHARE * self.settings.time_limit_s)
        self.until = clock.now() + share_s
        if exact is not None:
            self.times[0] = exact.time_us
            order = exact.base.order
            graph = exact.prepared.graph
        else:
            order = base_orders(self.prepared, time_limit_s=share_s)[0].order
            graph = self.prepared.graph
        mine = {op.name for op in self.prepared.graph.operations}
        names = [graph.operations[op].name for op in with_folded(graph, order)]
        self._number([name for name in names if name in mine])
        best = min(self.times.values())
        if best == float("inf"):
            return self.candidates if exact is None else ()
        near = best + _SLOWER * self.prepared.baseline.time_us
        return self.candidates[: min(n for n, us in self.times.items() if us <= near)]

    def _number(self, order: Sequence[str]) -> None:
        """All are tried, then half of them, then what lies between the best and its neighbours."""
        most = len(self.candidates)
        self._try(most, order)
        self._try(most // 2, order)
        while len(self.times) < _SEARCHES and clock.now() < self.until:
            best = min(self.times, key=lambda n: (self.times[n], n))
            count = next_between({0, *self.times}, best)
            if count is None:
                break
            self._try(count, order)

    def _try(self, count: int, order: Sequence[str]) -> None:
        if count in self.times or not count:
            return
        prepared = _in_half(self.prepared, self.candidates[:count])
        in_graph = in_order(prepared.graph, order)
        left_s = max(0.3, (self.until - clock.now()) / _SEARCHES)
        self.times[count] = quick_us(prepared, in_graph, self.settings, left_s)
