"""Make a plan fit, then make it cheap: repair, prune, polish.

    repair  while some action exceeds the capacity, drop or swap the tensor that is cheapest per byte
            among those that wait there
    prune   take decisions back, dearest first, while the plan still fits
    polish  change single decisions (keep, drop, swap) while that saves time and still fits

Every candidate plan is executed and replayed by the simulator; nothing is estimated.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.plan.execute import Choice, Decisions, Executor, Gap
from planner.plan.prefetch import place_copies
from planner.plan.problem import Action, ActionKind, Problem
from planner.plan.simulate import Replay, simulate

_MAX_CLOSURE = 400
_NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A set of decisions with its replay."""

    decisions: Decisions
    actions: list[Action]
    replay: Replay

    @property
    def peak_bytes(self) -> int:
        return self.replay.peak_bytes

    @property
    def time_us(self) -> float:
        return self.replay.time_us


class Improver:
    """Repair, prune and polish on one problem, until `deadline` (time.monotonic seconds)."""

    def __init__(
        self, problem: Problem, *, deadline: float, stop: Callable[[], bool] | None = None
    ) -> None:
        self.problem = problem
        self.executor = Executor(problem)
        self.deadline = deadline
        self.stop = stop or (lambda: False)
        self.evaluations = 0

    def out_of_time(self) -> bool:
        """Whether to wind up now."""
        return self.stop() or time.monotonic() > self.deadline

    def evaluate(self, decisions: Decisions) -> Candidate:
        """Execute and replay."""
        self.evaluations += 1
        actions = self.executor.schedule(decisions)
        if self.problem.overlap:
            actions, replay = place_copies(self.problem, actions)
        else:
            replay = simulate(self.problem, actions)
        return Candidate(decisions=decisions, actions=actions, replay=replay)

    def fits(self, candidate: Candidate) -> bool:
        """Whether the peak is within the capacity."""
        return candidate.peak_bytes <= self.problem.capacity_bytes

    # -- repair ------------------------------------------------------------------------------

    def repair(self, candidate: Candidate, *, capacity_bytes: int | None = None) -> Candidate:
        """Add decisions until the plan fits, or nothing more helps: returns the last (or least)."""
        capacity = self.problem.capacity_bytes if capacity_bytes is None else capacity_bytes
        best = candidate
        stalled = 0
        while candidate.peak_bytes > capacity and not self.out_of_time():
            decisions = _Relief(self, candidate, capacity).decisions()
            if decisions is None:
                break
            candidate = self.evaluate(decisions)
            if candidate.peak_bytes < best.peak_bytes:
                best, stalled = candidate, 0
            else:
                stalled += 1
                if stalled > 60:
                    break
        return candidate if candidate.peak_bytes <= capacity else best

    # -- prune -------------------------------------------------------------------------------

    def prune(self, candidate: Candidate) -> Candidate:
        """Take decisions back while the plan still fits and does not get slower."""
        if not self.fits(candidate):
            return candidate
        order = sorted(candidate.decisions.gaps, key=self._own_cost, reverse=True)
        batch = max(1, len(order) // 8)
        while order and not self.out_of_time():
            kept: list[Gap] = []
            progress = False
            for i in range(0, len(order), batch):
                part = order[i : i + batch]
                if self.out_of_time():
                    return candidate
                trial = self.evaluate(_without(candidate.decisions, part))
                if self.fits(trial) and trial.time_us <= candidate.time_us:
                    candidate, progress = trial, True
                else:
                    kept.extend(part)
            order = kept
            if batch == 1 and not progress:
                break
            batch = max(1, batch // 3)
        return candidate

    def _own_cost(self, gap: Gap) -> float:
        return self.problem.ops[self.problem.tensors[gap[0]].producer].duration_us

    # -- polish ------------------------------------------------------------------------------

    def polish(self, candidate: Candidate) -> Candidate:
        """Single changes that save time, best improvement kept, until none helps."""
        if not self.fits(candidate):
            return candidate
        improved = True
        while improved and not self.out_of_time():
            improved = False
            for decisions in self._neighbours(candidate):
                if self.out_of_time():
                    break
                trial = self.evaluate(decisions)
                if not self.fits(trial):
                    continue
                if trial.time_us < candidate.time_us * (1 - 1e-9):
                    candidate, improved = trial, True
        return candidate

    def _neighbours(self, candidate: Candidate) -> list[Decisions]:
        """Flips of each decision, dearest first; then swaps of one decision for another."""
        problem, decisions = self.problem, candidate.decisions
        found: list[Decisions] = []
        for gap in sorted(decisions.gaps, key=self._own_cost, reverse=True):
            found.append(_without(decisions, [gap]))
            choice = decisions.gaps[gap]
            if choice is Choice.DROP and problem.allow_swap and problem.tensors[gap[0]].swappable:
                found.append(_with(decisions, gap, Choice.SWAP))
            if choice is Choice.SWAP and self.can_drop(gap[0]):
                found.append(_with(decisions, gap, Choice.DROP))
        found.extend(
            replace(decisions, extended=decisions.extended - {t}) for t in decisions.extended
        )
        found.extend(
            replace(decisions, released=decisions.released - {g}) for g in decisions.released
        )
        return found

    def can_drop(self, tensor: int) -> bool:
        """Whether the tensor's producer may run again."""
        producer = self.problem.ops[self.problem.tensors[tensor].producer]
        return self.problem.allow_recompute and producer.recomputable


def _without(decisions: Decisions, gaps: list[Gap]) -> Decisions:
    left = dict(decisions.gaps)
    for gap in gaps:
        left.pop(gap, None)
    return replace(decisions, gaps=left)


def _with(decisions: Decisions, gap: Gap, choice: Choice) -> Decisions:
    return replace(decisions, gaps={**decisions.gaps, gap: choice})


class _Relief:
    """One round of repair: relieve the worst action and the worst of each stretch of the plan."""

    def __init__(self, improver: Improver, candidate: Candidate, capacity: int) -> None:
        self.im = improver
        self.problem = improver.problem
        self.candidate = candidate
        self.capacity = capacity
        self.copies: list[list[tuple[int, int]]] = [[] for _ in self.problem.tensors]
        for tensor, birth, end in candidate.replay.copies:
            self.copies[tensor].append((birth, end))
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
        """The candidate's decisions and the new ones; None where nothing can be added."""
        gaps = dict(self.candidate.decisions.gaps)
        released = set(self.candidate.decisions.released)
        freed: list[tuple[int, int, int]] = []
        changed = False
        for step in self._steps_to_relieve():
            excess = int(self.candidate.replay.live_bytes[step]) - self.capacity
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
        return replace(self.candidate.decisions, gaps=gaps, released=frozenset(released))

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
        """(cost per byte, tensor, gap, choice or None to release, span) at `step`, cheapest first."""
        found: list[tuple[float, int, int, Choice | None, tuple[int, int]]] = []
        next_op = self._base_op_after(step)
        for tensor, birth, end in self.candidate.replay.copies:
            size = self.problem.tensors[tensor].bytes
            if not (birth < step < end) or not size:
                continue
            uses = self.problem.tensors[tensor].uses
            gap = self.im.executor.gap_at(tensor, next_op)
            if gap >= len(uses):
                continue
            reads = self.reads.get(tensor, [])
            i = bisect_right(reads, step)
            if (i and reads[i - 1] == step) or i >= len(reads) or reads[i] >= end:
                continue
            opened = self.base_step[self.im.executor.events[tensor][gap]]
            closes = self.stage_start[uses[gap]]
            if birth > opened:  # brought back early, for another recompute: let it go again
                if (tensor, gap) not in released and reads[i] >= closes:
                    cost = self._closure_cost(tensor, closes)
                    found.append((cost / size, tensor, gap, None, (birth, closes)))
                continue
            if (tensor, gap) in gaps or not opened < step < closes:
                continue
            options: list[tuple[float, Choice]] = []
            if self.im.can_drop(tensor):
                options.append((self._closure_cost(tensor, closes), Choice.DROP))
            if self.problem.allow_swap and self.problem.tensors[tensor].swappable:
                both = self.problem.swap_out_us(tensor) + self.problem.swap_in_us(tensor)
                options.append((both, Choice.SWAP))
            if options:
                cost, choice = min(options)
                if cost < _NEVER:
                    found.append((cost / size, tensor, gap, choice, (opened, closes)))
        return sorted(found, key=lambda f: (f[0], f[1], f[2]))

    def _base_op_after(self, step: int) -> int:
        """The first base operation that runs after `step`, or at it."""
        i = bisect_right(self.base_step, step)
        return i - 1 if i and self.base_step[i - 1] == step else i

    def _closure_cost(self, tensor: int, step: int) -> float:
        return closure_cost(self.problem, self.copies, tensor, step)


def closure_cost(
    problem: Problem,
    copies: Sequence[Sequence[tuple[int, int]]] | Mapping[int, Sequence[tuple[int, int]]],
    tensor: int,
    step: int,
) -> float:
    """Microseconds to bring `tensor` back at `step` by running its producer, and what that needs.

    Args:
        copies: per tensor, the half-open ranges of actions in which it is on the device.

    Returns:
        Infinity where some operation may not run again, or the chain is very long.
    """
    stack = [problem.tensors[tensor].producer]
    seen: set[int] = set()
    cost = 0.0
    while stack:
        producer = stack.pop()
        if producer in seen:
            continue
        op = problem.ops[producer]
        if not op.recomputable or len(seen) > _MAX_CLOSURE:
            return _NEVER
        seen.add(producer)
        cost += op.duration_us
        for t in op.inputs:
            if t != tensor and not any(b < step < e for b, e in copies[t]):
                stack.append(problem.tensors[t].producer)
    return cost
