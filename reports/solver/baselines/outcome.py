"""What a baseline returns: a plan that planner's simulator has replayed, and a bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.plan.candidate import Replay
from planner.plan.problem import Action, Problem
from planner.simulate.simulate import simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A baseline's plan, or none.

    Attributes:
        status: the solver's word.
        actions, replay: None where no plan was found.
        fits: the replayed peak is within the capacity.
        time_us: as the model has it; `replay.time_us` is what the simulator says.
        bound_us: proved for the baseline's own class of schedules; None where nothing was.
        optimal: proved within that class.
        build_s, solve_s: writing the model, and solving it.
    """

    status: str
    actions: tuple[Action, ...] | None
    replay: Replay | None
    fits: bool
    time_us: float | None
    bound_us: float | None
    optimal: bool
    build_s: float
    solve_s: float


def outcome(
    problem: Problem,
    *,
    status: str,
    actions: Sequence[Action] | None,
    time_us: float | None,
    bound_us: float | None,
    optimal: bool,
    build_s: float,
    solve_s: float,
) -> Outcome:
    """Replay `actions` and judge them."""
    replay = None if actions is None else simulate(problem, actions)
    return Outcome(
        status=status,
        actions=None if actions is None else tuple(actions),
        replay=replay,
        fits=replay is not None and replay.peak_bytes <= problem.capacity_bytes,
        time_us=time_us,
        bound_us=bound_us,
        optimal=optimal,
        build_s=build_s,
        solve_s=solve_s,
    )
