"""Many budgets at once: what each costs in time, and the largest size that fits each.

Every point is a plan that the simulator replayed, of live bytes, persistent tensors and kernels'
workspace; no file is written, and ONNX Runtime's fragmentation is not in it. Points are solved side by
side in processes of their own, on this machine's cores or on a Ray cluster's.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import UsageError
from planner.formulate import NO_LIMIT
from planner.pipeline.levers.residence import most_bound_us
from planner.pipeline.prepare.prepared import Prepared, Progress
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.orders import BaseOrder, base_orders, formulate_in
from planner.plan.points import Point, monotone, with_views
from planner.plan.problem import Problem
from planner.portfolio.frontier import solve_point
from planner.portfolio.policies import FrontierPolicy
from planner.portfolio.race import race
from planner.portfolio.table import POLICY, Policy
from planner.processes.workers import workers
from planner.results import Frontier, Largest
from planner.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs:
    """One size of the model: its base orders, as problems."""

    prepared: Prepared
    orders: tuple[BaseOrder, ...]
    problems: tuple[Problem, ...]
    baseline_bytes: int

    @property
    def time_limit_s(self) -> float:
        """Of the request: for everything that is asked of the model."""
        return self.prepared.request.limits.time_limit_s

    @property
    def least_bound_bytes(self) -> int:
        """No plan in any of the orders has a peak below this."""
        return min(order.least_bound_bytes for order in self.orders)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """Something to do at one budget of one size.

    Attributes:
        orders: indices of those to do it in.
        policy: of the searches.
    """

    graph: int
    capacity_bytes: int
    orders: tuple[int, ...]
    time_limit_s: float
    seed: int
    policy: Policy


def graphs_of(
    prepared: Prepared,
    settings: Settings,
    numbers: FrontierPolicy = POLICY.frontier,
    *,
    orders: tuple[BaseOrder, ...] = (),
) -> Graphs:
    """The base orders of a prepared model, which are looked for where none are given, each with its
    problem."""
    if not orders:
        share_s = numbers.orders_share * settings.time_limit_s
        orders = base_orders(prepared, time_limit_s=min(numbers.max_orders_s, share_s))
    return Graphs(
        prepared=prepared,
        orders=orders,
        problems=tuple(
            formulate_in(prepared, base.order, settings, NO_LIMIT).problem for base in orders
        ),
        baseline_bytes=prepared.baseline.peak_bytes,
    )


def even_budgets(graphs: Sequence[Graphs], points: int) -> list[int]:
    """Budgets from the least that may be possible for any size to what the largest takes as it is."""
    low = min(g.least_bound_bytes for g in graphs)
    high = max(g.baseline_bytes for g in graphs)
    step = (high - low) / max(1, points - 1)
    return sorted({high, *(math.ceil(low + i * step) for i in range(points - 1))})


def frontiers(
    graphs: Sequence[Graphs],
    budgets: Sequence[int],
    *,
    jobs: int | None,
    ray_address: str | None,
    progress: Progress,
    policy: Policy = POLICY,
) -> tuple[Frontier, ...]:
    """Solve every size at every budget.

    The request's time limit is for everything; it is shared out evenly over the points and processes.

    Args:
        graphs: the sizes, all of one request.
        jobs: processes; None for one on each core (or all that the cluster has).
        ray_address: of a Ray cluster, "local" for one made here; None for processes of this machine.
        policy: of the frontier, the race of base orders, and the searches.

    Raises:
        UsageError: Ray is not installed, or the cluster cannot be reached.
    """
    cores = jobs or os.cpu_count() or 1
    if ray_address is None:
        cores = min(cores, len(graphs) * len(budgets))
    with _mapped([g.problems for g in graphs], cores, ray_address) as run:
        every = [range(len(g.orders)) for g in graphs]
        compared = [_compared(g, policy.frontier) for g in graphs]
        share, all_s = policy.frontier.comparing_share, cores * graphs[0].time_limit_s
        samples = _tasks(graphs, compared, every, share * all_s, policy)
        chosen: list[set[int]] = [{0} for _ in graphs]
        for done, (graph, best) in enumerate(run(_compare, samples), start=1):
            chosen[graph].update(best)
            progress(f"compared base orders at {done} of {len(samples)} budgets")
        tasks = _tasks(graphs, [budgets] * len(graphs), chosen, (1 - share) * all_s, policy)
        found: dict[int, list[Point]] = {i: [] for i in range(len(graphs))}
        for done, (graph, point) in enumerate(run(_solve, tasks), start=1):
            found[graph].append(point)
            progress(f"solved {done} of {len(tasks)} points: {_said(graphs[graph], point)}")
    return tuple(
        Frontier(
            dims=dict(g.prepared.loaded.dims),
            baseline_bytes=g.baseline_bytes,
            base_us=g.prepared.baseline.time_us,
            order_alone_bytes=g.orders[0].peak_bytes,
            least_bound_bytes=g.least_bound_bytes,
            orders=tuple(g.orders[order].name for order in sorted(chosen[i])),
            points=monotone(_bounded(g, found[i])),
        )
        for i, g in enumerate(graphs)
    )


def _bounded(graphs: Graphs, points: Sequence[Point]) -> list[Point]:
    """The points as whole steps, no bound higher than copies that hide allow."""
    points = [with_views(point, graphs.prepared.views_us) for point in points]
    if not graphs.problems[0].overlap:
        return points
    most_us = most_bound_us(graphs.prepared, overlap=True)
    return [p if p.is_impossible else replace(p, bound_us=min(p.bound_us, most_us)) for p in points]


def largest(found: Sequence[Frontier], dim: str, budgets: Sequence[int]) -> tuple[Largest, ...]:
    """For each budget, the largest size of `dim` with a plan, and whether the next is impossible."""
    ascending = sorted(found, key=lambda f: f.dims[dim])
    rows: list[Largest] = []
    for budget in sorted(budgets):
        points = [next(p for p in f.points if p.capacity_bytes == budget) for f in ascending]
        fitting = [i for i, point in enumerate(points) if point.plan is not None]
        best = fitting[-1] if fitting else -1
        after = best + 1 if best + 1 < len(points) else None
        rows.append(
            Largest(
                budget_bytes=budget,
                size=ascending[best].dims[dim] if fitting else None,
                slowdown=ascending[best].slowdown(points[best]) if fitting else None,
                time_us=plan.time_us if fitting and (plan := points[best].plan) else None,
                next_size=None if after is None else ascending[after].dims[dim],
                next_is_impossible=after is not None and points[after].is_impossible,
            )
        )
    return tuple(rows)


def _compared(graph: Graphs, numbers: FrontierPolicy) -> list[int]:
    """A few budgets, at which all orders of a size are compared."""
    low, high = graph.least_bound_bytes, graph.orders[0].peak_bytes
    return [int(low + share * (high - low)) for share in numbers.compared_shares]


def _tasks(
    graphs: Sequence[Graphs],
    budgets: Sequence[Sequence[int]],
    orders: Sequence[Iterable[int]],
    whole_s: float,
    policy: Policy,
) -> list[_Task]:
    """A task for each budget of each size, in so many seconds of all cores together.

    Args:
        budgets, orders: by size.
    """
    seed = graphs[0].prepared.request.seed
    each_s = whole_s / max(1, sum(map(len, budgets)))
    return [
        _Task(
            graph=i,
            capacity_bytes=budget,
            orders=tuple(sorted(orders[i])),
            time_limit_s=max(policy.frontier.min_point_s, each_s),
            seed=seed,
            policy=policy,
        )
        for i in range(len(graphs))
        for budget in budgets[i]
    ]


def _said(graph: Graphs, point: Point) -> str:
    where = ", ".join(f"{k}={v}" for k, v in graph.prepared.loaded.dims.items())
    budget = format_bytes(point.capacity_bytes) + (f" at {where}" if where else "")
    if point.plan is None:
        return f"{budget}: {'impossible' if point.is_impossible else 'no plan found'}"
    return f"{budget}: +{100 * (point.plan.time_us / graph.problems[0].base_duration_us - 1):.2f}%"


# -- processes ---------------------------------------------------------------------------------

Orders = Sequence[tuple[Problem, ...]]
"""The problems of each size."""

_orders: list[tuple[Problem, ...]] = []  # of a process of Ray's


def _start(orders: Orders) -> None:
    _orders[:] = orders


def _work(what: tuple[Callable[[Orders, _Task], Any], _Task]) -> Any:
    call, task = what
    return call(_orders, task)


def _compare(orders: Orders, task: _Task) -> tuple[int, list[int]]:
    """The size, and the best orders at the task's budget."""
    problems = [replace(p, capacity_bytes=task.capacity_bytes) for p in orders[task.graph]]
    runners = race(problems, time_limit_s=task.time_limit_s, policy=task.policy)
    kept = task.policy.frontier.kept_orders
    return task.graph, [r.index for r in runners if not r.is_impossible][:kept]


