"""Predict the bytes that ONNX Runtime's CPU arena has in use and holds, step by step.

It models three mechanisms, as in ONNX Runtime 1.31:

    placement  the buffer of each output, and when it is freed: `planner.runtime.memory.allocation`
    arena      best fit with coalescing, 256-byte rounding, growth by regions that never merge
               (onnxruntime/core/framework/bfc_arena.cc): `planner.runtime.memory.bfc`
    pattern    from the second run on, one block for everything but graph outputs, laid out by
               replaying the first run (onnxruntime/core/framework/mem_pattern_planner.h), where every
               input is a tensor

Feeds are not in the arena on the CPU, nor are initializers above 127 bytes. A kernel's temporary
workspace is (`planner.runtime.memory.workspace`), and so are weights that it packs at session
creation, which are not predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from planner.graph.model import Operation, OpId, TensorId, TrainingGraph
from planner.graph.operators.table import operator_of
from planner.results import ArenaForecast
from planner.runtime.memory.allocation import AllocationPlan, StorageKind, place
from planner.runtime.memory.bfc import (
    ArenaFullError,
    BfcArena,
    Growth,
    PatternLayout,
    round_up,
)
from planner.runtime.memory.workspace import Workspace, workspace

RESERVED_LIMIT = 127
"""The largest initializer in bytes that is copied into the arena when the session is created; larger
ones stay where the model was read to."""

_PACKING_BYTES = 64 * 1024
"""Allowance for rounding rows and columns up to the product's blocks (core/mlas/lib/sgemm.cpp)."""

_NONE = Workspace()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaSettings:
    """The settings that decide the arena's bytes.

    Attributes:
        pattern, reuse: `enable_mem_pattern`, `enable_mem_reuse`.
        growth: the sizes of new regions.
        initial_chunk_bytes: the first region (only where regions double).
        max_dead_bytes: a chunk is split when at least this much would be wasted.
        limit_bytes: the most that the arena may hold; None for no limit.
    """

    pattern: bool
    reuse: bool
    growth: Growth
    initial_chunk_bytes: int = 1 << 20
    max_dead_bytes: int = 128 << 20
    limit_bytes: int | None = None


DEFAULT = ArenaSettings(pattern=True, reuse=True, growth=Growth.DOUBLING)
RECOMMENDED = ArenaSettings(pattern=False, reuse=False, growth=Growth.EXACT)


def capped(region_bytes: int, limit_bytes: int | None = None) -> ArenaSettings:
    """Return settings with every chunk split, and one region of `region_bytes` as long as that
    suffices.

    Args:
        limit_bytes: a hard cap for all regions; `region_bytes` if None.
    """
    return ArenaSettings(
        pattern=False,
        reuse=False,
        growth=Growth.DOUBLING,
        initial_chunk_bytes=region_bytes,
        max_dead_bytes=1,
        limit_bytes=limit_bytes or region_bytes,
    )


