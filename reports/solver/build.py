"""Write problems operation by operation, and set their budgets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from planner.plan.problem import (
    Action,
    ActionKind,
    OpIndex,
    PlanOp,
    PlanTensor,
    Problem,
    TensorIndex,
)
from planner.simulate.simulate import simulate

Mode = Literal["recompute", "swap", "both"]


@dataclass(slots=True)
class Builder:
    """A builder of a problem; operations are added in the base order."""

    ops: list[PlanOp] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    producers: list[OpIndex] = field(default_factory=list)
    uses: list[list[OpIndex]] = field(default_factory=list)
    to_end: set[int] = field(default_factory=set)

    def op(
        self,
        name: str,
        duration_us: float,
        inputs: Iterable[int],
        output_bytes: Sequence[int] = (),
        *,
        recomputable: bool = True,
    ) -> tuple[int, ...]:
        """Add an operation, and return its output tensors."""
        index = OpIndex(len(self.ops))
        reads = tuple(TensorIndex(t) for t in dict.fromkeys(inputs))
        first = len(self.sizes)
        outputs = tuple(TensorIndex(first + i) for i in range(len(output_bytes)))
        for t in reads:
            self.uses[t].append(index)
        for i, size in enumerate(output_bytes):
            self.names.append(f"{name}:{i}" if i else name)
            self.sizes.append(size)
            self.producers.append(index)
            self.uses.append([])
        self.ops.append(
            PlanOp(
                name=name,
                duration_us=duration_us,
                inputs=reads,
                outputs=outputs,
                recomputable=recomputable,
            )
        )
        return outputs

    def problem(self, name: str, *, copy_bytes_per_s: tuple[float, float] = (0, 0)) -> Problem:
        """Return the problem, with its own peak as its capacity.

        Args:
            copy_bytes_per_s: to the host, and back.
        """
        tensors = tuple(
            PlanTensor(
                name=self.names[t],
                bytes=self.sizes[t],
                producer=self.producers[t],
                uses=tuple(self.uses[t]),
                to_end=t in self.to_end,
            )
            for t in range(len(self.sizes))
        )
        problem = Problem(
            name=name,
            ops=tuple(self.ops),
            tensors=tensors,
            fixed_bytes=0,
            capacity_bytes=0,
            swap_out_bytes_per_s=copy_bytes_per_s[0],
            swap_in_bytes_per_s=copy_bytes_per_s[1],
        )
        return replace(problem, capacity_bytes=base_peak(problem))


def base_actions(problem: Problem) -> list[Action]:
    """Return every operation once, in the base order."""
    return [Action(kind=ActionKind.RUN, target=i) for i in range(len(problem.ops))]


def base_peak(problem: Problem) -> int:
    """Replay the base order, and return its peak in bytes."""
    return simulate(problem, base_actions(problem)).peak_bytes


def with_budget(problem: Problem, percent: float, mode: Mode, *, overlap: bool = False) -> Problem:
    """The problem at `percent` of its base order's peak, rounded up, and what a plan may do.

    Args:
        overlap: copies run beside the operations, one engine each way; else they add to the step.
    """
    capacity = math.ceil(percent * base_peak(problem) / 100)
    return with_levers(problem, capacity, mode, overlap=overlap)


def with_levers(
    problem: Problem, capacity_bytes: int, mode: Mode, *, overlap: bool = False
) -> Problem:
    """The problem at a capacity, and what a plan may do; `overlap` as for `with_budget`."""
    problem = replace(problem, capacity_bytes=capacity_bytes, allow_recompute=mode != "swap")
    return problem.without_swaps() if mode == "recompute" else replace(problem, overlap=overlap)
