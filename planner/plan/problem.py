"""The planning problem: a solver's whole input. Nothing here depends on ONNX.

Time is a sequence of actions. The base order runs each operation once; a plan may run an operation
again (recompute), or copy a tensor to the host and back (swap). At each action the device holds the
fixed bytes, every live copy of a tensor, and the action's workspace; the sum may never exceed the
capacity.

          t produced        last use before          next use
              │                the gap                  │
    keep      ├───────────────────┼─────────────────────┤
    recompute ├───────────────────┤               ├run──┤    costs the run (and its inputs)
    swap      ├───────────────┼out┤                 ├in─┤    costs the two copies

The stretch between two consecutive events of a tensor (its production and its uses in base order)
is a *retention interval*: the unit of decision.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NewType

OpIndex = NewType("OpIndex", int)
TensorIndex = NewType("TensorIndex", int)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTensor:
    """A buffer that is not persistent. `uses` are indices of operations in base order, ascending.

    Attributes:
        to_end: stays until the end of the run once (last) produced: a graph output.
        swappable: may be copied to the host.
        host_copy: a reader on the host needs a copy in any case: leaving the device costs no
            further copy.
    """

    name: str
    bytes: int
    producer: OpIndex
    uses: tuple[OpIndex, ...]
    to_end: bool = False
    swappable: bool = True
    host_copy: bool = False

    def moved(self, place: Sequence[OpIndex]) -> PlanTensor:
        """Return the tensor among operations in another order, given the new place of each."""
        uses = tuple(sorted([place[u] for u in self.uses]))
        return replace(self, producer=place[self.producer], uses=uses)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOp:
    """An operation; its index in `Problem.ops` is its place in the base order.

    Attributes:
        inputs, outputs: tensors that are not persistent, without repeats.
        inplace: (input, output) pairs that share one buffer if the input dies here.
    """

    name: str
    duration_us: float
    inputs: tuple[TensorIndex, ...]
    outputs: tuple[TensorIndex, ...]
    workspace_bytes: int = 0
    recomputable: bool = True
    inplace: tuple[tuple[TensorIndex, TensorIndex], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One planning problem.

    Attributes:
        fixed_bytes: persistent tensors and the reserve; on the device throughout.
        capacity_bytes: the budget; live bytes may reach but not exceed it at every action.
        swap_out_bytes_per_s, swap_in_bytes_per_s: copy bandwidths; 0 forbids swapping.
        overlap: copies run beside the operations, on one engine each way; otherwise copies and
            operations share one stream, and copies add to the step.
    """

    name: str
    ops: tuple[PlanOp, ...]
    tensors: tuple[PlanTensor, ...]
    fixed_bytes: int
    capacity_bytes: int
    swap_out_bytes_per_s: float = 0.0
    swap_in_bytes_per_s: float = 0.0
    allow_recompute: bool = True
    overlap: bool = False

    @cached_property
    def base_duration_us(self) -> float:
        """Duration of the base order without recomputes and copies, in microseconds."""
        return sum(op.duration_us for op in self.ops)

    @property
    def allow_swap(self) -> bool:
        """Whether copies to the host are possible."""
        return self.swap_out_bytes_per_s > 0 and self.swap_in_bytes_per_s > 0

    def without_swaps(self) -> Problem:
        """Return the same problem without copies to the host."""
        return replace(self, swap_out_bytes_per_s=0.0, swap_in_bytes_per_s=0.0)

    def swap_out_us(self, tensor: int) -> float:
        """Return the time of one copy of `tensor` to the host.

        0 if a reader on the host needs a copy in any case.
        """
        if self.tensors[tensor].host_copy:
            return 0.0
        return self.tensors[tensor].bytes / self.swap_out_bytes_per_s * 1e6

    def swap_in_us(self, tensor: int) -> float:
        """Return the time of one copy of `tensor` back to the device."""
        return self.tensors[tensor].bytes / self.swap_in_bytes_per_s * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """Operations that only copy tensors that live on the host, and may run beside the others, by index.

    None has a workspace.

    Attributes:
        loads: copies in, of tensors that the host holds throughout.
        stores: copies out, each of its one input, which stays until the copy is done.
    """

    loads: frozenset[int] = frozenset()
    stores: frozenset[int] = frozenset()

    def stored(self, problem: Problem) -> dict[int, int]:
        """Map each tensor that a store reads to the store."""
        return {problem.ops[op].inputs[0]: op for op in self.stores}


NO_PAGING = Paging()


class ActionKind(enum.StrEnum):
    """The kind of one step of a schedule."""

    RUN = "run"
    SWAP_OUT = "swap-out"
    SWAP_IN = "swap-in"
    SWAP_OUT_DONE = "swap-out-done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One step: run operation `target`, copy tensor `target` out or in, or wait until it is out.

    Engines list no waits; `planner.simulate.waits` adds them to a plan whose copies run beside the
    operations.
    """

    kind: ActionKind
    target: int


def actions_below(kind: ActionKind, count: int) -> Sequence[Action]:
    """Return the actions of one kind by target, at least `count` of them; all problems share them."""
    return _actions(kind, count.bit_length())


def run_actions(ops: Sequence[int]) -> list[Action]:
    """Return the actions that run these operations, in this order."""
    actions = actions_below(ActionKind.RUN, max(ops, default=0))
    return [actions[op] for op in ops]


@cache
def _actions(kind: ActionKind, bits: int) -> tuple[Action, ...]:
    return tuple(Action(kind=kind, target=target) for target in range(1 << bits))
