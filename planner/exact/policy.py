"""The numeric parameters of the exact engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactPolicy:
    """All parameters of the exact engine for copies and operations on one stream.

    A *part* is solved in one round of local search; the *whole* frees every run that a better plan
    may contain. A *price* is the cost of bytes above the capacity: base durations for an excess as
    large as the capacity.

    Attributes:
        whole_ops, whole_runs: limits of operations, and of free runs, for solving the whole; beyond
            them, only parts are solved.
        at_once_runs: with at most this many free runs the whole is solved at once: it is as quick
            as parts.
        whole_s: seconds at least for solving the whole.
        parts_share: share of the time for parts, if the whole may be solved too.
        fit_share: the same, from a plan that does not fit.
        price_share: share of that for the price: a plan that does not fit by then is made to fit
            step by step.
        descent_share, descent_before_whole_share: shares of the remaining time for the descent; the
            latter if the whole may be solved too.
        descent_step: reduction of the capacity at each step, as a share of the peak.
        descent_rounds: parts to solve at one capacity, after which the descent restarts from an
            earlier plan.
        spell_s: seconds that a plan descends before its gain is checked.
        spell_gain: least gain, as a share of its peak, with which its descent continues.
        far_start: a plan is given up if its peak is still above the best by this share.
        max_misses: spells without a better plan, after which the descents end.
        part_runs, min_part_runs, max_part_runs: free runs of a part: initial number, minimum, and
            maximum.
        part_stages: numbers of further stages in which an operation may be freed; one is drawn for
            each part.
        round_work: deterministic time of one round, in the solver's units: 0.12 is a second or two.
        first_price_factor: the first price, in base durations for the whole excess of the first plan.
        price_factor: rise of the price each round; twofold after `price_patience` rounds without an
            improvement.
        max_price: limit of the price.
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
"""The default policy; measured by `reports/solver.md`."""
