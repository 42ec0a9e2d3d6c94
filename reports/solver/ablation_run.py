"""One run of the ablation, in a process of its own.

    python -m reports.solver.ablation_run PROBLEM.json PARAMS.toml LIMIT_S

prints its figures as JSON: `added` and `bound` as shares of the base order's time, `seconds` of the
search, and `first_s`, those until the first plan that fits.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from planner.plan.problemfile import read_problem
from planner.portfolio.params import read_params
from planner.portfolio.solve import solve
from planner.search.state import SearchSettings


def run(problem_path: Path, params_path: Path, limit_s: float) -> dict[str, Any]:
    """The figures of one search on one thread, seed 0."""
    problem = read_problem(problem_path)
    first: list[float] = []
    began = time.monotonic()
    solved = solve(
        problem,
        SearchSettings(limit_s=limit_s, workers=1),
        progress=lambda _: first.append(time.monotonic() - began),
        policy=read_params(params_path),
    )
    base_us = problem.base_duration_us
    return {
        "added": solved.candidate.time_us / base_us - 1 if solved.candidate else None,
        "bound": solved.bound_us / base_us - 1,
        "engine": solved.engine,
        "seconds": solved.solve_s,
        "first_s": round(first[0], 3) if first else None,
        "least": solved.least.peak_bytes / problem.capacity_bytes,
        "used": [engine.name for engine in solved.engines],
    }


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))))
