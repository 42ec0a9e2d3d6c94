"""Operations too large for a budget, and the regions that split each of them.

No plan can avoid the bytes that an operation holds while it runs, with the graph outputs made
before it (`planner.bound.instants`). If there is no room for them, a region is grown around the
operation (`planner.lower.chunks.regions`): from each axis of its largest tensor, with larger or
smaller values at its border, in 2, 4, 8, … chunks; the least number is chosen with which all nodes
of the region have room.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from planner import clock
from planner.bound.instants import held_in_turn
from planner.choices import MAX_CHUNKS
from planner.graph.model import TensorId
from planner.lower.chunks.regions import Ground, Region, grow
from planner.order.lists import min_peak_order
from planner.pipeline.levers.chunk.splitting import ground_of, split
from planner.pipeline.levers.host.residence import resided
from planner.pipeline.levers.policy import POLICY
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.solve.orders import least_possible_peak
from planner.plan.planfile import RegionSeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """An operation that is too large: it holds `own_bytes`, beside `other_bytes` held in any case."""

    name: str
    own_bytes: int
    other_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A region and its costs.

    They are the most bytes that a node of it holds, the bytes cut, joined and summed, and its nodes
    in all chunks.
    """

    region: Region
    most_bytes: int
    moved_bytes: int
    nodes: int


def split_to_fit(
    prepared: Prepared, lean: Prepared, room_bytes: int, *, until: float = math.inf
) -> Prepared:
    """Split the operations that are too large into chunks, as far as possible.

    Returns the model unchanged if nothing can be split.

    Args:
        lean: the same model, with everything on the host that may live there.
        room_bytes: limit of the bytes that each operation may hold.
        until: end of the search for regions (`planner.clock.now`).
    """
    left, least = POLICY.most_nodes, least_possible_peak(lean)
    moved = frozenset(prepared.resident)
    hosted = frozenset(lean.resident) - moved
    for _ in range(POLICY.most_rounds):
        if least <= room_bytes:
            break
        regions = regions_for(prepared, lean, room_bytes, most_nodes=left, until=until)
        if not regions:
            break
        after = split(prepared, regions)
        lean_after = resided(after, hosted)
        least_after = least_possible_peak(lean_after)
        if least_after > POLICY.gain * least and prepared.split:
            break
        left -= len(after.graph.operations) - len(prepared.graph.operations)
        prepared, lean, least = after, lean_after, least_after
    return prepared


def too_large(lean: Prepared, room_bytes: int) -> list[Large]:
    """Return the operations without room in the order that is best for this, largest first."""
    problem = lean.formulated().problem
    order, _ = min_peak_order(problem, range(len(problem.ops)))
    found = [
        Large(name=problem.ops[index].name, own_bytes=own, other_bytes=other)
        for index, own, other in held_in_turn(problem, order)
        if own + other > room_bytes
    ]
    return sorted(found, key=lambda large: -large.own_bytes)


def regions_for(
    prepared: Prepared, lean: Prepared, room_bytes: int, *, most_nodes: int, until: float
) -> tuple[Region, ...]:
    """Find regions that make room for operations that are too large; no two share a node.

    Args:
        most_nodes: nodes that they may add together.
        until: end of the search.
    """
    ground = ground_of(prepared)
    sizes = _Sizes(prepared, ground)
    found: list[Region] = []
    taken: set[str] = set()
    for large in too_large(lean, room_bytes):
        if large.name not in ground.nodes or large.name in taken:
            continue
        if clock.now() > until:
            break
        best = _best(ground, sizes, large, room_bytes, frozenset(taken))
        if best is None or best.nodes > most_nodes:
            continue
        most_nodes -= best.nodes
        found.append(best.region)
        taken |= best.region.ways.keys()
    return tuple(found)


def _best(
    ground: Ground, sizes: _Sizes, large: Large, room_bytes: int, taken: frozenset[str]
) -> _Candidate | None:
    """Return the region that moves the fewest bytes, of those that make room.

    If none makes room, return the one that holds least; None if none helps.
    """
    room = room_bytes - large.other_bytes
    candidates = [
        c for c in _candidates(ground, sizes, large, room, taken) if large.name in c.region.ways
    ]
    enough = [c for c in candidates if c.most_bytes <= room]
    if enough:
        return min(enough, key=lambda c: (c.moved_bytes, c.nodes))
    best = min(candidates, key=lambda c: (c.most_bytes, c.moved_bytes, c.nodes), default=None)
    return best if best is not None and best.most_bytes <= POLICY.gain * large.own_bytes else None


