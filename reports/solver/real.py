"""Problems of ONNX training graphs: as ONNX Runtime optimizes them, in the base orders worth solving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from planner.pipeline.planning import base_orders
from planner.pipeline.prepare import Prepared, prepare, silent
from planner.pipeline.problem import problem_in, problem_of
from planner.plan.cuts import least_peak_bound
from planner.plan.problem import Problem
from planner.plan.solve import solve
from reports.solver.build import Mode, with_budget

ZOO = Path(__file__).parents[2] / "models" / "zoo"


def real(model: Path, *, hardware: str = "a100-40gb", order_limit_s: float = 20.0) -> Problem:
    """The problem of a model's training step, its peak as its capacity.

    Durations and copy bandwidths are the profile's; buffers are rounded up as ONNX Runtime's arena
    does. Kernels' workspace is that of the CPU's, the only one known.

    Args:
        hardware: a profile of `planner/cost/profiles`, or a TOML file.
        order_limit_s: for the search for base orders.

    Raises:
        UsageError, ModelError: see `planner.errors`.
    """
    prepared = _prepared(model, hardware)
    return problem_of(prepared, name=model.stem, order="best", order_limit_s=order_limit_s)


def real_orders(
    model: Path, *, hardware: str = "a100-40gb", order_limit_s: float = 20.0
) -> dict[str, Problem]:
    """Base orders by name, as `real` has the first: that of the least peak, then that of the least
    bound on any plan's peak, and ONNX Runtime's own or what it was moved to. Capacities are peaks."""
    prepared = _prepared(model, hardware)
    orders = base_orders(prepared, time_limit_s=order_limit_s)
    deepest = min(orders, key=lambda o: (o.least_bound_bytes, o.peak_bytes))
    own = [o for o in orders if o.name.startswith("default")]
    picked = {o.order: o for o in (orders[0], deepest, *own[:1])}
    return {o.name: problem_in(prepared, o.order, name=model.stem) for o in picked.values()}


def most_promising(problems: Sequence[Problem], *, limit_s: float) -> int:
    """Which of some problems, the same but for their order, a short search does best on."""
    costs: list[tuple[int, float]] = []  # impossible, nothing found, found
    for problem in problems:
        if least_peak_bound(problem)[0] > problem.capacity_bytes:
            costs.append((2, float(least_peak_bound(problem)[0])))
            continue
        found = solve(problem, time_limit_s=limit_s, thorough=False)
        best = found.candidate
        costs.append((1, found.least.peak_bytes) if best is None else (0, best.time_us))
    return costs.index(min(costs))


def within(problem: Problem, capacity_bytes: int, mode: Mode, *, overlap: bool) -> Problem:
    """The problem at a capacity, with the levers of `mode`."""
    return replace(with_budget(problem, 100, mode, overlap=overlap), capacity_bytes=capacity_bytes)


def _prepared(model: Path, hardware: str) -> Prepared:
    return prepare(
        model,
        dims={},
        hardware=hardware,
        profile=None,
        calibrate=False,
        inputs=None,
        seed=0,
        ort_optimize=True,
        device="cpu",
        progress=silent,
    )
