"""Offsets within a capacity by constraint programming: one disjunction per section.

Strong where many sections have no slack at all; its luck depends on the seed, so that short runs with
other seeds do better than one long run.
"""

from __future__ import annotations

import enum

import numpy as np
from ortools.sat.python import cp_model

from planner.pack.instance import Instance, Ints

_MAX_MEMBERSHIPS = 100_000
_CONFLICTS = 4e9  # of a run of effort 1, over pairs ** 1.5: a few seconds at any size


class Verdict(enum.Enum):
    """How a run ended."""

    PACKED = "packed"
    IMPOSSIBLE = "impossible"
    UNDECIDED = "undecided"


class SectionModel:
    """The model of one instance within a capacity."""

    def __init__(self, instance: Instance, capacity_bytes: int) -> None:
        self._model = cp_model.CpModel()
        self._alignment = instance.alignment
        pairs = sum(len(members) ** 2 for members in instance.members)
        self._conflicts = _CONFLICTS / pairs**1.5
        self._places = []
        stretches = []
        highest = instance.highest(capacity_bytes) // instance.alignment
        for size, alignment, last in zip(
            instance.size.tolist(), instance.alignment.tolist(), highest.tolist(), strict=True
        ):
            if last < 0:  # no place at all: an empty domain would be an invalid model
                self._model.add_bool_or([])
            place = self._model.new_int_var(0, max(0, last), "")
            self._places.append(place)
            stretches.append(self._model.new_fixed_size_interval_var(alignment * place, size, ""))
        for members in instance.members:
            self._model.add_no_overlap([stretches[i] for i in members.tolist()])

    @staticmethod
    def suits(instance: Instance) -> bool:
        """Whether the model is small enough to be of use."""
        return int((instance.last - instance.first).sum()) <= _MAX_MEMBERSHIPS

    def solve(
        self, *, seed: int, effort: float, time_limit_s: float
    ) -> tuple[Verdict, Ints | None]:
        """Look for a packing with one worker, so that a seed gives the same answer each time.

        Args:
            effort: scales the number of conflicts after which to give up.

        Returns:
            The verdict and, where packed, the offsets in units, int64 [buffers].
        """
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = seed
        solver.parameters.max_time_in_seconds = time_limit_s
        solver.parameters.max_number_of_conflicts = max(20, round(effort * self._conflicts))
        solver.parameters.linearization_level = 0
        status = solver.solve(self._model)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            places = np.array([solver.value(place) for place in self._places], dtype=np.int64)
            return Verdict.PACKED, places * self._alignment
        impossible = status == cp_model.INFEASIBLE
        return (Verdict.IMPOSSIBLE if impossible else Verdict.UNDECIDED), None
