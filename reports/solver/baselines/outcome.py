"""What a baseline returns: a plan that planner's simulator has replayed, and a bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
        time_us: the sum of the actions' durations; `replay.time_us` is what the simulator says.
        bound_us: proved for the baseline's own class of schedules; None where nothing was.
        optimal: proved within that class.
        seconds: of writing the model and solving it.
    """

    status: str
    actions: tuple[Action, ...] | None
    replay: Replay | None
    fits: bool
    time_us: float | None
    bound_us: float | None
    optimal: bool
    seconds: float


def outcome(problem: Problem, actions: Sequence[Action] | None, **said: Any) -> Outcome:
    """Replay `actions` and judge them; `said` has what is left of the outcome's fields."""
    if actions is None:
        return Outcome(actions=None, replay=None, fits=False, time_us=None, **said)
    replay = simulate(problem, actions)
    return Outcome(
        actions=tuple(actions),
        replay=replay,
        fits=replay.peak_bytes <= problem.capacity_bytes,
        time_us=sum(problem.ops[action.target].duration_us for action in actions),
        **said,
    )
