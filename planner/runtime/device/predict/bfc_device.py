"""Predict the bytes of ONNX Runtime's arena on a device: the CUDA provider's memory.

The allocator is the CPU's (`planner.runtime.memory.bfc`), but more values go through it:

    feeds         copied to the device before the first node, freed when the run ends
                  (CopyInputsAcrossDevices in onnxruntime/core/framework/utils.cc)
    outputs       on the device until they are fetched
    initializers  with the memory pattern, one block beside the arena's regions, counted in the arena's
                  held bytes (`Reserve`: onnxruntime/core/framework/tensor_allocator_with_mem_pattern.h);
                  without it, a chunk of the arena each (simple_tensor_allocator.h)

Kernels' workspace, and the memory of the CUDA context and its libraries, are not counted. The
placement of buffers is `planner.runtime.memory.arena`'s. The rules follow the source at 1.25.0
(commit 735e69a396af). On an H100, with 1.31.1, the held bytes of models without convolutions were
within 0.6% of the prediction, memory pattern and reuse off (`reports/cuda.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.graph.model import OpId, TrainingGraph
from planner.results import ArenaForecast
from planner.runtime.memory.arena import ArenaSettings, Demand, demand_of, simulate
from planner.runtime.memory.bfc import ArenaFullError, round_up


def device_demand(
    graph: TrainingGraph,
    order: Sequence[OpId],
    *,
    reuse: bool = False,
    initializers: Sequence[int] | None = None,
    fed: Sequence[int] | None = None,
) -> Demand:
    """Return a run's demand on the device's arena, initializers included; arguments as for
    `forecast_arena`."""
    demand = demand_of(graph, order, reuse=reuse)
    kept = initializer_bytes(graph) if initializers is None else initializers
    feeds = fed_bytes(graph) if fed is None else fed
    return replace(
        demand,
        reserved=tuple(size for size in kept if size > 0),
        fed=(*demand.fed, *(size for size in feeds if size > 0)),
    )


def forecast_arena(
    graph: TrainingGraph,
    order: Sequence[OpId],
    settings: ArenaSettings,
    *,
    runs: int = 2,
    initializers: Sequence[int] | None = None,
    fed: Sequence[int] | None = None,
) -> ArenaForecast:
    """Predict the peaks of bytes that the device's arena holds and has in use over `runs` runs in a
    row.

    Args:
        settings: growth `Growth.EXACT` for kSameAsRequested, `Growth.DOUBLING` for the provider's
            default, kNextPowerOfTwo.
        initializers: sizes of initializers on the device; by default all that are read.
        fed: sizes of graph inputs on the device; by default all that nodes other than a MemcpyFromHost
            read.

    Raises:
        ArenaFullError: `settings.limit_bytes` does not suffice.
    """
    demand = device_demand(graph, order, reuse=settings.reuse, initializers=initializers, fed=fed)
    beside = 0
    if settings.pattern:
        beside = sum(round_up(size) for size in demand.reserved)
        demand = replace(demand, reserved=())
    if settings.limit_bytes is not None:
        if beside > settings.limit_bytes:
            raise ArenaFullError(
                f"{beside} bytes of initializers, {settings.limit_bytes} available"
            )
        settings = replace(settings, limit_bytes=settings.limit_bytes - beside)
    traces = simulate(graph, order, settings, runs=runs, demand=demand)
    return ArenaForecast(
        options="default" if settings.pattern else "recommended",
        in_use_bytes=max((trace.peak for trace in traces), default=0) + beside,
        held_bytes=max((held for trace in traces for held in trace.held), default=0) + beside,
    )


def fed_bytes(graph: TrainingGraph) -> tuple[int, ...]:
    """Return the sizes of the graph inputs that ONNX Runtime copies to the device before the first
    node.

    An input that only a MemcpyFromHost reads stays on the host until then.
    """
    return tuple(
        t.bytes
        for t in (graph.tensors[i] for i in graph.inputs)
        if not t.is_initializer
        and not t.on_host
        and any(graph.operations[op].op_type != "MemcpyFromHost" for op in t.consumers)
    )


def initializer_bytes(graph: TrainingGraph) -> tuple[int, ...]:
    """Return the sizes of the initializers that are read on the device."""
    return tuple(
        t.bytes for t in graph.tensors if t.is_initializer and not t.on_host and t.consumers
    )
