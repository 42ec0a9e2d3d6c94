"""Planning a prepared model: base orders, solve, lower, and check against the rewritten graph.

The plan is accepted only when the rewritten model, read back and analysed like any other, stays
within the budget, and so does ONNX Runtime's arena, fragmentation and kernels' workspace included,
as predicted by replaying its allocator. Where the arena does not, an order of the same actions is
looked for that it has room for (`planner.fit`). Where there is none, the capacity is lowered and the
problem solved again, in the order that then promises the least time. Where no plan's arena fits but
some plan's live bytes do, that plan is taken, and its assumptions say so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.fit.search import COMPILATION as FITTING
from planner.formulate import Formulation
from planner.graph.model import TensorId
from planner.graph.reasons import WhyOnce, WhyStay
from planner.pipeline.fitting import fitted_plan, need_before_planning
from planner.pipeline.least_plan import LeastPeak, least_alone, least_of, least_plan
from planner.pipeline.orders import (
    BaseOrder,
    Settings,
    base_orders,
    formulate_in,
    least_bound_order,
)
from planner.pipeline.planned import Planned, lowered_plan
from planner.pipeline.prepare import Prepared, Progress
from planner.pipeline.serial_first import solve
from planner.pipeline.trials import Outcome, Trial, Trials
from planner.plan.solved import Solved
from planner.portfolio.race import RACE, race
from planner.runtime.fusion_pins import TakenError
from planner.search.fast.warm import warm_up
from planner.search.patience import Patience
from planner.units import format_bytes

_MIN_SEARCH_S = 2.0

_FIRST, _LATER = 0.5, 0.3
"""Shares of the time left that the first search may take, and each of those after it."""

_UNTIL = 0.85  # share of the time after which no lower capacity is tried, if there is a plan

_WORTH_PER_S = 1e-4
"""A second of waiting must promise so much of a step's time: after ten seconds, 0.1% is let go."""

_LATE = 0.1  # share of the time that a search gets beyond its end, while nothing is accepted

_MAX_SLOWER = 1.25  # how much time a fitting arena may cost

_FIT_S = 2.0  # for an order that the arena has room for: those that are found are found soon


def make_plan(
    prepared: Prepared,
    settings: Settings,
    progress: Progress,
    *,
    orders: tuple[BaseOrder, ...] = (),
    keep_on_interrupt: bool = False,
) -> Planned:
    """Solve in several base orders, lower, and check; then again at a lower capacity, if the arena
    does not fit. Where ONNX Runtime's optimizers take nodes away whatever is done, all of it again
    without the copies that allow it.

    Args:
        orders: the base orders; none given, they are searched for.
        keep_on_interrupt: Ctrl-C ends the search, and the best plan so far is returned.

    Raises:
        InfeasibleBudgetError: no plan fits, with the least peak found and what binds it.
        KeyboardInterrupt: on Ctrl-C, unless it is kept, or no plan was accepted yet.
    """
    deadline = time.monotonic() + settings.time_limit_s
    kept: list[Planned] = []
    while True:
        try:
            keep = kept if keep_on_interrupt else None
            return _planned(prepared, settings, progress, orders, keep)
        except KeyboardInterrupt:
            if not kept:
                raise
            progress("interrupted: the best plan so far is kept")
            return replace(kept[-1], solved=replace(kept[-1].solved, is_interrupted=True))
        except TakenError as error:
            kept.clear()
            prepared = _barred(prepared, error)
            progress(f"again: {error}")
            least_s = _LATE * settings.time_limit_s
            left_s = deadline - time.monotonic()
            settings = replace(settings, time_limit_s=max(left_s, least_s))


def _barred(prepared: Prepared, error: TakenError) -> Prepared:
    """The model, with less to recompute and swap: first, nodes whose copies were taken are never
    recomputed, and where nodes of its own were taken, as parts of what is now fused, nothing around
    them is moved; then, nothing is recomputed that reads what was copied.

    Raises:
        TakenError: all of this is so already.
    """
    graph = prepared.graph
    tensors, operations = list(graph.tensors), list(graph.operations)
    copied = {t.id for t in tensors if t.name in error.copied}
    stay: set[TensorId] = set()
    for op in operations:
        if op.name in error.nodes:
            group = [op, *(operations[c] for t in op.outputs for c in tensors[t].consumers)]
            stay |= {t for member in group for t in (*member.inputs, *member.outputs)}
    made_by = {p for t in copied | stay if (p := tensors[t].producer) is not None}
    once = {op for op in made_by if operations[op].barred is None}
    stay = {t for t in stay if tensors[t].barred is None}
    if not once and not stay:
        stay = {t for t in copied if tensors[t].barred is None}
        once = {c for t in copied for c in tensors[t].consumers if operations[c].barred is None}
    if not once and not stay:
        raise error
    for op in once:
        operations[op] = replace(operations[op], barred=WhyOnce.TAKEN)
    for tensor in stay:
        tensors[tensor] = replace(tensors[tensor], barred=WhyStay.TAKEN)
    changed = replace(graph, tensors=tuple(tensors), operations=tuple(operations))
    return replace(prepared, graph=changed)


