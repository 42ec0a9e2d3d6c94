"""Short searches that compare ways to change a model before it is planned in earnest."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.graph.model import OpId
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.orders import formulate_in
from planner.pipeline.solve.planned import Planned
from planner.plan.problem import Problem
from planner.portfolio.solve import solve
from planner.search.state import SearchSettings

WORTH = 0.01
"""Share of the step's time by which a plan of a changed model must be quicker."""

_MIN_BYTES = 4096
"""What is smaller stays as it is: its copy or cast takes as long as a node takes to start."""

_OF_PEAK = 1 / 2000
"""So does what is smaller than this share of the peak."""


def least_bytes(prepared: Prepared) -> int:
    """What is smaller is not worth a node of its own, in bytes."""
    return max(_MIN_BYTES, int(_OF_PEAK * prepared.baseline.peak_bytes))


@dataclass(frozen=True, slots=True)
class QuickSearch:
    """A short search in one order: plain values, which another process can be given."""

    problem: Problem
    settings: SearchSettings

    def time_us(self) -> float:
        """Of the plan that it finds, in microseconds; infinite where it finds none."""
        found = solve(self.problem, self.settings).candidate
        return float("inf") if found is None else found.time_us


def quick_search(
    prepared: Prepared, order: Sequence[OpId], settings: Settings, limit_s: float
) -> QuickSearch:
    """A short search for a plan within the budget, in one order."""
    form = formulate_in(prepared, order, settings, settings.budget_bytes)
    search = SearchSettings(limit_s=limit_s, workers=settings.workers, thorough=False)
    return QuickSearch(form.problem, search)


def quick_us(
    prepared: Prepared, order: Sequence[OpId], settings: Settings, limit_s: float
) -> float:
    """Time of a plan that a short search finds in one order, in microseconds; infinite where it finds
    none."""
    return quick_search(prepared, order, settings, limit_s).time_us()


def found_there(_: None, search: QuickSearch) -> float:
    """Its time, as a call to another process."""
    return search.time_us()


def next_between(tried: Iterable[int], best: int) -> int | None:
    """The number in the middle of the wider gap beside the best of those tried; None where there is none
    between it and its neighbours."""
    return next(iter(between(tried, best)), None)


def between(tried: Iterable[int], best: int) -> list[int]:
    """The numbers in the middle of the gaps beside the best of those tried, of the wider gap first."""
    known = sorted(tried)
    place = known.index(best)
    beside = list(itertools.pairwise(known))[max(0, place - 1) : place + 1]
    gaps = [(b - a, (a + b) // 2) for a, b in beside if b - a > 1]
    return [middle for _, middle in sorted(gaps, reverse=True)]


def is_slow(prepared: Prepared, planned: Planned) -> bool:
    """Whether another plan has enough to gain.

    Args:
        prepared: the model as it was, whose time the plan's is compared with.
    """
    if planned.solved.is_interrupted:
        return False
    base_us = prepared.baseline.time_us
    added_us = planned.time_us + planned.prepared.views_us - base_us
    return not planned.has_room or added_us > WORTH * base_us
