"""The state of a search: the best plan so far, its engine, and the largest bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planner import clock
from planner.bound.lp import BOUND_CLASS
from planner.plan.candidate import Candidate
from planner.plan.problem import Problem
from planner.plan.solved import TIGHT
from planner.search.evaluate import Evaluator
from planner.search.statistics import Ledger
from planner.units import format_part

if TYPE_CHECKING:
    from planner.search.stop import Patience

_TIGHT_OF_ADDED = 0.01
"""A plan is tight only if the gap is within this share of the time that it adds to the base order."""

_NEARLY = 1e-3
"""Gap within which a plan is near its bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """A caller's settings for a whole search.

    Attributes:
        limit_s: seconds for all engines together.
        seed: of annealing and of the exact engine; the others are deterministic.
        thorough: False leaves out annealing and the exact engine.
        patience: ends the search when the remaining gain is not worth the wait; None waits for all
            of it.
        keep_on_interrupt: Ctrl-C ends the search and returns the plan found, if it fits.
    """

    limit_s: float = 60.0
    seed: int = 0
    thorough: bool = True
    patience: Patience | None = None
    keep_on_interrupt: bool = False


@dataclass(slots=True)
class SearchState:
    """State that engines share while they search; each reads it and offers plans and bounds.

    Attributes:
        evaluator: evaluates plans of the problem.
        settings: of the search.
        least: the plan with the least peak, whether it fits or not.
        best: the fastest plan that fits; None before there is one.
        decided: the fastest plan that fits and has decisions, the best one or another.
        near: the fastest plan known that exceeds the capacity, of a search with more of it.
        engine: the engine that found the best plan.
        bound_extra_us: no plan of `bound_class` adds less time to the base order.
        is_impossible: proved that nothing fits.
        near_since: when the plan came near its bound (`clock.now`); None before.
        began: when the search began (`clock.now`).
        improved: when the best plan was found (`clock.now`).
        ledger: statistics of each engine.
        on_progress: told of each better plan.
    """

    evaluator: Evaluator
    settings: SearchSettings
    least: Candidate
    best: Candidate | None = None
    decided: Candidate | None = None
    near: Candidate | None = None
    engine: str = ""
    bound_extra_us: float = 0.0
    bound_class: str = BOUND_CLASS
    is_impossible: bool = False
    near_since: float | None = None
    began: float = field(default_factory=clock.now)
    improved: float = field(default_factory=clock.now)
    ledger: Ledger = field(default_factory=Ledger)
    on_progress: Callable[[str], None] | None = None

    @property
    def problem(self) -> Problem:
        """The problem to solve."""
        return self.evaluator.problem

    def offer(self, candidate: Candidate, engine: str = "") -> bool:
        """Take `candidate` if it is better; return whether it is.

        Args:
            engine: the engine that found it; by default the one whose turn it is.
        """
        if candidate.peak_bytes < self.least.peak_bytes:
            self.least = candidate
        fits = self.evaluator.fits(candidate)
        if fits and candidate.decisions is not None and _is_better(candidate, self.decided):
            self.decided = candidate
        improved = fits and _is_better(candidate, self.best)
        self.ledger.count_offer(improved=improved)
        if not improved:
            return False
        self.best, self.engine = candidate, engine or self.ledger.engine
        self.improved = clock.now()
        if self.on_progress:
            base_us = self.problem.base_duration_us
            self.on_progress(
                f"+{format_part(candidate.time_us - base_us, base_us)} time ({self.engine}), "
                f"at least +{format_part(self.bound_extra_us, base_us)}"
            )
        self._note_near()
        return True

    def prove(self, extra_us: float, bound_class: str = BOUND_CLASS) -> None:
        """Raise the bound on the added time."""
        if extra_us > self.bound_extra_us:
            self.ledger.count_bound(extra_us - self.bound_extra_us)
            self.bound_extra_us, self.bound_class = extra_us, bound_class
            self._note_near()

    def _note_near(self) -> None:
        if self.near_since is None and self.is_within(_NEARLY):
            self.near_since = clock.now()

    @property
    def bound_us(self) -> float:
        """The bound on the time of every plan of the class."""
        return self.problem.base_duration_us + self.bound_extra_us

    @property
    def changeable(self) -> Candidate | None:
        """The plan that small changes begin from: the best, or, where copies overlap and nothing else
        improves plans, the fastest that has decisions to change."""
        return self.decided if self.problem.overlap else self.best

    @property
    def is_tight(self) -> bool:
        """Whether the remaining gap is negligible."""
        if self.best is None:
            return False
        added_us = self.best.time_us - self.problem.base_duration_us
        saving_us = added_us - self.bound_extra_us
        return self.is_within(TIGHT) and saving_us <= _TIGHT_OF_ADDED * added_us + 1e-9

    def is_within(self, gap: float) -> bool:
        """Tell whether the best plan is within `gap` of its bound."""
        if self.best is None:
            return gap == float("inf")
        return self.best.time_us <= self.bound_us * (1 + gap)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to find."""
        return self.is_tight or self.is_impossible


def _is_better(candidate: Candidate, than: Candidate | None) -> bool:
    """Whether it takes less time, or as much and fewer bytes."""
    found = (candidate.time_us, candidate.peak_bytes)
    return than is None or found < (than.time_us, than.peak_bytes)


@dataclass(frozen=True, slots=True)
class WhenSettled:
    """A stop criterion: the search has nothing left to find."""

    state: SearchState

    @property
    def left_s(self) -> float:
        """0 once the search is settled."""
        return 0.0 if self.state.is_settled else float("inf")


@dataclass(frozen=True, slots=True)
class NearBound:
    """A stop criterion: some time has passed since the plan came near its bound.

    Attributes:
        state: of the search.
        wait_s: seconds that the search goes on.
    """

    state: SearchState
    wait_s: float

    @property
    def left_s(self) -> float:
        """The rest of that time; infinite before the plan is near."""
        if self.state.near_since is None:
            return float("inf")
        return self.state.near_since + self.wait_s - clock.now()


def new_state(
    problem: Problem,
    settings: SearchSettings | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> SearchState:
    """Start a search from the base order."""
    began = clock.now()
    evaluator = Evaluator(problem)
    return SearchState(
        began=began,
        evaluator=evaluator,
        settings=settings or SearchSettings(),
        least=evaluator.base,
        on_progress=on_progress,
    )
