"""Many budgets at once: the time that each costs, and the largest size that fits each.

Processes solve the points in parallel, on this machine's cores or on a Ray cluster's: largest
budgets first, because smaller ones start from their results. Each process counts its work
(`planner.clock`), so that the points depend on the number of processes, and not on their pace.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner import clock
from planner.errors import UsageError
from planner.pipeline.answer.budgets.frontier import FrontierWay
from planner.pipeline.prepare.prepared import Progress
from planner.portfolio.frontier import FrontierSearch, Raced
from planner.portfolio.race import Entrant, race
from planner.processes.workers import workers
from planner.results import Frontier, Largest
from planner.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """A task at one budget of one way.

    Attributes:
        time_limit_s: seconds of work. machine_s: of the machine, at most; infinite for no limit.
        orders: indices of the base orders to search in.
        larger: the result at a larger budget.
    """

    way: int
    capacity_bytes: int
    time_limit_s: float
    machine_s: float
    orders: tuple[int, ...] = ()
    larger: Raced | None = None


def even_budgets(ways: Sequence[FrontierWay], points: int) -> list[int]:
    """Space budgets evenly, from the least bound of any size to the baseline peak of the largest."""
    low = min(way.least_bound_bytes for way in ways)
    high = max(way.baseline_bytes for way in ways)
    step = (high - low) / max(1, points - 1)
    return sorted({high, *(math.ceil(low + i * step) for i in range(points - 1))})


def frontiers(
    ways: Sequence[FrontierWay],
    budgets: Sequence[int],
    *,
    jobs: int | None,
    ray_address: str | None,
    progress: Progress,
) -> tuple[Frontier, ...]:
    """Solve every way at every budget.

    The request's time limit covers everything; points and processes share it evenly. By the machine's
    clock, a point may take up to twice its share, as long as later ones have some.

    Args:
        ways: all of one request.
        jobs: number of processes; None for one per core (or all that the cluster has).
        ray_address: address of a Ray cluster, "local" to start one here; None for processes of this
            machine.

    Raises:
        UsageError: Ray is not installed, or the cluster cannot be reached.
    """
    limit_s, cores = ways[0].prepared.request.limits.time_limit_s, jobs or os.cpu_count() or 1
    until = clock.now() + limit_s
    clock.cap(limit_s)
    if ray_address is None:
        cores = min(cores, len(ways) * len(budgets))
    with _running([way.search for way in ways], cores, ray_address) as run:
        orders = _best_orders(ways, cores, run, progress)
        ways = [way.within(some) for way, some in zip(ways, orders, strict=True)]
        left = [(i, budget) for budget in sorted(budgets, reverse=True) for i in range(len(ways))]
        count = len(left)
        while left:
            turns = math.ceil(len(left) / cores)
            each_s = (until - clock.now()) / turns
            machine_s = _twice(clock.machine_s(0.0), turns)
            turn, left = left[:cores], left[cores:]
            tasks = [
                _task(ways[i], i, budget, (each_s, machine_s), orders[i])
                for i, budget in turn
                if not ways[i].search.is_settled(budget)
            ]
            for i, budget, raced in run(_solve, tasks):
                ways[i].search.found[budget] = raced
            for done, (i, budget) in enumerate(turn, start=count - len(left) - len(turn) + 1):
                progress(f"solved {done} of {count} points: {_said(ways[i], budget)}")
    return tuple(way.frontier() for way in ways)


def _best_orders(
    ways: Sequence[FrontierWay], cores: int, run: Run, progress: Progress
) -> list[tuple[int, ...]]:
    """Select, for each way, the base orders that do best at a few budgets, and the first of all."""
    samples = [(i, budget) for i, way in enumerate(ways) for budget in _compared(way)]
    share = ways[0].search.policy.frontier.comparing_share
    each_s = share * cores * ways[0].prepared.request.limits.time_limit_s / len(samples)
    machine_s = _twice(share * clock.machine_s(0.0), math.ceil(len(samples) / cores))
    tasks = [_task(ways[i], i, budget, (each_s, machine_s)) for i, budget in samples]
    chosen: list[set[int]] = [{0} for _ in ways]
    for done, (i, best) in enumerate(run(_compare, tasks), start=1):
        chosen[i].update(best)
        progress(f"compared base orders at {done} of {len(samples)} budgets")
    return [tuple(sorted(some)) for some in chosen]


def _twice(left_s: float, turns: int) -> float:
    """Return twice the share of one of several turns; if all take as much, less and less is left."""
    return 2 * left_s / (turns + 1)


def _task(
    way: FrontierWay,
    number: int,
    budget_bytes: int,
    limits_s: tuple[float, float],
    orders: tuple[int, ...] = (),
) -> _Task:
    """Return a task; `limits_s` are of its work and of the machine."""
    least_s = way.search.policy.frontier.min_point_s
    time_limit_s, machine_s = (max(least_s, limit_s) for limit_s in limits_s)
    return _Task(
        way=number,
        capacity_bytes=budget_bytes,
        time_limit_s=time_limit_s,
        machine_s=machine_s,
        orders=orders,
        larger=way.search.larger(budget_bytes),
    )


def largest(found: Sequence[Frontier], dim: str, budgets: Sequence[int]) -> tuple[Largest, ...]:
    """Return, for each budget, the largest size of `dim` with a plan.

    Each row also has the next size, and whether that is impossible.
    """
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


def _compared(way: FrontierWay) -> list[int]:
    """Return a few budgets at which all base orders of a way are compared."""
    low, high = way.least_bound_bytes, way.order_alone_bytes
    shares = way.search.policy.frontier.compared_shares
    return [int(low + share * (high - low)) for share in shares]


def _said(way: FrontierWay, budget_bytes: int) -> str:
    where = ", ".join(f"{k}={v}" for k, v in way.prepared.loaded.dims.items())
    budget = format_bytes(budget_bytes) + (f" at {where}" if where else "")
    point = way.search.point(budget_bytes)
    if point.plan is None:
        return f"{budget}: {'impossible' if point.is_impossible else 'no plan found'}"
    base_us = way.search.problems[0].base_duration_us
    return f"{budget}: +{100 * (point.plan.time_us / base_us - 1):.2f}%"


# -- processes ---------------------------------------------------------------------------------

Searches = Sequence[FrontierSearch]
"""One search for each way."""

_searches: list[FrontierSearch] = []  # in a process of Ray's


def _start(searches: Searches) -> None:
    _searches[:] = searches


def _work(what: _What) -> tuple[Any, float]:
    return _counted(_searches, what)


def _counted(searches: Searches, what: _What) -> tuple[Any, float]:
    """Make a call that counts its work, and return its answer and the seconds of it."""
    call, task = what
    with clock.counting(is_capped=True):
        clock.cap(task.machine_s, task.time_limit_s)
        return call(searches, task), clock.now()


def _compare(searches: Searches, task: _Task) -> tuple[int, list[int]]:
    """Return the way, and the best orders at the task's budget."""
    search = searches[task.way]
    problems = (replace(p, capacity_bytes=task.capacity_bytes) for p in search.problems)
    entrants = [Entrant(problem=problem) for problem in problems]
    runners = race(entrants, time_limit_s=task.time_limit_s, policy=search.policy)
    kept = search.policy.frontier.kept_orders
    return task.way, [r.index for r in runners if not r.is_impossible][:kept]


