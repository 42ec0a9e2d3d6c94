"""Choice of the base order to plan in: a race of short searches.

A graph's plans depend on its order far more than the order's own peak shows: between two orders
whose peaks are 1% apart, recomputing to half the peak has cost 7% and 47% (ResNet-50).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from planner import clock
from planner.bound.instants import min_peak_bound
from planner.order.reorder import peak_of
from planner.plan.problem import Problem
from planner.plan.solved import Solved
from planner.portfolio.solve import solve, solved_of
from planner.portfolio.table import POLICY, Policy, RacePolicy
from planner.search.engine import run_engine
from planner.search.engines.programs import LpRounding
from planner.search.engines.simple import Evict, Greedy
from planner.search.program.cutting_loop import bound_at_peak
from planner.search.state import SearchSettings, new_state
from planner.search.stop import At, Patience

_Kinds = Callable[[Problem], list[Problem]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """One order before the race.

    Attributes:
        pins_us: additional time of the nodes that pin the order.
        rough: a rough plan of an earlier race; None to make one.
    """

    problem: Problem
    pins_us: float = 0.0
    rough: Solved | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """One order in the race.

    Attributes:
        index: of its problem.
        bound_us: no plan in this order takes less time; infinite if nothing fits.
        solved: result of the search; None if not tried, because its bound was too high or time was
            out.
        pins_us: additional time of the nodes that pin this order.
        is_bounded: there was time for a bound that distinguishes this order from others.
        rough: its rough plan; None if there was no time for one.
        is_reached: time was left for a rough plan in this order, or none was worth it.
    """

    index: int
    bound_us: float
    solved: Solved | None = None
    rough: Solved | None = None
    pins_us: float = 0.0
    is_bounded: bool = True
    is_reached: bool = True

    @property
    def is_impossible(self) -> bool:
        """Whether nothing fits in this order."""
        return self.bound_us == float("inf")

    @property
    def rank(self) -> tuple[int, float, float]:
        """The sort key, best first.

        Orders with a plan come first, by its time; then orders not tried, by their bound, unbounded
        ones last; then orders without a plan, by their least peak; then impossible ones.
        """
        if self.is_impossible:
            return 3, 0.0, 0.0
        if self.solved is None:
            return 1, float(not self.is_bounded), self.bound_us + self.pins_us
        if self.solved.candidate is None:
            return 2, float(self.solved.least.peak_bytes), self.bound_us
        return 0, self.solved.candidate.time_us + self.pins_us, self.bound_us


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """A search in one order.

    Attributes:
        parts: the problem, or parts of it, each searched for `limit_s`.
        start: start of the search; None for none.
    """

    runner: Runner
    parts: tuple[Problem, ...]
    limit_s: float
    start: Solved | None
    policy: Policy


_Engine = Callable[[_Turn], list[Solved]]


def race(
    entrants: Sequence[Entrant],
    *,
    time_limit_s: float,
    patience: Patience | None = None,
    progress: Callable[[int], None] = lambda _: None,
    policy: Policy = POLICY,
) -> list[Runner]:
    """Make a rough plan in each order, search in the best few, then longer in the best of those.

    In an order that is good to plan in, a rough plan takes a fraction of a second and is decent; in
    a bad order its time explodes. If a plan may recompute and swap, the first two rounds look for
    plans with one of the two levers: that takes a tenth of the time, and ranks the orders as plans
    with both do.

    Args:
        entrants: the same operations, tensors and capacity in several orders, hence with one base
            duration, the most promising first. The first is tried whatever its bound.
        patience: orders that promise too little for the wait are skipped; None searches in all.
        progress: called with the index of a problem when its search begins.
        policy: of the race, and of the searches in it.

    Returns:
        One runner for each entrant, the best first.
    """
    start = clock.now()
    numbers = policy.race
    field = _Field(entrants=entrants, patience=patience, progress=progress, policy=policy)
    if field.bound(start + numbers.bounds_until * time_limit_s):
        return field.ranked()  # an order that fits as it is: no other is better
    until = start + numbers.rough_until * time_limit_s
    field.search(
        field.distinct(),
        until,
        engine=_roughly,
        kinds=_single_kinds,
        least_s=_rough_s(entrants[0].problem, numbers),
        late_until=start + time_limit_s + numbers.overtime_s,
    )
    until = start + numbers.first_until * time_limit_s
    field.search(
        field.ranked()[: numbers.first_orders], until, engine=_shortly, kinds=_single_kinds
    )
    until = start + time_limit_s
    field.search(field.ranked()[: numbers.last_orders], until, engine=_shortly, kinds=lambda p: [p])
    return field.ranked()


def _roughly(turn: _Turn) -> list[Solved]:
    """Make a rough plan of each part."""
    return [rough_plan(part, turn.limit_s, turn.policy.race) for part in turn.parts]


def _shortly(turn: _Turn) -> list[Solved]:
    """Search briefly in each part."""
    settings = SearchSettings(limit_s=turn.limit_s, thorough=False)
    return [solve(part, settings, start=turn.start, policy=turn.policy) for part in turn.parts]


def _rough_s(problem: Problem, numbers: RacePolicy) -> float:
    """Return the least seconds for a rough plan.

    They are few enough for `tried_orders` orders in the overtime.
    """
    each_s = max(numbers.rough_s, numbers.rough_op_s * len(problem.ops))
    return min(len(_single_kinds(problem)) * each_s, numbers.overtime_s / numbers.tried_orders)


def _single_kinds(problem: Problem) -> list[Problem]:
    """Return the problem with one lever only, for each lever allowed."""
    if problem.allow_recompute and problem.allow_swap:
        return [problem.without_swaps(), replace(problem, allow_recompute=False)]
    return [problem]


def rough_plan(problem: Problem, time_limit_s: float, numbers: RacePolicy = POLICY.race) -> Solved:
    """Evict, repair the base order greedily, and round the LP of a few instants."""
    state = new_state(problem, SearchSettings(limit_s=time_limit_s))
    run_engine(Evict(), state, At(state.began + numbers.evict_share * time_limit_s))
    greedy = Greedy(max_slowdown=numbers.exploded_factor)
    run_engine(greedy, state, At(state.began + numbers.greedy_share * time_limit_s))
    rounding = LpRounding(max_instants=numbers.rough_instants)
    run_engine(rounding, state, At(state.began + time_limit_s))
    return solved_of(state)


@dataclass(slots=True, kw_only=True)
class _Field:
    """The runners of a running race.

    Attributes:
        levers: times added by plans that recompute (True) and by plans that only swap (False).
        marks: by problem; orders with equal marks hardly differ.
    """

    entrants: Sequence[Entrant]
    patience: Patience | None
    progress: Callable[[int], None]
    policy: Policy
    levers: dict[bool, list[float]] = field(default_factory=dict)
    runners: list[Runner] = field(default_factory=list)
    marks: list[tuple[int, int, float]] = field(default_factory=list)

    @property
    def numbers(self) -> RacePolicy:
        return self.policy.race

    def ranked(self) -> list[Runner]:
        """Return the runners, best first."""
        return sorted(self.runners, key=lambda r: r.rank)

    def bound(self, until: float) -> bool:
        """Add a runner for each order, and tell whether an order fits as it is.

        A runner has a lower bound on the time of its plans: the LP's with the instant of the peak
        alone, or the base duration once time is out. An order that fits as it is needs no search: its
        runner is solved.
        """
        fits = False
        for index, entrant in enumerate(self.entrants):
            problem, pins_us = entrant.problem, entrant.pins_us
            base_us = problem.base_duration_us
            peak = peak_of(problem, range(len(problem.ops)))
            if peak <= problem.capacity_bytes:
                plain, fits = solve(problem, SearchSettings(limit_s=0.0)), True
                self.runners.append(
                    Runner(index=index, bound_us=base_us, solved=plain, pins_us=pins_us)
                )
                continue
            least, _ = min_peak_bound(problem)
            left_s = until - clock.now()
            alone = _single_kinds(problem)[0]  # the problem with one lever only
            cut_us = base_us
            is_bounded = left_s > 0
            if is_bounded and least <= problem.capacity_bytes:
                cut_us += bound_at_peak(alone, time_limit_s=left_s)
            # a bound with one lever does not hold for plans with both
            bound_us = cut_us if alone is problem else base_us
            if entrant.rough is not None:
                bound_us = max(bound_us, entrant.rough.bound_us)
            if least > problem.capacity_bytes or (entrant.rough and entrant.rough.is_impossible):
                bound_us = float("inf")
            self.marks.append((least, peak, cut_us))
            self.runners.append(
                Runner(
                    index=index,
                    bound_us=bound_us,
                    solved=entrant.rough,
                    rough=entrant.rough,
                    pins_us=pins_us,
                    is_bounded=is_bounded,
                )
            )
        return fits

    @property
    def has_fair_plan(self) -> bool:
        """Whether some order has a plan within the policy's `fair_factor` of the base time."""
        most = self.numbers.fair_factor
        return any(
            r.solved is not None
            and r.solved.candidate is not None
            and r.solved.candidate.time_us <= most * self.entrants[r.index].problem.base_duration_us
            for r in self.runners
        )

    def distinct(self) -> list[Runner]:
        """Return one runner per mark, in the order of the entrants, without those with a plan."""
        first: dict[tuple[int, int, float], Runner] = {}
        for runner in self.runners:
            first.setdefault(self.marks[runner.index], runner)
        return [runner for runner in first.values() if runner.rough is None]

    def search(
        self,
        turn: Sequence[Runner],
        until: float,
        *,
        engine: _Engine,
        kinds: _Kinds,
        least_s: float | None = None,
        late_until: float = -math.inf,
    ) -> None:
        """Search in the given orders.

        Orders whose bound is worse than the best plan are skipped, and orders that promise too
        little: a search is expected to improve no more than those before it in this round. If the
        time is too short for all, the first ones get enough of it: `least_s`, or `min_s` of the
        policy. As long as no order has a fair plan, or few were tried, orders are tried until
        `late_until`: a longer search in an order without a fair plan finds none either.
        """
        least_s = self.numbers.min_s if least_s is None else least_s
        left = 1.0  # least share left of the time that plans added before this round
        tried = sum(runner.solved is not None for runner in self.runners)

        def turns() -> Iterator[_Turn]:
            for number, runner in enumerate(turn):
                now = clock.now()
                left_s = until - now
                is_enough = tried + number >= self.numbers.tried_orders and self.has_fair_plan
                if left_s < least_s and (now > late_until or is_enough):
                    for late in turn[number:] if engine is _roughly else ():
                        self.runners[late.index] = replace(late, is_reached=False)
                    break
                limit_s = max(least_s, left_s / (len(turn) - number))
                parts = self._parts(runner, left if number else None, kinds)
                if not parts:
                    continue
                self.progress(runner.index)
                yield _Turn(
                    runner=runner,
                    parts=tuple(parts),
                    limit_s=limit_s / len(parts),
                    start=runner.solved if self._is_whole(runner, parts) else None,
                    policy=self.policy,
                )

        def note(turn: _Turn, found: list[Solved]) -> None:
            nonlocal left
            best = self._better(turn, found)
            before_us, after_us = self._added_us(turn.runner), self._added_us(best)
            is_rough = engine is _roughly
            self.runners[best.index] = replace(best, rough=best.solved) if is_rough else best
            if before_us > 0:
                left = min(left, after_us / before_us)

        for each in turns():
            note(each, engine(each))

    def _parts(self, runner: Runner, left: float | None, kinds: _Kinds) -> list[Problem]:
        """Return the problems to search in one order; none if it is not worth the wait.

        That is so if its bound is worse than the best plan, or if it promises too little.

        Args:
            left: share of a plan's added time that a search leaves; None for the first search in a
                round.
        """
        best_us = min((r.rank[1] for r in self.runners if not r.rank[0]), default=float("inf"))
        is_settled = runner.solved is not None and runner.solved.is_tight
        is_behind = runner.bound_us + runner.pins_us >= best_us
        is_promising = left is None or self._promises(runner, left, best_us)
        if is_behind or is_settled or not is_promising:
            return []
        return self._contenders(runner, kinds(self.entrants[runner.index].problem), best_us)

    def _is_whole(self, runner: Runner, parts: Sequence[Problem]) -> bool:
        return parts[0] is self.entrants[runner.index].problem

    def _better(self, turn: _Turn, found: list[Solved]) -> Runner:
        """Return the runner with the better of the new results and its previous one."""
        runner, parts = turn.runner, turn.parts
        self._note_levers(parts, found)
        if not self._is_whole(runner, parts):  # proofs for one lever do not hold for both
            base_us = parts[0].base_duration_us
            found = [replace(f, bound_us=base_us, is_impossible=False) for f in found]
        tried = [
            replace(
                runner,
                bound_us=float("inf") if f.is_impossible else max(runner.bound_us, f.bound_us),
                solved=f,
            )
            for f in found
        ]
        known = [runner] if runner.solved is not None else []
        return min([*tried, *known], key=lambda r: r.rank)

    def _contenders(self, runner: Runner, parts: list[Problem], best_us: float) -> list[Problem]:
        """Return the parts in which a plan may still beat the best one.

        Parts of one lever are dropped if their bound is worse, or if that lever has been far behind
        in every order so far.
        """
        if self.patience is None or len(parts) < 2:
            return parts
        mark_us = self.marks[runner.index][2] + runner.pins_us  # of the part that recomputes
        least_us = min((min(us) for us in self.levers.values()), default=0.0)
        return [
            part
            for part in parts
            if not (part.allow_recompute and mark_us >= best_us)
            and not (
                len(us := self.levers.get(part.allow_recompute, [])) >= self.numbers.lever_tries
                and min(us) > self.numbers.lever_factor * least_us
            )
        ]

    def _note_levers(self, parts: Sequence[Problem], found: Sequence[Solved]) -> None:
        for part, solved in zip(parts, found, strict=True):
            added_us = float("inf")
            if solved.candidate is not None:
                added_us = solved.candidate.time_us - part.base_duration_us
            self.levers.setdefault(part.allow_recompute, []).append(added_us)

    def _added_us(self, runner: Runner) -> float:
        """Return the time that a runner's plan adds; 0 without a plan."""
        if runner.solved is None or runner.solved.candidate is None:
            return 0.0
        base_us = self.entrants[runner.index].problem.base_duration_us
        return runner.solved.candidate.time_us - base_us

    def _promises(self, runner: Runner, left: float, best_us: float) -> bool:
        """Tell whether a search is worth the wait.

        It is expected to leave the share `left` of the plan's added time.
        """
        if self.patience is None or self._added_us(runner) <= 0:
            return True
        base_us = self.entrants[runner.index].problem.base_duration_us
        gain_us = best_us - base_us - runner.pins_us - left * self._added_us(runner)
        return self.patience.is_worth(gain_us, base_us)
