"""Solving with copies that run beside the operations, no worse than with copies that do not.

A schedule takes no more time with its copies beside the operations than with them in between. The
search of serial copies has engines that the other lacks (`planner.portfolio.solve`), so its plan is
looked for first, from the same start, and the search with overlap begins from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.pipeline.solve.policy import POLICY
from planner.plan.problem import Problem
from planner.plan.solved import Solved
from planner.portfolio import solve as solver
from planner.search.state import SearchSettings


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
    """Search for serial copies, as where none overlap, then with overlap from the plan found.

    Args:
        settings: of the first search; the other takes `POLICY.beside` times as long at most.
    """
    if start is not None and start.is_tight:
        return solver.solve(problem, settings, start=start, progress=progress)
    # a bound on any schedule with overlap is one on those without
    serial = solver.solve(replace(problem, overlap=False), settings, start=start, progress=progress)
    then = replace(settings, limit_s=POLICY.beside * settings.limit_s)
    begin = replace(serial, bound_us=0.0)  # what was proved of serial copies holds of no others
    found = solver.solve(problem, then, start=start, larger=begin, progress=progress)
    return replace(found, solve_s=serial.solve_s + found.solve_s)


def limit_within(problem: Problem, seconds: float) -> float:
    """Return the limit for a solver of `search_for` such that all of its searches take `seconds`."""
    return seconds if search_for(problem) is solver.solve else seconds / (1 + POLICY.beside)