def _candidates(
    ground: Ground, sizes: _Sizes, large: Large, room: int, taken: frozenset[str]
) -> Iterator[_Candidate]:
    """Yield, for each axis and border, the region with the fewest chunks that has room.

    If none has room, yield the best one.
    """
    tensor = sizes.largest(large.name)
    if tensor is None:
        return
    for axis, rows in enumerate(ground.types[tensor].shape):
        for border in POLICY.borders:
            chunks, best = 2, None
            while chunks <= min(rows, MAX_CHUNKS):
                seed = RegionSeed(
                    tensor=tensor,
                    axis=axis,
                    chunks=chunks,
                    large_bytes=max(1, large.own_bytes // border),
                )
                region = grow(ground, seed, without=taken)
                if region is None:
                    break
                found = sizes.candidate(region)
                if best is None or found.most_bytes < POLICY.gain * best.most_bytes:
                    best = found
                if found.most_bytes <= room:
                    break
                chunks *= 2
            if best is not None:
                yield best


class _Sizes:
    """Bytes that nodes hold, whole and in chunks."""

    def __init__(self, prepared: Prepared, ground: Ground) -> None:
        self.ground = ground
        self.graph = prepared.graph
        self.ops = {op.name: op for op in prepared.graph.operations}
        self.ids = {t.name: t.id for t in prepared.graph.tensors}
        self.workspace = prepared.workspace_bytes
        self.outputs = {str(v.name) for v in ground.model.graph.outputs}

    def bytes(self, tensor: str) -> int:
        """Return the device bytes of a tensor; 0 for persistent tensors and tensors on the host."""
        found = self.graph.tensors[self.ids[tensor]]
        owner = self.graph.tensors[found.buffer]
        return 0 if owner.is_persistent or owner.on_host else found.bytes

    def largest(self, name: str) -> str | None:
        """Return the largest input or output of a node; None if all are persistent or empty."""
        names = [t for t in (*self.ground.made(name), *self.ground.read(name)) if t]
        best = max(names, key=self.bytes, default=None)
        return best if best is not None and self.bytes(best) else None

    def candidate(self, region: Region) -> _Candidate:
        """Compute the bytes that a region's nodes hold, for the largest chunk."""
        clock.spend(clock.GROWN_S * len(region.ways))
        share = -(-region.units // region.seed.chunks) / region.units
        most = moved = 0
        seen: set[tuple[str, int]] = set()
        for name, way in region.ways.items():
            op = self.ops[name]
            held = share * self.workspace[op.id]
            counted: set[TensorId] = set()
            for t, axis in zip(self.ground.read(name), way.inputs, strict=True):
                if not t or self._buffer(t) in counted:
                    continue
                counted.add(self._buffer(t))
                size = self.ground.bytes[t] if axis is not None else self.bytes(t)
                held += size * (share if axis is not None else 1)
                if axis is not None and t not in region.cuts and (t, axis) not in seen:
                    seen.add((t, axis))
                    most = max(most, self.bytes(t) + share * size)
                    moved += 2 * size
            for t, axis in zip(self.ground.made(name), way.outputs, strict=True):
                if not t:
                    continue
                size = self.bytes(t)
                if axis is None:  # the sum before and after
                    held += 2 * size
                    moved += 2 * region.seed.chunks * size
                elif self._buffer(t) not in counted and not self._in_place(op.id, t):
                    held += share * size
            most = max(most, held)
        for t in region.cuts:
            if self._is_wanted(region, t):
                most = max(most, 2 * self.bytes(t))
                moved += 2 * self.bytes(t)
        return _Candidate(
            region=region,
            most_bytes=int(most),
            moved_bytes=int(moved),
            nodes=len(region.ways) * region.seed.chunks,
        )

    def _buffer(self, tensor: str) -> TensorId:
        return self.graph.tensors[self.ids[tensor]].buffer

    def _in_place(self, op: int, tensor: str) -> bool:
        return any(after == self.ids[tensor] for _, after in self.graph.operations[op].inplace)

    def _is_wanted(self, region: Region, tensor: str) -> bool:
        """Tell whether a tensor's chunks must be joined."""
        if tensor in self.outputs:
            return True
        for reader in self.ground.consumers.get(tensor, ()):
            way = region.ways.get(reader)
            places = (i for i, t in enumerate(self.ground.read(reader)) if t == tensor)
            if way is None or any(way.inputs[i] is None for i in places):
                return True
        return False
