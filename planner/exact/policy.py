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
        fit_share: share of the time for parts, from a plan that does not fit.
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
