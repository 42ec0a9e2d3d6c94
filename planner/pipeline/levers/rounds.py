"""Searches in rounds, each longer than the one before: more time never leads to a worse plan.

A search shares its time limit out from its beginning, so that one with more time makes other choices,
and may end with a worse plan. The rounds are the same for every limit, which only says how many of
them there are, and the best of their plans is taken. Rough plans and results are handed from round to
round (`Means`), so that a later race reaches further orders. From the second round on, each is followed
by a search of the same length that goes on from the best plan so far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner import clock
from planner.errors import InfeasibleBudgetError, TimeLimitError
from planner.pipeline.levers.choose import plan_with
from planner.pipeline.levers.host.host_budget import host_budget_of
from planner.pipeline.levers.lever import Lever
from planner.pipeline.levers.policy import POLICY
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.least_plan import TooShortError
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.planning import Means, refined
from planner.pipeline.solve.policy import POLICY as SOLVING
from planner.runtime.optimizers.fusion_pins import TakenError


def plan_in_rounds(
    levers: Sequence[Lever], prepared: Prepared, settings: Settings, means: Means
) -> Planned:
    """Return the fastest plan of a model within the budget that any round of searches finds.

    No round begins that would end beyond the time limit, or that promises too little. If all were too
    short for a plan, the time that is left goes to one that makes the last resort, a first round's at
    least.

    Raises:
        InfeasibleBudgetError: no round finds a plan.
        TakenError: as for `plan_with`.
        KeyboardInterrupt: on Ctrl-C, unless it is kept, or there is no plan yet.
    """
    end = clock.now() + settings.time_limit_s
    plans: list[Planned] = []
    error: InfeasibleBudgetError | TakenError | None = None
    for limit_s, begins_again in _limits(prepared, settings, plans):
        best = min(plans, key=_rank) if plans else None
        if best is not None and not _is_worth(best, limit_s, is_open=bool(means.unreached)):
            break
        limited = replace(settings, time_limit_s=limit_s)
        try:
            if begins_again:
                means.unreached.clear()
                until = end if end - clock.now() > 1.001 * limit_s else 0.0
                made = plan_with(levers, prepared, limited, replace(means, until=until))
            elif best is not None and host_budget_of(prepared) is None:
                made = refined(best, limited, means)
            else:
                continue
        except (InfeasibleBudgetError, TakenError) as found:
            error = _least(found, error)
            if _is_final(found, levers, settings):
                break
            continue
        except KeyboardInterrupt:
            if best is None or not means.keep_on_interrupt:
                raise
            return best.interrupted()
        plans.append(made)
        if made.solved.is_interrupted:
            return min(plans, key=_rank).interrupted()
    if plans:
        return min(plans, key=_rank)
    if isinstance(error, TooShortError):
        left_s = max(end - clock.now(), min(_first_s(prepared), settings.time_limit_s))
        return plan_with(levers, prepared, replace(settings, time_limit_s=left_s), means)
    assert error is not None
    raise error


def _rank(planned: Planned) -> tuple[bool, float, int, float]:
    """Return the sort key of plans, best first: by the step that the plan file names, pins and bound.

    A plan that changes numbers must be worth more than its gain in time.
    """
    prepared = planned.prepared
    worth = 1 + SOLVING.worth if prepared.halved or prepared.split else 1.0
    # equal plans add the same durations up in another order
    step_us = round(worth * planned.step_us, 6)
    return not planned.holds, step_us, planned.rewritten.anchors, -planned.solved.bound_us


def _limits(
    prepared: Prepared, settings: Settings, plans: Sequence[Planned]
) -> Iterator[tuple[float, bool]]:
    """Yield the time limit of each search, and whether it begins again, while time is left for it.

    As long as there are no `plans`, the last search gets all the time that is left. If rounds were longer
    than their limits, since plans of a large graph take long to lower, so much more has to be left, at
    most as much again; and the machine's seconds for that, at the pace of the round before.
    """
    began, whole_s = clock.now(), settings.time_limit_s
    limit_s, start_s = _first_s(prepared), time.monotonic()
    yield min(limit_s, whole_s), True
    took_s = clock.now() - began
    over_s, pace = max(0.0, took_s - limit_s), (time.monotonic() - start_s) / took_s
    while True:
        last_s, limit_s = limit_s, POLICY.longer * limit_s
        for begins_again in (True, False):
            left_s = whole_s - (clock.now() - began)
            needed_s = limit_s + min(over_s, limit_s)
            is_slow = bool(plans) and pace * needed_s > clock.machine_s(math.inf)
            if is_slow or needed_s > left_s:
                if begins_again and not plans and left_s > last_s:
                    yield left_s, True
                return
            start, start_s = clock.now(), time.monotonic()
            yield limit_s, begins_again
            took_s = clock.now() - start
            over_s = max(over_s, took_s - limit_s)
            if begins_again:
                pace = (time.monotonic() - start_s) / took_s


def _first_s(prepared: Prepared) -> float:
    """Return the time limit of the first round."""
    return max(POLICY.first_round_s, POLICY.round_op_s * len(prepared.graph.operations))


def _is_final(
    error: InfeasibleBudgetError | TakenError, levers: Sequence[Lever], settings: Settings
) -> bool:
    """Tell whether a longer search can find nothing either.

    A bound holds for the operations as they are: levers that change them may find a plan below it.
    """
    if isinstance(error, TakenError):
        return False
    if not error.bound_bytes:
        return not error.least_peak_bytes  # it is no search that failed
    is_proved = error.bound_bytes > settings.budget_bytes
    return is_proved and not any(lever.rewrites for lever in levers)


def _is_worth(best: Planned, limit_s: float, *, is_open: bool) -> bool:
    """Tell whether another round is worth the wait.

    Args:
        is_open: the last races left orders out for want of time. The next ones may reach a better
            order, for which the bound of the best plan's order does not hold.
    """
    searched = best.searched
    bound_us = best.formulation.problem.base_duration_us if is_open else searched.bound_us
    gap_us = searched.found.time_us - bound_us
    return limit_s <= POLICY.round_chance * gap_us / max(1e-9, SOLVING.worth_per_s * bound_us)


def _least(
    found: InfeasibleBudgetError | TakenError, known: InfeasibleBudgetError | TakenError | None
) -> InfeasibleBudgetError | TakenError:
    """Return the error to raise: not for want of time if possible, then that of the least peak."""
    if not isinstance(known, InfeasibleBudgetError):
        return found
    if not isinstance(found, InfeasibleBudgetError):
        return known
    return min(
        (found, known),
        key=lambda error: (
            isinstance(error, TooShortError),
            isinstance(error, TimeLimitError),
            error.least_peak_bytes or float("inf"),
        ),
    )
