"""The numbers by which levers are chosen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What the search for one lever's plan takes of the time limit, and when its plan is worth it.

    Attributes:
        plain: for the plan without the lever, where that is looked for first.
        until, rest: others end with this share of the limit, and get this one at least.
        quick, most_quick_s: for all quick searches, and their most seconds.
        searches: quick searches at most.
        slower: of two counts the smaller is taken, where its plan takes no more of the step's time.
        gives_up: a count that quick searches find no better than the plan without the lever is not
            planned in earnest.
        is_one_wait: its plans are searched for in one wait (`Settings.since`).
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
        """Seconds for all quick searches."""
        return min(self.most_quick_s, self.quick * time_limit_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverPolicy:
    """The table.

    Attributes:
        least_quick_s: no quick search gets less.
        small: share of the room on the device that small tensors may take.
        rooms: shares of the budget for which what is too large is split.
        borders: what is so many times smaller than all that an operation holds may be at the border of a
            region that is split around it.
        gain: a region is one only where the operation holds at most this share of what it held.
        most_nodes: of all regions together, by chunks.
        most_rounds: regions of the graph with regions in chunks, and so on.
        times_peak: one run on the whole batch may hold so many times its live peak, in the arena and in
            kept results.
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
    times_peak: int = 3


POLICY = LeverPolicy()
