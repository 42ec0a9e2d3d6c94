"""Solving with copies that run beside the operations, no worse than with copies that do not.

A schedule takes no more time with its copies beside the operations than with them in between. The
search of serial copies has engines that the other lacks (`planner.portfolio.solve`), so its plan is
looked for first, and the search with overlap begins from it.
"""

from __future__ import annotations

from dataclasses import replace

from planner.plan.problem import Problem
from planner.plan.solved import Solved
from planner.portfolio import solve as solver
from planner.search.state import SearchSettings
from planner.simulate.simulate import candidate_of

_SERIAL = 0.35
"""Share of the time for the serial search."""


def solve(
    problem: Problem,
    settings: SearchSettings,
    *,
    start: Solved | None = None,
    progress: solver.Progress | None = None,
) -> Solved:
    """`planner.portfolio.solve.solve`, for a problem with overlap from the best serial plan found.

    Args:
        settings: of both searches together.
    """
    is_done = start is not None and start.is_tight
    if is_done or not (problem.overlap and problem.allow_swap):
        return solver.solve(problem, settings, start=start, progress=progress)
    first, then = (
        replace(settings, limit_s=share * settings.limit_s) for share in (_SERIAL, 1 - _SERIAL)
    )
    serial = solver.solve(replace(problem, overlap=False), first, progress=progress)
    start = _better(problem, start, serial)
    return solver.solve(problem, then, start=start, progress=progress)


def _better(problem: Problem, start: Solved | None, serial: Solved) -> Solved | None:
    """The plan that takes less time with overlap; what was proved of serial copies is left behind."""
    if serial.candidate is None:
        return start
    again = candidate_of(problem, serial.candidate.actions)
    found = start.candidate if start is not None else None
    if found is not None and found.time_us <= again.time_us:
        return start
    bound_us = start.bound_us if start else problem.base_duration_us
    return replace(
        serial,
        candidate=again,
        least=candidate_of(problem, serial.least.actions),
        bound_us=bound_us,
        bound_class=start.bound_class if start else "any schedule",
    )
