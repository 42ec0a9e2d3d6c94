"""A plan and its replay."""

from __future__ import annotations

from dataclasses import dataclass

from planner.plan.decisions import Decisions
from planner.plan.problem import Action
from planner.plan.replay import Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A set of decisions with its replay.

    `decisions` is None if an engine made the plan as actions.
    """

    decisions: Decisions | None
    actions: list[Action]
    replay: Replay

    @property
    def peak_bytes(self) -> int:
        return self.replay.peak_bytes

    @property
    def time_us(self) -> float:
        return self.replay.time_us
