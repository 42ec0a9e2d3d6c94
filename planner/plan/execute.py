"""From decisions to a schedule: run the base order, bring back what is missing just in time.

A decision belongs to a gap: the stretch between two consecutive events of a tensor (its production
and its base uses; gap g opens at event g). Undecided gaps keep their tensor. Before a base operation
whose input is not on the device, the executor swaps it in if it was swapped out, and otherwise runs
its producer again, and so on up the graph. What was brought back stays until its next base use.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from planner.plan.problem import Action, ActionKind, Problem

Gap = tuple[int, int]
"""(tensor index, index of the event that opens the gap)."""


class Choice(enum.IntEnum):
    """What happens to a tensor in a gap."""

    DROP = 1
    SWAP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """All decisions of one plan.

    Attributes:
        gaps: DROP or SWAP per gap; keep where absent.
        extended: tensors kept beyond their last base use, for recomputes that read them.
        released: gaps in which a tensor that was brought back early, for another recompute, is let
            go again instead of waiting for its next base use.
    """

    gaps: Mapping[Gap, Choice] = field(default_factory=dict)
    extended: Set[int] = frozenset()
    released: Set[Gap] = frozenset()


class Executor:
    """Executes decisions on one problem; holds what does not depend on them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.ins = [op.inputs for op in problem.ops]
        self.outs = [op.outputs for op in problem.ops]
        self.producer = [t.producer for t in problem.tensors]
        self.uses = [t.uses for t in problem.tensors]
        self.events = [(t.producer, *t.uses) for t in problem.tensors]
        self.run = [Action(kind=ActionKind.RUN, target=i) for i in range(len(problem.ops))]
        self.out = [Action(kind=ActionKind.SWAP_OUT, target=t) for t in range(len(self.uses))]
        self.into = [Action(kind=ActionKind.SWAP_IN, target=t) for t in range(len(self.uses))]

    def gap_at(self, tensor: int, op: int) -> int:
        """Index of the gap of `tensor` that is open just before base operation `op`."""
        return bisect_left(self.uses[tensor], op)

    def schedule(self, decisions: Decisions) -> list[Action]:
        """The actions of a plan; raises nothing: any set of decisions gives a valid schedule
        provided that every tensor in a DROP gap has a recomputable producer. What a recompute
        reads and that cannot be brought back is kept for it, beyond its last base use."""
        kept = set(decisions.extended)
        while True:
            state = _State(self, decisions, kept)
            for op in range(len(self.problem.ops)):
                state.step(op)
            if state.lost <= kept:
                return state.actions
            kept |= state.lost


class _State:
    """The executor's position: what is on the device, what on the host."""

    def __init__(self, executor: Executor, decisions: Decisions, extended: Set[int]) -> None:
        self.x = executor
        self.gaps = decisions.gaps
        self.extended = extended
        self.released = decisions.released
        count = len(executor.uses)
        self.resident = bytearray(count)
        self.on_host = bytearray(count)  # a host copy exists
        self.next_use = [0] * count
        self.lost: set[int] = set()  # needed again, but its producer may not run twice
        self.actions: list[Action] = []

    def step(self, op: int) -> None:
        x = self.x
        missing = [t for t in x.ins[op] if not self.resident[t]]
        if missing:
            self._bring_back(missing)
        self.actions.append(x.run[op])
        for t in x.outs[op]:
            self.resident[t] = 1
            self._after_event(t, 0)
        for t in x.ins[op]:
            self.next_use[t] += 1
            self._after_event(t, self.next_use[t])

    def _after_event(self, tensor: int, gap: int) -> None:
        if gap >= len(self.x.uses[tensor]):
            self.resident[tensor] = tensor in self.extended
            return
        choice = self.gaps.get((tensor, gap))
        if choice is None:
            return
        if choice is Choice.SWAP and not self.on_host[tensor]:
            self.on_host[tensor] = 1
            self.actions.append(self.x.out[tensor])
        self.resident[tensor] = 0

    def _swapped(self, tensor: int) -> bool:
        """Whether the copy on the host is how this tensor comes back now."""
        if not self.on_host[tensor]:
            return False
        choice = self.gaps.get((tensor, self.next_use[tensor]))
        return choice is Choice.SWAP or not self.x.problem.ops[self.x.producer[tensor]].recomputable

    def _bring_back(self, missing: Sequence[int]) -> None:
        x = self.x
        fetch: list[int] = []
        again: set[int] = set()
        stack, seen = list(missing), set(missing)
        while stack:
            t = stack.pop()
            if self._swapped(t):
                fetch.append(t)
                continue
            producer = x.producer[t]
            if not x.problem.ops[producer].recomputable:
                self.lost.add(t)
            if producer in again:
                continue
            again.add(producer)
            for u in x.ins[producer]:
                if not self.resident[u] and u not in seen:
                    seen.add(u)
                    stack.append(u)
        pending = set(fetch)
        order = sorted(again)
        for producer in order:
            for u in x.ins[producer]:
                if u in pending:
                    self._fetch(u, pending)
            self.actions.append(x.run[producer])
            for t in x.outs[producer]:
                self.resident[t] = 1
        for t in missing:
            if t in pending:
                self._fetch(t, pending)
        wanted = set(missing)
        for t in (*(t for p in order for t in x.outs[p]), *fetch):
            gap = self.next_use[t]
            if gap >= len(x.uses[t]):
                self.resident[t] = t in self.extended
            elif t not in wanted and (t, gap) in self.released:
                self.resident[t] = 0

    def _fetch(self, tensor: int, pending: set[int]) -> None:
        self.actions.append(self.x.into[tensor])
        self.resident[tensor] = 1
        pending.discard(tensor)
