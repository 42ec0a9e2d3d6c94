"""Solve, lower and accept plans, trial by trial, until the rest is not worth the wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from planner import clock
from planner.formulate import Formulation
from planner.pipeline.prepare.prepared import Prepared, Progress
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.fitting import (
    fitted_plan,
    held_in,
    need_before_planning,
    need_of_plan,
)
from planner.pipeline.solve.least_plan import LeastPlan
from planner.pipeline.solve.orders import BaseOrder, formulate_in, least_bound_order
from planner.pipeline.solve.planned import Planned, lowered_plan
from planner.pipeline.solve.policy import POLICY
from planner.pipeline.solve.serial_first import limit_within, search_for
from planner.pipeline.solve.trials import Trial, TrialOutcome, Trials
from planner.plan.candidate import Candidate
from planner.plan.problem import Problem
from planner.plan.solved import Solved
from planner.portfolio.frontier import figure
from planner.portfolio.race import rough_plan
from planner.search.state import SearchSettings
from planner.search.stop import Patience
from planner.units import format_bytes


@dataclass(frozen=True, slots=True)
class _Found:
    """A plan that is not lowered.

    Attributes:
        is_cut: the search for it ran out of time, and might have found more.
    """

    base: BaseOrder
    form: Formulation
    solved: Solved
    is_cut: bool = False


@dataclass(slots=True, kw_only=True)
class TrialSearch:
    """The search over trials, most promising first, until none is worth the wait.

    Attributes:
        forms: the problem in each base order, with the whole budget as capacity.
        kept: receives the best plan so far; None if the caller does not want it.
        raced: orders in which a plan may fit, each with the best result so far.
        best: the fastest results of all searches so far, by problem.
        rooms: the capacities that pins left in searches so far, by problem.
        accepted: the best plan so far, lowered. `least` is the one with the least peak.
        lowered: base order of the plan lowered last.
        left: share of the time added by the race's plan that remains after a search.
        longest_s: limit of each search, in seconds.
        late: number of trials begun beyond the deadline.
        is_cut: the search for the best plan so far ran out of time.
        underrated: factor by which lowered plans needed more arena than estimated: pins take a
            buffer each, which matters among equally small buffers.
        least_held_bytes: estimate of the least budget that holds some lowered plan; None if none
            was lowered.
        found: the last search's result in each order, by its capacity.
    """

    prepared: Prepared
    settings: Settings
    progress: Progress
    forms: Mapping[BaseOrder, Formulation]
    raced: dict[BaseOrder, Solved | None]
    best: dict[Problem, Solved]
    rooms: dict[Problem, int]
    kept: list[Planned] | None
    patience: Patience
    deadline: float
    accepted: Planned | None = None
    least: LeastPlan | None = None
    lowered: BaseOrder | None = None
    left: float = 1.0
    longest_s: float = float("inf")
    late: int = 0
    is_cut: bool = False
    underrated: float = 1.0
    least_held_bytes: int | None = None
    found: dict[BaseOrder, tuple[int, Solved]] = field(default_factory=dict)
    trials: Trials = field(init=False)

    def __post_init__(self) -> None:
        rooms = (self.rooms.get(form.problem) for form in self.forms.values())
        self.trials = Trials(room=min(filter(None, rooms), default=self.settings.budget_bytes))

    def solve_all(self) -> None:
        """Solve, lower and accept, in the orders of the race and at lower capacities.

        If nothing may fit in any order, solve in the one with the least bound. Before a plan is
        accepted, an order is judged by the race's plan in it, and not at all if the race found
        none: a plan without room in the arena is better than none.
        """
        trials = self.trials
        for base, solved in self.raced.items():
            trials.add(base, self._added_us(solved))
        if not self.raced:
            trials.add(least_bound_order(tuple(self.forms)), None)
        has_plan = True
        while (trial := self._next()) is not None:
            if not self._is_worth(trial, has_plan=has_plan):
                break
            is_known = self.accepted is not None or trial.added_us is not None
            if not trial.is_judged and is_known:
                self._judge(trial)
                continue
            outcome = self._try(trial)
            has_plan = outcome is not None
            if outcome is not None:
                trials.retry(trial, outcome, is_late=clock.now() > self.deadline)
            elif self.accepted is None:
                trials.restore(trial.base)
        if self.is_cut:
            self.refine()

    def promising(self, count: int) -> tuple[BaseOrder, ...]:
        """Return `count` base orders: that of the plan lowered last, then the best ones of the race."""
        last = [self.lowered] if self.lowered is not None else []
        return tuple(dict.fromkeys([*last, *self.raced]))[:count]

    def _next(self) -> Trial | None:
        """Take the most promising trial.

        Without an accepted plan, trials that were put off come before orders in which the race
        found none.
        """
        trials = self.trials
        if self.accepted is None and not any(t.added_us is not None for t in trials.open):
            trials.restore()
        return trials.take(left=self.left, lowest=self._is_pressed)

    @property
    def _must_fit(self) -> bool:
        """Whether plans must fit into a device's arena, which fragments."""
        return self.prepared.target.is_arena and self.settings.budget_of == "held"

    @property
    def _is_pressed(self) -> bool:
        """Whether any plan that holds is wanted by now, at any cost."""
        if self.accepted is None or self.accepted.holds:
            return False
        return clock.now() > self.deadline - POLICY.pressed * self.settings.time_limit_s

    @property
    def _base_us(self) -> float:
        return next(iter(self.forms.values())).problem.base_duration_us

    def _is_worth(self, trial: Trial, *, has_plan: bool) -> bool:
        """Tell whether a trial is worth the wait.

        Args:
            has_plan: the trial before found a plan, accepted or not.
        """
        now = clock.now()
        if self.least is None:
            return True  # one is searched in, however late it is
        if self.accepted is None or not self.accepted.holds:
            self.late += now > self.deadline
            most = POLICY.late_trials if self.accepted is None else 2 * POLICY.late_trials
            return now <= self.deadline or (has_plan and self.late <= most)
        if now > self.deadline - (1 - POLICY.lower_until) * self.settings.time_limit_s:
            return False
        accepted_us = self.accepted.time_us + self.accepted.base.pins_us
        expected_us = self._base_us + trial.expected_us(left=self.left)
        return self.patience.is_worth(accepted_us - expected_us, self._base_us)

    def _judge(self, trial: Trial) -> None:
        """Return a trial to the list with the arena's fragmentation in its order.

        A rough plan's demands show it or, without one, the order's own. A rough plan far from its
        bound shows little: as long as no plan is accepted, the whole budget then comes first.
        """
        problem, rough = self.forms[trial.base].problem, self.raced.get(trial.base)
        if rough is None or rough.candidate is None:
            self.progress(f"comparing base orders: {trial.base.name}")
            left_s = max(0.0, self.deadline - clock.now())
            rough = rough_plan(problem, min(self.longest_s, POLICY.judging * left_s))
        self.raced[trial.base] = rough
        if not self._must_fit:
            need = 1.0
        elif rough.candidate is None:
            need = need_before_planning(self.prepared, trial.base)
        elif self.accepted is None and _is_far(rough):
            need = 1.0
        else:
            need = need_of_plan(problem, rough.candidate)
        self.trials.judge(trial, self.underrated * need, self._added_us(rough))

    def _added_us(self, solved: Solved | None) -> float | None:
        """Return the time that a plan adds to the operations; None without a plan."""
        if solved is None or solved.candidate is None:
            return None
        return solved.candidate.time_us - self._base_us

    def _try(self, trial: Trial) -> TrialOutcome | None:
        """Solve one trial, and accept its plan if it is better; None if none was found."""
        is_first = self.least is None
        begun = clock.now()
        capacity = self.trials.capacity_bytes(trial)
        self.progress(f"solving for {format_bytes(capacity)}, order: {trial.base.name}")
        form = self._form(trial.base, capacity)
        # a small gain at a lower capacity leaves time for the whole budget
        limits = self._limits(is_first=is_first and not trial.step)
        solved = search_for(form.problem)(
            form.problem,
            limits,
            start=self._start(trial.base, form.problem),
            progress=lambda text: self.progress(f"solving: {text}"),
        )
        if is_first:  # an early end means a good plan: no other search gets much longer
            self.longest_s = 2 * max(POLICY.least_search_s, clock.now() - begun)
        if solved.candidate is not None:
            self.found[trial.base] = capacity, solved
            self._note(form.problem, solved)
        is_cut = solved.solve_s >= POLICY.cut * limits.limit_s
        found = _Found(trial.base, form, solved, is_cut=is_cut)
        try:
            outcome = self._follow_up(found, trial, is_first=is_first)
        except KeyboardInterrupt:
            if self.kept == [] and solved.candidate is not None:
                self._weigh(found)  # the first plan is lowered all the same
            raise
        if outcome is not None and solved.is_interrupted:
            raise KeyboardInterrupt
        return outcome

    def _follow_up(self, found: _Found, trial: Trial, *, is_first: bool) -> TrialOutcome | None:
        """Update the search with a result, and accept its plan if it is better.

        Returns None if there is no plan.
        """
        solved = found.solved
        if self.least is None or solved.least.peak_bytes < self.least.candidate.peak_bytes:
            self.least = LeastPlan(found.base, found.form, solved.least)
        added_us = self._added_us(solved)
        if solved.candidate is None or added_us is None:
            return None
        if is_first and trial.added_us:
            self.left = min(1.0, added_us / trial.added_us)
        return self._weigh(found)

    def _start(self, base: BaseOrder, problem: Problem) -> Solved | None:
        """Return the start of a search: the fastest result, or the last one with more budget."""
        raced, best = self.raced.get(base), self.best.get(problem)
        if problem.capacity_bytes == self.settings.budget_bytes:
            return min(filter(None, (best, raced)), key=figure, default=None)
        # what was proved with less memory does not hold with more
        capacity, found = self.found.get(base, (0, None))
        return best or (found if capacity >= problem.capacity_bytes else None) or raced

    def _note(self, problem: Problem, solved: Solved) -> None:
        """Keep a result if no earlier one is faster."""
        known = self.best.get(problem)
        if known is None or figure(solved) <= figure(known):
            self.best[problem] = solved

    def _form(self, base: BaseOrder, capacity: int) -> Formulation:
        """Return the problem of a trial."""
        if capacity == self.settings.budget_bytes:
            return self.forms[base]
        return formulate_in(self.prepared, base.order, self.settings, capacity)

    def _limits(self, *, is_first: bool) -> SearchSettings:
        """Return the limits of one search, within the time left."""
        left_s = self.deadline - clock.now()
        share_s = min(
            self.longest_s,
            max(1.0, left_s * (POLICY.first_search if is_first else POLICY.later_search)),
        )
        if left_s < 0:
            share_s = max(share_s, POLICY.least_search_s, POLICY.late * self.settings.time_limit_s)
        return self.settings.search(
            share_s, patience=self.patience, keep_on_interrupt=self.kept == []
        )

    def _weigh(self, found: _Found) -> TrialOutcome:
        """Lower a plan, and accept it if it beats the accepted one.

        A plan for which the arena probably has no room in any order is not lowered as long as
        another is accepted.
        """
        candidate = found.solved.found
        if candidate.time_us > self.settings.most_us:
            return self._outcome(candidate)
        if self.accepted is None:
            return self._lower(found)
        accepted_us = self.accepted.time_us + self.accepted.base.pins_us
        if self.accepted.holds and candidate.time_us + found.base.pins_us >= accepted_us:
            return self._outcome(candidate)
        if self._must_fit:
            problem = self.forms[found.base].problem
            need = need_of_plan(problem, candidate, underrated=self.underrated)
            if need > POLICY.mendable:
                return self._outcome(candidate, need=need)
        return self._lower(found)

    def _outcome(
        self, candidate: Candidate, *, need: float = 1.0, over_bytes: int = 0
    ) -> TrialOutcome:
        return TrialOutcome(
            added_us=candidate.time_us - self._base_us,
            peak_bytes=candidate.peak_bytes,
            need=need,
            over_bytes=over_bytes,
        )

    def _lower(self, found: _Found) -> TrialOutcome:
        """Lower a plan, reorder it to fit the arena, and accept it if it beats the accepted one."""
        settings, need = self.settings, 1.0
        self.lowered = found.base
        candidate = found.solved.found
        planned = lowered_plan(
            self.prepared, settings, found.base, found.form, found.solved, tuple(self.forms)
        )
        if planned.spare_bytes < 0:  # pins and whole pages take a few bytes
            over = -planned.spare_bytes
            self._was_over(settings.budget_bytes + over)
            outcome = self._outcome(candidate, over_bytes=over)
            self.rooms[self.forms[found.base].problem] = outcome.room_bytes
            return outcome
        if not planned.holds:
            self._take(planned, found)
            self.progress("looking for an order that fits the arena")
            fitted, need = fitted_plan(planned, settings, time_limit_s=POLICY.fit_s)
            estimated = need_of_plan(self.forms[found.base].problem, candidate)
            self.underrated = max(self.underrated, need / (POLICY.exact * estimated))
            self._was_over(held_in(planned, settings, need))
            planned = fitted or planned
        self._take(planned, found)
        return self._outcome(candidate, need=need)

    def _was_over(self, held_bytes: int) -> None:
        """Record an estimate of the budget that would hold a plan."""
        self.least_held_bytes = min(held_bytes, self.least_held_bytes or held_bytes)

    def _take(self, planned: Planned, found: _Found) -> None:
        if self.accepted is None or planned.is_better(self.accepted):
            self.accepted, self.is_cut = planned, found.is_cut
            if self.kept is not None:
                self.kept[:] = [planned]

    def refine(self) -> None:
        """Search on from the accepted plan in the time left, if it is within the budget.

        It may come from a short search at a lower capacity.
        """
        left_s, accepted = self.deadline - clock.now(), self.accepted
        if accepted is None or not accepted.holds:
            return
        searched, form = accepted.searched, accepted.formulation
        problem = form.problem
        gain_us = searched.found.time_us - searched.bound_us
        is_worth = self.patience.is_worth(gain_us, problem.base_duration_us)
        if left_s < 1 or searched.is_tight or not is_worth:
            return
        self.progress(f"improving the plan for {format_bytes(problem.capacity_bytes)}")
        capacity = problem.capacity_bytes
        if not self.settings.overlap:  # pins and whole pages take the rest
            peak, whole = searched.found.peak_bytes, self.forms[accepted.base].problem
            room = self.rooms.get(whole, capacity)
            capacity = min(capacity, peak + accepted.spare_bytes, max(peak, room))
        if capacity < problem.capacity_bytes:
            form = self._form(accepted.base, capacity)
            problem = form.problem
        better = search_for(problem)(
            problem,
            self.settings.search(limit_within(problem, left_s), patience=self.patience),
            start=searched,
            progress=lambda text: self.progress(f"improving: {text}"),
        )
        if better.candidate is not None:
            self._note(problem, better)
            self._weigh(_Found(accepted.base, form, better))
        is_same = self.accepted is accepted and form is accepted.formulation
        if is_same and better.bound_us > searched.bound_us:
            proved = replace(searched, bound_us=better.bound_us, bound_class=better.bound_class)
            solved = proved if accepted.solved is searched else accepted.solved
            self.accepted = replace(accepted, searched=proved, solved=solved)


def _is_far(rough: Solved | None) -> bool:
    """Tell whether a search will find a much better plan than the rough one."""
    if rough is None or rough.candidate is None:
        return False
    return rough.candidate.time_us > (1 + POLICY.far) * rough.bound_us
