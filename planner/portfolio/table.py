"""The portfolio as a table: which engine runs, under which condition, and until when.

An engine's turn ends at its share of the time limit, counted from the beginning of the search, or
when it has no more ideas; later engines get the time it leaves.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from planner.exact.cp_sat import CpSat, Mend, Parts
from planner.plan.problem import Problem
from planner.search.engine import Engine
from planner.search.engines.local import Anneal, Refine
from planner.search.engines.programs import LpRounding
from planner.search.engines.simple import EverythingSwapped, Evict, Greedy, OneLever
from planner.search.state import SearchState


@dataclass(frozen=True, slots=True, kw_only=True)
class RacePolicy:
    """All parameters of the race of base orders (`planner.portfolio.race`).

    The race has three rounds: a rough plan in each order, a short search in the best of them, a
    longer one in the best of those. A round that would end before the previous one gets no time.

    Attributes:
        share: share of a whole search's time that the race takes.
        bounds_until, rough_until, first_until: shares of the race at which the bounds, the rough
            plans, and the first round of searches end.
        evict_share, greedy_share: shares of a rough plan's time by whose end eviction and greedy
            repair are due; the rest is for the LP.
        rough_instants: instants of that LP.
        first_orders, last_orders: numbers of orders in the first and in the last round of searches.
        exploded_factor: a greedy plan is given up if it takes this multiple of the base order's
            time.
        lever_tries, lever_factor: after this number of orders, a lever is dropped if it alone adds
            this multiple of the other's time.
        rough_s, rough_op_s: seconds at least for a rough plan with one lever, and for each of its
            operations.
        min_s: seconds at least for a search.
        overtime_s, fair_factor, tried_orders: seconds at most that rough plans go on beyond the
            race's end, as long as every plan takes more than this multiple of the base order's
            time, or fewer orders had their turn. An order that cannot win is passed over in it.
        others_factor: once a plan is found in the best order, the searches in the others end after
            this multiple of the time that it took.
    """

    share: float = 0.4
    bounds_until: float = 0.15
    rough_until: float = 0.45
    first_until: float = 0.7
    evict_share: float = 0.4
    greedy_share: float = 0.7
    rough_instants: int = 1
    first_orders: int = 6
    last_orders: int = 3
    exploded_factor: float = 4.0
    lever_tries: int = 3
    lever_factor: float = 1.5
    rough_s: float = 0.05
    rough_op_s: float = 4e-5
    min_s: float = 0.2
    overtime_s: float = 2.0
    fair_factor: float = 1.5
    tried_orders: int = 6
    others_factor: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPolicy:
    """All parameters of a frontier over many budgets (`planner.pipeline.answer.budgets.sweep`).

    Attributes:
        orders_share, max_orders_s: share of the time, and most seconds, for the search for base
            orders.
        comparing_share: share of the time for comparing the orders at a few budgets.
        compared_shares: these budgets, as shares of the way from the least bound to the best
            order's own peak.
        kept_orders: number of best orders at each of them that enter the frontier.
        min_point_s: seconds at least for each point, however many there are.
    """

    orders_share: float = 0.1
    max_orders_s: float = 5.0
    comparing_share: float = 0.2
    compared_shares: tuple[float, ...] = (0.2, 0.45, 0.75)
    kept_orders: int = 2
    min_point_s: float = 1.0


class When(enum.StrEnum):
    """Conditions for an engine's turn."""

    ALWAYS = "always"
    NOTHING_FITS = "nothing fits yet"
    CLOSE = "the plan is close to its bound"
    FAR = "there is a plan, far from its bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One row of the table.

    Attributes:
        engine: the engine with its parameters.
        until: share of the time limit at which its turn ends.
        until_if_large: the same for problems with more than `Policy.large_ops` operations; None:
            like `until`.
        when: condition for its turn.
        even_late: it is quick, and runs even when time is out: if nothing fits yet, a stall of the
            machine must not be the reason.
    """

    engine: Engine
    until: float
    until_if_large: float | None = None
    when: When = When.ALWAYS
    even_late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PortfolioNumbers:
    """Sizes, gaps and times that decide which turns come, and when a search ends.

    Attributes:
        max_serial_ops: on larger problems CP-SAT takes longer to set a part up than to solve it.
        large_ops: number of operations above which a turn may have another share.
        close_gap: gap within which a plan is close to its bound; rounding and annealing help then.
        far_gap: gap beyond which it is far; it is then improved in parts first.
        near_s, near_share: time that a search continues once its plan is within 0.1% of its bound:
            seconds, or share of the time limit, whichever is more.
        late_s: seconds at least for a turn that runs although time is out.
    """

    max_serial_ops: int = 5_000
    large_ops: int = 15_000
    close_gap: float = 0.01
    far_gap: float = 0.05
    near_s: float = 10.0
    near_share: float = 0.1
    late_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(PortfolioNumbers):
    """All parameters of the portfolio.

    Attributes:
        rough: turns of a short search, as in a race of base orders.
        serial: turns if copies and operations share one stream, up to `max_serial_ops`.
        other: turns for all other problems.
        race, frontier: parameters of the other stages.
    """

    rough: tuple[Turn, ...]
    serial: tuple[Turn, ...]
    other: tuple[Turn, ...]
    race: RacePolicy = field(default_factory=RacePolicy)
    frontier: FrontierPolicy = field(default_factory=FrontierPolicy)

    def turns(self, problem: Problem, *, thorough: bool) -> tuple[Turn, ...]:
        """Return the turns for a problem."""
        if not thorough:
            return self.rough
        in_parts = not problem.overlap and len(problem.ops) <= self.max_serial_ops
        return self.serial if in_parts else self.other

    def until(self, turn: Turn, problem: Problem) -> float:
        """Return the share of the time limit at which a turn ends on a problem."""
        is_large = len(problem.ops) > self.large_ops
        return turn.until_if_large if is_large and turn.until_if_large else turn.until

    def is_due(self, turn: Turn, state: SearchState) -> bool:
        """Tell whether an engine's turn is due in the current state."""
        if turn.when is When.NOTHING_FITS:
            return state.changeable is None
        if turn.when is When.FAR:
            return state.best is not None and not state.is_within(self.far_gap)
        return turn.when is When.ALWAYS or state.is_within(self.close_gap)


