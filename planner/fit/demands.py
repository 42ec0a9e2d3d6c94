"""The requests of a run to the arena, node by node, as flat arrays for compiled code.

The nodes of the rewritten graph come in units: an action of the schedule, with the nodes added for
it. Units change places as wholes, and only if every node still reads the same values. Ragged lists
are flat with offsets: the events of unit u are those from `event_at[u]` to `event_at[u + 1]`, and
the units that must run before it are `before[before_at[u]:before_at[u + 1]]`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.graph.effects import SHARED_GENERATOR
from planner.graph.model import OpId, Role, Tensor, TensorId, TrainingGraph
from planner.plan.candidate import Candidate
from planner.plan.problem import ActionKind, Problem
from planner.runtime.device.predict.bfc_device import device_demand
from planner.runtime.memory.allocation import StorageKind
from planner.runtime.memory.arena import demand_under_cap
from planner.runtime.memory.bfc import round_up
from planner.runtime.memory.workspace import Workspace
from planner.runtime.options import most_threads
from planner.targets import HOST, Target

Longs = npt.NDArray[np.int64]

TAKE, SCRATCH, RETURN, READ = range(4)
"""Events: a buffer or a temporary one is taken, all temporary ones are returned, a buffer is read."""

_NONE = Workspace()


class Demands(NamedTuple):
    """A run in units. Sizes in bytes, rounded up as the arena does.

    Attributes:
        event, subject: kind of each event, and its buffer or (SCRATCH) its size.
        size: by buffer.
        readers: by buffer: number of its reads; it is freed with the last, and never without any.
        reserved: taken before the first run, for good; `fed`: at the start of each run, until its end.
        before_at, before, after_at, after: units that must stay before a unit, and behind it.
    """

    event_at: Longs
    event: Longs
    subject: Longs
    size: Longs
    readers: Longs
    reserved: Longs
    fed: Longs
    before_at: Longs
    before: Longs
    after_at: Longs
    after: Longs

    @property
    def are_in_order(self) -> bool:
        """Whether every unit comes after those that must run before it."""
        return bool(np.all(np.repeat(np.arange(self.units), np.diff(self.before_at)) > self.before))

    @property
    def units(self) -> int:
        """The number of units."""
        return len(self.event_at) - 1


def demands_of(
    graph: TrainingGraph,
    order: Sequence[OpId],
    unit_of: Mapping[OpId, int],
    like: Mapping[str, str],
    target: Target = HOST,
) -> Demands:
    """Return the requests that running `graph` in `order` makes to the arena.

    Args:
        graph: of the rewritten model.
        order: its planned order, in which the nodes of a unit follow each other.
        unit_of: the unit of each node; units are counted from 0 in their order.
        like: for each added value, the value of the original that it copies.
        target: the target with the arena.
    """
    if target.is_arena:
        demand = device_demand(graph, order)
    else:
        demand = demand_under_cap(graph, order, threads=most_threads())
    kind = demand.placement.kind
    tensors = graph.tensors
    own = [t for t in kind if kind[t] is not StorageKind.SHARED and tensors[t].bytes]
    buffer = {tensor: i for i, tensor in enumerate(own)}
    freed = {t for step in demand.placement.freed_after for t in step}
    root = demand.placement.buffer
    happens_in: list[list[tuple[int, int]]] = [[] for _ in range(max(unit_of.values()) + 1)]
    readers = [0] * len(own)

    for op in order:
        events = happens_in[unit_of[op]]
        taken = demand.scratch.get(op, _NONE)
        for size in taken.before:
            events.append((SCRATCH, round_up(size)))
        for tensor in graph.operations[op].outputs:
            if tensor in buffer:
                events.append((TAKE, buffer[tensor]))
        for size in taken.after:
            events.append((SCRATCH, round_up(size)))
        if taken.bytes:
            events.append((RETURN, 0))
        for tensor in {root[t] for t in graph.operations[op].inputs} & freed:
            if tensor in buffer:
                events.append((READ, buffer[tensor]))
                readers[buffer[tensor]] += 1
    pairs = _precedences(graph, order, unit_of, like, root)
    units = len(happens_in)
    after_at, after = _lists(pairs, units)
    before_at, before = _lists({(b, a) for a, b in pairs}, units)
    return Demands(
        **_flat(happens_in),
        size=_longs([round_up(tensors[t].bytes) for t in own]),
        readers=_longs(readers),
        reserved=_longs([round_up(size) for size in demand.reserved]),
        fed=_longs([round_up(size) for size in demand.fed]),
        before_at=before_at,
        before=before,
        after_at=after_at,
        after=after,
    )


def demands_of_plan(problem: Problem, plan: Candidate) -> Demands:
    """Estimate the requests of a plan that is not lowered yet.

    Pins are missing, and an output written in place takes a new buffer of the same size as the
    other is returned. Units are the actions; their order is compared only with the plan's own.
    """
    steps = len(plan.actions)
    happens_in: list[list[tuple[int, int]]] = [[] for _ in range(steps)]
    returned: list[list[int]] = [[] for _ in range(steps)]
    sizes: list[int] = []
    readers: list[int] = []
    for tensor, start, end in plan.replay.copies:
        size = problem.tensors[tensor].bytes
        if not size:
            continue
        happens_in[start].append((TAKE, len(sizes)))
        if end < steps:
            returned[max(start, end - 1)].append(len(sizes))
        sizes.append(round_up(size))
        readers.append(int(end < steps))
    for step, action in enumerate(plan.actions):
        if action.kind is ActionKind.RUN and (size := problem.ops[action.target].workspace_bytes):
            happens_in[step] += [(SCRATCH, round_up(size)), (RETURN, 0)]
        happens_in[step] += [(READ, buffer) for buffer in returned[step]]
    none, free = _longs(()), _longs([0] * (steps + 1))
    return Demands(
        **_flat(happens_in),
        size=_longs(sizes),
        readers=_longs(readers),
        reserved=none,
        fed=none,
        before_at=free,
        before=none,
        after_at=free,
        after=none,
    )


def _flat(happens_in: Sequence[Sequence[tuple[int, int]]]) -> dict[str, Longs]:
    """Return the events of the units and their offsets, as fields of `Demands`."""
    flat = list(itertools.chain.from_iterable(happens_in))
    return {
        "event_at": _longs([0, *itertools.accumulate(map(len, happens_in))]),
        "event": _longs([what for what, _ in flat]),
        "subject": _longs([whom for _, whom in flat]),
    }


def units_of(
    graph: TrainingGraph, order: Sequence[OpId], action_nodes: Sequence[str]
) -> dict[OpId, int]:
    """Return the unit of each node: the next action's in `order`; an anchor belongs to the previous one.

    Args:
        action_nodes: the name of each action's node, in their order.
    """
    number = {name: i for i, name in enumerate(action_nodes)}
    unit_of: dict[OpId, int] = {}
    waiting: list[OpId] = []
    last = 0
    for op in order:
        operation = graph.operations[op]
        if operation.name in number:
            last = number[operation.name]
            unit_of.update((node, last) for node in (*waiting, op))
            waiting = []
        elif operation.role is Role.ANCHOR and not waiting:
            unit_of[op] = last
        else:
            waiting.append(op)
    unit_of.update((node, last) for node in waiting)
    return unit_of


def _precedences(
    graph: TrainingGraph,
    order: Sequence[OpId],
    unit_of: Mapping[OpId, int],
    like: Mapping[str, str],
    buffer: Mapping[TensorId, TensorId],
) -> set[tuple[int, int]]:
    """Return pairs of units of which the first must stay before the second."""
    place = {op: i for i, op in enumerate(order)}
    pairs = [
        (t.producer, reader)
        for t in graph.tensors
        if t.producer is not None
        for reader in t.consumers
    ]
    drawn = [op for op in order if graph.operations[op].effect in SHARED_GENERATOR]
    pairs += itertools.pairwise(drawn)
    # a node that writes in place must be the last reader of that buffer
    touches: dict[TensorId, list[OpId]] = {}
    for op in order:
        operation = graph.operations[op]
        roots = {buffer[t] for t in operation.inputs}
        for tensor in operation.outputs:
            if buffer[tensor] != tensor and not graph.tensors[tensor].on_host:
                pairs += [(before, op) for before in touches.get(buffer[tensor], ())]
        for root in roots:
            touches.setdefault(root, []).append(op)
    # an action reads the newest copy of a value
    copies: dict[str, list[TensorId]] = {}
    made = [t for t in graph.tensors if t.producer is not None and not t.on_host]
    for tensor in sorted(made, key=lambda t: place[_producer(t)]):
        copies.setdefault(like.get(tensor.name, tensor.name), []).append(tensor.id)
    for versions in copies.values():
        for older, newer in itertools.pairwise(versions):
            maker = _producer(graph.tensors[newer])
            readers = (_producer(graph.tensors[older]), *graph.tensors[older].consumers)
            pairs += [(reader, maker) for reader in readers if place[reader] < place[maker]]
    return {(unit_of[a], unit_of[b]) for a, b in pairs if unit_of[a] != unit_of[b]}


def _producer(tensor: Tensor) -> OpId:
    assert tensor.producer is not None
    return tensor.producer


def _lists(pairs: Iterable[tuple[int, int]], units: int) -> tuple[Longs, Longs]:
    """Return the second units of each first one, flat with offsets."""
    ordered = sorted(pairs)
    count = np.bincount(np.array([a for a, _ in ordered], dtype=np.int64), minlength=units)
    return np.concatenate(([0], np.cumsum(count))).astype(np.int64), _longs(b for _, b in ordered)


def _longs(values: Iterable[int]) -> Longs:
    return np.fromiter(values, dtype=np.int64)
