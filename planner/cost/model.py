"""Operation times from a roofline model.

    time = max(flops / reachable flops, bytes / reachable bandwidth) + overhead

Reachable is the profile's peak times its efficiency. A view costs nothing. A copy to or from the
host costs its bytes over the link. Nothing overlaps: the sum over operations is the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from planner.cost.hardware import Hardware
from planner.cost.work import Unit, Work, work_of
from planner.graph.model import Operation, Role, TrainingGraph

_RATE_OF = {"double": "fp64", "float": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def durations_us(
    graph: TrainingGraph, hardware: Hardware
) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Return the microseconds of each operation by OpId, and the assumptions made, one sentence each."""
    durations: list[float] = []
    unknown: Counter[str] = Counter()
    for op in graph.operations:
        work = work_of(graph, op)
        if not work.known:
            unknown[f"{op.domain}.{op.op_type}" if op.domain else op.op_type] += 1
        durations.append(_modelled_us(work, graph, op, hardware))
    return tuple(durations), _assumptions(hardware, unknown)


def durations_of_changed(
    graph: TrainingGraph,
    original: TrainingGraph,
    original_us: Sequence[float],
    hardware: Hardware,
) -> tuple[float, ...]:
    """Return the microseconds by OpId of a graph with added nodes.

    Operations of the original keep their times, matched by name; added nodes get roofline times.
    """
    known = {op.name: original_us[op.id] for op in original.operations}
    return tuple(
        known[op.name]
        if op.name in known
        else _modelled_us(work_of(graph, op), graph, op, hardware)
        for op in graph.operations
    )


def fused_us(
    graph: TrainingGraph,
    members: Sequence[Operation],
    known_us: Sequence[float],
    moved_bytes: int,
    hardware: Hardware,
) -> float:
    """Estimate the microseconds of one node that replaces several operations.

    Their time shrinks in proportion to the bytes that are still moved, but not below the time of
    their arithmetic.

    Args:
        graph, known_us: graph of the operations, and their times by OpId.
        moved_bytes: bytes that the node reads and writes.
    """
    work = [work_of(graph, op) for op in members]
    moving_us = sum(max(0.0, known_us[op.id] - hardware.op_overhead_us) for op in members)
    share = min(1.0, moved_bytes / max(1, sum(one.bytes for one in work)))
    arithmetic_us = sum(
        duration_us(replace(one, bytes=0), _rate_name(graph, op), hardware)
        - hardware.op_overhead_us
        for one, op in zip(work, members, strict=True)
    )
    return max(share * moving_us, arithmetic_us) + hardware.op_overhead_us


def _modelled_us(work: Work, graph: TrainingGraph, op: Operation, hardware: Hardware) -> float:
    if op.role in (Role.PAGE_IN, Role.PAGE_OUT):
        hardware = hardware.paged()
    return duration_us(work, _rate_name(graph, op), hardware, is_view=op.is_view)


def duration_us(work: Work, dtype: str, hardware: Hardware, *, is_view: bool = False) -> float:
    """Return the microseconds of one operation.

    Args:
        dtype: "fp64", "fp32", "fp16" or "bf16"; a type that the profile lacks runs at fp32's rate.
    """
    if is_view:
        return 0.0
    if work.unit is Unit.COPY_OUT:
        return work.bytes / hardware.copy_to_host_bytes_per_s * 1e6 + hardware.op_overhead_us
    if work.unit is Unit.COPY_IN:
        return work.bytes / hardware.copy_from_host_bytes_per_s * 1e6 + hardware.op_overhead_us
    matrix = work.unit is Unit.MATRIX
    rates = hardware.matrix_flops_per_s if matrix else hardware.vector_flops_per_s
    peak = rates.get(dtype, rates["fp32"])
    compute_s = work.flops / (peak * hardware.compute_efficiency)
    memory_s = work.bytes / (hardware.memory_bytes_per_s * hardware.memory_efficiency)
    return max(compute_s, memory_s) * 1e6 + hardware.op_overhead_us


def _rate_name(graph: TrainingGraph, op: Operation) -> str:
    """Return the rate's type of an operation: its first floating-point value's; fp32 for integers."""
    for tensor in (*op.inputs, *op.outputs):
        rate = _RATE_OF.get(graph.tensors[tensor].dtype)
        if rate is not None:
            return rate
    return "fp32"


def _assumptions(hardware: Hardware, unknown: Counter[str]) -> tuple[str, ...]:
    percent = round(100 * hardware.compute_efficiency), round(100 * hardware.memory_efficiency)
    found = [
        f"operation times are a roofline of {hardware.title} at {percent[0]}% of its arithmetic "
        f"and {percent[1]}% of its memory peak, plus {hardware.op_overhead_us:g} µs each"
    ]
    if unknown:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        found.append(
            f"no rule for the arithmetic of {listed}: only the bytes they move are counted"
        )
    return tuple(found)
