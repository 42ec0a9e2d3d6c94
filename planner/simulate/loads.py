"""Start loads ahead of their readers: copies in of host tensors, beside the operations.

A solver places such a copy between the operations, right before its first reader. Beside them it
takes no time if it starts early enough, and holds its memory from there. Each load therefore gets
the latest place from which it ends before its reader, and before the next copy in starts; if memory
is short there, a later one. The first round uses the times of the operations alone, later ones
those of the schedule so far. The quickest schedule of all, including the given one, is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from planner.plan.problem import Action, ActionKind, Paging, Problem
from planner.simulate.simulate import simulate

_ROUNDS = 3


def begun_early(problem: Problem, actions: Sequence[Action], paging: Paging) -> list[Action]:
    """Move loads to places where they hide; drop those that nothing reads before the next.

    Live bytes stay within the capacity, or within the schedule's peak if that is higher.

    Args:
        paging: operations that are copies; the stores stay in place.
    """
    actions = _without_unread(problem, actions, paging.loads)
    if not paging.loads:
        return actions
    moving = _Moving(problem, actions, paging)
    best, best_us = actions, moving.replay.time_us
    starts = moving.back_to_back()
    for _ in range(_ROUNDS):
        places = moving.places(starts)
        moved = [actions[place] for place in places]
        replay = simulate(problem, moved, paging)
        assert replay.timeline is not None
        if replay.time_us < best_us:
            best, best_us = moved, replay.time_us
        starts = moving.issued(places, replay.timeline.issue_us)
    return best


def _without_unread(problem: Problem, actions: Sequence[Action], loads: Set[int]) -> list[Action]:
    """Keep each load at least once, and further ones only if their output is read."""
    ran: set[int] = set()
    again = set[int]()  # places of repeated loads
    for place, action in enumerate(actions):
        if action.kind is ActionKind.RUN and action.target in loads:
            again |= {place} if action.target in ran else set()
            ran.add(action.target)
    read: set[int] = set()
    later: set[int] = set()  # operations that run later
    kept: list[Action] = []
    for place in range(len(actions) - 1, -1, -1):
        action = actions[place]
        if action.kind is ActionKind.RUN:
            op = problem.ops[action.target]
            is_spare = place in again or (action.target in loads and action.target in later)
            if is_spare and read.isdisjoint(op.outputs):
                continue
            later.add(action.target)
            read.difference_update(op.outputs)
            read.update(op.inputs)
        kept.append(action)
    return kept[::-1]


class _Moving:
    """The loads of one schedule, and the places to which each may move.

    Attributes:
        replay: of the given schedule.
        rows: for each load its place, the first place that it may move to, and its first reader's.
    """

    def __init__(self, problem: Problem, actions: Sequence[Action], paging: Paging) -> None:
        self.problem = problem
        self.actions = actions
        self.loads = paging.loads
        self.beside = paging.loads | paging.stores
        self.replay = simulate(problem, actions, paging)
        self.room = max(problem.capacity_bytes, self.replay.peak_bytes)
        self.rows: list[tuple[int, int, int]] = []
        self._find_rows()

    def _find_rows(self) -> None:
        """Find the rows.

        A load stays after the readers of the previous copy, which it would serve otherwise.
        """
        last_read: dict[int, int] = {}  # by tensor
        open_: dict[int, int] = {}  # by tensor that nothing has read yet, the place of its load
        for place, action in enumerate(self.actions):
            if action.kind is not ActionKind.RUN:
                continue
            op = self.problem.ops[action.target]
            for tensor in op.inputs:
                if tensor in open_:
                    at = open_.pop(tensor)
                    self.rows.append((at, last_read.get(tensor, -1) + 1, place))
                last_read[tensor] = place
            if action.target in self.loads:
                open_.update((tensor, place) for tensor in op.outputs)
        self.rows.sort(key=lambda row: (row[2], row[0]))

    def back_to_back(self) -> list[float]:
        """Return the time when each action would be issued if operations waited for no copy."""
        now = 0.0
        starts: list[float] = []
        for action in self.actions:
            starts.append(now)
            if action.kind is ActionKind.RUN and action.target not in self.beside:
                now += self.problem.ops[action.target].duration_us
        return starts

    def issued(self, places: Sequence[int], issue_us: Sequence[float]) -> list[float]:
        """Return the time when each action was issued in a schedule of these places.

        For a load, it is that of the next action.
        """
        starts = [0.0] * len(self.actions)
        for place, us in zip(places, issue_us, strict=True):
            starts[place] = us
        for at in sorted((at for at, _, _ in self.rows), reverse=True):
            starts[at] = starts[at + 1]
        return starts

    def _begins(self, starts: Sequence[float]) -> dict[int, float]:
        """Return the best start of each load, by place: in time for its reader and the next copy in."""
        due = {at: reader for at, _, reader in self.rows}
        limit = float("inf")
        found: dict[int, float] = {}
        for place in range(len(self.actions) - 1, -1, -1):
            action = self.actions[place]
            if action.kind is ActionKind.SWAP_IN:
                limit = min(limit, starts[place])
            elif place in due:
                duration = self.problem.ops[action.target].duration_us
                limit = found[place] = min(limit, starts[due[place]]) - duration
        return found

    def places(self, starts: Sequence[float]) -> list[int]:
        """Return the schedule as places of the given one, with loads ahead, ordered by their readers.

        Args:
            starts: of each action of the given schedule.
        """
        begins = self._begins(starts)
        live = self.replay.live_bytes.tolist()
        ahead: dict[int, list[int]] = {}  # by place: the loads before it
        last = 0
        for at, ready, _ in self.rows:
            size = sum(
                self.problem.tensors[t].bytes
                for t in self.problem.ops[self.actions[at].target].outputs
            )
            place = at
            while (
                place > max(ready, last)
                and starts[place] > begins[at]
                and live[place - 1] + size <= self.room
            ):
                place -= 1
                live[place] += size
            ahead.setdefault(place, []).append(at)
            last = max(last, place)
        moved = {at for at, _, _ in self.rows}
        found: list[int] = []
        for place in range(len(self.actions)):
            found += ahead.get(place, [])
            found += [] if place in moved else [place]
        return found
