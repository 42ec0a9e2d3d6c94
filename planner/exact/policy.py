"""The numbers of the exact engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactPolicy:
    """Every number of the exact engine where copies and operations share one stream.

    A *part* is what is solved in one round of local search, the *whole* every run that may be in a
    better plan. A *price* is what bytes above the capacity cost: base durations for an excess as large
    as the capacity.

    Attributes:
        whole_ops, whole_runs: operations, and free runs, of the whole; with more, only parts are solved.
        at_once_runs: up to so many free runs the whole is solved at once: it is as quick as parts.
        whole_s: seconds; the solver of the whole gets no less.
        parts_share: of the time, where the whole may be solved too.
        fit_share: the same, from a plan that does not fit.
        price_share: of that: where it does not fit by then, it is made to fit step by step.
        descent_share, descent_before_whole_share: of what is left, for that: the latter where the whole
            may be solved too.
        descent_step: by how much the capacity is lowered each time, as a share of the peak.
        descent_rounds: parts that are solved at one capacity, after which the descent begins anew from a
            plan farther up.
        spell_s: seconds; how long a plan descends before it is asked whether that helps.
        spell_gain: by how much, as a share of its peak, it must have got lower to be gone on with.
        far_start: a plan whose peak is still so much above the best, as a share, is given up.
        max_misses: spells that may pass without a better plan.
        part_runs, min_part_runs, max_part_runs: free runs of a part: at first, at least, and at most.
        part_stages: stages in which an operation may be freed besides those of its own; one of these
            numbers is drawn for each part.
        round_work: deterministic time of one round, in the solver's units: 0.12 is a second or two.
        first_price_factor: the first price, in base durations for the whole excess of the first plan.
        price_factor: by which the price rises each round; twofold after `price_patience` rounds in which
            nothing helped.
        max_price: where it ends.
    """

    whole_ops: int = 600
    whole_runs: int = 5_000
    at_once_runs: int = 250
    whole_s: float = 0.5
    parts_share: float = 0.15
    fit_share: float = 0.6
    price_share: float = 0.12
    descent_share: float = 0.95
    descent_before_whole_share: float = 0.7
    descent_step: float = 0.015
    descent_rounds: int = 60
    spell_s: float = 2.0
    spell_gain: float = 0.003
    far_start: float = 0.1
    max_misses: int = 30
    part_runs: int = 60
    min_part_runs: int = 12
    max_part_runs: int = 3_000
    part_stages: tuple[int, ...] = (3, 6, 10)
    round_work: float = 0.12
    first_price_factor: float = 0.2
    price_factor: float = 1.05
    price_patience: int = 10
    max_price: float = 100.0


EXACT = ExactPolicy()
"""Until another is given; measured by `reports/solver.md`."""
