"""Set the CP-SAT solver up, and run it so that Ctrl-C ends it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from ortools.sat.python import cp_model

from planner import clock

SOLVED = (cp_model.OPTIMAL, cp_model.FEASIBLE)


def new_solver(*, seed: int, workers: int | None, time_limit_s: float) -> cp_model.CpSolver:
    """Make a solver for models whose LP relaxation proves them.

    The solver's own handler of Ctrl-C is off: it would end the search and carry on with its result.
    """
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.linearization_level = 2
    parameters.random_seed = seed
    if clock.is_counted():
        parameters.max_deterministic_time = time_limit_s / clock.SOLVER_S
        workers = 1
    else:
        parameters.max_time_in_seconds = time_limit_s
    parameters.catch_sigint_signal = False
    if workers:
        parameters.num_workers = workers
    return solver


def solve_interruptibly(
    solver: cp_model.CpSolver, model: cp_model.CpModel
) -> cp_model.CpSolverStatus:
    """Solve on a separate thread, so that Ctrl-C reaches Python at once."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(solver.solve, model)
        try:
            status = future.result()
            clock.spend(clock.SOLVER_S * solver.response_proto.deterministic_time)
            return status
        except BaseException:
            solver.stop_search()
            raise
