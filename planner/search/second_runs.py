"""Annealing over second runs: a schedule that takes little time and fits, or comes near to fitting.

The price of a byte above the capacity follows the walk: it rises while the schedule does not fit and
falls while it does, so that the walk stays near the capacity, where good schedules are (strategic
oscillation; Glover, "Heuristics for Integer Programming Using Surrogate Constraints", Decision Sciences
8, 1977). The temperature falls with the time (Kirkpatrick, Gelatt, Vecchi, "Optimization by Simulated
Annealing", Science 220, 1983).

Before a schedule fits, the walk comes down to the capacity step by step: it aims at a little less than
the peak that it has reached. Few runs are over so little less, and they are mended where they are; over
a capacity far below, most runs are, and the walk mends none of them.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np

from planner.plan.problem import Action, Problem
from planner.search.fast.arrays import Longs
from planner.search.fast.second_run_moves import Heat, anneal_runs, new_walk
from planner.search.fast.second_runs import (
    Graph,
    Runs,
    actions_of_keys,
    base_runs,
    change,
    graph_of,
)
from planner.search.stop import First, Stop, Until
from planner.simulate.simulate import simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    """Every number of the annealing over second runs.

    Attributes:
        hot, cold: first and last temperature, in mean durations of an operation.
        first_price, max_price: of a byte above the capacity, once a schedule fits, and at most: times the
            base order's duration over the bytes of all tensors. A step begins anew at the most.
        step: until a schedule fits, the walk aims at so much less than the peak that it has reached, as
            a share of that; 1 for the capacity at once.
        down_hot, down_price: temperature until a schedule fits, and first price of each step.
        down_runs: runs, at most, until a schedule fits, as a multiple of the operations. Of more, each
            change takes longer, and they lead no further down.
        down_draws: until a schedule fits, a tensor that is let go is the largest of so many drawn ones:
            few changes come a long way, whatever time they take.
        hotter, more: times as hot is a walk that follows another one that gave up, and so many times the
            moves: it comes down more slowly, and as a rule further.
        price_rise, price_fall: its factors after a slice at whose end the schedule does not fit, or does.
        moves: in all, as a multiple of the operations; with more time than these take, it ends early.
        patience, share, cooling: of the time, or of the moves: a walk that does not fit is given up if
            for so long it has come no nearer; else it cools from when it first fits, for no less than
            `cooling`, and is over after `share` where that leaves as much.
        slice_moves: moves between two looks at the clock.
        passes: between two base operations; within each, runs follow each other by index.
        max_times: second runs of one operation, at most, and the first.
        max_runs: runs, at most, as a multiple of the operations.
        compile_s: with less time left the walk is not compiled where it is not yet on this machine.
    """

    hot: float = 1.0
    cold: float = 0.01
    first_price: float = 0.5
    max_price: float = 100.0
    step: float = 0.004
    down_hot: float = 10.0
    down_price: float = 5.0
    down_runs: int = 4
    down_draws: int = 2
    hotter: float = 3.0
    more: int = 5
    price_rise: float = 1.1
    price_fall: float = 0.95
    moves: int = 3_000
    patience: float = 0.2
    share: float = 0.4
    cooling: float = 0.3
    slice_moves: int = 1_500
    passes: int = 1
    max_times: int = 40
    max_runs: int = 10
    compile_s: float = 30.0

    def at_once(self) -> Self:
        """The walk that aims at the capacity from the beginning, as hot and at the price of later on. It
        gives up sooner than one that comes down."""
        return replace(
            self,
            step=1.0,
            down_hot=self.hot,
            down_price=self.first_price,
            down_draws=1,
            patience=self.patience / 2,
        )

    def after_another(self) -> Self:
        """The walk that follows one that gave up; it goes on to the end."""
        hot, moves = self.hotter * self.down_hot, self.more * self.moves
        return replace(self, down_hot=hot, moves=moves, patience=1.0)


_MUCH_LESS = 0.9
"""Of the bytes over, what counts as nearer."""

RUNS = RunPolicy()
"""Until another is given; measured by `reports/solver.md`."""


def _in_passes(problem: Problem, actions: Sequence[Action]) -> list[tuple[int, int, int]]:
    """(base operation that it comes before, pass among those between, operation) of each second run."""
    placed: list[tuple[int, int, int]] = []
    waiting: list[tuple[int, int]] = []
    seen: set[int] = set()
    for m in (action.target for action in actions):
        if m in seen:
            turn, last = waiting[-1] if waiting else (0, -1)
            waiting.append((turn + (m <= last), m))
        else:
            placed += [(m, turn, again) for turn, again in waiting]
            waiting = []
            seen.add(m)
    return placed


class _Clock:
    """How far a walk has come, by time or by moves: it cools once it has fitted, or when it must."""

    def __init__(self, stop: Stop, policy: RunPolicy, ops: int) -> None:
        self.stop, self.policy = stop, policy
        self.began, self.whole_s = time.monotonic(), stop.left_s
        self.moves, self.all_moves = 0, policy.moves * ops
        self.cools_from, self.end = 1.0, 1.0
        self.least, self.lowered = math.inf, 0.0  # bytes over, and when they were last much less
        self.gone = 0.0
        self.has_fitted = False

    @property
    def goes_on(self) -> bool:
        """Whether there is another slice."""
        is_stuck = not self.has_fitted and self.gone > self.lowered + self.policy.patience
        return not is_stuck and self.gone < self.end and self.stop.left_s > 0

    @property
    def cooled(self) -> float:
        """How much of the way from hot to cold lies behind."""
        return max(0.0, (self.gone - self.cools_from) / max(1e-9, self.end - self.cools_from))

    def tick(self, moves: int, over: float) -> bool:
        """So many moves are made; `over`: of the best schedule. Whether for the first time one fits."""
        self.moves += moves
        time_gone = (time.monotonic() - self.began) / self.whole_s
        self.gone = min(1.0, max(time_gone, self.moves / self.all_moves))
        if over < _MUCH_LESS * self.least:
            self.least, self.lowered = over, self.gone
        is_new = not over and not self.has_fitted
        if is_new:
            self.has_fitted = True
            self.cools_from = self.gone
            self.end = min(1.0, max(self.policy.share, self.cools_from + self.policy.cooling))
        return is_new


def anneal_second_runs(
    problem: Problem,
    stop: Stop,
    *,
    start: Sequence[Action] = (),
    seed: int = 0,
    policy: RunPolicy = RUNS,
    on_fit: Callable[[], None] | None = None,
) -> list[Action]:
    """The best schedule found until `stop`: one that fits and takes the least time. Where none does, the
    one of least peak that a step has come to, or, before any has, the one with the least bytes over the
    capacity aimed at, summed over its runs.

    Args:
        problem: without copies.
        start: actions to begin from; the base order if none are given.
        seed: of the moves.
        policy: temperatures, prices and sizes.
        on_fit: told once when a schedule that fits is found.
    """
    ops = len(problem.ops)
    placed = _in_passes(problem, start)
    passes = max(policy.passes, 1 + max((turn for _, turn, _ in placed), default=0))
    graph = graph_of(problem, passes=passes)
    times = 1 + max(Counter(m for *_, m in placed).values(), default=0)
    runs = base_runs(
        problem,
        graph,
        max_runs=max(policy.max_runs * ops, len(placed) + 2 * ops),
        max_times=max(min(policy.max_times, ops), times) + 1,
    )
    for stage, turn, m in placed:
        change(graph, runs, stage * passes + turn, m)
    most = max(policy.down_runs * ops, len(placed) + 2 * ops)
    few = runs._replace(key=runs.key[:most], live=runs.live[:most], gap=runs.gap[:most])
    aim = _Aim(graph, runs, policy.step)
    rng = np.random.default_rng(seed)
    mean_us = problem.base_duration_us / ops
    unit = problem.base_duration_us / max(1, sum(t.bytes for t in problem.tensors))
    clock = _Clock(stop, policy, ops)
    price = policy.down_price
    while clock.goes_on and mean_us > 0:
        is_down = not clock.has_fitted
        hot = policy.hot * (policy.cold / policy.hot) ** clock.cooled
        heat = Heat(
            np.int64(policy.slice_moves),
            np.float64(mean_us * (policy.down_hot if is_down else hot)),
            np.float64(price * unit),
            np.bool_(aim.is_above),
            np.int64(policy.down_draws if is_down else 1),
        )
        moves = anneal_runs(aim.graph, few if is_down else runs, aim.walk, heat, rng)
        price *= policy.price_rise if runs.over[0] else policy.price_fall
        if price > policy.max_price:
            # a step that is stuck begins anew
            price = policy.down_price if is_down and aim.has_come_down else policy.max_price
        if aim.is_above and not aim.walk.found[1]:
            aim.lower()
            price = policy.down_price
        if clock.tick(moves, aim.bytes_over):
            price = policy.first_price
            if on_fit is not None:
                on_fit()
    found = actions_of_keys(problem, aim.best)
    # what it has come to on its way down may be less than it aimed at
    if on_fit is not None and not clock.has_fitted and _fits(problem, found):
        on_fit()
    return found


def _fits(problem: Problem, actions: Sequence[Action]) -> bool:
    return simulate(problem, actions).peak_bytes <= problem.capacity_bytes


class _Aim:
    """The capacity that a walk aims at: the problem's, once it has come down to that.

    Attributes:
        graph: with the capacity aimed at.
        runs: the schedule that is walked.
        walk: what that has come to at this capacity.
        step: as of `RunPolicy`.
    """

    def __init__(self, graph: Graph, runs: Runs, step: float) -> None:
        self.capacity, self.step = int(graph.capacity), step
        self.graph, self.runs = graph, runs
        self._reached: Longs | None = None
        self._aim_below(int(runs.live[: int(runs.total[0])].max()))

    @property
    def is_above(self) -> bool:
        """Whether it is on its way down."""
        return int(self.graph.capacity) > self.capacity

    @property
    def has_come_down(self) -> bool:
        """Whether it has come to any capacity that it aimed at."""
        return self._reached is not None

    @property
    def bytes_over(self) -> float:
        """How far the best schedule is from fitting: on the way down, by its peak."""
        return float(self.graph.capacity - self.capacity) or float(self.walk.found[1])

    @property
    def best(self) -> Longs:
        """The keys of the best schedule so far: of least peak, on the way down."""
        if self._reached is not None and self.walk.found[1]:
            return self._reached
        return self.walk.best[: int(self.walk.found[0])]

    def lower(self) -> None:
        """Aim at less: the walk has come to what it aimed at."""
        self._reached = self.best
        self._aim_below(int(self.graph.capacity))

    def _aim_below(self, peak: int) -> None:
        aim = max(self.capacity, int((1 - self.step) * peak))
        self.graph = self.graph._replace(capacity=np.int64(aim))
        live = self.runs.live[: int(self.runs.total[0])]
        self.runs.over[0] = int(np.maximum(live - aim, 0).sum())
        self.walk = new_walk(self.runs)


class FirstToFit:
    """Which of several walks was the first to come to a schedule that fits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.winner: int | None = None

    def tell(self, number: int) -> None:
        """Walk `number` has come to one."""
        with self._lock:
            if self.winner is None:
                self.winner = number


