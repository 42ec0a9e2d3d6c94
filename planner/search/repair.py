"""Repair of a plan that does not fit: drop or swap the waiting tensors that are cheapest per byte."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter

from planner import clock
from planner.plan.candidate import Candidate
from planner.plan.decisions import Choice, Decisions, Gap
from planner.plan.problem import ActionKind, Problem

MAX_CLOSURE = 400
"""Limit on the length of a recompute chain, exceeded by at most one."""

Closure = tuple[list[int], int | None]
"""The result of `closure`."""


class Stays:
    """When each tensor is on the device.

    Args:
        copies: (tensor, birth, end) of each copy: the half-open range of actions in which it is
            there, as in `Replay.copies`. Copies of one tensor may overlap.
    """

    def __init__(self, copies: Iterable[tuple[int, int, int]]) -> None:
        self._births: dict[int, list[int]] = {}
        self._latest: dict[int, list[int]] = {}  # the latest end of a copy born until then
        for tensor, birth, end in sorted(copies, key=itemgetter(1)):  # a replay's are in this order
            latest = self._latest.setdefault(tensor, [])
            latest.append(max(end, latest[-1]) if latest else end)
            self._births.setdefault(tensor, []).append(birth)

    def cover(self, tensor: int, step: int) -> bool:
        """Tell whether a copy made before action `step` is still there after it."""
        born = bisect_left(self._births.get(tensor, ()), step)
        return born > 0 and self._latest[tensor][born - 1] > step


def closure(
    problem: Problem, stays: Stays, tensor: int, step: int, most_us: float = float("inf")
) -> Closure:
    """Return the operations to run again for `tensor` at `step`, and the one that blocks the chain.

    The operations make the tensor, and whatever of their inputs is missing then. One blocks the
    chain if it may not run again, or if the chain becomes too long there, or takes more than
    `most_us`. It is None if no operation does.
    """
    stack = [problem.tensors[tensor].producer]
    seen: dict[int, None] = {}
    chain_us = 0.0
    while stack:
        producer = stack.pop()
        if producer in seen:
            continue
        op = problem.ops[producer]
        chain_us += op.duration_us
        if not op.recomputable or len(seen) > MAX_CLOSURE or chain_us > most_us:
            return list(seen), producer
        seen[producer] = None
        for t in op.inputs:
            if t != tensor and not stays.cover(t, step):
                stack.append(problem.tensors[t].producer)
    clock.spend(clock.CLOSED_S * len(seen))
    return list(seen), None


_NEVER = float("inf")
_HIDDEN = 0.5
"""Assumed share of a copy's time that is not hidden if copies run beside the operations."""