def _solve(orders: Orders, task: _Task) -> tuple[int, Point]:
    """The size, and the point of the task's budget."""
    point = solve_point(
        [orders[task.graph][i] for i in task.orders],
        task.capacity_bytes,
        time_limit_s=task.time_limit_s,
        seed=task.seed,
        policy=task.policy,
    )
    return task.graph, point


Call = Callable[[Orders, _Task], Any]


@contextlib.contextmanager
def _mapped(
    orders: list[tuple[Problem, ...]], jobs: int, ray_address: str | None
) -> Iterator[Callable[[Call, Sequence[_Task]], Iterator[Any]]]:
    """A function that makes a call for each task, side by side; answers come as they are ready."""
    if ray_address is None and jobs == 1:
        yield lambda call, tasks: (call(orders, task) for task in tasks)
        return
    if ray_address is None:
        with workers(jobs, orders) as run:
            yield run
        return
    with _cluster(ray_address) as pool_of:
        pool = pool_of(jobs, _start, (orders,))
        try:
            yield lambda call, tasks: pool.imap_unordered(
                _work, [(call, task) for task in tasks], chunksize=1
            )
        finally:
            pool.terminate()
            pool.join()


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[Callable[..., Any]]:
    """What makes a pool of a Ray cluster's processes. Who was not connected before is not afterwards: Ray
    ends a connected process a minute after its cluster has gone."""
    try:
        import ray  # pyright: ignore[reportMissingImports]
        from ray.util.multiprocessing import Pool  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UsageError('--ray needs Ray: pip install "onnx-planner[ray]"') from None
    was_connected = ray.is_initialized()
    try:
        ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
    except (ConnectionError, RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"--ray {address}: no such cluster ({first})") from None
    try:
        yield Pool
    finally:
        if not was_connected:
            ray.shutdown()