def _planned(
    prepared: Prepared,
    settings: Settings,
    progress: Progress,
    orders: tuple[BaseOrder, ...],
    kept: list[Planned] | None,
) -> Planned:
    """`make_plan` without what starts it again; each better plan is put into `kept`, if there is such."""
    progress("compiling the search (the first time only)")
    for overlap in {False, settings.overlap}:
        warm_up(overlap=overlap)
    FITTING.begin()
    start = time.monotonic()
    if not orders:
        progress("searching for base orders")
        orders = base_orders(prepared, time_limit_s=settings.time_limit_s * 0.1)
    room = settings.budget_bytes
    forms = {base: formulate_in(prepared, base.order, settings, room) for base in orders}
    search = _Search(
        prepared=prepared,
        settings=settings,
        progress=progress,
        forms=forms,
        kept=kept,
        patience=Patience(since=start, per_s=_WORTH_PER_S),
        deadline=start + settings.time_limit_s,
    )
    raced = _race(forms, search.deadline, progress, search.patience)
    search.solve_all(raced)
    if search.accepted is not None:
        return search.accepted
    assert search.least is not None
    is_late = time.monotonic() > search.deadline
    found = [search.least, least_alone(prepared, settings, orders), *least_of(settings, forms)]
    return least_plan(prepared, settings, found, orders, is_late=is_late)


