"""The steps at which a model exceeds the room for it."""

from __future__ import annotations

import numpy as np

from planner.graph.liveness import timeline
from planner.pipeline.prepare.prepared import Prepared


class OverBudget:
    """Steps in the model's order that exceed the room; only the step of the peak if none does.

    Args:
        room_bytes: None counts every step.

    Attributes:
        peak: a step of the peak.
        step: each operation's step, by OpId.
    """

    def __init__(self, prepared: Prepared, room_bytes: int | None) -> None:
        live = np.asarray(timeline(prepared.graph, prepared.order).live_bytes)
        high = live > min(-1 if room_bytes is None else room_bytes, int(live.max()) - 1)
        self._before = np.concatenate([[0], np.cumsum(high)])
        self.peak = int(live.argmax())
        self.step = {op: i for i, op in enumerate(prepared.order)}

    def between(self, begin: int, end: int | None = None) -> int:
        """Count these steps in a half-open range; None is the end of the last step."""
        return int(self._before[-1 if end is None else end] - self._before[begin])