class GreedyRepair:
    """One round of repair: relieves the fullest action, and the fullest of each stretch of the plan."""

    def __init__(self, problem: Problem, candidate: Candidate) -> None:
        self.problem = problem
        self.candidate = candidate
        self.stays = Stays(candidate.replay.copies)
        self.reads: dict[int, list[int]] = {}
        self.base_step: list[int] = [-1] * len(self.problem.ops)
        for step, action in enumerate(candidate.actions):
            if action.kind is ActionKind.RUN:
                if self.base_step[action.target] < 0:
                    self.base_step[action.target] = step
                for t in self.problem.ops[action.target].inputs:
                    self.reads.setdefault(t, []).append(step)
            elif action.kind is ActionKind.SWAP_OUT:
                self.reads.setdefault(action.target, []).append(step)
        self.stage_start = [0]
        self.stage_start.extend(step + 1 for step in self.base_step[:-1])

    def decisions(self) -> Decisions | None:
        """Return the candidate's decisions with new ones; None if nothing can be added."""
        clock.spend(clock.REPAIRED_S * len(self.problem.ops))
        before = self.candidate.decisions
        assert before is not None
        gaps = dict(before.gaps)
        released = set(before.released)
        freed: list[tuple[int, int, int]] = []
        changed = False
        for step in self._steps_to_relieve():
            excess = int(self.candidate.replay.live_bytes[step]) - self.problem.capacity_bytes
            excess -= sum(size for a, b, size in freed if a < step < b)
            if excess <= 0:
                continue
            for _, tensor, gap, choice, span in self._options(step, gaps, released):
                if (tensor, gap) in gaps and choice is not None:
                    continue
                if choice is None:
                    released.add((tensor, gap))
                else:
                    gaps[tensor, gap] = choice
                size = self.problem.tensors[tensor].bytes
                freed.append((*span, size))
                excess -= size
                changed = True
                if excess <= 0:
                    break
        if not changed:
            return None
        return replace(before, gaps=gaps, released=frozenset(released))

    def _steps_to_relieve(self) -> list[int]:
        live = self.candidate.replay.live_bytes
        stretch = max(1, len(live) // 12)
        worst = {
            start + int(live[start : start + stretch].argmax())
            for start in range(0, len(live), stretch)
        }
        worst.add(self.candidate.replay.peak_action)
        return sorted(worst, key=lambda s: -int(live[s]))

    def _options(
        self, step: int, gaps: dict[Gap, Choice], released: set[Gap]
    ) -> list[tuple[float, int, int, Choice | None, tuple[int, int]]]:
        """Return the options at `step`, cheapest first.

        Each is (cost per byte, tensor, gap, choice or None to release, span).
        """
        found: list[tuple[float, int, int, Choice | None, tuple[int, int]]] = []
        next_op = self._base_op_after(step)
        for tensor, birth, end in self.candidate.replay.copies:
            waiting = self.problem.tensors[tensor]
            size, uses = waiting.bytes, waiting.uses
            if not (birth < step < end) or not size or waiting.to_end:
                continue
            gap = bisect_left(uses, next_op)
            if gap >= len(uses):
                continue
            reads = self.reads.get(tensor, [])
            i = bisect_right(reads, step)
            if (i and reads[i - 1] == step) or i >= len(reads) or reads[i] >= end:
                continue
            opened = self.base_step[uses[gap - 1] if gap else waiting.producer]
            closes = self.stage_start[uses[gap]]
            if birth > opened:  # brought back early, for another recompute: drop it again
                if (tensor, gap) not in released and reads[i] >= closes:
                    cost = self._closure_cost(tensor, closes)
                    found.append((cost / size, tensor, gap, None, (birth, closes)))
                continue
            if (tensor, gap) in gaps or not opened < step < closes:
                continue
            options: list[tuple[float, Choice]] = []
            swap_us = _NEVER
            if self.problem.allow_swap and waiting.swappable:
                both = self.problem.swap_out_us(tensor) + self.problem.swap_in_us(tensor)
                swap_us = _HIDDEN * both if self.problem.overlap else both
                options.append((swap_us, Choice.SWAP))
            if self.problem.allow_recompute and self.problem.ops[waiting.producer].recomputable:
                options.append((self._closure_cost(tensor, closes, swap_us), Choice.DROP))
            if options:
                cost, choice = min(options)
                if cost < _NEVER:
                    found.append((cost / size, tensor, gap, choice, (opened, closes)))
        return sorted(found, key=lambda f: (f[0], f[1], f[2]))

    def _base_op_after(self, step: int) -> int:
        """Return the first base operation that runs at `step` or later."""
        i = bisect_right(self.base_step, step)
        return i - 1 if i and self.base_step[i - 1] == step else i

    def _closure_cost(self, tensor: int, step: int, most_us: float = _NEVER) -> float:
        """Return the microseconds to bring a tensor back at `step`.

        Infinity if some operation may not run again, or if the chain is very long or takes more
        than `most_us`.
        """
        again, blocker = closure(self.problem, self.stays, tensor, step, most_us)
        ops = self.problem.ops
        return _NEVER if blocker is not None else sum(ops[op].duration_us for op in again)
