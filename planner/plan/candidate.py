"""A plan and its replay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.plan.decisions import Decisions
from planner.plan.problem import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Bytes, time and copies of a replayed schedule.

    Attributes:
        live_bytes: int64 [actions], fixed bytes and workspace included.
        time_us: from start to end, in microseconds.
        stall_us: time in which no operation runs (without overlap: the time of the copies).
        swap_us: time that the copies take, beside the operations or not.
        paged_us: time of operations that only copy and run beside the others.
        copies: (tensor, birth, end) of each device copy, half-open.
        timeline: start and end of each action; None without overlap.
    """

    live_bytes: npt.NDArray[np.int64]
    time_us: float
    recompute_us: float
    recomputed_ops: int
    recomputed_bytes: int
    swap_out_bytes: int
    swap_in_bytes: int
    swap_us: float
    stall_us: float
    copies: tuple[tuple[int, int, int], ...]
    timeline: Timeline | None = None
    paged_us: float = 0.0

    @property
    def peak_bytes(self) -> int:
        """The largest live bytes at any action."""
        return int(self.live_bytes.max())

    @property
    def peak_action(self) -> int:
        """The first action at which the peak is reached."""
        return int(self.live_bytes.argmax())


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Times at which each action is issued (and takes its memory), starts and ends, in microseconds.

    Attributes:
        waited: for each copy out, the action before which the stream waits for its end; -1 for
            copies that nothing waits for, and for all other actions.
    """

    issue_us: list[float]
    start_us: list[float]
    end_us: list[float]
    waited: list[int]

    @property
    def time_us(self) -> float:
        """The end of the last action."""
        return max(self.end_us, default=0.0)


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
