"""The numeric parameters of the choice of levers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of the time limit for one lever's searches, and the least gain of its plan.

    Attributes:
        plain: share for the plan without the lever, if that is searched for first.
        until, rest: share of the limit at whose end other plans are due, and their least share.
        quick, most_quick_s: share of the limit for all quick searches, and their most seconds.
        searches: quick searches at most.
        slower: of two numbers of tensors the smaller wins, unless its plan is slower by more than
            this share of the step's time.
        gives_up: a number of tensors is not planned in earnest if quick searches find it no better
            than the plan without the lever.
        is_one_wait: its plans share one wait (`Settings.since`).
    """

    plain: float
    until: float = 1.0
    rest: float = 0.2
    quick: float = 0.0
    most_quick_s: float = 0.0
    searches: int = 8
    slower: float = 0.0
    gives_up: bool = True
    is_one_wait: bool = False

    def quick_s(self, time_limit_s: float) -> float:
        """Return the seconds for all quick searches."""
        return min(self.most_quick_s, self.quick * time_limit_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverPolicy:
    """Limits, shares and thresholds.

    Attributes:
        least_quick_s: seconds at least for each quick search.
        small: share of the room on the device that small tensors may take.
        rooms: shares of the budget for which operations that are too large are split.
        borders: divisors: tensors smaller than an operation's bytes by this factor may lie at the
            border of the region split around it.
        gain: a region counts only if the operation then holds at most this share of its bytes
            before.
        most_nodes: limit of nodes in all regions together, counted in chunks.
        most_rounds: rounds of splitting, each on the graph that the round before left.
        times_unfused: a group of operations is fused unless its node takes more than this many times
            as long as they do, as measured.
        first_round_s, round_op_s: the first round of searches takes the former, or the latter for
            each operation if that is more, in seconds; each further round is `longer` times as long.
        round_chance: share of the gap to the bound that a further round is expected to close.
        times_peak: the most that one run on the whole batch may hold, as a multiple of its live
            peak, in the arena and in kept results.
    """

    halves: Shares = Shares(
        plain=0.5, until=0.5, rest=0.5, quick=0.15, most_quick_s=10.0, slower=0.002, gives_up=False
    )
    chunks: Shares = Shares(plain=0.6, quick=0.08, most_quick_s=6.0)
    fuse: Shares = Shares(plain=0.4)
    host: Shares = Shares(plain=0.6, quick=0.1, most_quick_s=8.0, is_one_wait=True)
    least_quick_s: float = 0.3
    small: float = 0.02
    rooms: tuple[float, ...] = (1.0, 0.8, 0.6, 0.4, 0.25)
    borders: tuple[int, ...] = (4, 10)
    gain: float = 0.97
    most_nodes: int = 6000
    most_rounds: int = 4
    times_unfused: float = 1.05
    first_round_s: float = 0.6
    round_op_s: float = 4e-4
    longer: float = 3.0
    round_chance: float = 0.1
    times_peak: int = 3


POLICY = LeverPolicy()