SETTINGS = {"default": DEFAULT, "recommended": RECOMMENDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTrace:
    """Bytes at each step of one run, after the kernel has returned and before buffers are freed.

    Attributes:
        requested: requested bytes; in_use: the same with rounding; held: bytes of the arena's regions.
        peak: the most bytes in use while a kernel ran, its workspace included.
    """

    requested: tuple[int, ...]
    in_use: tuple[int, ...]
    held: tuple[int, ...]
    peak: int


def forecast(
    graph: TrainingGraph,
    order: Sequence[OpId],
    options: str,
    *,
    threads: int = 1,
    runs: int = 2,
) -> ArenaForecast:
    """Predict the in-use and held bytes of the arena, the largest over a first and a second run.

    Kernels' workspace is included, initializers are not.

    Args:
        graph: the graph.
        order: the order in which it runs.
        options: "default" or "recommended".
        threads: threads of the session (convolutions take a buffer for each).
        runs: 1 for the first run alone.
    """
    found = simulate(graph, order, SETTINGS[options], threads=threads, runs=runs)
    return ArenaForecast(
        options=options,
        in_use_bytes=max(run.peak for run in found),
        held_bytes=max(max(run.held, default=0) for run in found),
        beside_bytes=beside_bytes(graph),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A run's demand on the arena, whatever its limits: the placement of tensors, and kernels'
    workspace.

    Attributes:
        reserved: sizes of buffers that the session takes before the first run and keeps.
        fed: sizes of buffers that each run takes before its first node and keeps to its end (feeds, on a
            device).
    """

    placement: AllocationPlan
    scratch: Mapping[OpId, Workspace]
    reserved: tuple[int, ...] = ()
    fed: tuple[int, ...] = ()


def demand_of(
    graph: TrainingGraph,
    order: Sequence[OpId],
    *,
    reuse: bool = False,
    threads: int = 0,
    host_in_arena: bool = False,
) -> Demand:
    """Return the demand of `order`, with nothing reserved.

    Args:
        reuse: `enable_mem_reuse`.
        threads: threads of the session, for which kernels' workspace is counted; 0 counts none.
        host_in_arena: count tensors on the host as well, as the CPU provider does.
    """
    return Demand(
        placement=place(graph, order, reuse=reuse, host_in_arena=host_in_arena),
        scratch=workspace(graph, threads=threads) if threads else {},
        fed=tuple(t.bytes for t in graph.output_copies),
    )


def demand_under_cap(
    graph: TrainingGraph, order: Sequence[OpId], *, threads: int = 1, host_in_arena: bool = False
) -> Demand:
    """Return the demand of `order` in capped sessions, with the small initializers."""
    demand = demand_of(graph, order, threads=threads, host_in_arena=host_in_arena)
    return replace(demand, reserved=_reserved_sizes(graph))


def simulate(
    graph: TrainingGraph,
    order: Sequence[OpId],
    settings: ArenaSettings,
    *,
    runs: int = 2,
    threads: int = 0,
    demand: Demand | None = None,
) -> tuple[RunTrace, ...]:
    """Replay the arena over consecutive runs; the caller drops a run's outputs before the next.

    Args:
        threads: threads of the session, for which kernels' workspace is counted; 0 counts none.
        demand: the demand of the same order and settings; None for that of `demand_of`.

    Raises:
        ArenaFullError: `settings.limit_bytes` does not suffice.
    """
    demand = demand or demand_of(graph, order, reuse=settings.reuse, threads=threads)
    arena = BfcArena(
        growth=settings.growth,
        initial_chunk_bytes=settings.initial_chunk_bytes,
        max_dead_bytes=settings.max_dead_bytes,
        limit_bytes=settings.limit_bytes,
    )
    for size in demand.reserved:
        arena.allocate(size)
    pattern = settings.pattern and graph.pattern
    layout: PatternLayout | None = None
    traces: list[RunTrace] = []
    for _ in range(runs):
        feeds = [arena.allocate(size) for size in demand.fed]
        tracing = PatternLayout() if pattern and layout is None else None
        pattern_block = None
        if layout is not None and layout.size:
            try:
                pattern_block = arena.allocate(layout.size)
            except ArenaFullError:
                pattern_block = None  # ONNX Runtime then allocates one by one
        in_pattern = pattern_block is not None
        traces.append(run_step(order, graph, demand, arena, tracing, in_pattern=in_pattern))
        if pattern_block is not None:
            arena.release(pattern_block)
        for block in feeds:
            arena.release(block)
        layout = layout or tracing
    return tuple(traces)


class Allocator(Protocol):
    """Serves a run's requests: an arena, or a pool of pages.

    Attributes:
        requested, in_use, held: requested bytes, the bytes that these take, and all bytes that it holds.
    """

    @property
    def requested(self) -> int: ...
    @property
    def in_use(self) -> int: ...
    @property
    def held(self) -> int: ...
    def allocate(self, size: int, /) -> Any: ...
    def release(self, block: Any, /) -> None: ...


def run_step(
    order: Sequence[OpId],
    graph: TrainingGraph,
    demand: Demand,
    arena: Allocator,
    tracing: PatternLayout | None = None,
    *,
    in_pattern: bool = False,
) -> RunTrace:
    """Serve one run's requests, node by node; release all at its end.

    Args:
        tracing: records the requests for the memory pattern; in_pattern: whether the pattern's block
            already serves its tensors.
    """
    placement, workspace = demand.placement, demand.scratch
    blocks: dict[TensorId, Any] = {}
    requested, in_use, held = [], [], []
    peak = 0
    for step, op in enumerate(order):
        taken = workspace.get(op, _NONE)
        scratch = [arena.allocate(size) for size in taken.before]
        for tensor in graph.operations[op].outputs:
            kind, size = placement.kind[tensor], graph.tensors[tensor].bytes
            if kind is StorageKind.SHARED or not size or (in_pattern and kind is StorageKind.OWN):
                continue
            blocks[tensor] = arena.allocate(size)
            if tracing is not None and kind is StorageKind.OWN:
                tracing.allocate(tensor, round_up(size))
        scratch += [arena.allocate(size) for size in taken.after]
        peak = max(peak, arena.in_use)
        for block in scratch:
            arena.release(block)
        requested.append(arena.requested)
        in_use.append(arena.in_use)
        held.append(arena.held)
        for tensor in placement.freed_after[step]:
            if tensor in blocks:
                arena.release(blocks.pop(tensor))
                if tracing is not None:
                    tracing.release(tensor)
    for block in blocks.values():
        arena.release(block)
    return RunTrace(requested=tuple(requested), in_use=tuple(in_use), held=tuple(held), peak=peak)


def _reserved_sizes(graph: TrainingGraph) -> tuple[int, ...]:
    """Return the sizes of initializers that the session copies into the arena for its whole life."""
    return tuple(
        t.bytes
        for t in graph.tensors
        if t.is_initializer and t.consumers and 0 < t.bytes <= RESERVED_LIMIT
    )


def _packs(op: Operation) -> bool:
    """Tell whether a kernel may pack constant weights."""
    return operator_of(op.op_type, op.domain).packs


def packable_bytes(graph: TrainingGraph) -> int:
    """Return the most bytes of constant weights that kernels pack when a session is created.

    They count towards the arena's limit, and where they exceed it the limit no longer holds: observed
    on onnxruntime 1.31. The weights themselves are released.
    """
    return sum(
        t.bytes + t.bytes // 4 + _PACKING_BYTES
        for t in graph.tensors
        if t.is_initializer
        and t.bytes > RESERVED_LIMIT
        and any(_packs(graph.operations[op]) for op in t.consumers)
    )


def small_packed_sizes(graph: TrainingGraph) -> tuple[int, ...]:
    """Return the most bytes that each kernel packs of a small initializer, besides `packable_bytes`.

    A packed matrix has its columns rounded up to 16 (`MlasGemmPackBSize`, core/mlas/lib/sgemm.cpp); which
    axis holds the columns depends on the node, so the larger of both counts. Kernels share equal packed
    matrices later, but each has its own while a session is created, and any of them may stay.
    """
    return tuple(
        max(_packed(t.bytes, columns) for columns in t.shape[-2:])
        for t in graph.tensors
        if t.is_initializer and 0 < t.bytes <= RESERVED_LIMIT and len(t.shape) >= 2
        for op in t.consumers
        if _packs(graph.operations[op])
    )


def _packed(size_bytes: int, columns: int) -> int:
    """Return the bytes of a packed matrix, or stack of matrices."""
    return size_bytes // columns * (-(-columns // 16) * 16)


def reserved_bytes(graph: TrainingGraph) -> int:
    """Return the bytes of the initializers that the session copies into the arena, without rounding."""
    return sum(_reserved_sizes(graph))


def beside_bytes(graph: TrainingGraph) -> int:
    """Return the bytes of graph inputs and initializers outside the arena."""
    persistent = sum(t.bytes for t in graph.tensors if t.is_persistent and not t.on_host)
    return persistent - reserved_bytes(graph)


def arena_cap(graph: TrainingGraph, budget_bytes: int) -> int:
    """Return the arena's share of a budget: less graph inputs and the initializers outside the arena.

    The result is not positive where these alone exceed the budget.
    """
    return budget_bytes - beside_bytes(graph)