@dataclass(slots=True, kw_only=True)
class _Search:
    """Trials, from the one that promises most, until none is worth the wait.

    Attributes:
        forms: the problem in each base order, with the whole budget for a capacity.
        kept: where the best plan so far is put; None where nobody wants it.
        accepted: the best plan so far, lowered. `least` is the one with the least peak.
        left: share of what a plan of the race added that a search leaves of it.
        longest_s: no search takes longer.
    """

    prepared: Prepared
    settings: Settings
    progress: Progress
    forms: Mapping[BaseOrder, Formulation]
    kept: list[Planned] | None
    patience: Patience
    deadline: float
    accepted: Planned | None = None
    least: LeastPeak | None = None
    left: float = 1.0
    longest_s: float = float("inf")

    def solve_all(self, raced: Mapping[BaseOrder, Solved | None]) -> None:
        """Solve, lower and accept, in the orders that were compared and at lower capacities.

        Args:
            raced: those in which something may fit, each with what was found; in none, the order
                with the least bound is solved in all the same.
        """
        trials = Trials(room=self.settings.budget_bytes)
        for base, solved in raced.items():
            known = solved.candidate if solved is not None else None
            trials.add(base, known.time_us - self._base_us if known is not None else None)
        if not raced:
            trials.add(least_bound_order(tuple(self.forms)), None)
        has_plan = True
        while (trial := trials.take(left=self.left)) is not None:
            if not self._is_worth(trial, has_plan=has_plan):
                break
            if not trial.is_judged and self.accepted is not None:
                trials.judge(trial, need_before_planning(self.prepared, trial.base))
                continue
            outcome = self._solve(trial, trials.capacity_bytes(trial), raced.get(trial.base))
            has_plan = outcome is not None
            if outcome is not None:
                trials.retry(trial, outcome, is_late=time.monotonic() > self.deadline)
        if self.accepted is not None and self.accepted.fits_arena:
            self._refine(self.accepted)

    @property
    def _base_us(self) -> float:
        return next(iter(self.forms.values())).problem.base_duration_us

    def _is_worth(self, trial: Trial, *, has_plan: bool) -> bool:
        """Whether to wait for a trial.

        Args:
            has_plan: the one before found a plan, accepted or not.
        """
        now = time.monotonic()
        if self.accepted is None:
            return now <= self.deadline or has_plan
        if now > self.deadline - (1 - _UNTIL) * self.settings.time_limit_s:
            return False
        assert self.accepted.solved.candidate is not None
        accepted_us = self.accepted.solved.candidate.time_us
        expected_us = self._base_us + trial.expected_us(left=self.left)
        if not self.accepted.fits_arena:
            return expected_us < _MAX_SLOWER * accepted_us
        return self.patience.is_worth(accepted_us - expected_us, self._base_us)

    def _solve(self, trial: Trial, capacity: int, start: Solved | None) -> Outcome | None:
        """Solve one trial, and accept its plan if it is better; None where none was found.

        Args:
            start: what the race found in its order.
        """
        is_first = self.least is None
        begun = time.monotonic()
        left_s = self.deadline - begun
        share_s = min(self.longest_s, max(1.0, left_s * (_FIRST if is_first else _LATER)))
        if left_s < 0:
            share_s = max(share_s, _LATE * self.settings.time_limit_s)
        form = self.forms[trial.base]
        if trial.step:
            form = formulate_in(self.prepared, trial.base.order, self.settings, capacity)
        self.progress(f"solving for {format_bytes(capacity)}, order: {trial.base.name}")
        solved = solve(
            form.problem,
            self.settings.search(
                share_s, patience=self.patience, keep_on_interrupt=self.kept == []
            ),
            start=None if trial.step else start,
            progress=lambda text: self.progress(f"solving: {text}"),
        )
        if self.least is None or solved.least.peak_bytes < self.least.candidate.peak_bytes:
            self.least = LeastPeak(trial.base, form, solved.least)
        if is_first:  # what ended early is good: no other gets much longer
            self.longest_s = 2 * max(_MIN_SEARCH_S, time.monotonic() - begun)
        if solved.candidate is None:
            return None
        added_us = solved.candidate.time_us - self._base_us
        if is_first and trial.added_us:
            self.left = min(1.0, added_us / trial.added_us)
        need = self._accept(trial.base, form, solved)
        return Outcome(added_us=added_us, peak_bytes=solved.candidate.peak_bytes, need=need)

    def _accept(self, base: BaseOrder, form: Formulation, solved: Solved) -> float:
        """Take a plan, lowered, where it is better than what is accepted so far; returns how many times
        the arena it needs, 1.0 where it fits or was not lowered.

        Raises:
            KeyboardInterrupt: the search was interrupted; what there is, is kept.
        """
        is_interrupted = solved.is_interrupted
        try:
            need = self._lower(base, form, solved)
        except KeyboardInterrupt:
            if self.kept != []:
                raise
            is_interrupted = True  # the first plan is lowered all the same
            need = self._lower(base, form, solved)
        if is_interrupted:
            raise KeyboardInterrupt
        return need

    def _lower(self, base: BaseOrder, form: Formulation, solved: Solved) -> float:
        """`_accept`, with no thought of interrupts."""
        assert solved.candidate is not None
        settings, need = self.settings, 1.0
        if solved.candidate.time_us > settings.most_us:
            return need
        if self.accepted is not None and not _could_beat(self.accepted, solved):
            return need
        planned = lowered_plan(self.prepared, settings, base, form, solved, tuple(self.forms))
        if planned.timeline.peak_bytes > settings.budget_bytes - settings.reserve_bytes:
            return need  # the anchors' few bytes: the next capacity leaves room for them
        if not planned.fits_arena:
            self._take(planned)
            self.progress("looking for an order that the arena has room for")
            fitted, need = fitted_plan(planned, settings, time_limit_s=_FIT_S)
            planned = fitted or planned
        self._take(planned)
        return need

    def _take(self, planned: Planned) -> None:
        if self.accepted is None or _better(planned, self.accepted):
            self.accepted = planned
            if self.kept is not None:
                self.kept[:] = [planned]

    def _refine(self, accepted: Planned) -> None:
        """Search on in the time left: the plan may come of a short search at a lower capacity."""
        left_s = self.deadline - time.monotonic()
        problem = accepted.formulation.problem
        candidate = accepted.solved.candidate
        assert candidate is not None
        gain_us = candidate.time_us - accepted.solved.bound_us
        is_worth = self.patience.is_worth(gain_us, problem.base_duration_us)
        if left_s < 1 or accepted.solved.is_tight or not is_worth:
            return
        self.progress(f"improving the plan for {format_bytes(problem.capacity_bytes)}")
        better = solve(
            problem,
            self.settings.search(left_s, patience=self.patience),
            start=accepted.solved,
            progress=lambda text: self.progress(f"improving: {text}"),
        )
        if better.candidate is not None:
            self._lower(accepted.base, accepted.formulation, better)


def _could_beat(accepted: Planned, solved: Solved) -> bool:
    """A plan whose arena fits is only beaten by a faster one, and no plan by a much slower one."""
    assert solved.candidate is not None and accepted.solved.candidate is not None
    ratio = solved.candidate.time_us / accepted.solved.candidate.time_us
    return ratio < (1.0 if accepted.fits_arena else _MAX_SLOWER)


def _better(planned: Planned, accepted: Planned) -> bool:
    """Fitting the arena first, then time."""
    assert planned.solved.candidate is not None and accepted.solved.candidate is not None
    if planned.fits_arena != accepted.fits_arena:
        return planned.fits_arena
    return planned.solved.candidate.time_us < accepted.solved.candidate.time_us


def _race(
    forms: Mapping[BaseOrder, Formulation],
    deadline: float,
    progress: Progress,
    patience: Patience,
) -> dict[BaseOrder, Solved | None]:
    """Orders in which something may fit, the most promising first, each with what a short search
    found in it."""
    orders = list(forms)
    done = 0

    def begins(index: int) -> None:
        nonlocal done
        done += 1
        progress(f"comparing base orders ({done}): {orders[index].name}")

    left_s = deadline - time.monotonic()
    problems = [form.problem for form in forms.values()]
    runners = race(problems, time_limit_s=RACE * left_s, progress=begins, patience=patience)
    return {orders[r.index]: r.solved for r in runners if not r.is_impossible}
