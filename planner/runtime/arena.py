"""Predict the bytes that ONNX Runtime's CPU arena has in use and holds, step by step.

Three mechanisms, each as ONNX Runtime 1.31 has it:

    placement  which outputs get a buffer of their own, and when it is freed: views, in-place
               kernels, reuse of a freed buffer of identical shape and element size
               (onnxruntime/core/framework/allocation_planner.cc)
    arena      best fit with coalescing, 256-byte rounding, growth by regions that never merge
               (onnxruntime/core/framework/bfc_arena.cc): `planner.runtime.bfc`
    pattern    from the second run on, one block for everything but graph outputs, laid out by
               replaying the first run (onnxruntime/core/framework/mem_pattern_planner.h)

Feeds are not in the arena on the CPU, nor are initializers above 127 bytes. A kernel's temporary
workspace is (`planner.runtime.workspace`), and so is what it packs for itself at session creation,
which is not predicted.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.graph.model import OpId, TensorId, TrainingGraph
from planner.results import ArenaForecast
from planner.runtime.bfc import (
    ROUNDING,
    Arena,
    ArenaFullError,
    Block,
    Growth,
    PatternLayout,
    round_up,
)
from planner.runtime.workspace import Workspace, workspace

RESERVED_LIMIT = 127
"""Initializers up to this many bytes are copied into the arena when the session is created; larger
ones stay where the model was read to."""

_NONE = Workspace()

_SHARES = (1, 2, 3, 4, 8, 16)
MOST_FIRST_REGION = (1 << 31) - ROUNDING
"""`initial_chunk_size_bytes` is a C int (onnxruntime_c_api.h, OrtArenaCfg)."""
_LEAST_REGION = 32 * 1024
_MOST_REGIONS = 200  # that are tried, on a graph of up to ...
_NODES = 1_000  # nodes; fewer on a larger one


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaSettings:
    """What decides the arena's bytes.

    Attributes:
        pattern, reuse: `enable_mem_pattern`, `enable_mem_reuse`.
        growth: how a new region is sized.
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


def capped(limit_bytes: int, first_region_bytes: int | None = None) -> ArenaSettings:
    """A hard cap, every chunk split (see `runtime.cap`); one region unless the first is smaller."""
    return ArenaSettings(
        pattern=False,
        reuse=False,
        growth=Growth.DOUBLING,
        initial_chunk_bytes=first_region_bytes or limit_bytes,
        max_dead_bytes=1,
        limit_bytes=limit_bytes,
    )