_GREEDY = Turn(engine=Greedy(), until=0.15, until_if_large=0.5)
"""The greedy engine uses almost none of its share, except on very large problems.

There it may be the only engine that has time; if no plan is near, the rest is better spent on
engines that find one.
"""

_ONE_LEVER = Turn(engine=OneLever(), until=0.15, until_if_large=0.4)
"""On large problems planning with one lever takes a while."""

_NO_PLAN = When.NOTHING_FITS
_CLOSE = When.CLOSE

POLICY = Policy(
    rough=(
        replace(_GREEDY, until=0.5),
        _ONE_LEVER,
        Turn(engine=LpRounding(max_instants=6), until=0.9),
        Turn(engine=EverythingSwapped(), until=0.9, when=_NO_PLAN),
        Turn(engine=Evict(), until=0.9, when=_NO_PLAN),
        Turn(engine=Refine(), until=0.9),
    ),
    serial=(
        Turn(engine=Mend(), until=0.3),
        replace(_GREEDY, until=0.04),
        _ONE_LEVER,
        Turn(engine=LpRounding(give_up_gap=0.05), until=0.25),
        Turn(engine=Parts(), until=0.45, when=When.FAR),
        Turn(engine=EverythingSwapped(), until=0.35, when=_NO_PLAN, even_late=True),
        Turn(engine=Refine(), until=0.55, when=_CLOSE),
        Turn(engine=Anneal(), until=0.6, when=_CLOSE),
        Turn(engine=CpSat(), until=1.0),
        Turn(engine=Evict(), until=1.0, when=_NO_PLAN, even_late=True),
    ),
    other=(
        _GREEDY,
        _ONE_LEVER,
        Turn(engine=LpRounding(), until=0.5, until_if_large=0.8),
        Turn(engine=EverythingSwapped(), until=0.55, when=_NO_PLAN, even_late=True),
        Turn(engine=Evict(), until=0.55, when=_NO_PLAN, even_late=True),
        Turn(engine=Refine(), until=0.8),
        Turn(engine=Anneal(), until=0.97),
    ),
)
"""The default policy; measured by `reports/solver.md`."""
