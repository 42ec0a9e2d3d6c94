"""The portfolio as a table: which engine, when it is worth running, and until when.

An engine's turn ends at its share of the time limit, counted from the beginning of the search, or
when it has no more ideas; what it leaves goes to those that follow.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from planner.exact.cp_sat import CpSat, Descend, Mend, Parts
from planner.plan.problem import Problem
from planner.portfolio.policies import FrontierPolicy, LeastPeakPolicy, RacePolicy
from planner.search.engine import Engine
from planner.search.engines.intervals import AwaitPrograms, IntervalPrograms
from planner.search.engines.local import Anneal, Refine
from planner.search.engines.rounding import LpRounding
from planner.search.engines.simple import Greedy, OneLever, SwapByDistance
from planner.search.engines.tight import EverythingSwapped, Evict
from planner.search.state import SearchState


class When(enum.StrEnum):
    """What must be so for an engine to have its turn."""

    ALWAYS = "always"
    NOTHING_FITS = "nothing fits yet"
    CLOSE = "the plan is close to its bound"
    FAR = "there is a plan, far from its bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One row of the table.

    Attributes:
        engine: with its parameters.
        until: share of the time limit at which its turn ends.
        until_if_large: the same for problems of more than `Policy.large_ops` operations; as `until` if
            absent.
        when: what must be so for it to have a turn.
        even_late: it takes a moment, and has its turn although time is out: nothing fits yet, and a
            machine that stood still must not be the reason.
    """

    engine: Engine
    until: float
    until_if_large: float | None = None
    when: When = When.ALWAYS
    even_late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Every number of the portfolio.

    Attributes:
        rough: turns of a short search, as in a race of base orders.
        serial: turns where copies and operations share one stream, up to `max_serial_ops`.
        other: turns of everything else.
        max_serial_ops: on larger problems a part takes CP-SAT longer to set up than to solve.
        large_ops: from which size on a turn may have another share.
        close_gap: within which a plan is close to its bound, so that rounding and annealing help it.
        far_gap: beyond which it is far, and improved in parts before anything else is tried.
        near_s, near_share: how much longer a search goes on whose plan is within 0.1% of its bound:
            seconds, and share of the time limit, whichever is more.
        late_s: how long at least a turn may take that is had although time is out.
        unmaking_sets: that are looked at for a proof that nothing fits, where nothing is copied: a tenth
            of a second in a graph of 1,000 operations. Short searches do without.
        race, least_peak, frontier: what is done besides one search.
    """

    rough: tuple[Turn, ...]
    serial: tuple[Turn, ...]
    other: tuple[Turn, ...]
    max_serial_ops: int = 5_000
    large_ops: int = 15_000
    close_gap: float = 0.01
    far_gap: float = 0.05
    near_s: float = 10.0
    near_share: float = 0.1
    late_s: float = 1.0
    unmaking_sets: int = 5_000
    race: RacePolicy = field(default_factory=RacePolicy)
    least_peak: LeastPeakPolicy = field(default_factory=LeastPeakPolicy)
    frontier: FrontierPolicy = field(default_factory=FrontierPolicy)

    def turns(self, problem: Problem, *, thorough: bool) -> tuple[Turn, ...]:
        """The table for a problem."""
        if not thorough:
            return self.rough
        in_parts = not problem.overlap and len(problem.ops) <= self.max_serial_ops
        return self.serial if in_parts else self.other

    def until(self, turn: Turn, problem: Problem) -> float:
        """Share of the time limit at which a turn ends on a problem."""
        is_large = len(problem.ops) > self.large_ops
        return turn.until_if_large if is_large and turn.until_if_large else turn.until

    def is_due(self, turn: Turn, state: SearchState) -> bool:
        """Whether it is an engine's turn as things stand."""
        if turn.when is When.NOTHING_FITS:
            return state.changeable is None
        if turn.when is When.FAR:
            return state.best is not None and not state.is_within(self.far_gap)
        return turn.when is When.ALWAYS or state.is_within(self.close_gap)


_GREEDY = Turn(engine=Greedy(), until=0.15, until_if_large=0.5)
"""It takes next to none of its share but on very large problems, where it may be all that there is time
for, and where no plan is near: there the rest is better spent on what can find one."""

_FLOOR = (
    Turn(engine=SwapByDistance(), until=0.1),
    # on large problems one lever takes a while to be planned
    Turn(engine=OneLever(), until=0.15, until_if_large=0.4),
)
_NO_PLAN = When.NOTHING_FITS
_CLOSE = When.CLOSE

POLICY = Policy(
    rough=(
        replace(_GREEDY, until=0.5),
        *_FLOOR,
        Turn(engine=LpRounding(max_instants=6), until=0.9),
        Turn(engine=EverythingSwapped(), until=0.9, when=_NO_PLAN),
        Turn(engine=Evict(), until=0.9, when=_NO_PLAN),
        Turn(engine=Refine(), until=0.9),
    ),
    serial=(
        Turn(engine=Mend(), until=0.3),
        replace(_GREEDY, until=0.04),
        *_FLOOR,
        Turn(engine=LpRounding(program_share=0.15, give_up_gap=0.05), until=0.25),
        Turn(engine=IntervalPrograms(), until=0.25),
        Turn(engine=Parts(), until=0.45, when=When.FAR),
        Turn(engine=AwaitPrograms(), until=0.25),
        Turn(engine=EverythingSwapped(), until=0.35, when=_NO_PLAN, even_late=True),
        Turn(engine=Refine(), until=0.55, when=_CLOSE),
        Turn(engine=Anneal(), until=0.6, when=_CLOSE),
        Turn(engine=Descend(), until=0.95, when=_NO_PLAN),
        Turn(engine=CpSat(), until=1.0),
        Turn(engine=Evict(), until=1.0, when=_NO_PLAN, even_late=True),
    ),
    other=(
        _GREEDY,
        *_FLOOR,
        Turn(engine=LpRounding(program_share=0.15), until=0.5, until_if_large=0.8),
        Turn(engine=EverythingSwapped(), until=0.55, when=_NO_PLAN, even_late=True),
        Turn(engine=Evict(), until=0.55, when=_NO_PLAN, even_late=True),
        Turn(engine=Refine(), until=0.8),
        Turn(engine=Anneal(), until=0.97),
    ),
)
"""Until another is given; measured by `reports/solver.md`."""