@dataclass(frozen=True, slots=True)
class Beaten:
    """Ends a walk once another one was the first to fit."""

    first: FirstToFit
    number: int

    @property
    def left_s(self) -> float:
        """Nothing once it was."""
        return float("inf") if self.first.winner in (None, self.number) else 0.0


def anneal_side_by_side(
    problem: Problem,
    stop: Stop,
    *,
    seeds: Sequence[int] = (0,),
    policy: RunPolicy = RUNS,
) -> list[list[Action]]:
    """What each seed comes to, on a thread of its own; arguments as of `anneal_second_runs`.

    Every second walk comes down step by step. Of the others more fit, and sooner, where a plan is not
    hard to find; where it is, they mend nothing, and those that come down come further. Where a walk
    gives up before any fits, another comes down in its stead: from the base order, or from where one
    has come down to.
    """
    first = FirstToFit()
    told = threading.Event()
    stop = First((stop, Until(told)))

    def walks(number: int) -> list[list[Action]]:
        on_fit = partial(first.tell, number)
        comes_down, seed = number % 2 == 1, seeds[number]
        walk = policy if comes_down else policy.at_once()
        found = [anneal_second_runs(problem, stop, seed=seed, policy=walk, on_fit=on_fit)]
        if first.winner is None and stop.left_s > 0:
            found.append(
                anneal_second_runs(
                    problem,
                    First((stop, Beaten(first, number))),
                    start=found[0] if comes_down else (),
                    seed=seed + len(seeds),
                    policy=policy.after_another(),
                    on_fit=on_fit,
                )
            )
        return found

    with ThreadPoolExecutor(max_workers=len(seeds)) as pool:
        threads = [pool.submit(walks, number) for number in range(len(seeds))]
        try:
            return [actions for each in threads for actions in each.result()]
        except BaseException:  # Ctrl-C does not wait for the time that they have
            told.set()
            raise
