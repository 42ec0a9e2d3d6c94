"""Solve with copies beside the operations, no worse than with copies between them.

A schedule takes no more time with its copies beside the operations than with them in between. The
search with serial copies has engines that the other lacks (`planner.portfolio.solve`): its plan
comes first, and the search with overlap starts from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.pipeline.solve.policy import POLICY
from planner.plan.problem import Problem
from planner.plan.solved import Solved
from planner.portfolio import solve as solver
from planner.search.state import SearchSettings
from planner.simulate.simulate import candidate_of


def search_for(problem: Problem) -> Callable[..., Solved]:
    """Return the solver for a problem: `solve` if copies overlap, else the portfolio's."""
    return solve if problem.overlap and problem.allow_swap else solver.solve


def solve(
    problem: Problem,
    settings: SearchSettings,
    *,
    start: Solved | None = None,
    progress: solver.Progress | None = None,
) -> Solved:
    """Solve a problem with overlap, starting from the best serial plan found.

    Args:
        settings: of both searches together.
    """
    if start is not None and start.is_tight:
        return solver.solve(problem, settings, start=start, progress=progress)
    first, then = (
        replace(settings, limit_s=share * settings.limit_s)
        for share in (POLICY.serial, 1 - POLICY.serial)
    )
    serial = solver.solve(replace(problem, overlap=False), first, progress=progress)
    start = _better(problem, start, serial)
    return solver.solve(problem, then, start=start, progress=progress)


def _better(problem: Problem, start: Solved | None, serial: Solved) -> Solved | None:
    """Return the plan that takes less time with overlap; bounds proved for serial copies are dropped."""
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