SETTINGS = {"default": DEFAULT, "recommended": RECOMMENDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTrace:
    """Bytes at each step of one run, when the kernel has returned and nothing is yet freed.

    Attributes:
        requested: bytes asked for; in_use: the same with rounding; held: taken by the arena.
        peak: the most in use while a kernel ran, its workspace included.
    """

    requested: tuple[int, ...]
    in_use: tuple[int, ...]
    held: tuple[int, ...]
    peak: int


def forecast(
    graph: TrainingGraph, order: Sequence[OpId], options: str, *, threads: int = 1
) -> ArenaForecast:
    """In-use and held bytes of the arena, the largest over a first and a second run.

    Kernels' workspace is included, initializers are not.

    Args:
        graph: the graph.
        order: the order in which it runs.
        options: "default" or "recommended".
        threads: of the session (convolutions take a buffer for each).
    """
    runs = simulate(graph, order, SETTINGS[options], threads=threads)
    return ArenaForecast(
        options=options,
        in_use_bytes=max(run.peak for run in runs),
        held_bytes=max(max(run.held, default=0) for run in runs),
    )


def simulate(
    graph: TrainingGraph,
    order: Sequence[OpId],
    settings: ArenaSettings,
    *,
    runs: int = 2,
    threads: int = 0,
    host_in_arena: bool = False,
    reserved: Sequence[int] = (),
    fed: Sequence[int] = (),
) -> tuple[RunTrace, ...]:
    """Arena bytes of consecutive runs; the caller drops a run's outputs before the next.

    Args:
        threads: of the session: kernels' temporary bytes are counted for that many; 0 counts none.
        host_in_arena: count tensors on the host as well, as the CPU provider does.
        reserved: sizes of what the session takes before the first run and keeps.
        fed: sizes of what each run takes before its first node and keeps to its end (feeds, on a
            device).

    Raises:
        ArenaFullError: `settings.limit_bytes` does not suffice.
    """
    placement = place(graph, order, reuse=settings.reuse, host_in_arena=host_in_arena)
    arena = Arena(
        growth=settings.growth,
        initial_chunk_bytes=settings.initial_chunk_bytes,
        max_dead_bytes=settings.max_dead_bytes,
        limit_bytes=settings.limit_bytes,
    )
    for size in reserved:
        arena.allocate(size)
    scratch = workspace(graph, threads=threads) if threads else {}
    layout: PatternLayout | None = None
    traces: list[RunTrace] = []
    for _ in range(runs):
        feeds = [arena.allocate(size) for size in fed]
        tracing = PatternLayout() if settings.pattern and layout is None else None
        pattern_block = None
        if layout is not None and layout.size:
            try:
                pattern_block = arena.allocate(layout.size)
            except ArenaFullError:
                pattern_block = None  # ONNX Runtime then allocates one by one
        in_pattern = pattern_block is not None
        traces.append(_run(order, graph, placement, arena, tracing, in_pattern, scratch))
        if pattern_block is not None:
            arena.release(pattern_block)
        for block in feeds:
            arena.release(block)
        layout = layout or tracing
    return tuple(traces)


def _run(
    order: Sequence[OpId],
    graph: TrainingGraph,
    placement: AllocationPlan,
    arena: Arena,
    tracing: PatternLayout | None,
    in_pattern: bool,
    workspace: Mapping[OpId, Workspace],
) -> RunTrace:
    blocks: dict[TensorId, Block] = {}
    requested, in_use, held = [], [], []
    peak = 0
    for step, op in enumerate(order):
        taken = workspace.get(op, _NONE)
        scratch = [arena.allocate(size) for size in taken.before]
        for tensor in graph.operations[op].outputs:
            kind, size = placement.kind[tensor], graph.tensors[tensor].bytes
            if kind is Kind.SHARED or not size or (in_pattern and kind is Kind.OWN):
                continue
            blocks[tensor] = arena.allocate(size)
            if tracing is not None and kind is Kind.OWN:
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


class Kind(enum.Enum):
    """How a tensor gets its storage."""

    OWN = "a buffer of its own, freed after its last reader"
    OUTPUT = "a graph output: never shared, never in the memory pattern"
    SHARED = "another tensor's buffer"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationPlan:
    """Which tensors allocate, and which of them are freed after each step."""

    kind: Mapping[TensorId, Kind]
    freed_after: Sequence[Sequence[TensorId]]


def place(
    graph: TrainingGraph, order: Sequence[OpId], *, reuse: bool, host_in_arena: bool
) -> AllocationPlan:
    """ONNX Runtime's allocation plan: use counts per buffer, free buffers last in, first out."""
    tensors = graph.tensors
    kind: dict[TensorId, Kind] = {}
    buffer: dict[TensorId, TensorId] = {t.id: t.id for t in tensors}
    uses = {t.id: 1 if t.producer is None else 0 for t in tensors}
    for op in order:
        for tensor in (*graph.operations[op].inputs, *graph.operations[op].outputs):
            uses[tensor] += 1
    for tensor in graph.outputs:
        uses[tensor] += 1
    # freed buffers of one size class, most recently freed last
    free: dict[tuple[object, ...], list[TensorId]] = {}
    last: dict[TensorId, int] = {}

    def share(source: TensorId, target: TensorId) -> None:
        root = buffer[source]
        buffer[target] = root
        uses[root] += uses[target]
        kind[target] = Kind.SHARED

    def size_class(tensor: TensorId) -> tuple[object, ...]:
        return (t := tensors[tensor]).shape, t.bytes, t.on_host, t.unsized

    for step, op in enumerate(order):
        operation = graph.operations[op]
        for index, tensor in enumerate(operation.outputs):
            t = tensors[tensor]
            if t.is_output:
                kind[tensor] = Kind.OUTPUT
            elif t.on_host and not host_in_arena:
                kind[tensor] = Kind.SHARED
            elif operation.is_view and index == 0:
                share(operation.inputs[0], tensor)
            elif t.buffer != tensor:
                share(t.buffer, tensor)
            elif (source := _inplace_source(operation.inplace, tensor, buffer, uses)) is not None:
                share(source, tensor)
            elif reuse and t.shape and t.consumers and free.get(size_class(tensor)):
                share(free[size_class(tensor)].pop(), tensor)
            else:
                kind[tensor] = Kind.OWN
        for tensor in (*operation.inputs, *operation.outputs):
            root = buffer[tensor]
            uses[root] -= 1
            if uses[root] == 0 and kind.get(root) is Kind.OWN and not tensors[root].unsized:
                free.setdefault(size_class(root), []).append(root)
        for tensor in operation.inputs:
            last[buffer[tensor]] = step
    freed: list[list[TensorId]] = [[] for _ in order]
    for root, step in last.items():
        if kind.get(root) is Kind.OWN:
            freed[step].append(root)
    return AllocationPlan(kind=kind, freed_after=freed)


def _inplace_source(
    pairs: Sequence[tuple[TensorId, TensorId]],
    target: TensorId,
    buffer: Mapping[TensorId, TensorId],
    uses: Mapping[TensorId, int],
) -> TensorId | None:
    for source, output in pairs:
        if output == target and uses[buffer[source]] == 1:
            return source
    return None


def least_cap(graph: TrainingGraph, order: Sequence[OpId], *, threads: int = 1) -> int:
    """Bytes of the least arena in one region in which two runs of `order` fit.

    Not below the peak, workspace and small initializers included; above it by rounding and by what
    fragmentation costs in that order. Found by bisection: the bytes returned are checked to fit.
    """
    (trace,) = simulate(graph, order, RECOMMENDED, runs=1, threads=threads)
    low = round_up(max(trace.peak + reserved_bytes(graph), ROUNDING))
    if fits(graph, order, low, threads=threads):
        return low
    high = low + round_up(low // 16 + 1)
    while not fits(graph, order, high, threads=threads):
        low, high = high, high + 2 * (high - low)
    while high - low > ROUNDING:
        middle = round_up((low + high) // 2)
        if middle >= high:
            middle = high - ROUNDING
        if fits(graph, order, middle, threads=threads):
            high = middle
        else:
            low = middle
    return high


def fits(
    graph: TrainingGraph,
    order: Sequence[OpId],
    cap_bytes: int,
    *,
    threads: int = 1,
    host_in_arena: bool = False,
    first_region_bytes: int | None = None,
) -> bool:
    """Whether two runs, with small initializers, fit in an arena of `cap_bytes`."""
    settings = capped(cap_bytes, first_region_bytes)
    try:
        simulate(
            graph,
            order,
            settings,
            threads=threads,
            host_in_arena=host_in_arena,
            reserved=_reserved_sizes(graph),
        )
    except ArenaFullError:
        return False
    return True


def first_regions(
    graph: TrainingGraph, order: Sequence[OpId], cap_bytes: int, *, threads: int = 1
) -> Iterator[int]:
    """First regions with which two runs of `order` are predicted to fit in `cap_bytes`.

    Regions double and never merge. A small first region keeps small buffers, which live long, out
    of the large ones that big buffers need whole: it can save more than a third of the arena.
    """
    for size in _region_sizes(cap_bytes, len(order)) if cap_bytes > 0 else ():
        if fits(graph, order, cap_bytes, threads=threads, first_region_bytes=size):
            yield size


def first_region(
    graph: TrainingGraph, order: Sequence[OpId], cap_bytes: int, *, threads: int = 1
) -> int | None:
    """The first of `first_regions`; None where there is none."""
    return next(first_regions(graph, order, cap_bytes, threads=threads), None)


def _region_sizes(cap_bytes: int, nodes: int) -> list[int]:
    """First regions to try: shares of the cap, then evenly spaced by ratio from the least."""
    count = max(20, min(_MOST_REGIONS, _MOST_REGIONS * _NODES // max(1, nodes)))
    sizes = [cap_bytes // d for d in _SHARES]
    if cap_bytes > _LEAST_REGION:
        ratio = (cap_bytes / _LEAST_REGION) ** (1 / count)
        sizes += [int(_LEAST_REGION * ratio**i) for i in range(count)]
    rounded = (min(size, MOST_FIRST_REGION) // ROUNDING * ROUNDING for size in sizes)
    return [size for size in dict.fromkeys(rounded) if size]


def roomy_cap(
    graph: TrainingGraph, order: Sequence[OpId], *, at_least: int = 0, threads: int = 1
) -> tuple[int, int]:
    """(cap, first region): about the least arena that fits, in steps of 2% of the peak in use."""
    (trace,) = simulate(graph, order, RECOMMENDED, runs=1, threads=threads)
    peak = trace.peak + sum(round_up(size) for size in _reserved_sizes(graph))
    cap = round_up(max(peak, at_least, ROUNDING))
    while (size := first_region(graph, order, cap, threads=threads)) is None:
        cap += round_up(peak // 50 + 1)
    return cap, size


def _reserved_sizes(graph: TrainingGraph) -> tuple[int, ...]:
    """Initializers that the session copies into the arena, for its whole life."""
    return tuple(
        t.bytes
        for t in graph.tensors
        if t.is_initializer and t.consumers and 0 < t.bytes <= RESERVED_LIMIT
    )


def reserved_bytes(graph: TrainingGraph) -> int:
    """Bytes of the initializers that the session copies into the arena, without rounding."""
    return sum(_reserved_sizes(graph))
