"""The job that `planner run` gives to the process that plans, and its outcome."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model to plan.

    Attributes:
        model: the model's path.
        folder: the folder for the files that are made.
        budget, dims, device, order, ort_optimize, time_limit_s, verify: as for `planner.optimize`.
        disk: as for `planner.optimize`; "" for none.
        plan: a plan file to apply, which takes the place of all of these but the last two; "" for none.
    """

    model: str
    folder: str
    budget: str
    dims: Mapping[str, int]
    device: str
    order: str
    ort_optimize: bool
    time_limit_s: float
    verify: bool
    plan: str = ""
    disk: str = ""


class Status(StrEnum):
    """The result of planning a model."""

    PLANNED = "planned"
    UNCHANGED = "unchanged"  # it is within the budget as it is
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of planning.

    Attributes:
        model: the rewritten file.
        reason: why the model could not be planned; code: that error's exit code.
        budget_bytes, before_bytes, after_bytes: the budget, and the peak without the plan and with it.
        data: size and time of change (ns) of each file that holds tensors of the original.
        is_kept: whether it comes from an earlier start.
    """

    status: Status
    model: str = ""
    reason: str = ""
    code: int = 0
    budget_bytes: int = 0
    before_bytes: int = 0
    after_bytes: int = 0
    data: dict[str, tuple[int, int]] = field(default_factory=dict)
    is_kept: bool = False

    def holds_for(self, model: str) -> bool:
        """Tell whether all its files are unchanged and belong to the file `model`.

        Tensors in files beside the model are those of its own folder.
        """
        if self.data and os.path.dirname(self.model) != os.path.dirname(os.path.realpath(model)):
            return False
        there = self.status is not Status.PLANNED or os.path.isfile(self.model)
        return there and self.data == stamps(self.data)


def stamps(files: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return the size and the time of change (ns) of each file; zeros where it is gone."""
    found: dict[str, tuple[int, int]] = {}
    for file in files:
        try:
            status = os.stat(file)
            found[file] = (status.st_size, status.st_mtime_ns)
        except OSError:
            found[file] = (0, 0)
    return found