def _solve(searches: Searches, task: _Task) -> tuple[int, int, Raced]:
    """Return the way, the task's budget, and the result there."""
    search = searches[task.way].within(task.orders)
    found = search.searched(task.capacity_bytes, task.larger, task.time_limit_s)
    return task.way, task.capacity_bytes, found


Call = Callable[[Searches, _Task], Any]
Run = Callable[[Call, Sequence[_Task]], Iterator[Any]]
_What = tuple[Call, _Task]


@contextlib.contextmanager
def _running(searches: Searches, jobs: int, ray_address: str | None) -> Iterator[Run]:
    """Yield a function that runs a call for each task in parallel, and yields results as they finish.

    It counts their work as if that were shared evenly.
    """
    with _mapped(searches, jobs, ray_address) as mapped:

        def run(call: Call, tasks: Sequence[_Task]) -> Iterator[Any]:
            spent: list[float] = []
            for answer, seconds in mapped([(call, task) for task in tasks]):
                spent.append(seconds)
                yield answer
            # the sum does not depend on which task ended first
            clock.spend(max([*spent, math.fsum(spent) / jobs]))

        yield run


@contextlib.contextmanager
def _mapped(
    searches: Searches, jobs: int, ray_address: str | None
) -> Iterator[Callable[[Sequence[_What]], Iterator[tuple[Any, float]]]]:
    """Yield `_counted` for many at once, in this process or in others."""
    if ray_address is None and jobs == 1:
        yield lambda whats: (_counted(searches, what) for what in whats)
        return
    if ray_address is None:
        with workers(jobs, searches) as run:
            yield lambda whats: run(_counted, whats)
        return
    with _cluster(ray_address) as pool_of:
        pool = pool_of(jobs, _start, (searches,))
        try:
            yield lambda whats: pool.imap_unordered(_work, whats, chunksize=1)
        finally:
            pool.terminate()
            pool.join()


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[Callable[..., Any]]:
    """Connect to a Ray cluster and yield its pool class.

    Disconnect at the end, unless Ray was connected before: Ray ends a connected process a minute
    after its cluster has gone.
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]
        from ray.util.multiprocessing import Pool  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UsageError('--ray needs Ray: pip install "onnx-planner[ray]"') from None
    was_connected = ray.is_initialized()
    try:
        # a cluster that this call starts needs no page; one that is there keeps its own
        ray.init(
            address=address,
            log_to_driver=False,
            ignore_reinit_error=True,
            include_dashboard=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"--ray {address}: no such cluster ({first})") from None
    try:
        yield Pool
    finally:
        if not was_connected:
            ray.shutdown()
