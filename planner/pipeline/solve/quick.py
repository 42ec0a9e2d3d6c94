"""Short searches that compare ways to change a model before it is planned in earnest."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from planner.graph.model import OpId
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.orders import formulate_in
from planner.pipeline.solve.planned import Planned
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


def quick_us(
    prepared: Prepared, order: Sequence[OpId], settings: Settings, limit_s: float
) -> float:
    """Time of a plan that a short search finds in one order, in microseconds; infinite where it finds
    none."""
    form = formulate_in(prepared, order, settings, settings.budget_bytes)
    search = SearchSettings(limit_s=limit_s, workers=settings.workers, thorough=False)
    found = solve(form.problem, search).candidate
    return float("inf") if found is None else found.time_us


def next_between(tried: Iterable[int], best: int) -> int | None:
    """The number in the middle of the wider gap beside the best of those tried; None where there is none
    between it and its neighbours."""
    known = sorted(tried)
    place = known.index(best)
    beside = list(itertools.pairwise(known))[max(0, place - 1) : place + 1]
    gaps = [(b - a, (a + b) // 2) for a, b in beside if b - a > 1]
    return max(gaps)[1] if gaps else None


def is_slow(prepared: Prepared, planned: Planned) -> bool:
    """Whether another plan has enough to gain.

    Args:
        prepared: the model as it was, whose time the plan's is compared with.
    """
    if planned.solved.is_interrupted:
        return False
    base_us = prepared.baseline.time_us
    return not planned.fits_arena or planned.time_us - base_us > WORTH * base_us
