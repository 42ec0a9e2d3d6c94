"""One row: a problem solved by one method, judged by the simulator, in a process of its own.

    python -m reports.solver.row METHOD LIMIT_S WORKERS SEED PROBLEM.json ...

prints the figures as JSON. Several files hold the same problem in several base orders. `measure`
runs that and adds the wall time; peak RSS is that of the process, reading the problems included.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal, get_args

from planner.plan.candidate import Replay
from planner.plan.problem import Action, Problem
from planner.plan.problemfile import problem_to_json, read_problem
from planner.simulate.simulate import InvalidScheduleError, simulate
from reports.shared import Row

Method = Literal["planner", "moccasin", "checkmate", "checkmate-scip", "checkmate-cp-sat"]
METHODS: tuple[Method, ...] = get_args(Method)


def measure(
    problems: Sequence[Problem],
    method: Method,
    *,
    limit_s: float,
    workers: int = 2,
    seed: int = 0,
) -> Row:
    """The figures of one fresh process; `error` where it failed or ran far over its limit.

    Args:
        problems: one, or for planner the same in several base orders: `order` then says in which
            it was solved, and the figures are those of that one.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "reports.solver.row", method]
        command += [str(limit_s), str(workers), str(seed)]
        for index, problem in enumerate(problems):
            path = Path(folder) / f"{index}.json"
            path.write_text(problem_to_json(problem), encoding="utf-8")
            command.append(str(path))
        start = time.monotonic()
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=4 * limit_s + 300, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": f"stopped after {time.monotonic() - start:.0f} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"error": lines[-1] if lines else f"exit status {done.returncode}"}
    # solvers print too: the figures are the last line
    return json.loads(done.stdout.splitlines()[-1])


def run(
    problems: Sequence[Problem], method: Method, *, limit_s: float, workers: int, seed: int
) -> Row:
    """The figures of one method; see `measure`.

    `added`, `bound` and `gap` are ratios (0.01 is 1%): time over the base order's, bound likewise,
    and how far the plan may be from its bound. All of them absent where no plan was found. `engines`, of
    planner's rows: what each engine did, as `planner.plan.statistics` has it; where several base orders
    raced, in the search that came last in the order that won, the race left out.
    """
    read_mib = _peak_rss_mib()
    start = time.monotonic()
    row = _SOLVERS[method](problems, method, limit_s, workers, seed)
    problem = problems[row.get("order", 0)]
    return {
        "ops": len(problem.ops),
        "tensors": len(problem.tensors),
        "capacity_bytes": problem.capacity_bytes,
        "base_us": problem.base_duration_us,
        **row,
        "wall_s": round(time.monotonic() - start, 2),
        "read_mib": read_mib,
        "rss_mib": _peak_rss_mib(),
    }


def _planner(
    problems: Sequence[Problem], method: str, limit_s: float, workers: int, seed: int
) -> Row:
    from planner import clock
    from planner.bound.instants import min_peak_bound
    from planner.portfolio.frontier import solve_orders
    from planner.search.state import SearchSettings

    with clock.counting(is_capped=True):
        clock.cap(limit_s)
        raced = solve_orders(problems, SearchSettings(limit_s=limit_s, seed=seed))
    solved, problem = raced.solved, problems[raced.index]
    row: Row = {} if len(problems) == 1 else {"order": raced.index}
    row |= {
        "seconds": round(solved.solve_s, 2),
        "engine": solved.engine,
        "engines": [asdict(engine) for engine in solved.engines],
        "bound_class": solved.bound_class,
        "least_found_bytes": solved.least.peak_bytes,
        "bound": solved.bound_us / problem.base_duration_us - 1,
    }
    if solved.is_impossible:
        row["impossible"] = True
        row["least_bound_bytes"] = min(min_peak_bound(p)[0] for p in problems)
    if solved.candidate is None:
        return row
    return row | judged(
        problem, solved.candidate.actions, solved.candidate.time_us, solved.bound_us
    )


def _baseline(
    problems: Sequence[Problem], method: str, limit_s: float, workers: int, seed: int
) -> Row:
    from reports.solver.baselines.checkmate_ilp import solve_checkmate
    from reports.solver.baselines.moccasin_cp import solve_moccasin

    (problem,) = problems
    if method == "moccasin":
        found = solve_moccasin(problem, time_limit_s=limit_s, workers=workers, seed=seed)
    else:
        solver = method.removeprefix("checkmate").removeprefix("-") or "highs"
        found = solve_checkmate(
            problem,
            time_limit_s=limit_s,
            solver=solver,  # type: ignore[arg-type]
            workers=workers,
            seed=seed,
        )
    row: Row = {
        "seconds": round(found.seconds, 2),
        "engine": found.status,
        "optimal": found.optimal,
    }
    if found.bound_us is not None:
        row["bound"] = found.bound_us / problem.base_duration_us - 1
    if found.actions is None or found.time_us is None:
        return row
    return row | judged(problem, found.actions, found.time_us, found.bound_us)


_SOLVERS = {method: _planner if method == "planner" else _baseline for method in METHODS}


def judged(
    problem: Problem, actions: Sequence[Action], claimed_us: float, bound_us: float | None
) -> Row:
    """Return the simulator's figures of a plan, or the `error` for which it is refused."""
    try:
        replay: Replay = simulate(problem, actions)
    except InvalidScheduleError as error:
        return {"error": f"not a schedule: {error}"}
    if replay.peak_bytes > problem.capacity_bytes:
        return {"error": f"over the budget by {replay.peak_bytes - problem.capacity_bytes} bytes"}
    if not math.isclose(replay.time_us, claimed_us, rel_tol=1e-9):
        return {"error": f"takes {replay.time_us} us, not {claimed_us}"}
    row: Row = {
        "confirmed": True,
        "added": replay.time_us / problem.base_duration_us - 1,
        "peak_bytes": replay.peak_bytes,
        "recomputed_ops": replay.recomputed_ops,
        "swapped_bytes": replay.swap_out_bytes + replay.swap_in_bytes,
    }
    if bound_us:
        row["gap"] = max(0.0, replay.time_us / bound_us - 1)
    return row


def _peak_rss_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    """Run the command line; see the module."""
    method, limit_s, workers, seed, *paths = sys.argv[1:]
    row = run(
        [read_problem(Path(path)) for path in paths],
        method,  # type: ignore[arg-type]
        limit_s=float(limit_s),
        workers=int(workers),
        seed=int(seed),
    )
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
