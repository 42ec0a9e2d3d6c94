"""Make a plan fit whose peak is far above the capacity: step by step, a little less memory each time.

At a price for each byte above the capacity, a plan far above it trades all stages against each other
and ends where none of them fits. A capacity a little below the peak of the plan leaves only few stages
to mend, with parts that can be solved; the plan that is found is the next one to begin from. On random
layered graphs of 250 to 1,000 operations this comes to 65% of the base order's peak in the time in
which the price alone came to 82%.
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
    """The schedule with the least peak found, from `actions` on; it ends at the capacity.

    Args:
        actions: base operations run in base order, on one stream.
        settings: as for `improve_locally`.
        stop: asked between rounds.
        policy: the steps, and the rounds of each.
    """
    deadline = clock.now() + settings.limit_s
    path = [list(actions)]  # each has less peak than the one before
    peaks = [simulate(problem, path[0]).peak_bytes]
    best, least = path[0], peaks[0]
    turn = asked = 0
    back = 1  # plans to go back to, where the last does not get lower

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
            until=SearchEnd(bound_us=math.inf, asked=is_over),  # any plan that fits will do
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
